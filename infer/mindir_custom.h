// Custom nodes of a file: which operator they mean, and with which attributes.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "infer/mindir_items.h"
#include "infer/mindir_wire.h"
#include "registry/registry.h"

namespace opgraft::mindir {

using Literals = std::map<std::string, Literal, std::less<>>;

// The attributes with those that a call gave as trailing arguments, which MindSpore writes as operands: `input_names`
// has a name for each operand, `attr_names` says which are attributes. They leave `operands`. Empty where there are
// none.
Literals take_trailing(const Items &items, std::vector<size_t> &operands, const Literals &attrs);

struct CustomNode {
  OpPtr impl;
  std::string op;    // what add_node is to resolve
  std::string spec;  // of opgraft_spec
  Attrs attrs;       // of a function made for MindSpore, complete; else empty
};

// `outputs` are the abstracts that the file states for the node: they stand in where neither the file
// nor the function says more. `beside` is the model's folder. Throws where the operator is unknown or may not be
// loaded.
CustomNode find_custom(const Registry &registry, const Literals &attrs, const std::vector<TensorProto> &outputs,
                       const std::filesystem::path &beside);

// The abstracts in a node's own attributes.
std::vector<TensorProto> outputs_of(const NodeProto &node);

}  // namespace opgraft::mindir
