// Constant folding, dead code, common subexpressions and sizes: each linear in the graph.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "infer/passes/passes.h"
#include "infer/session.h"

namespace opgraft::passes {
namespace {

// Applies value -> value to all uses in one sweep.
void rename(Graph &g, const std::vector<ValueId> &to) {
  for (NodeId id : g.order())
    for (ValueId &v : g.node(id).inputs) v = to[size_t(v)];
  for (ValueId &v : g.outputs) v = to[size_t(v)];
}

bool has_state(const Node &n) {
  auto &inputs = n.impl->manifest.inputs;
  return std::any_of(inputs.begin(), inputs.end(), [](auto &t) { return t.state; });
}

std::vector<ValueId> identity(const Graph &g) {
  std::vector<ValueId> to(g.value_count());
  for (size_t i = 0; i < to.size(); ++i) to[i] = ValueId(i);
  return to;
}

}  // namespace

bool fold_constants(Graph &g, const Registry &) {
  constexpr int64_t kMostElements = 1 << 20;  // larger results are cheaper to compute than to keep
  std::vector<ValueId> to = identity(g);
  bool changed = false;
  for (NodeId id : g.order()) {
    for (ValueId &v : g.node(id).inputs)
      if (size_t(v) < to.size()) v = to[size_t(v)];
    const Node &n = g.node(id);
    if (!n.impl->manifest.deterministic || n.inputs.empty() || has_state(n)) continue;
    std::vector<Tensor> in;
    for (ValueId v : n.inputs)
      if (g.value(v).stays()) in.push_back(g.value(v).constant);
    bool small = std::all_of(n.outputs.begin(), n.outputs.end(), [&](ValueId v) {
      return g.value(v).type.concrete() && element_count(g.value(v).type.dims) <= kMostElements;
    });
    // A weight that only changes its form (a Transpose) stays a node: it would leave the mapped file.
    bool weight = std::any_of(n.inputs.begin(), n.inputs.end(), [&](ValueId v) { return g.value(v).parameter; });
    if (in.size() != n.inputs.size() || !small || weight) continue;
    std::vector<Tensor> out = run_op(n.impl, in, n.attrs);
    std::vector<ValueId> results = n.outputs;
    g.node(id).dead = true;
    for (size_t i = 0; i < results.size(); ++i) {
      ValueId constant = g.add_constant(out[i]);
      to[size_t(results[i])] = constant;
      to.push_back(constant);
    }
    changed = true;
  }
  if (changed) {
    rename(g, to);
    g.sweep();
  }
  return changed;
}

bool remove_dead_code(Graph &g, const Registry &) {
  std::vector<char> live(g.value_count(), 0);
  for (ValueId v : g.outputs) live[size_t(v)] = 1;
  bool changed = false;
  for (auto it = g.order().rbegin(); it != g.order().rend(); ++it) {
    Node &n = g.node(*it);
    bool used = std::any_of(n.outputs.begin(), n.outputs.end(), [&](ValueId v) { return live[size_t(v)]; });
    if (!used && !has_state(n)) {
      n.dead = changed = true;
      continue;
    }
    for (ValueId v : n.inputs) live[size_t(v)] = 1;
  }
  if (changed) g.sweep();
  return changed;
}

bool merge_common(Graph &g, const Registry &) {
  std::unordered_map<std::string, NodeId> seen;
  std::unordered_map<std::string, ValueId> constants;  // small anonymous ones, by content
  const std::vector<ValueId> states = g.states();
  // Two reads of a state may see different things.
  auto reads_state = [&](ValueId v) { return std::binary_search(states.begin(), states.end(), v); };
  std::vector<ValueId> to = identity(g);
  for (size_t i = 0; i < to.size(); ++i) {
    const Value &v = g.value(ValueId(i));
    if (!v.stays() || v.parameter || v.constant.bytes() > 256) continue;
    std::string key =
        v.type.text() + ":" + std::string(static_cast<const char *>(v.constant.data()), v.constant.bytes());
    to[i] = constants.try_emplace(std::move(key), ValueId(i)).first->second;
  }
  bool changed = false;
  for (NodeId id : g.order()) {
    Node &n = g.node(id);
    for (ValueId &v : n.inputs) v = to[size_t(v)];
    auto &m = n.impl->manifest;
    if (!m.deterministic || has_state(n) || std::any_of(n.inputs.begin(), n.inputs.end(), reads_state)) continue;
    std::string key = n.impl->spec();
    std::vector<ValueId> in = n.inputs;
    if (m.commutative && in.size() >= 2 && in[0] > in[1]) std::swap(in[0], in[1]);
    for (ValueId v : in) key += "," + std::to_string(v);
    for (auto &[k, v] : n.attrs) key += ";" + k + "=" + attr_text(v);
    auto [it, added] = seen.try_emplace(std::move(key), id);
    if (added) continue;
    const Node &first = g.node(it->second);
    for (size_t i = 0; i < n.outputs.size(); ++i) to[size_t(n.outputs[i])] = first.outputs[i];
    n.dead = changed = true;
  }
  rename(g, to);
  if (changed) g.sweep();
  return changed;
}

bool ask_inputs_for_sizes(Graph &g, const Registry &registry) {
  std::map<int64_t, std::pair<ValueId, int64_t>> places;  // by symbol: an input and its dimension
  for (ValueId in : g.inputs)
    for (size_t i = 0; i < g.value(in).type.dims.size(); ++i)
      if (is_symbol(g.value(in).type.dims[i])) places.try_emplace(g.value(in).type.dims[i], in, int64_t(i));
  std::map<ValueId, int64_t> asked;  // sizes of computed values, and their symbols
  for (NodeId id : g.order()) {
    const Node &n = g.node(id);
    if (n.op != "TupleGetItem" || g.value(n.inputs[0]).kind != Value::kResult) continue;
    const Node &shape = g.node(g.value(n.inputs[0]).producer);
    const auto &known = g.value(n.outputs[0]).known;
    if (shape.op != "Shape" || g.value(shape.inputs[0]).kind != Value::kResult) continue;
    if (known && known->size() == 1 && places.count(known->front())) asked[n.outputs[0]] = known->front();
  }
  if (asked.empty()) return false;
  std::vector<NodeId> order;  // those that are added come first
  const auto add = [&](const char *op, ValueId in, Attrs attrs) {
    order.push_back(g.add_node(registry, op, {in}, std::move(attrs)));
    return g.node(order.back()).outputs[0];
  };
  const std::vector<NodeId> others = g.order();
  std::map<ValueId, ValueId> shapes;
  std::map<int64_t, ValueId> sizes;
  for (auto &[size, symbol] : asked) {
    const auto [in, dim] = places[symbol];
    if (!shapes.count(in)) shapes[in] = add("Shape", in, {});
    if (!sizes.count(symbol)) sizes[symbol] = add("TupleGetItem", shapes[in], {{"index", dim}});
  }
  std::vector<ValueId> to = identity(g);
  for (auto &[size, symbol] : asked) to[size_t(size)] = sizes[symbol];
  rename(g, to);
  order.insert(order.end(), others.begin(), others.end());
  g.set_order(std::move(order));
  return true;
}

}  // namespace opgraft::passes
