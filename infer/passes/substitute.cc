#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <tuple>
#include <unordered_set>

#include "infer/passes/passes.h"
#include "infer/passes/pattern.h"
#include "infer/passes/proof.h"
#include "infer/passes/subgraph.h"

namespace opgraft::passes {
namespace {

class Substituter {
 public:
  // prove: every swap keeps both sides for a comparison.
  Substituter(Graph &g, const Registry &registry, const std::set<std::string> &excluded, bool prove)
      : g_(g), registry_(registry), excluded_(excluded), prove_(prove), first_new_(ValueId(g.value_count())) {
    if (ask_inputs_for_sizes(g_, registry_)) remove_dead_code(g_, registry_);
    renumber();
    for (NodeId id : g_.order()) present_.insert(g_.node(id).op);
  }

  Report run(const std::vector<Rule> &rules) {
    for (auto &rule : rules) apply(rule);
    report_.merged = int(std::erase_if(report_.swapped, [&](auto &s) { return g_.node(s.id).dead; }));
    return std::move(report_);
  }

 private:
  // The nodes made for one swap; given up again where it is not kept.
  struct Draft {
    explicit Draft(Substituter &to) : to(to) {}
    Draft(const Draft &) = delete;
    ~Draft() {
      if (kept) return;
      for (NodeId id : nodes) to.g_.node(id).dead = true;
      to.settled_ = false;
    }
    NodeId add(const std::string &spec, const std::vector<ValueId> &inputs, const Attrs &attrs, std::string name) {
      nodes.push_back(to.g_.add_node(to.registry_, spec, inputs, attrs, std::move(name)));
      to.present_.insert(to.g_.node(nodes.back()).op);
      return nodes.back();
    }
    Substituter &to;
    std::vector<NodeId> nodes{};
    bool kept = false;
  };

  Pattern read_pattern(const Rule &rule, const Op *op) const {
    if (rule.pattern) return pattern_of(*rule.pattern, rule.trace_pattern ? Fit::kShape : Fit::kGiven);
    return op ? op_pattern(rule.program, op->manifest, find_in(registry_)) : parse_pattern(rule.program, rule.name);
  }

  void apply(const Rule &rule) {
    OpPtr op = rule.op.empty() ? nullptr : registry_.resolve(rule.op);
    const auto read = rule.parsed ? rule.parsed : std::make_shared<const Pattern>(read_pattern(rule, op.get()));
    const Pattern &pattern = *read;
    shares_ = std::any_of(pattern.settings.begin(), pattern.settings.end(),
                          [](auto &s) { return s.kind == Pattern::Setting::kShared; });
    const auto absent = [&](const Pattern::Call &c) { return !present_.count(c.op); };
    if (std::any_of(pattern.calls.begin(), pattern.calls.end(), absent)) return;
    const std::string &root_op = pattern.calls[size_t(pattern.results[0].node)].op;
    std::vector<NodeId> roots;
    for (NodeId id : g_.order())
      if (g_.node(id).op == root_op) roots.push_back(id);
    users_ = g_.users();
    for (NodeId root : roots) {
      if (g_.node(root).dead) continue;
      Match m;
      if (!match(g_, users_, pattern, op ? &op->manifest : nullptr, root, m)) continue;
      if (rule.trace_pattern && !match_traced(rule, root, m)) continue;
      if (!find_sources(g_, pattern, m) || !applies(g_, pattern, m)) continue;
      std::string node = g_.node(root).name;
      auto left = [&](const std::string &why) {
        if (reported_.insert({rule.name, node, why}).second) report_.left.push_back({rule.name, node, why});
      };
      if (excluded_.count(rule.name + "\n" + node)) continue;  // reported by the proof
      if (std::string why = used_outside(g_, users_, pattern, m); !why.empty()) {
        left(why);
        continue;
      }
      if (update_within(m)) {
        left("a Parameter that is updated in place changes in between");
        continue;
      }
      if (m.results.size() > 1 && leads_back(m)) {
        left("what uses one of its results leads to another of its inputs");
        continue;
      }
      try {
        make_inputs(g_, pattern, m);
        op ? put_op(rule, *op, pattern, m, root) : put_graph(rule, m, root);
      } catch (const std::exception &e) {
        left(e.what());
      }
    }
    settle();
  }

