// Values that follow from a model's constants and Parameters alone.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "infer/graph.h"

namespace opgraft {

// What nodes of constants and Parameters alone give, computed once a model instead of at every call, so that operators
// see a constant, which they may pack: MindSpore's MultiheadAttention multiplies by parts of one Parameter. Not what
// is larger than what it is made of (an int8 weight as floats), which costs less to compute than to keep, nor more in
// all than the constants themselves; not of a Parameter that is updated, here or by another graph; not what a node may
// write to; nothing of an operator that fails, which does so at the call. Where a result's bytes stand one after
// another in the first input, as a Reshape's and a Split's of rows, they stay there. Immutable.
class Derived {
 public:
  Derived() = default;
  explicit Derived(const Graph &graph);
  // Whether the node has run here.
  bool has(NodeId id) const { return size_t(id) < done_.size() && done_[size_t(id)]; }
  // Null where only nodes that have run use it.
  const Tensor *find(ValueId v) const;
  size_t bytes() const { return bytes_; }  // of memory that no constant has

 private:
  void run(const Node &n, const std::vector<const Tensor *> &inputs);
  void drop(ValueId v);
  std::vector<char> done_;  // by node
  std::map<ValueId, Tensor> values_;
  std::map<std::weak_ptr<void>, size_t, std::owner_less<>> made_;  // bytes of what was allocated here
  size_t bytes_ = 0;
};

}  // namespace opgraft
