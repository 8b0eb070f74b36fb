#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "infer/passes/passes.h"
#include "infer/passes/pattern.h"

namespace opgraft::passes {

std::string Report::json() const {
  nlohmann::json s = nlohmann::json::array(), l = nlohmann::json::array();
  for (auto &x : swapped)
    s.push_back({{"op", x.op},
                 {"node", x.node},
                 {"max_abs", x.max_abs},
                 {"mean_abs", x.mean_abs},
                 {"ms_before", x.ms_before},
                 {"ms_after", x.ms_after}});
  for (auto &x : left) l.push_back({{"op", x.op}, {"node", x.node}, {"why", x.why}});
  return nlohmann::json{{"matched", matched}, {"swapped", s}, {"left", l}}.dump(2);
}

std::vector<Rule> rules_of(const Registry &registry) {
  // Rules over primitives first, then those over other ops of ours, and larger patterns before smaller
  // ones, so that a fused op is built up from what is already fused.
  struct Sized {
    Rule rule;
    size_t level, size;
  };
  std::vector<Sized> all;
  std::set<std::string> grafts;
  auto ops = registry.list();
  for (auto &op : ops)
    if (!op->manifest.replaces.empty()) grafts.insert(op->name());
  for (auto &op : ops) {
    if (registry.resolve(op->name()) != op) continue;  // an older version
    for (auto &program : op->manifest.replaces) {
      Pattern p = parse_pattern(program, op->spec());
      size_t level = 0;
      for (auto &c : p.calls) level += grafts.count(c.op);
      all.push_back({{op->spec(), op->spec(), program, nullptr, nullptr}, level, p.calls.size()});
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](auto &a, auto &b) { return a.level != b.level ? a.level < b.level : a.size > b.size; });
  std::vector<Rule> out;
  for (auto &s : all) out.push_back(std::move(s.rule));
  return out;
}

}  // namespace opgraft::passes