  // A swap only says which position its nodes take; the order is made anew once for all swaps of a rule, which
  // keeps the pass linear.
  void renumber() {
    updates_.clear();
    for (size_t i = 0; i < g_.order().size(); ++i) {
      put_at(g_.order()[i], int(i));
      const Node &n = g_.node(g_.order()[i]);
      bool updates = false;
      for (size_t k = 0; k < n.inputs.size(); ++k)
        if (n.impl->manifest.may_update(k)) updates = true, states_.insert(n.inputs[k]);
      if (updates) updates_.push_back(int(i));
    }
  }
  void put_at(NodeId id, int position) {
    if (size_t(id) >= position_.size()) position_.resize(size_t(id) + 1);
    position_[size_t(id)] = position;
  }
  // As they can run: nodes of one swap have one position, and were made in order.
  std::vector<NodeId> ordered(std::vector<NodeId> nodes) const {
    std::sort(nodes.begin(), nodes.end(), [&](NodeId a, NodeId b) {
      return std::pair(position_[size_t(a)], a) < std::pair(position_[size_t(b)], b);
    });
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    return nodes;
  }
  void settle() {
    if (settled_) return;
    g_.sweep();
    if (!sort(g_, ordered(g_.order()))) throw GraphError(OPGRAFT_INTERNAL, "substitute: the graph has a cycle");
    renumber();
    settled_ = true;
  }

  // Whether an update lies among the matched nodes, which become one: a read among them, or one of what uses another
  // result, would come to stand after it.
  bool update_within(const Match &m) const {
    if (updates_.empty() || m.nodes.size() < 2) return false;
    auto reads = [&](ValueId v) { return states_.count(v) != 0; };
    bool moves = m.results.size() > 1;
    int first = INT_MAX, last = 0;
    for (NodeId id : m.nodes) {
      auto &inputs = g_.node(id).inputs;
      moves = moves || std::any_of(inputs.begin(), inputs.end(), reads);
      first = std::min(first, position_[size_t(id)]), last = std::max(last, position_[size_t(id)]);
    }
    auto next = std::lower_bound(updates_.begin(), updates_.end(), first);
    return moves && next != updates_.end() && *next <= last;
  }

  // Whether something outside the match leads from its results back into it: a node in its place would wait for
  // itself.
  bool leads_back(const Match &m) const {
    const std::set<NodeId> inside(m.nodes.begin(), m.nodes.end());
    std::set<NodeId> seen;
    std::vector<NodeId> next(m.nodes);
    while (!next.empty()) {
      NodeId from = next.back();
      next.pop_back();
      for (ValueId v : g_.node(from).outputs)
        for (NodeId u : users_[size_t(v)]) {
          if (g_.node(u).dead) continue;
          if (inside.count(u)) {
            if (!inside.count(from)) return true;
          } else if (seen.insert(u).second) {
            next.push_back(u);
          }
        }
    }
    return false;
  }

  // The rule's inputs, with the types of the values that were matched, in a graph of their own.
  std::shared_ptr<Graph> inputs_of(const Rule &rule, const Match &m) {
    auto out = std::make_shared<Graph>(rule.name);
    out->symbols = g_.symbols;
    for (ValueId v : rule.pattern->inputs) {
      auto &x = rule.pattern->value(v);
      auto it = m.values.find(x.name);
      out->add_input(x.name, it == m.values.end() ? x.type : g_.value(it->second).type);
    }
    return out;
  }
  bool match_traced(const Rule &rule, NodeId root, Match &m) {
    auto traced = inputs_of(rule, m);
    Match exact;
    try {
      rule.trace_pattern(traced);
      if (!match(g_, users_, pattern_of(*traced, Fit::kExact), nullptr, root, exact)) return false;
    } catch (const std::exception &) {
      return false;  // the function does not take these dtypes or shapes
    }
    m = std::move(exact);
    return true;
  }

  // In place of an input that a pattern does not name; its own dtype, that of one that shares it, or its first.
  ValueId no_elements(const Manifest &op, size_t input, const Match &m) {
    int32_t dtype = dtype_from_name(op.inputs[input].dtype);
    for (auto &t : op.inputs)
      if (auto it = m.values.find(t.name); !dtype && t.dtype == op.inputs[input].dtype && it != m.values.end())
        dtype = g_.value(it->second).type.dtype;
    for (auto &[variable, may_be] : op.dtypes)
      if (!dtype && variable == op.inputs[input].dtype) dtype = may_be.front();
    return g_.add_constant(Tensor(dtype, {0}));
  }

