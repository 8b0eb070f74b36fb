// The updates that a file's nodes make of Parameters and inputs, in order, while it is read. MindIR says of a read
// under which monad it stands; a graph's node reads what there is when it runs.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "infer/graph.h"

namespace opgraft::mindir {

class Updates {
 public:
  Updates(Graph &graph, const Registry &registry) : graph_(graph), registry_(registry) {}

  // How many there were. A value that was read after the first n of them has version n.
  int64_t count() const { return count_; }
  bool any(ValueId v) const { return nodes_.count(v) != 0; }
  // The node is the next one, and changes these.
  void add(const std::vector<ValueId> &values, NodeId node);
  // v as it was at this version: v itself, or a copy taken before the update that came next.
  ValueId at(ValueId v, int64_t version);
  // Puts copies where they belong in the graph's order, which has them where they were asked for.
  void place();
  // The name of the node that made the last update.
  const std::string &last() const { return graph_.node(last_).name; }

 private:
  Graph &graph_;
  const Registry &registry_;
  int64_t count_ = 0;
  NodeId last_ = kNone;
  std::map<ValueId, std::vector<std::pair<int64_t, NodeId>>> nodes_;
  std::map<std::pair<ValueId, NodeId>, ValueId> copies_;
  std::vector<std::pair<NodeId, NodeId>> placed_;  // what is to run, before what
};

}  // namespace opgraft::mindir
