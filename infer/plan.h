// A plan: what runs, in which order, on which bytes, for one signature of input shapes. Immutable.
#pragma once

#include <memory>
#include <vector>

#include "infer/derived.h"
#include "infer/graph.h"
#include "infer/native.h"
#include "infer/packing.h"

namespace opgraft {

// Where a tensor's bytes lie.
struct Place {
  enum Kind { kInput, kOutput, kConstant, kArena, kState } kind = kArena;
  int32_t index = 0;     // input, output or state number
  size_t offset = 0;     // kArena
  void *data = nullptr;  // kConstant
};

struct PlannedTensor {
  Place place;
  TensorType type;
};

struct Instruction {
  NodeId node = kNone;
  const Op *op = nullptr;
  const FlatAttrs *attrs = nullptr;  // of the Model
  int32_t first_tensor = 0;          // inputs, then outputs, in Plan::tensors
  int32_t n_inputs = 0, n_outputs = 0;
  size_t workspace_offset = 0, workspace_bytes = 0;
  std::vector<const void *> packed;  // per input; empty: none
};

// A node's operator refuses the sizes.
struct NodeError : GraphError {
  NodeId node;
  NodeError(const GraphError &e, NodeId node) : GraphError(e), node(node) {}
};

struct Plan {
  // Where operators that replaced others refused the sizes: the graph with those in their place, and its attributes.
  // Else the model's.
  std::shared_ptr<const Graph> graph;
  NodeAttrs attrs;
  std::vector<Shape> input_shapes;
  std::vector<PlannedTensor> tensors;  // of all instructions, in a row
  std::vector<Instruction> instructions;
  std::vector<TensorType> outputs;
  // Outputs that are no instruction's own result (an input, a constant, one value twice): copied.
  struct Copy {
    PlannedTensor from;
    int32_t output;
  };
  std::vector<Copy> copies;
  std::vector<OpPtr> ops;         // implementations chosen over the graph's own, kept alive
  std::vector<Tensor> constants;  // made at plan time: values known from shapes
  size_t arena_bytes = 0;         // what is allocated
  size_t intermediate_bytes = 0;  // sum of all intermediates and workspaces, unshared
};

// A node whose operator refuses the sizes runs as what it replaced. Throws GraphError, of the operator that refused
// first.
std::shared_ptr<const Plan> make_plan(const Graph &graph, const NodeAttrs &attrs, const Derived &derived,
                                      PackedWeights &weights, const std::vector<Shape> &input_shapes);

}  // namespace opgraft
