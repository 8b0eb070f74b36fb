#include "infer/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "infer/native.h"

namespace opgraft {
namespace {

std::string shape_text(const TensorType &t, const Symbols &symbols) {
  if (!t.ranked) return std::string(dtype_name(t.dtype)) + "(*)";
  std::string s = std::string(dtype_name(t.dtype)) + "(";
  for (size_t i = 0; i < t.dims.size(); ++i) s += (i ? ", " : "") + symbols.text(t.dims[i]);
  return s + (t.dims.size() == 1 ? ",)" : ")");
}

void check_dtypes(const Manifest &m, const std::vector<int32_t> &dtypes) {
  struct Bound {
    std::string_view variable;
    size_t by;  // the input it was taken from
    int32_t dtype;
  };
  std::vector<Bound> bound;
  // Of inputs that share a name it tells which.
  auto name_of = [&](size_t i) {
    const size_t last = m.inputs.size() - 1;
    const std::string &name = m.inputs[std::min(i, last)].name;
    return m.inputs[std::min(i, last)].variadic ? fmt::format("{}[{}]", name, i - last) : name;
  };
  for (size_t i = 0; i < dtypes.size(); ++i) {
    auto &t = *m.input(i);
    if (t.dtype.empty()) continue;  // any: a function made for MindSpore
    auto set = std::find_if(m.dtypes.begin(), m.dtypes.end(), [&](auto &d) { return d.first == t.dtype; });
    if (set == m.dtypes.end()) {
      if (dtypes[i] != dtype_from_name(t.dtype))
        throw Error(OPGRAFT_INVALID_TYPE,
                    fmt::format("{}: {}.dtype must be {}, got {}", m.name, name_of(i), t.dtype, dtype_name(dtypes[i])));
      continue;
    }
    if (std::find(set->second.begin(), set->second.end(), dtypes[i]) == set->second.end()) {
      std::string names;
      for (int32_t d : set->second) names += (names.empty() ? "" : ", ") + std::string(dtype_name(d));
      throw Error(OPGRAFT_INVALID_TYPE, fmt::format("{}: {}.dtype must be one of {}, got {}", m.name, name_of(i), names,
                                                    dtype_name(dtypes[i])));
    }
    auto seen = std::find_if(bound.begin(), bound.end(), [&](auto &b) { return b.variable == t.dtype; });
    if (seen == bound.end()) bound.push_back({t.dtype, i, dtypes[i]});
    else if (seen->dtype != dtypes[i])
      throw Error(OPGRAFT_INVALID_TYPE, fmt::format("{}: {}.dtype must equal {}.dtype {}, got {}", m.name, name_of(i),
                                                    name_of(seen->by), dtype_name(seen->dtype), dtype_name(dtypes[i])));
  }
}

}  // namespace

void check_arguments(const Manifest &m, const std::vector<int32_t> &dtypes) {
  int n = int(dtypes.size()), least = m.least_inputs(), most = m.variadic() ? 1 << 20 : int(m.inputs.size());
  if (n < least || n > most)
    throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: takes {} inputs, got {}", m.name,
                                                   least == most  ? std::to_string(least)
                                                   : m.variadic() ? fmt::format("at least {}", least)
                                                                  : fmt::format("{} to {}", least, most),
                                                   n));
  check_dtypes(m, dtypes);
}

