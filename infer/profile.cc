#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "infer/session.h"

namespace opgraft {

std::string profile_json(Session &session, const std::vector<Tensor> &inputs, int runs) {
  struct Cost {
    std::vector<double> us;
  };
  std::map<NodeId, Cost> costs;
  session.run(inputs);  // plans and warms up
  session.set_observer(
      [&](NodeId node, const opgraft_call &, int64_t ns) { costs[node].us.push_back(double(ns) / 1000); });
  try {
    for (int i = 0; i < std::max(1, runs); ++i) session.run(inputs);
  } catch (...) {
    session.set_observer({});
    throw;
  }
  session.set_observer({});
  auto median = [](std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + long(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  double total = 0;
  std::map<std::string, std::pair<int, double>> by_op;
  const Graph &g = session.graph();
  nlohmann::json nodes = nlohmann::json::array();
  for (auto &[id, c] : costs) {
    double us = median(c.us);
    total += us;
    auto &sum = by_op[g.node(id).op];
    ++sum.first;
    sum.second += us;
    nodes.push_back({{"node", g.node(id).name}, {"op", g.node(id).op}, {"us", us}});
  }
  nlohmann::json ops = nlohmann::json::array();
  for (auto &[op, sum] : by_op)
    ops.push_back(
        {{"op", op}, {"count", sum.first}, {"us", sum.second}, {"share", total > 0 ? sum.second / total : 0}});
  std::sort(ops.begin(), ops.end(), [](auto &a, auto &b) { return a["us"] > b["us"]; });
  return nlohmann::json{{"runs", runs},
                        {"total_us", total},
                        {"arena_bytes", session.arena_bytes()},
                        {"intermediate_bytes", session.intermediate_bytes()},
                        {"ops", ops},
                        {"nodes", nodes}}
      .dump(2);
}

}  // namespace opgraft
