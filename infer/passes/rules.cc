#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "infer/passes/passes.h"
#include "infer/passes/pattern.h"
#include "registry/library.h"

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
  nlohmann::json out{{"matched", matched}, {"merged", merged}, {"swapped", s}, {"left", l}};
  if (!note.empty()) out["note"] = note;
  return out.dump(2);
}

static void warn_once(const std::string &line) {
  static std::mutex mutex;
  static std::set<std::string> said;
  std::lock_guard lock(mutex);
  if (said.insert(line).second) fmt::print(stderr, "{}\n", line);
}

// Every spelling in an op's `replaces:`; of one that is wrong, a line on stderr.
static std::vector<std::pair<std::string, std::shared_ptr<const Pattern>>> patterns_of(const Op &op,
                                                                                       const Registry &registry) {
  std::vector<std::pair<std::string, std::shared_ptr<const Pattern>>> out;
  const auto or_say = [&](auto &&read) {
    try {
      read();
    } catch (const Error &e) {
      warn_once(fmt::format("opgraft: {}: left out: {}", op.path, e.what()));
    }
  };
  for (auto &program : op.manifest.replaces)
    or_say([&] {
      for (auto &spelling : spellings(program, op.spec()))
        or_say([&] {
          out.emplace_back(spelling, std::make_shared<Pattern>(op_pattern(spelling, op.manifest, find_in(registry))));
        });
    });
  return out;
}

static std::vector<Rule> read_rules(const Registry &registry) {
  // Rules over primitives first, then those over other ops of ours, and larger patterns before smaller
  // ones, so that a fused op is built up from what is already fused; but a rule for constants of a kind, as sparse
  // ones, which hold for few graphs and gain more there, before all of its level. Before all of them those that merely
  // spell another primitive as one that patterns are made of, MatMul for MatMulExt, and then those that take in what
  // lies before such a one: a Transpose. After all of them those that say so, what others may make more of, and those
  // of siblings, any that share an input, of which each may be what another rule is for.
  struct Sized {
    Rule rule;
    std::string op;
    std::set<std::string> calls;
    size_t size, level = 0;
    bool constants = false, late = false, siblings = false;
  };
  std::vector<Sized> all;
  std::set<std::string> grafts, fusing, called;
  for (auto &op : registry.list()) {
    if (registry.resolve(op->name()) != op) continue;  // an older version
    for (auto &[program, parsed] : patterns_of(*op, registry)) {
      const Pattern &p = *parsed;
      // What is looked for may lie behind several calls: where it is there, other patterns match better without these.
      const auto sought = std::count_if(p.settings.begin(), p.settings.end(), [&](auto &s) { return p.sought(s); });
      const size_t size = p.calls.size() + 16 * size_t(sought);
      all.push_back({{op->spec(), op->spec(), program, nullptr, nullptr}, op->name(), {}, size});
      all.back().rule.parsed = parsed;
      all.back().constants = std::any_of(p.settings.begin(), p.settings.end(), [](auto &s) {
        return s.kind == Pattern::Setting::kDensity || s.kind == Pattern::Setting::kTurns;
      });
      all.back().late = p.late;
      all.back().siblings = p.siblings();
      for (auto &c : p.calls) {
        all.back().calls.insert(c.op);
        if (c.op != op->name()) called.insert(c.op);
      }
      grafts.insert(op->name());
      // One that depends on a constant's numbers is no spelling: a product is not always a sparse one.
      const bool takes_in = p.calls[size_t(p.results[0].node)].op == op->name();
      if ((p.calls.size() > 1 && !takes_in) || all.back().constants) fusing.insert(op->name());
    }
  }
  auto spells = [&](const std::string &op) { return called.count(op) && grafts.count(op) && !fusing.count(op); };
  // After the rules that make what it is written in. A few rounds: operators may be written in each other.
  // By operator: the level that its own rules end at, without those on top of it and with them. A layer takes its
  // activation before another operator takes the layer.
  std::map<std::string, size_t> made, grown;
  for (int round = 0; round < 4; ++round)
    for (auto &s : all) {
      if (spells(s.op)) continue;
      s.level = 1;
      bool itself = false;
      for (auto &c : s.calls) {
        if (grafts.count(c) && !spells(c)) s.level += std::max<size_t>((c == s.op ? made : grown)[c], 1);
        itself = itself || c == s.op;
      }
      if (!itself) made[s.op] = std::max(made[s.op], s.level);
      grown[s.op] = std::max(grown[s.op], s.level);
    }
  std::stable_sort(all.begin(), all.end(), [](auto &a, auto &b) {
    const auto order = [](auto &s) {
      return std::tuple(s.siblings, s.late, s.level, !s.constants, s.level == 0 ? int64_t(s.size) : -int64_t(s.size));
    };
    return order(a) < order(b);
  });
  std::vector<Rule> out;
  for (auto &s : all) out.push_back(std::move(s.rule));
  return out;
}

std::vector<Rule> rules_of(const Registry &registry) {
  // Thousands of spellings take a tenth of a second to read: kept for as long as the operators stay the same.
  static std::mutex mutex;
  static std::vector<std::weak_ptr<const Op>> known;
  static std::vector<Rule> rules;
  const auto ops = registry.list();
  std::lock_guard lock(mutex);
  const auto same = [](auto &a, auto &b) { return a.lock() == b; };
  if (rules.empty() || !std::equal(known.begin(), known.end(), ops.begin(), ops.end(), same)) {
    rules = read_rules(registry);
    known.assign(ops.begin(), ops.end());
  }
  return rules;
}

Check examine_replaces(const std::filesystem::path &file, const Registry &registry) {
  auto library = Library::open(file, {});
  auto registered = find_in(registry);
  auto find = [&](const std::string &name) {
    for (auto &e : library->entries())
      if (e.manifest.name == name) return &e.manifest;
    return registered(name);
  };
  size_t patterns = 0;
  std::string wrong;
  for (auto &e : library->entries())
    for (auto &program : e.manifest.replaces) try {
        for (auto &spelling : spellings(program, e.manifest.name + "@" + e.manifest.version)) {
          ++patterns;
          op_pattern(spelling, e.manifest, find, true);
        }
      } catch (const Error &error) {
        wrong += (wrong.empty() ? "" : "; ") + std::string(error.what());
      }
  if (!wrong.empty()) return {"replaces", wrong, false};
  return {"replaces", patterns ? fmt::format("{} pattern{}", patterns, patterns == 1 ? "" : "s") : "no pattern", true};
}

}  // namespace opgraft::passes
