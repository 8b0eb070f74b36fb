#include "infer/passes/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace opgraft::passes {
namespace {

// A constant `a` of a graph against the number of a pattern, as the constant's dtype holds it.
bool close(double a, double b, int32_t dtype) {
  if (dtype == OPGRAFT_FLOAT16) b = double(float(float16(float(b))));
  if (dtype == OPGRAFT_BFLOAT16) b = double(float(bfloat16(float(b))));
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= 1e-6 * std::max(std::fabs(a), std::fabs(b));
}

bool same(const AttrValue &got, const AttrValue &want) {
  if (got == want) return true;
  auto number = [](const AttrValue &v, double &x) {
    if (auto i = std::get_if<int64_t>(&v)) return x = double(*i), true;
    if (auto f = std::get_if<double>(&v)) return x = *f, true;
    return false;
  };
  double a, b;
  if (number(got, a) && number(want, b)) return close(a, b, OPGRAFT_FLOAT32);
  auto list = std::get_if<std::vector<int64_t>>(&got);
  auto one = std::get_if<int64_t>(&want);
  return list && one && list->size() == 1 && list->front() == *one;
}

bool equal(const Tensor &a, const Tensor &b) {
  return a.dtype() == b.dtype() && a.dims() == b.dims() &&
         (a.data() == b.data() || std::memcmp(a.data(), b.data(), a.bytes()) == 0);
}

bool equal(const TensorType &a, const TensorType &b) {
  if (a.dtype != b.dtype || a.ranked != b.ranked || a.dims.size() != b.dims.size()) return false;
  for (size_t i = 0; i < a.dims.size(); ++i)
    if (a.dims[i] != b.dims[i] && a.dims[i] != -1 && b.dims[i] != -1) return false;
  return true;
}

class Matcher {
 public:
  Matcher(const Graph &g, const Users &users, const Pattern &p, const Manifest *target)
      : g_(g), users_(users), p_(p), target_(target) {}

  bool run(NodeId root, Match &out) {
    m_.nodes.assign(p_.calls.size(), kNone);
    const Node &n = g_.node(root);
    if (size_t(p_.results[0].output) >= n.outputs.size()) return false;
    std::vector<Goal> goals{{p_.results[0], n.outputs[size_t(p_.results[0].output)]}};
    if (!solve(goals) || !siblings(0)) return false;
    for (auto &r : p_.results) m_.results.push_back(g_.node(m_.nodes[size_t(r.node)]).outputs[size_t(r.output)]);
    out = std::move(m_);
    return true;
  }

 private:
  struct Goal {
    Pattern::Arg want;
    ValueId value;
  };

  // The value that an argument stands for, as far as it is known by now.
  ValueId matched(const Pattern::Arg &a) const {
    if (a.kind == Pattern::Arg::kVariable) {
      auto it = m_.values.find(a.name);
      return it == m_.values.end() ? kNone : it->second;
    }
    if (a.kind != Pattern::Arg::kNode || m_.nodes[size_t(a.node)] == kNone) return kNone;
    return g_.node(m_.nodes[size_t(a.node)]).outputs[size_t(a.output)];
  }

  // Whether two values are one: a constant may be written twice, as a model's file may have it. Parameters change.
  bool is(ValueId a, ValueId b) const {
    if (a == b) return true;
    const Value &one = g_.value(a), &other = g_.value(b);
    if (!one.stays() || !other.stays() || one.parameter || other.parameter) return false;
    return equal(one.constant, other.constant);
  }

  // Results from `next` on that the first does not lead to: among the users of a value that they share with it.
  bool siblings(size_t next) {
    for (; next < p_.results.size(); ++next) {
      const Pattern::Arg &r = p_.results[next];
      if (r.kind != Pattern::Arg::kNode) return false;
      if (m_.nodes[size_t(r.node)] == kNone) break;
    }
    if (next == p_.results.size()) return true;
    const Pattern::Arg &r = p_.results[next];
    for (auto &a : p_.calls[size_t(r.node)].args) {
      const ValueId shared = matched(a);
      if (shared == kNone) continue;
      for (NodeId id : users_[size_t(shared)]) {
        const Node &n = g_.node(id);
        if (n.dead || size_t(r.output) >= n.outputs.size()) continue;
        if (std::find(m_.nodes.begin(), m_.nodes.end(), id) != m_.nodes.end()) continue;
        const Match saved = m_;
        if (solve({{r, n.outputs[size_t(r.output)]}}) && siblings(next + 1)) return true;
        m_ = saved;
      }
      return false;
    }
    return false;
  }