  void put_op(const Rule &rule, const Op &op, const Pattern &pattern, const Match &m, NodeId root) {
    std::vector<ValueId> inputs;
    size_t left_out = 0;  // right before the next one
    for (size_t i = 0; i < op.manifest.inputs.size(); ++i) {
      const ManifestTensor &t = op.manifest.inputs[i];
      auto it = m.values.find(t.name);
      if (it == m.values.end()) {
        if (!t.optional)
          throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: the pattern does not bind input {}", rule.name, t.name));
        ++left_out;
        continue;
      }
      for (; left_out > 0; --left_out) inputs.push_back(no_elements(op.manifest, i - left_out, m));
      inputs.push_back(it->second);
    }
    Draft draft(*this);
    NodeId made = draft.add(op.spec(), inputs, attributes(g_, pattern, m, op), op.name() + ":" + g_.node(root).name);
    auto &outputs = g_.node(made).outputs;
    if (outputs.size() < m.results.size())
      throw Error(OPGRAFT_INVALID_VALUE,
                  fmt::format("{} has {} outputs, the pattern {}", rule.name, outputs.size(), m.results.size()));
    finish(rule, m, root, draft, {outputs.begin(), outputs.begin() + long(m.results.size())});
  }

  void put_graph(const Rule &rule, const Match &m, NodeId root) {
    std::shared_ptr<const Graph> graph = rule.replacement;
    if (rule.trace_replacement) {
      auto traced = inputs_of(rule, m);
      rule.trace_replacement(traced);
      graph = traced;
    }
    const Graph &r = *graph;
    std::map<ValueId, ValueId> to;
    for (ValueId v : r.inputs) {
      auto it = m.values.find(r.value(v).name);
      if (it != m.values.end()) to[v] = it->second;
    }
    Draft draft(*this);
    for (NodeId id : r.order()) {
      const Node &n = r.node(id);
      std::vector<ValueId> in;
      for (ValueId v : n.inputs) {
        if (!to.count(v) && r.value(v).kind == Value::kInput)
          throw Error(OPGRAFT_INVALID_VALUE,
                      fmt::format("{}: the pattern does not bind {}", rule.name, r.value(v).name));
        const Value &x = r.value(v);
        if (!to.count(v)) to[v] = g_.add_constant(x.constant, x.name, x.parameter, x.state);
        in.push_back(to[v]);
      }
      NodeId made = draft.add(n.spec.empty() ? n.impl->spec() : n.spec, in, n.attrs, n.name + ":" + g_.node(root).name);
      for (size_t i = 0; i < n.outputs.size(); ++i) to[n.outputs[i]] = g_.node(made).outputs[i];
    }
    if (draft.nodes.empty()) throw Error(OPGRAFT_INVALID_VALUE, rule.name + ": the replacement has no operator");
    if (r.outputs.size() != m.results.size())
      throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: the replacement returns {} values, the pattern {}", rule.name,
                                                     r.outputs.size(), m.results.size()));
    std::vector<ValueId> outputs;
    for (ValueId v : r.outputs) {
      if (!to.count(v)) throw Error(OPGRAFT_INVALID_VALUE, rule.name + ": the replacement returns a constant");
      outputs.push_back(to[v]);
    }
    finish(rule, m, root, draft, outputs);
  }

  // Checks the new results' types, moves uses over to them, and drops what was matched.
  void finish(const Rule &rule, const Match &m, NodeId root, Draft &draft, std::vector<ValueId> outputs) {
    const std::vector<NodeId> &made = draft.nodes;
    for (NodeId id : made) put_at(id, position_[size_t(root)]);
    for (size_t i = 0; i < outputs.size(); ++i) {
      auto &now = g_.value(outputs[i]).type, &was = g_.value(m.results[i]).type;
      bool same = now.dtype == was.dtype && now.dims.size() == was.dims.size();
      for (size_t k = 0; same && k < now.dims.size(); ++k)
        same = now.dims[k] == was.dims[k] || now.dims[k] == -1 || was.dims[k] == -1;
      if (!same)
        throw Error(OPGRAFT_INVALID_VALUE,
                    fmt::format("{} gives {}, the subgraph {}", rule.name, now.text(), was.text()));
    }
    Swap swap{rule.name, g_.node(made.back()).name, made.back()};
    swap.root = g_.node(root).name;
    if (prove_) keep_sides(swap, m, made, outputs);
    if (Node &n = g_.node(made.back()); made.size() == 1)
      n.fallback = extract(g_, ordered(m.nodes), n.inputs, m.results, registry_);
    draft.kept = true;
    const std::set<NodeId> gone(m.nodes.begin(), m.nodes.end());
    const auto kept = shares_ ? needed_outside(g_, users_, m) : std::set<NodeId>();
    for (size_t i = 0; i < outputs.size(); ++i) {
      users_.resize(g_.value_count());
      for (NodeId u : users_[size_t(m.results[i])]) {
        if (gone.count(u)) continue;
        for (ValueId &v : g_.node(u).inputs)
          if (v == m.results[i]) v = outputs[i];
        users_[size_t(outputs[i])].push_back(u);
      }
      for (ValueId &v : g_.outputs)
        if (v == m.results[i]) v = outputs[i];
      origin_[outputs[i]] = origin(m.results[i]);
    }
    for (NodeId n : m.nodes) g_.node(n).dead = !kept.count(n);
    for (NodeId n : made)
      for (ValueId v : g_.node(n).inputs) users_[size_t(v)].push_back(n);
    report_.swapped.push_back(std::move(swap));
    settled_ = false;
    // Users of another result may stand before the root.
    if (m.results.size() > 1) settle();
  }

