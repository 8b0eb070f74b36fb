#include "infer/passes/subgraph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <queue>

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
    // A dimension of this size, else one that is a multiple of it, else one that it is a multiple of.
    for (const int way : {0, 1, 2})
      for (ValueId in : out.inputs) {
        const Shape dims = out.value(in).type.dims;
        for (size_t i = 0; i < dims.size(); ++i) {
          const int64_t times = way == 1   ? out.symbols.op('/', dims[i], k)
                                : way == 2 ? out.symbols.op('/', k, dims[i])
                                           : int64_t(dims[i] == k);
          if (times < 1) continue;
          const ValueId size = result("TupleGetItem", {result("Shape", {in})}, {{"index", int64_t(i)}});
          if (way == 0) return size;
          return result(way == 1 ? "ScalarFloorDiv" : "ScalarMul", {size, out.add_constant(scalar(times))});
        }
      }
    throw Error(OPGRAFT_INTERNAL, "substitute: " + x.name + " needs a size that no input of the subgraph has");
  };
  if (x.type.dims.empty()) return element(x.known->front());
  std::vector<ValueId> elements;
  for (int64_t k : *x.known) elements.push_back(element(k));
  return result("MakeTuple", elements);
}

// A value of `g` in `out`; `to` maps those already there.
ValueId copy_value(const Graph &g, ValueId v, Graph &out, std::map<ValueId, ValueId> &to, const Registry &registry) {
  auto it = to.find(v);
  if (it != to.end()) return it->second;
  const Value &x = g.value(v);
  if (x.kind == Value::kConstant) return to[v] = out.add_constant(x.constant, x.name, x.parameter, x.state);
  if (!x.known) throw Error(OPGRAFT_INTERNAL, "substitute: value " + x.name + " is not inside the subgraph");
  return to[v] = shape_value(x, out, registry);
}

// Copies nodes of `g` into `out`. A node that itself replaced a subgraph is copied as that subgraph, so that a fallback
// holds what the model had in the beginning.
void copy_nodes(const Graph &g, const std::vector<NodeId> &nodes, Graph &out, std::map<ValueId, ValueId> &to,
                const Registry &registry) {
  for (NodeId id : nodes) {
    const Node &n = g.node(id);
    std::vector<ValueId> in;
    if (n.fallback) {
      for (ValueId v : n.inputs) in.push_back(copy_value(g, v, out, to, registry));
      const auto results = expand(*n.fallback, in, out, registry);
      for (size_t i = 0; i < results.size() && i < n.outputs.size(); ++i) to[n.outputs[i]] = results[i];
      continue;
    }
    for (ValueId v : n.inputs) in.push_back(copy_value(g, v, out, to, registry));
    NodeId copy = out.add_node(registry, n.spec.empty() ? n.op : n.spec, in, n.attrs, n.name);
    for (size_t i = 0; i < n.outputs.size(); ++i) to[n.outputs[i]] = out.node(copy).outputs[i];
  }
}

}  // namespace

std::shared_ptr<Graph> extract(const Graph &g, const std::vector<NodeId> &nodes, const std::vector<ValueId> &inputs,
                               const std::vector<ValueId> &results, const Registry &registry) {
  auto out = std::make_shared<Graph>("fallback");
  out->symbols = g.symbols;
  size_t values = inputs.size();
  for (NodeId id : nodes) values += g.node(id).inputs.size() + g.node(id).outputs.size();
  out->reserve(values, nodes.size());
  std::map<ValueId, ValueId> to;
  for (ValueId v : inputs) {
    const Value &x = g.value(v);
    const bool own = x.kind == Value::kConstant || to.count(v);  // nodes have constants of their own
    const ValueId in = out->add_input(own ? fmt::format("input{}", out->inputs.size()) : x.name, x.type);
    if (!own) to[v] = in;
  }
  copy_nodes(g, nodes, *out, to, registry);
  for (ValueId v : results) out->outputs.push_back(to.at(v));
  return out;
}

std::vector<ValueId> expand(const Graph &fallback, const std::vector<ValueId> &inputs, Graph &out,
                            const Registry &registry) {
  const auto given = out.fallback_inputs(fallback, inputs);
  std::map<ValueId, ValueId> to(given.begin(), given.end());
  std::vector<ValueId> results;
  copy_nodes(fallback, fallback.order(), out, to, registry);
  for (ValueId v : fallback.outputs) results.push_back(copy_value(fallback, v, out, to, registry));
  return results;
}

namespace {
size_t expanded_size(const Graph &g, std::map<const Graph *, size_t> &known) {
  auto [at, is_new] = known.emplace(&g, 0);
  if (!is_new) return at->second;
  size_t n = 0;
  constexpr size_t kEnough = size_t(1) << 40;  // no sum overflows
  for (NodeId id : g.order()) n += g.node(id).fallback ? expanded_size(*g.node(id).fallback, known) : 1;
  return known[&g] = std::min(n, kEnough);
}
}  // namespace

size_t expanded_size(const Graph &fallback) {
  std::map<const Graph *, size_t> known;
  return expanded_size(fallback, known);
}

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

std::string used_outside(const Graph &g, const Users &users, const Pattern &pattern, const Match &m) {
  std::set<NodeId> inside(m.nodes.begin(), m.nodes.end());
  std::set<ValueId> free(m.results.begin(), m.results.end());
  for (auto &s : pattern.settings)
    if (s.kind == Pattern::Setting::kShared) {
      auto &of = g.node(m.nodes[size_t(pattern.labels.at(s.name).node)]).outputs;
      free.insert(of.begin(), of.end());
    }
  for (NodeId id : m.nodes)
    for (ValueId v : g.node(id).outputs) {
      if (free.count(v)) continue;
      if (std::find(g.outputs.begin(), g.outputs.end(), v) != g.outputs.end())
        return fmt::format("{} is an output of the model", g.value(v).name);
      for (NodeId u : users[size_t(v)])
        if (!g.node(u).dead && !inside.count(u))
          return fmt::format("{} is used by {} as well", g.value(v).name, g.node(u).name);
    }
  return "";
}

std::set<NodeId> needed_outside(const Graph &g, const Users &users, const Match &m) {
  std::set<NodeId> gone(m.nodes.begin(), m.nodes.end()), kept;
  const std::set<ValueId> results(m.results.begin(), m.results.end());
  const auto used = [&](NodeId id) {
    auto &of = g.node(id).outputs;
    return std::any_of(of.begin(), of.end(), [&](ValueId v) {
      if (results.count(v)) return false;
      if (std::find(g.outputs.begin(), g.outputs.end(), v) != g.outputs.end()) return true;
      auto &by = users[size_t(v)];
      return std::any_of(by.begin(), by.end(), [&](NodeId u) { return !g.node(u).dead && !gone.count(u); });
    });
  };
  for (size_t before = gone.size() + 1; gone.size() < before;) {
    before = gone.size();
    for (NodeId id : m.nodes)
      if (gone.count(id) && used(id)) gone.erase(id), kept.insert(id);
  }
  return kept;
}

}  // namespace opgraft::passes