Inferred infer_native(const Op &op, const std::vector<opgraft_tensor> &inputs, const FlatAttrs &attrs,
                      Symbols *symbols) {
  constexpr int kMost = 64;
  Inferred out;
  int64_t dims[kMost][OPGRAFT_MAX_RANK], values[kMost][OPGRAFT_MAX_VALUES];
  opgraft_shape room[kMost];
  for (int i = 0; i < kMost; ++i) room[i] = {dims[i], values[i], 0, 0, -1};
  opgraft_infer_args args{
      sizeof args, int32_t(inputs.size()), attrs.size(), kMost, inputs.data(), attrs.data(), room, nullptr, symbols};
  if (symbols)
    args.dim_op = [](void *s, char o, int64_t a, int64_t b) { return static_cast<Symbols *>(s)->op(o, a, b); };
  if (int status = op.native->infer(&args)) throw Error(status & 0xff, last_error(op, status));
  for (int i = 0; i < args.n_outputs; ++i) {
    if (room[i].ndim < 0 || room[i].ndim > OPGRAFT_MAX_RANK || dtype_size(room[i].dtype) == 0)
      throw Error(OPGRAFT_INTERNAL, fmt::format("{}: infer stated an impossible output {}", op.name(), i));
    out.types.push_back({room[i].dtype, Shape(dims[i], dims[i] + room[i].ndim), true});
    try {
      element_count(out.types.back().dims);
    } catch (const SizeError &e) {
      throw Error(e.status, fmt::format("{}: {}", op.name(), e.what()));
    }
    out.values.emplace_back();
    if (room[i].n_values >= 0 && room[i].n_values <= OPGRAFT_MAX_VALUES && room[i].dtype == OPGRAFT_INT64)
      out.values.back().emplace(values[i], values[i] + room[i].n_values);
  }
  return out;
}

std::string last_error(const Op &op, int status) {
  const char *text = op.native->last_error ? op.native->last_error() : nullptr;
  return text && *text ? text : fmt::format("{}: failed with status {}", op.name(), status & 0xff);
}

ValueId Graph::add_input(std::string input_name, TensorType type) {
  Value v;
  v.kind = Value::kInput;
  v.name = std::move(input_name);
  v.type = std::move(type);
  v.index = int32_t(inputs.size());
  values_.push_back(std::move(v));
  inputs.push_back(ValueId(values_.size() - 1));
  return inputs.back();
}

ValueId Graph::add_constant(Tensor data, std::string constant_name, bool parameter, bool state) {
  Value v;
  v.kind = Value::kConstant;
  v.type = data.type();
  v.name = constant_name.empty() ? fmt::format("const{}", values_.size()) : std::move(constant_name);
  v.parameter = parameter, v.state = state;
  if (!state && data.dtype() == OPGRAFT_INT64 && data.dims().size() <= 1 && data.size() <= OPGRAFT_MAX_VALUES)
    v.known.emplace(data.data<int64_t>(), data.data<int64_t>() + data.size());
  v.constant = std::move(data);
  values_.push_back(std::move(v));
  return ValueId(values_.size() - 1);
}

NodeId Graph::add_node(const Registry &registry, std::string op, std::vector<ValueId> in, Attrs attrs,
                       std::string node_name) {
  Node n;
  auto at = op.find('@');
  if (at != std::string::npos) n.spec = op;
  n.op = op.substr(0, at);
  n.impl = registry.resolve(op);
  n.name = node_name.empty() ? fmt::format("{}_{}", n.op, nodes_.size()) : std::move(node_name);
  n.inputs = std::move(in);
  n.attrs = complete_attrs(n.impl->manifest, attrs);
  declare_states(n);
  NodeId id = NodeId(nodes_.size());
  nodes_.push_back(std::move(n));
  try {
    infer_node(id);
  } catch (...) {
    nodes_.pop_back();
    throw;
  }
  order_.push_back(id);
  return id;
}

// What was inferred from the value of a Parameter that turns out to change is inferred anew without it.
void Graph::declare_states(const Node &n) {
  std::set<ValueId> changed;
  for (size_t i = 0; i < n.inputs.size(); ++i) {
    Value &v = values_[size_t(n.inputs[i])];
    if (!n.impl->manifest.may_update(i) || !v.parameter || v.state) continue;
    v.state = true;
    if (v.known) changed.insert(n.inputs[i]);
    v.known.reset();
  }
  for (NodeId id : changed.empty() ? std::vector<NodeId>() : order_) {
    const Node &user = nodes_[size_t(id)];
    if (std::none_of(user.inputs.begin(), user.inputs.end(), [&](ValueId v) { return changed.count(v) != 0; }))
      continue;
    infer_node(id);
    changed.insert(user.outputs.begin(), user.outputs.end());
  }
}

