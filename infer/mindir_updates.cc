#include "infer/mindir_updates.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "infer/mindir_wire.h"

namespace opgraft::mindir {

namespace {
constexpr size_t kMostUnordered = 256;  // updates that a file leaves in no order
}

void Past::add(int64_t update) {
  if (update <= all) return;
  more.insert(update);
  while (!more.empty() && *more.begin() <= all + 1) all = std::max(all, *more.begin()), more.erase(more.begin());
  if (more.size() > kMostUnordered) refuse("too many updates of Parameters that are in no order");
}

void Past::join(const Past &other) {
  if (other.all > all) {
    all = other.all;
    while (!more.empty() && *more.begin() <= all + 1) all = std::max(all, *more.begin()), more.erase(more.begin());
  }
  for (int64_t update : other.more) add(update);
}

NodeId Updates::missing(ValueId v, const Past &past) const {
  auto found = nodes_.find(v);
  return found == nodes_.end() || past.has(found->second.back().first) ? kNone : found->second.back().second;
}

int64_t Updates::add(const std::vector<ValueId> &values, NodeId node) {
  ++count_;
  for (ValueId v : values) nodes_[v].emplace_back(count_, node);
  return count_;
}

ValueId Updates::at(ValueId v, const Past &past) {
  auto found = nodes_.find(v);
  if (found == nodes_.end()) return v;
  // Those of one value are in order: what has seen one has seen those before it.
  auto next =
      std::partition_point(found->second.begin(), found->second.end(), [&](auto &u) { return past.has(u.first); });
  if (next == found->second.end()) return v;
  auto [it, added] = copies_.try_emplace({v, next->second}, kNone);
  if (added) {
    NodeId copy = graph_.add_node(registry_, "TensorMove", {v}, {},
                                  fmt::format("{}.before_{}", graph_.value(v).name, graph_.node(next->second).name));
    placed_.emplace_back(copy, next->second);
    it->second = graph_.node(copy).outputs.at(0);
  }
  return it->second;
}

void Updates::place() {
  if (placed_.empty()) return;
  std::map<NodeId, std::vector<NodeId>> before;
  std::set<NodeId> moved;
  for (auto [copy, node] : placed_) before[node].push_back(copy), moved.insert(copy);
  std::vector<NodeId> order;
  for (NodeId id : graph_.order()) {
    if (moved.count(id)) continue;
    if (auto it = before.find(id); it != before.end()) order.insert(order.end(), it->second.begin(), it->second.end());
    order.push_back(id);
  }
  graph_.set_order(std::move(order));
}

}  // namespace opgraft::mindir