  // What `made` takes from outside, constants left out, each once.
  std::vector<ValueId> outer_inputs(const std::vector<NodeId> &made) const {
    std::vector<ValueId> inputs;
    for (NodeId id : made)
      for (ValueId v : g_.node(id).inputs) {
        const Value &x = g_.value(v);
        bool inside = x.kind == Value::kResult && std::find(made.begin(), made.end(), x.producer) != made.end();
        if (x.kind != Value::kConstant && !inside && std::find(inputs.begin(), inputs.end(), v) == inputs.end())
          inputs.push_back(v);
      }
    return inputs;
  }

  // The value of the graph before all swaps that `v` stands for.
  ValueId origin(ValueId v) const {
    auto it = origin_.find(v);
    return it == origin_.end() ? v : it->second;
  }

  void keep_sides(Swap &swap, const Match &m, const std::vector<NodeId> &made, const std::vector<ValueId> &outputs) {
    std::vector<ValueId> inputs = outer_inputs(made);
    for (auto &[name, v] : m.values) {
      const Value &x = g_.value(v);
      const bool inside =
          x.kind == Value::kResult && std::find(m.nodes.begin(), m.nodes.end(), x.producer) != m.nodes.end();
      if (x.kind != Value::kConstant && !inside && std::find(inputs.begin(), inputs.end(), v) == inputs.end())
        inputs.push_back(v);
    }
    for (ValueId v : inputs) swap.inputs.push_back(origin(v));
    // A value made by a larger replacement has none to compare with; the whole models are compared all the same.
    if (std::any_of(swap.inputs.begin(), swap.inputs.end(), [&](ValueId v) { return v >= first_new_; })) return;
    swap.was = extract(g_, ordered(m.nodes), inputs, m.results, registry_);
    swap.now = extract(g_, made, inputs, outputs, registry_);
  }

  Graph &g_;
  const Registry &registry_;
  const std::set<std::string> &excluded_;
  const bool prove_;
  const ValueId first_new_;                  // values from here on are the swaps' own
  std::unordered_set<std::string> present_;  // operators that the graph has, or had: most rules are for none of these
  std::map<ValueId, ValueId> origin_;
  std::set<std::tuple<std::string, std::string, std::string>> reported_;
  Users users_;
  std::vector<int> position_;  // in the order, by node
  std::vector<int> updates_;   // positions of nodes that update a state
  std::set<ValueId> states_;   // what they update
  bool shares_ = false;        // whether the pattern at hand takes values that others use
  bool settled_ = true;        // whether the order has what was swapped
  Report report_;
};

}  // namespace

Report substitute(Graph &graph, const Registry &registry, const std::vector<Rule> &rules, const ProofOptions *proof) {
  std::set<std::string> excluded;
  std::vector<Left> refused;
  const Graph &before = graph;                   // until the end
  if (proof) vary_sizes(before, proof->inputs);  // no inputs: refuse before anything changes
  for (;;) {
    Graph after = before;
    Report report = Substituter(after, registry, excluded, proof != nullptr).run(rules);
    std::vector<Left> bad;
    if (proof) bad = prove(before, after, report, *proof);
    if (bad.empty()) {
      // Sizes that only the replaced nodes asked for.
      if (!report.swapped.empty()) {
        remove_dead_code(after, registry);
        graph = std::move(after);
      }
      report.left.insert(report.left.end(), refused.begin(), refused.end());
      report.matched = int(report.swapped.size()) + report.merged + int(report.left.size());
      return report;
    }
    size_t known = excluded.size();
    for (auto &b : bad)
      if (excluded.insert(b.op + "\n" + b.node).second) refused.push_back(b);
    if (excluded.size() == known) throw GraphError(OPGRAFT_INTERNAL, "substitute: the proof fails: " + bad.front().why);
  }
}

}  // namespace opgraft::passes
