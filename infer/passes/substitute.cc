#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>

#include "infer/passes/passes.h"
#include "infer/passes/pattern.h"
#include "infer/passes/proof.h"

namespace opgraft::passes {
namespace {

// A value known from shapes alone (a Reshape's target), made anew from the shapes of `out`'s inputs.
ValueId shape_value(const Value &x, Graph &out, const Registry &registry) {
  auto scalar = [](int64_t k) {
    Tensor t(OPGRAFT_INT64, {});
    *t.data<int64_t>() = k;
    return t;
  };
  auto result = [&](const char *op, std::vector<ValueId> in, Attrs attrs = {}) {
    return out.node(out.add_node(registry, op, std::move(in), std::move(attrs))).outputs[0];
  };
  auto element = [&](int64_t k) -> ValueId {
    if (!is_symbol(k)) return out.add_constant(scalar(k));
    for (ValueId in : out.inputs) {
      auto &dims = out.value(in).type.dims;
      for (size_t i = 0; i < dims.size(); ++i)
        if (dims[i] == k) return result("TupleGetItem", {result("Shape", {in})}, {{"index", int64_t(i)}});
    }
    throw Error(OPGRAFT_INTERNAL, "substitute: " + x.name + " needs a size that no input of the subgraph has");
  };
  if (x.type.dims.empty()) return element(x.known->front());
  std::vector<ValueId> elements;
  for (int64_t k : *x.known) elements.push_back(element(k));
  return result("MakeTuple", elements);
}

// Copies nodes of `g` into `out`; `to` maps values already there. A node that itself replaced a
// subgraph is copied as that subgraph, so that a fallback holds what the model had in the beginning.
void copy_nodes(const Graph &g, const std::vector<NodeId> &nodes, Graph &out, std::map<ValueId, ValueId> &to,
                const Registry &registry) {
  auto value = [&](const Graph &from, ValueId v, std::map<ValueId, ValueId> &map) {
    auto it = map.find(v);
    if (it != map.end()) return it->second;
    const Value &x = from.value(v);
    if (x.kind == Value::kConstant) return map[v] = out.add_constant(x.constant, x.name, x.parameter);
    if (!x.known) throw Error(OPGRAFT_INTERNAL, "substitute: value " + x.name + " is not inside the subgraph");
    return map[v] = shape_value(x, out, registry);
  };
  for (NodeId id : nodes) {
    const Node &n = g.node(id);
    if (n.fallback) {
      std::map<ValueId, ValueId> inner;
      size_t next = 0;
      for (ValueId v : n.inputs)
        if (g.value(v).kind != Value::kConstant) {
          // The fallback's inputs are the node's non-constant inputs, each once.
          ValueId mine = value(g, v, to);
          bool known = std::any_of(inner.begin(), inner.end(), [&](auto &e) { return e.second == mine; });
          if (!known && next < n.fallback->inputs.size()) inner[n.fallback->inputs[next++]] = mine;
        }
      copy_nodes(*n.fallback, n.fallback->order(), out, inner, registry);
      for (size_t i = 0; i < n.fallback->outputs.size() && i < n.outputs.size(); ++i)
        to[n.outputs[i]] = inner.at(n.fallback->outputs[i]);
      continue;
    }
    std::vector<ValueId> in;
    for (ValueId v : n.inputs) in.push_back(value(g, v, to));
    NodeId copy = out.add_node(registry, n.spec.empty() ? n.op : n.spec, in, n.attrs, n.name);
    for (size_t i = 0; i < n.outputs.size(); ++i) to[n.outputs[i]] = out.node(copy).outputs[i];
  }
}

// The matched nodes as a graph over `inputs`.
std::shared_ptr<Graph> extract(const Graph &g, std::vector<NodeId> nodes, const std::vector<ValueId> &inputs,
                               const std::vector<ValueId> &results, const Registry &registry) {
  auto out = std::make_shared<Graph>("fallback");
  out->symbols = g.symbols;
  std::map<ValueId, ValueId> to;
  for (ValueId v : inputs) to[v] = out->add_input(g.value(v).name, g.value(v).type);
  std::vector<NodeId> ordered;
  std::set<NodeId> wanted(nodes.begin(), nodes.end());
  for (NodeId id : g.order())
    if (wanted.count(id)) ordered.push_back(id);
  copy_nodes(g, ordered, *out, to, registry);
  for (ValueId v : results) out->outputs.push_back(to.at(v));
  return out;
}

// Topological order that keeps the present one where it can. False on a cycle.
bool sort(Graph &g, const std::vector<NodeId> &preferred) {
  std::vector<int> position, waiting;
  std::vector<std::vector<NodeId>> users(g.value_count());
  NodeId most = -1;
  for (NodeId id : preferred) most = std::max(most, id);
  position.assign(size_t(most + 1), 0);
  waiting.assign(size_t(most + 1), 0);
  using Entry = std::pair<int, NodeId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  for (size_t i = 0; i < preferred.size(); ++i) position[size_t(preferred[i])] = int(i);
  for (NodeId id : preferred) {
    for (ValueId v : g.node(id).inputs)
      if (g.value(v).kind == Value::kResult) {
        users[size_t(v)].push_back(id);
        ++waiting[size_t(id)];
      }
    if (!waiting[size_t(id)]) ready.push({position[size_t(id)], id});
  }
  std::vector<NodeId> order;
  while (!ready.empty()) {
    NodeId id = ready.top().second;
    ready.pop();
    order.push_back(id);
    for (ValueId v : g.node(id).outputs)
      for (NodeId u : users[size_t(v)])
        if (--waiting[size_t(u)] == 0) ready.push({position[size_t(u)], u});
  }
  if (order.size() != preferred.size()) return false;
  g.set_order(std::move(order));
  return true;
}

double number(const AttrValue &v) {
  if (auto f = std::get_if<double>(&v)) return *f;
  if (auto i = std::get_if<int64_t>(&v)) return double(*i);
  throw Error(OPGRAFT_INVALID_VALUE, "pattern: 1/name needs a number");
}

class Substituter {
 public:
  Substituter(Graph &g, const Registry &registry, const std::set<std::string> &excluded)
      : g_(g), registry_(registry), excluded_(excluded) {}