  bool solve(std::vector<Goal> goals) {
    if (++steps_ > 20000) return false;
    while (!goals.empty()) {
      Goal goal = goals.back();
      goals.pop_back();
      const Value &v = g_.value(goal.value);
      double x;
      switch (goal.want.kind) {
        case Pattern::Arg::kAny: continue;
        case Pattern::Arg::kNumber:
          if (!scalar(v, x) || !close(x, goal.want.number, v.type.dtype)) return false;
          continue;
        case Pattern::Arg::kKnown:
          if (!v.known || *v.known != goal.want.known) return false;
          continue;
        case Pattern::Arg::kConstant:
          if (!v.stays() || !equal(v.constant, goal.want.constant)) return false;
          continue;
        case Pattern::Arg::kVariable: {
          const std::string &name = goal.want.name;
          if (target_ && target_->attr(name)) {
            if (!scalar(v, x) || !bind(name, AttrValue(x))) return false;
            continue;
          }
          auto [it, added] = m_.values.emplace(name, goal.value);
          if (!added && !is(it->second, goal.value)) return false;
          continue;
        }
        case Pattern::Arg::kNode: break;
      }
      const Pattern::Call &c = p_.calls[size_t(goal.want.node)];
      if (v.kind != Value::kResult || v.index != goal.want.output) return false;
      const Node &n = g_.node(v.producer);
      NodeId &bound = m_.nodes[size_t(goal.want.node)];
      if (bound != kNone) {
        if (bound != v.producer) return false;
        continue;
      }
      if (n.op != c.op || !takes(n, c) || !attrs(n, c)) return false;
      if (c.type && !equal(g_.value(n.outputs[0]).type, *c.type)) return false;
      bound = v.producer;
      bool swap = n.impl->manifest.commutative && c.args.size() == 2;
      for (int order = 0; order < (swap ? 2 : 1); ++order) {
        std::vector<Goal> next = goals;
        for (size_t i = c.args.size(); i-- > 0;) next.push_back({c.args[i], n.inputs[order ? 1 - i : i]});
        if (!swap) {
          goals = std::move(next);
          break;
        }
        Match saved = m_;
        if (solve(std::move(next))) return true;
        m_ = std::move(saved);
      }
      if (swap) return false;
    }
    return !takes_its_own();
  }

  static bool takes(const Node &n, const Pattern::Call &c) {
    const auto &in = n.inputs;
    if (!c.all) return in.size() == c.args.size();
    return !in.empty() && std::count(in.begin(), in.end(), in[0]) == std::ptrdiff_t(in.size());
  }

  // A value that the op would take is made by a node that it replaces: y = SiLU(x) of Mul(y, y), with the first y as x.
  bool takes_its_own() const {
    return std::any_of(m_.values.begin(), m_.values.end(), [&](auto &bound) {
      const Value &v = g_.value(bound.second);
      return v.kind == Value::kResult && std::find(m_.nodes.begin(), m_.nodes.end(), v.producer) != m_.nodes.end();
    });
  }
  bool bind(const std::string &name, AttrValue value) {
    auto [it, added] = m_.attrs.emplace(name, value);
    return added || same(it->second, value);
  }

  bool attrs(const Node &n, const Pattern::Call &c) {
    for (auto &[name, want] : c.attrs) {
      auto it = n.attrs.find(name);
      if (it == n.attrs.end()) return false;
      switch (want.kind) {
        case Pattern::Want::kAnything: break;
        case Pattern::Want::kLiteral:
          if (!same(from_front(n, name, it->second), from_front(n, name, want.literal))) return false;
          break;
        case Pattern::Want::kBind:
          // A bare word is a string literal where the attribute is a string and the op has no such attribute.
          if (std::holds_alternative<std::string>(it->second) && !(target_ && target_->attr(want.name))) {
            if (std::get<std::string>(it->second) != want.name) return false;
          } else if (!bind_attr(n, name, want.name, it->second)) {
            return false;
          }
      }
    }
    return true;
  }

  // What an attribute of the node says, for one of the op: a list of one number where that is a number, as the axis of
  // a reduction; and where it was bound before, an axis that is the same one of the node counted from the other end.
  bool bind_attr(const Node &n, const std::string &name, const std::string &as, AttrValue value) {
    auto *declared = target_ ? target_->attr(as) : nullptr;
    if (auto *list = std::get_if<std::vector<int64_t>>(&value);
        list && declared && declared->kind == OPGRAFT_ATTR_INT) {
      if (list->size() != 1) return false;
      value = int64_t(list->front());
    }
    auto [it, added] = m_.attrs.emplace(as, value);
    return added || same(it->second, value) || same(from_front(n, name, it->second), from_front(n, name, value));
  }

  // An axis of the node counted from the front: on three dimensions -1 is 2.
  AttrValue from_front(const Node &n, const std::string &name, AttrValue value) const {
    auto *attr = n.impl->manifest.attr(name);
    if (!attr || attr->axis_of.empty()) return value;
    const size_t input = size_t(n.impl->manifest.input_index(attr->axis_of));
    if (input >= n.inputs.size() || !g_.value(n.inputs[input]).type.ranked) return value;
    const int64_t rank = int64_t(g_.value(n.inputs[input]).type.dims.size());
    auto count = [&](int64_t &axis) { axis += axis < 0 ? rank : 0; };
    if (auto *axis = std::get_if<int64_t>(&value)) count(*axis);
    if (auto *axes = std::get_if<std::vector<int64_t>>(&value)) std::for_each(axes->begin(), axes->end(), count);
    return value;
  }

