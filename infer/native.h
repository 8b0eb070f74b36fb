// Calls into an op's native descriptor, with its errors as exceptions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "infer/attrs.h"
#include "infer/symbols.h"
#include "infer/tensor.h"
#include "registry/registry.h"

namespace opgraft {

struct Inferred {
  std::vector<TensorType> types;
  std::vector<std::optional<std::vector<int64_t>>> values;
};

// Input count and dtypes against op.yaml. Throws Error.
void check_arguments(const Manifest &manifest, const std::vector<int32_t> &dtypes);
// The op's infer function. `symbols` may be null (concrete shapes). Throws Error.
Inferred infer_native(const Op &op, const std::vector<opgraft_tensor> &inputs, const FlatAttrs &attrs,
                      Symbols *symbols);
// The op's message for a status it returned on this thread.
std::string last_error(const Op &op, int status);
// The services ops get: the shared pool.
const opgraft_host *host();

}  // namespace opgraft
