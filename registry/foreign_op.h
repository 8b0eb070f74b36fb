// The native descriptor in front of a ForeignOp.
#pragma once

#include "registry/foreign.h"
#include "registry/registry.h"

namespace opgraft {

// `name` is the op's in the registry; `attrs` what its nodes may carry (functions.h tells of more).
OpPtr make_foreign_op(std::shared_ptr<const ForeignOp> foreign, const std::string &name,
                      const std::vector<ManifestAttr> &attrs);

}  // namespace opgraft