  Report run(const std::vector<Rule> &rules) {
    for (auto &rule : rules) apply(rule);
    std::erase_if(report_.swapped, [&](auto &s) { return g_.node(s.id).dead; });
    return std::move(report_);
  }

 private:
  void apply(const Rule &rule) {
    Pattern pattern = rule.pattern ? pattern_of(*rule.pattern) : parse_pattern(rule.program, rule.name);
    OpPtr op = rule.op.empty() ? nullptr : registry_.resolve(rule.op);
    const std::string &root_op = pattern.calls[size_t(pattern.results[0].node)].op;
    users_ = g_.users();
    std::vector<NodeId> roots;
    for (NodeId id : g_.order())
      if (g_.node(id).op == root_op) roots.push_back(id);
    for (NodeId root : roots) {
      if (g_.node(root).dead) continue;
      Match m;
      if (!match(g_, pattern, op ? &op->manifest : nullptr, root, m)) continue;
      ++report_.matched;
      std::string node = g_.node(root).name;
      auto left = [&](const std::string &why) { report_.left.push_back({rule.name, node, why}); };
      if (excluded_.count(rule.name + "\n" + node)) continue;  // reported by the proof
      if (std::string why = used_outside(m); !why.empty()) {
        left(why);
        continue;
      }
      try {
        op ? put_op(rule, *op, pattern, m, root) : put_graph(rule, m, root);
      } catch (const std::exception &e) {
        left(e.what());
      }
    }
  }

  std::string used_outside(const Match &m) {
    std::set<NodeId> inside(m.nodes.begin(), m.nodes.end());
    std::set<ValueId> results(m.results.begin(), m.results.end());
    for (NodeId id : m.nodes)
      for (ValueId v : g_.node(id).outputs) {
        if (results.count(v)) continue;
        if (std::find(g_.outputs.begin(), g_.outputs.end(), v) != g_.outputs.end())
          return fmt::format("{} is an output of the model", g_.value(v).name);
        for (NodeId u : users_[size_t(v)])
          if (!g_.node(u).dead && !inside.count(u))
            return fmt::format("{} is used by {} as well", g_.value(v).name, g_.node(u).name);
      }
    return "";
  }