  const Graph &g_;
  const Users &users_;
  const Pattern &p_;
  const Manifest *target_;
  Match m_;
  int steps_ = 0;
};

// What a node of the pattern's graph takes as an input.
Pattern::Arg argument(const Value &x, ValueId v, const std::map<ValueId, Pattern::Arg> &args, Fit fit, bool view) {
  using Arg = Pattern::Arg;
  double number;
  if (auto it = args.find(v); it != args.end() && !(x.known && x.kind == Value::kResult)) return it->second;
  if (x.known && x.type.dims.size() == 1) {
    if (fit == Fit::kShape || view) return {};
    Arg a{Arg::kKnown};
    a.known = *x.known;
    return a;
  }
  if (scalar(x, number)) return {Arg::kNumber, "", number};
  if (x.known || !x.stays()) return {};
  if (fit == Fit::kShape) return {};
  Arg a{Arg::kConstant};
  a.constant = x.constant;
  return a;
}

}  // namespace

bool scalar(const Value &v, double &out) {
  if (!v.stays() || v.constant.size() != 1 || v.parameter) return false;
  switch (v.type.dtype) {
    case OPGRAFT_FLOAT32: out = *v.constant.data<float>(); return true;
    case OPGRAFT_FLOAT64: out = *v.constant.data<double>(); return true;
    case OPGRAFT_FLOAT16: out = double(float(*v.constant.data<float16>())); return true;
    case OPGRAFT_BFLOAT16: out = double(float(*v.constant.data<bfloat16>())); return true;
    case OPGRAFT_INT32: out = *v.constant.data<int32_t>(); return true;
    case OPGRAFT_INT64: out = double(*v.constant.data<int64_t>()); return true;
    default: return false;
  }
}

bool Pattern::siblings() const {
  std::vector<bool> met(calls.size());
  std::vector<Arg> next{results[0]};
  while (!next.empty()) {
    const Arg a = next.back();
    next.pop_back();
    if (a.kind != Arg::kNode || met[size_t(a.node)]) continue;
    met[size_t(a.node)] = true;
    next.insert(next.end(), calls[size_t(a.node)].args.begin(), calls[size_t(a.node)].args.end());
  }
  return std::any_of(results.begin(), results.end(), [&](auto &r) { return !met[size_t(r.node)]; });
}

Pattern pattern_of(const Graph &g, Fit fit) {
  Pattern p;
  std::map<ValueId, Pattern::Arg> args;
  for (ValueId v : g.inputs) args[v] = {Pattern::Arg::kVariable, g.value(v).name};
  // Only what the results are computed from: a size that is known needs no node to compute it.
  std::vector<bool> needed(g.value_count());
  for (ValueId v : g.outputs) needed[size_t(v)] = true;
  auto &order = g.order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const Node &n = g.node(*it);
    if (std::none_of(n.outputs.begin(), n.outputs.end(), [&](ValueId v) { return needed[size_t(v)]; })) continue;
    for (ValueId v : n.inputs)
      if (!g.value(v).known) needed[size_t(v)] = true;
  }
  for (NodeId id : order) {
    const Node &n = g.node(id);
    if (std::none_of(n.outputs.begin(), n.outputs.end(), [&](ValueId v) { return needed[size_t(v)]; })) continue;
    Pattern::Call c;
    c.op = n.op;
    c.label = n.name;
    bool view = !n.impl->manifest.view.empty();  // its result follows from the target shape alone
    for (ValueId v : n.inputs) c.args.push_back(argument(g.value(v), v, args, fit, view));
    for (auto &[k, v] : n.attrs)
      if (fit != Fit::kShape) c.attrs.push_back({k, {Pattern::Want::kLiteral, v, ""}});
    if (fit == Fit::kExact) c.type = g.value(n.outputs[0]).type;
    Pattern::Arg a{Pattern::Arg::kNode, "", 0, int(p.calls.size())};
    p.calls.push_back(std::move(c));
    p.labels[n.name] = a;
    for (size_t i = 0; i < n.outputs.size(); ++i) {
      a.output = int(i);
      args[n.outputs[i]] = a;
    }
  }
  for (ValueId v : g.outputs) {
    auto it = args.find(v);
    if (it == args.end() || it->second.kind != Pattern::Arg::kNode)
      throw Error(OPGRAFT_INVALID_VALUE, "substitute: the pattern must return the result of an operator");
    p.results.push_back(it->second);
  }
  if (p.results.empty()) throw Error(OPGRAFT_INVALID_VALUE, "substitute: the pattern returns nothing");
  return p;
}

bool match(const Graph &graph, const Users &users, const Pattern &pattern, const Manifest *target, NodeId root,
           Match &out) {
  return Matcher(graph, users, pattern, target).run(root, out);
}

}  // namespace opgraft::passes
