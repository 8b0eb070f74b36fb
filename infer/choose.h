// Which implementation of an operator a plan calls, where several are registered.
#pragma once

#include <vector>

#include "infer/attrs.h"
#include "infer/native.h"

namespace opgraft {

// The fastest of `op`'s implementations for these inputs, measured once per signature and process
// (registry/choice.h); `op` itself where it has a state or none serves. Inputs without data are taken as zeros.
OpPtr fastest(const OpPtr &op, const std::vector<opgraft_tensor> &inputs, const FlatAttrs &attrs,
              const std::vector<TensorType> &outputs);

}  // namespace opgraft