  void put_op(const Rule &rule, const Op &op, const Pattern &pattern, const Match &m, NodeId root) {
    std::vector<ValueId> inputs;
    for (auto &t : op.manifest.inputs) {
      auto it = m.values.find(t.name);
      if (it == m.values.end()) {
        if (t.optional) break;
        throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: the pattern does not bind input {}", rule.name, t.name));
      }
      inputs.push_back(it->second);
    }
    Attrs attrs;
    for (auto &[k, v] : m.attrs)
      if (op.manifest.attr(k)) attrs[k] = v;
    for (auto &s : pattern.settings) attrs[s.attr] = setting(s, pattern, m, op);
    finish(rule, m, root, {g_.add_node(registry_, op.spec(), inputs, attrs, op.name() + ":" + g_.node(root).name)},
           m.results.size());
  }

  AttrValue setting(const Pattern::Setting &s, const Pattern &pattern, const Match &m, const Op &op) {
    switch (s.kind) {
      case Pattern::Setting::kLiteral: return s.literal;
      case Pattern::Setting::kName: {
        if (auto it = m.attrs.find(s.name); it != m.attrs.end()) return it->second;
        auto *declared = op.manifest.attr(s.attr);
        if (declared && declared->kind == OPGRAFT_ATTR_STRING) return s.name;
        throw Error(OPGRAFT_INVALID_VALUE, fmt::format("pattern: {} is not bound", s.name));
      }
      case Pattern::Setting::kInverse: {
        if (auto it = m.attrs.find(s.name); it != m.attrs.end()) return 1.0 / number(it->second);
        ValueId v = bound(s.name, pattern, m);
        const Tensor &t = g_.value(v).constant;
        if (g_.value(v).kind != Value::kConstant || t.size() != 1 || t.dtype() != OPGRAFT_FLOAT32)
          throw Error(OPGRAFT_INVALID_VALUE, fmt::format("pattern: {} is no constant", s.name));
        return 1.0 / double(*t.data<float>());
      }
      default: {
        auto &dims = g_.value(bound(s.name, pattern, m)).type.dims;
        int64_t i = s.index < 0 ? s.index + int64_t(dims.size()) : s.index;
        if (i < 0 || i >= int64_t(dims.size()) || dims[size_t(i)] < 0)
          throw Error(OPGRAFT_INVALID_VALUE, fmt::format("dimension {} of {} is not a known number", s.index, s.name));
        return dims[size_t(i)];
      }
    }
  }
  ValueId bound(const std::string &name, const Pattern &pattern, const Match &m) {
    if (auto it = m.values.find(name); it != m.values.end()) return it->second;
    if (auto it = pattern.labels.find(name); it != pattern.labels.end())
      return g_.node(m.nodes[size_t(it->second.node)]).outputs[0];
    throw Error(OPGRAFT_INVALID_VALUE, fmt::format("pattern: {} is not bound", name));
  }

  void put_graph(const Rule &rule, const Match &m, NodeId root) {
    const Graph &r = *rule.replacement;
    std::map<ValueId, ValueId> to;
    for (ValueId v : r.inputs) {
      auto it = m.values.find(r.value(v).name);
      if (it == m.values.end())
        throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: the pattern does not bind {}", rule.name, r.value(v).name));
      to[v] = it->second;
    }
    std::vector<NodeId> made;
    for (NodeId id : r.order()) {
      const Node &n = r.node(id);
      std::vector<ValueId> in;
      for (ValueId v : n.inputs) {
        if (!to.count(v)) to[v] = g_.add_constant(r.value(v).constant, r.value(v).name, r.value(v).parameter);
        in.push_back(to[v]);
      }
      made.push_back(g_.add_node(registry_, n.spec.empty() ? n.impl->spec() : n.spec, in, n.attrs,
                                 n.name + ":" + g_.node(root).name));
      for (size_t i = 0; i < n.outputs.size(); ++i) to[n.outputs[i]] = g_.node(made.back()).outputs[i];
    }
    if (made.empty()) throw Error(OPGRAFT_INVALID_VALUE, rule.name + ": the replacement has no operator");
    finish(rule, m, root, made, m.results.size());
  }

