#include "infer/mindir_updates.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace opgraft::mindir {

void Updates::add(const std::vector<ValueId> &values, NodeId node) {
  ++count_;
  last_ = node;
  for (ValueId v : values) nodes_[v].emplace_back(count_, node);
}

ValueId Updates::at(ValueId v, int64_t version) {
  auto found = nodes_.find(v);
  if (found == nodes_.end()) return v;
  auto next = std::upper_bound(found->second.begin(), found->second.end(), version,
                               [](int64_t n, auto &update) { return n < update.first; });
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
