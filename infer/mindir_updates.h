// The updates that a file's nodes make of Parameters and inputs, in order, while it is read. MindIR says of a read
// under which monad it stands; a graph's node reads what there is when it runs.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "infer/graph.h"

namespace opgraft::mindir {

// Updates that come before something, counted from 1: all of the first ones, and some that are in no order with others.
struct Past {
  int64_t all = 0;
  std::set<int64_t> more;  // larger than `all` + 1

  bool has(int64_t update) const { return update <= all || more.count(update); }
  void add(int64_t update);
  void join(const Past &other);
  bool operator==(const Past &) const = default;
};

class Updates {
 public:
  Updates(Graph &graph, const Registry &registry) : graph_(graph), registry_(registry) {}

  bool any(ValueId v) const { return nodes_.count(v) != 0; }
  Past all() const { return {count_, {}}; }
  // The last update of v that is not in the past; kNone where there is none.
  NodeId missing(ValueId v, const Past &past) const;
  // The node is the next one, and changes these. Its number.
  int64_t add(const std::vector<ValueId> &values, NodeId node);
  // v as it was then: v itself, or a copy taken before the update that came next.
  ValueId at(ValueId v, const Past &past);
  // Puts copies where they belong in the graph's order, which has them where they were asked for.
  void place();

 private:
  Graph &graph_;
  const Registry &registry_;
  int64_t count_ = 0;
  std::map<ValueId, std::vector<std::pair<int64_t, NodeId>>> nodes_;
  std::map<std::pair<ValueId, NodeId>, ValueId> copies_;
  std::vector<std::pair<NodeId, NodeId>> placed_;  // what is to run, before what
};

}  // namespace opgraft::mindir