void Graph::infer_node(NodeId id) {
  Node &n = nodes_[size_t(id)];
  std::vector<opgraft_tensor> in;
  std::vector<int32_t> dtypes;
  bool ranked = true;
  for (ValueId v : n.inputs) {
    Value &x = values_[size_t(v)];
    ranked = ranked && x.type.ranked;
    void *data = x.stays() ? x.constant.data() : x.known ? x.known->data() : nullptr;
    in.push_back({data, x.type.dims.data(), int32_t(x.type.dims.size()), x.type.dtype, element_count(x.type.dims)});
    dtypes.push_back(x.type.dtype);
  }
  auto fail = [&](const Error &e) {
    std::string shapes;
    for (ValueId v : n.inputs) shapes += (shapes.empty() ? "" : ", ") + shape_text(values_[size_t(v)].type, symbols);
    throw GraphError(e.status, fmt::format("node {}: {} [inputs: {}]", n.name, e.what(), shapes));
  };
  Inferred r;
  try {
    check_arguments(n.impl->manifest, dtypes);
    if (!ranked) throw Error(OPGRAFT_UNSUPPORTED, n.op + ": an input of unknown rank");
    r = infer_native(*n.impl, in, FlatAttrs(n.attrs), &symbols);
  } catch (const Error &e) {
    fail(e);
  }
  if (!n.outputs.empty() && n.outputs.size() != r.types.size())
    fail(Error(OPGRAFT_INVALID_VALUE,
               fmt::format("{}: has {} outputs in the model, infers {}", n.op, n.outputs.size(), r.types.size())));
  for (size_t i = 0; i < r.types.size(); ++i) {
    if (n.outputs.size() <= i) {
      Value v;
      v.name = r.types.size() == 1 ? n.name : fmt::format("{}:{}", n.name, i);
      v.producer = id;
      v.index = int32_t(i);
      n.outputs.push_back(ValueId(values_.size()));
      values_.push_back(std::move(v));
    }
    Value &v = values_[size_t(nodes_[size_t(id)].outputs[i])];
    v.type = std::move(r.types[i]);
    v.known = std::move(r.values[i]);
  }
}

void Graph::infer() {
  for (NodeId id : order_) infer_node(id);
}

std::vector<ValueId> Graph::states() const {
  std::set<ValueId> found;
  for (NodeId id : order_) {
    const Node &n = nodes_[size_t(id)];
    for (size_t i = 0; i < n.inputs.size(); ++i)
      if (n.impl->manifest.may_update(i) && value(n.inputs[i]).parameter) found.insert(n.inputs[i]);
  }
  return {found.begin(), found.end()};
}

std::vector<std::vector<NodeId>> Graph::users() const {
  std::vector<std::vector<NodeId>> out(values_.size());
  for (NodeId id : order_)
    for (ValueId v : nodes_[size_t(id)].inputs) out[size_t(v)].push_back(id);
  return out;
}

void Graph::replace_uses(ValueId from, ValueId to) {
  for (NodeId id : order_)
    for (ValueId &v : nodes_[size_t(id)].inputs)
      if (v == from) v = to;
  for (ValueId &v : outputs)
    if (v == from) v = to;
}

bool Graph::is_used(ValueId v) const {
  return std::ranges::count(outputs, v) ||
         std::ranges::any_of(order_, [&](NodeId id) { return std::ranges::count(nodes_[size_t(id)].inputs, v); });
}

std::vector<std::pair<ValueId, ValueId>> Graph::fallback_inputs(const Graph &fallback,
                                                                const std::vector<ValueId> &inputs) const {
  std::vector<ValueId> given;
  for (ValueId v : inputs)
    if (inputs.size() == fallback.inputs.size() ||
        (value(v).kind != Value::kConstant && std::ranges::find(given, v) == given.end()))
      given.push_back(v);
  std::vector<std::pair<ValueId, ValueId>> pairs;
  for (size_t i = 0; i < std::min(given.size(), fallback.inputs.size()); ++i)
    pairs.emplace_back(fallback.inputs[i], given[i]);
  return pairs;
}

