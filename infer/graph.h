// The graph: SSA values and nodes in MindSpore primitive names.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "infer/attrs.h"
#include "infer/symbols.h"
#include "infer/tensor.h"
#include "registry/registry.h"

namespace opgraft {

using ValueId = int32_t;
using NodeId = int32_t;
constexpr int32_t kNone = -1;

struct Value {
  enum Kind { kInput, kConstant, kResult } kind = kResult;
  std::string name;
  TensorType type;
  Tensor constant;          // kConstant: its data (a weight stays mapped)
  NodeId producer = kNone;  // kResult
  int32_t index = 0;        // which output of the producer, or which graph input
  bool parameter = false;   // a constant that is a named Parameter (keeps its name in MindIR)
  // A Parameter that some node updates, whose data is only what it begins with, or that another graph updates, whose
  // data may change between two runs.
  bool state = false;
  // Known elements of a small int64 value, symbols included; empty optional: not known.
  std::optional<std::vector<int64_t>> known;
  bool stays() const { return kind == kConstant && !state; }  // its data may be read before it runs
};

struct Node {
  std::string op;    // primitive name
  std::string spec;  // what the registry resolves, "SwiGLU@^1"; empty: op
  std::string name;  // unique, for people
  std::vector<ValueId> inputs, outputs;
  Attrs attrs;
  OpPtr impl;                                   // resolved implementation
  std::shared_ptr<const class Graph> fallback;  // what this node replaced, over the node's inputs
  bool dead = false;
};

// A wrong model: node, op and the shapes that do not fit.
struct GraphError : std::runtime_error {
  int status;
  GraphError(int status, const std::string &what) : std::runtime_error(what), status(status) {}
};

class Graph {
 public:
  explicit Graph(std::string name = "main") : name(std::move(name)) {}

  ValueId add_input(std::string name, TensorType type);
  ValueId add_constant(Tensor data, std::string name = "", bool parameter = false, bool state = false);
  // Appends a node, resolves its op, checks dtypes and runs its infer function. Throws GraphError,
  // UnknownOp, Error. Returns the node; its outputs are new values.
  NodeId add_node(const Registry &registry, std::string op, std::vector<ValueId> inputs, Attrs attrs = {},
                  std::string name = "");
  // Runs infer of one node again (after its inputs changed); sets types and known values of outputs.
  void infer_node(NodeId id);
  // Shape and dtype inference over the whole graph, in order. Throws GraphError.
  void infer();

  const Value &value(ValueId id) const { return values_[size_t(id)]; }
  Value &value(ValueId id) { return values_[size_t(id)]; }
  const Node &node(NodeId id) const { return nodes_[size_t(id)]; }
  Node &node(NodeId id) { return nodes_[size_t(id)]; }
  size_t value_count() const { return values_.size(); }
  // Room for so many; a small graph is then made in one piece.
  void reserve(size_t values, size_t nodes) { values_.reserve(values), nodes_.reserve(nodes), order_.reserve(nodes); }
  // Nodes in execution order, dead ones left out.
  const std::vector<NodeId> &order() const { return order_; }
  void set_order(std::vector<NodeId> order) { order_ = std::move(order); }

  // Parameters that a node updates in place (`state: true` in op.yaml): every session has its own bytes of them.
  std::vector<ValueId> states() const;
  // Users of every value, one entry per use: by value id.
  std::vector<std::vector<NodeId>> users() const;
  // Replaces uses of `from` by `to` in all nodes and outputs.
  void replace_uses(ValueId from, ValueId to);
  // {the fallback's input, the value here} where a node with these inputs has it: one for one, of which constants may
  // be of no use. Of fewer inputs, as graphs may have that are made by hand: those that are no constants, each once.
  std::vector<std::pair<ValueId, ValueId>> fallback_inputs(const Graph &fallback,
                                                           const std::vector<ValueId> &inputs) const;
  // Puts what a node replaced in its place, as it was inferred then. False, and nothing is changed, where it has
  // nothing, or where that does not take and give what the node does, or a Parameter is updated.
  bool restore(NodeId id);
  // Drops dead nodes from the order, and renumbers nothing.
  void sweep();
  // The text a person reads: one line a node.
  std::string dump() const;
  // An independent copy that shares constants' bytes.
  std::shared_ptr<Graph> clone() const { return std::make_shared<Graph>(*this); }

  std::string name;
  std::vector<ValueId> inputs, outputs;
  std::vector<std::string> output_names;
  Symbols symbols;
  std::map<std::string, std::string> user_info;  // texts that go with the model, as MindIR's

 private:
  void declare_states(const Node &n);
  bool is_used(ValueId v) const;

  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<NodeId> order_;
};

using NodeAttrs = std::vector<std::shared_ptr<FlatAttrs>>;  // by node; null of dead ones
NodeAttrs flat_attrs(const Graph &graph);

}  // namespace opgraft