  // Checks the new results' types, moves uses over, and drops what was matched.
  void finish(const Rule &rule, const Match &m, NodeId root, std::vector<NodeId> made, size_t n_results) {
    std::vector<NodeId> order = g_.order();  // `made` stand at its end
    auto undo = [&] {
      for (NodeId id : made) g_.node(id).dead = true;
      g_.sweep();
    };
    const Node &last = g_.node(made.back());
    if (last.outputs.size() < n_results) {
      undo();
      throw Error(OPGRAFT_INVALID_VALUE,
                  fmt::format("{} has {} outputs, the pattern {}", rule.name, last.outputs.size(), n_results));
    }
    for (size_t i = 0; i < n_results; ++i) {
      auto &now = g_.value(last.outputs[i]).type, &was = g_.value(m.results[i]).type;
      bool same = now.dtype == was.dtype && now.dims.size() == was.dims.size();
      for (size_t k = 0; same && k < now.dims.size(); ++k)
        same = now.dims[k] == was.dims[k] || now.dims[k] == -1 || was.dims[k] == -1;
      if (!same) {
        std::string why = fmt::format("{} gives {}, the subgraph {}", rule.name, now.text(), was.text());
        undo();
        throw Error(OPGRAFT_INVALID_VALUE, why);
      }
    }
    std::shared_ptr<Graph> fallback;
    try {
      std::vector<ValueId> inputs;
      for (ValueId v : last.inputs)
        if (g_.value(v).kind != Value::kConstant && std::find(inputs.begin(), inputs.end(), v) == inputs.end())
          inputs.push_back(v);
      fallback = made.size() == 1 ? extract(g_, m.nodes, inputs, m.results, registry_) : nullptr;
    } catch (...) {
      undo();
      throw;
    }
    std::vector<ValueId> outputs(last.outputs.begin(), last.outputs.begin() + long(n_results));
    NodeId id = made.back();
    g_.node(id).fallback = fallback;
    std::set<NodeId> gone(m.nodes.begin(), m.nodes.end());
    for (size_t i = 0; i < n_results; ++i) {
      users_.resize(g_.value_count());
      for (NodeId u : users_[size_t(m.results[i])]) {
        if (gone.count(u)) continue;
        for (ValueId &v : g_.node(u).inputs)
          if (v == m.results[i]) v = outputs[i];
        users_[size_t(outputs[i])].push_back(u);
      }
      for (ValueId &v : g_.outputs)
        if (v == m.results[i]) v = outputs[i];
    }
    for (NodeId n : m.nodes) g_.node(n).dead = true;
    for (NodeId n : made)
      for (ValueId v : g_.node(n).inputs) users_[size_t(v)].push_back(n);
    // The new nodes take the place of the root.
    std::vector<NodeId> preferred;
    order.resize(order.size() - made.size());
    for (NodeId n : order) {
      if (n == root) preferred.insert(preferred.end(), made.begin(), made.end());
      if (!g_.node(n).dead) preferred.push_back(n);
    }
    if (!sort(g_, preferred)) throw GraphError(OPGRAFT_INTERNAL, rule.name + ": the replacement would make a cycle");
    report_.swapped.push_back({rule.name, g_.node(id).name, id, -1, -1, -1, -1});
  }

  Graph &g_;
  const Registry &registry_;
  const std::set<std::string> &excluded_;
  std::vector<std::vector<NodeId>> users_;
  Report report_;
};

}  // namespace

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

Report substitute(Graph &graph, const Registry &registry, const std::vector<Rule> &rules, const ProofOptions *proof) {
  std::set<std::string> excluded;
  std::vector<Left> refused;
  const Graph before = graph;
  if (proof) vary_sizes(before, proof->inputs);  // no inputs: refuse before anything changes
  for (;;) {
    Graph after = before;
    Report report = Substituter(after, registry, excluded).run(rules);
    std::vector<Left> bad;
    if (proof) bad = prove(before, after, report, *proof);
    if (bad.empty()) {
      graph = std::move(after);
      report.left.insert(report.left.end(), refused.begin(), refused.end());
      return report;
    }
    size_t known = excluded.size();
    for (auto &b : bad) {
      auto colon = b.node.find(':');
      if (excluded.insert(b.op + "\n" + b.node.substr(colon + 1)).second) refused.push_back(b);
    }
    if (excluded.size() == known) throw GraphError(OPGRAFT_INTERNAL, "substitute: the proof fails: " + bad.front().why);
  }
}

}  // namespace opgraft::passes