bool Graph::restore(NodeId id) {
  const Node n = nodes_[size_t(id)];
  if (!n.fallback || !n.fallback->states().empty()) return false;
  const Graph &f = *n.fallback;
  const auto dtype = [](const Graph &g, ValueId v) { return g.value(v).type.dtype; };
  std::map<ValueId, ValueId> to;
  for (auto [theirs, ours] : fallback_inputs(f, n.inputs)) {
    if (value(ours).state || dtype(f, theirs) != dtype(*this, ours)) return false;
    to[theirs] = ours;
  }
  if (to.size() < f.inputs.size() || n.outputs.size() < f.outputs.size()) return false;
  for (size_t i = 0; i < n.outputs.size(); ++i)
    if (i < f.outputs.size() ? dtype(f, f.outputs[i]) != dtype(*this, n.outputs[i]) : is_used(n.outputs[i]))
      return false;
  const auto here = [&](ValueId v) {
    auto [it, is_new] = to.emplace(v, ValueId(values_.size()));
    if (is_new) values_.push_back(f.value(v));
    return it->second;
  };
  std::vector<NodeId> made;
  for (NodeId from : f.order()) {
    Node copy = f.node(from);
    made.push_back(NodeId(nodes_.size()));
    for (ValueId &v : copy.inputs) v = here(v);
    for (ValueId &v : copy.outputs) {
      v = here(v);
      value(v).producer = made.back();
    }
    nodes_.push_back(std::move(copy));
  }
  nodes_[size_t(id)].dead = true;
  order_.insert(std::ranges::find(order_, id), made.begin(), made.end());
  sweep();
  for (size_t i = 0; i < f.outputs.size(); ++i) replace_uses(n.outputs[i], here(f.outputs[i]));
  return true;
}

void Graph::sweep() {
  std::erase_if(order_, [&](NodeId id) { return nodes_[size_t(id)].dead; });
}

std::string Graph::dump() const {
  std::string s = fmt::format("graph {}(", name);
  for (size_t i = 0; i < inputs.size(); ++i)
    s += fmt::format("{}%{} {}: {}", i ? ", " : "", inputs[i], value(inputs[i]).name,
                     shape_text(value(inputs[i]).type, symbols));
  s += ")\n";
  auto show = [&](ValueId v) {
    const Value &x = value(v);
    if (x.kind != Value::kConstant) return fmt::format("%{}", v);
    if (x.parameter) return fmt::format("@{}", x.name);
    if (x.constant.size() == 1 && x.type.dtype == OPGRAFT_FLOAT32) return fmt::format("{}", *x.constant.data<float>());
    if (x.known) {
      std::string list;
      for (int64_t k : *x.known) list += (list.empty() ? "" : ", ") + std::to_string(k);
      return "[" + list + "]";
    }
    return fmt::format("const {}", shape_text(x.type, symbols));
  };
  for (NodeId id : order_) {
    const Node &n = node(id);
    std::string left, right;
    for (ValueId v : n.outputs)
      left += fmt::format("{}%{}: {}", left.empty() ? "" : ", ", v, shape_text(value(v).type, symbols));
    for (ValueId v : n.inputs) right += (right.empty() ? "" : ", ") + show(v);
    for (auto &[k, v] : n.attrs) right += fmt::format("{}{}={}", right.empty() ? "" : ", ", k, attr_text(v));
    s += fmt::format("  {} = {}({})  # {}\n", left, n.spec.empty() ? n.op : n.spec, right, n.name);
  }
  s += "  return ";
  for (size_t i = 0; i < outputs.size(); ++i) s += (i ? ", " : "") + show(outputs[i]);
  return s + "\n";
}

NodeAttrs flat_attrs(const Graph &graph) {
  NodeAttrs attrs;
  for (NodeId id : graph.order()) {
    if (size_t(id) >= attrs.size()) attrs.resize(size_t(id) + 1);
    attrs[size_t(id)] = std::make_shared<FlatAttrs>(graph.node(id).attrs);
  }
  return attrs;
}

}  // namespace opgraft
