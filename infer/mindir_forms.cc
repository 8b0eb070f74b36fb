#include "infer/mindir_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace opgraft::mindir {

void Form::takes(size_t least, size_t most) const {
  const size_t n = operands_.size();
  if (n < least || n > most)
    refuse(least == most ? fmt::format("takes {} operands, got {}", most, n)
                         : fmt::format("takes {} to {} operands, got {}", least, most, n));
}

ValueId Form::x() {
  const ValueId v = items_.value_of(operands_[0]);
  if (!graph_.value(v).type.ranked) refuse("x has no known rank");
  return v;
}

bool Form::given(size_t i) const {
  Literal l;
  return i < operands_.size() && !(items_.literal_of(operands_[i], l) && l.kind == Literal::kNone);
}

AttrValue Form::attr(size_t i, int32_t kind) const {
  Literal l;
  AttrValue v;
  const char *what = kind == OPGRAFT_ATTR_INT    ? "int"
                     : kind == OPGRAFT_ATTR_BOOL ? "bool"
                     : kind == OPGRAFT_ATTR_INTS ? "tuple of int"
                                                 : "dtype";
  if (!items_.literal_of(operands_.at(i), l) || !to_attr(l, kind, v))
    refuse(fmt::format("operand {} must be a constant {}", i, what));
  return v;
}

size_t Form::axis(size_t i) {
  const int64_t a = number(i), rank = int64_t(dims().size());
  if (a < -rank || a >= rank) refuse(fmt::format("axis {} is outside the {} dimensions of x", a, rank));
  return size_t(a < 0 ? a + rank : a);
}

std::vector<int64_t> Form::numbers(const std::string &name) const {
  AttrValue v;
  const auto it = attrs_.find(name);
  if (it == attrs_.end() || !to_attr(it->second, OPGRAFT_ATTR_INTS, v))
    refuse(fmt::format("attribute {} must be a tuple of int", name));
  return std::get<std::vector<int64_t>>(v);
}

int64_t Form::number(const std::string &name, int64_t fallback) const {
  AttrValue v;
  const auto it = attrs_.find(name);
  if (it == attrs_.end()) return fallback;
  if (!to_attr(it->second, OPGRAFT_ATTR_INT, v)) refuse(fmt::format("attribute {} must be an int", name));
  return std::get<int64_t>(v);
}

std::vector<ValueId> Form::node(const std::string &op, const std::vector<ValueId> &in, const Attrs &attrs,
                                const std::string &name) {
  return graph_.node(graph_.add_node(registry_, op, in, attrs, name)).outputs;
}

ValueId Form::constant(const std::vector<int64_t> &values) {
  Tensor t(OPGRAFT_INT64, {int64_t(values.size())});
  std::copy(values.begin(), values.end(), t.data<int64_t>());
  return graph_.add_constant(std::move(t));
}

ValueId Form::exchanged(ValueId v, size_t a, size_t b) {
  std::vector<int64_t> perm(dims().size());
  std::iota(perm.begin(), perm.end(), int64_t(0));
  std::swap(perm.at(a), perm.at(b));
  return one("Transpose", {v}, {{"perm", perm}});
}

namespace {

// mint's var, std and both with the mean: ReduceStd, of which ops.var is made, too.
std::vector<ValueId> deviation(Form &f, bool square, bool mean) {
  f.takes(1, 4);
  const int64_t correction = f.given(2) ? f.number(2) : 1;
  if (correction != 0 && correction != 1) refuse(fmt::format("correction must be 0 or 1, got {}", correction));
  const auto axes = f.given(1) ? f.numbers(1) : std::vector<int64_t>();
  auto out = f.node("ReduceStd", {f.x()},
                    {{"axis", axes}, {"unbiased", correction == 1}, {"keep_dims", f.given(3) && f.flag(3)}}, f.name());
  if (square) out[0] = f.one("Square", {out[0]});
  if (!mean) out.resize(1);
  return out;
}

// Without a dimension it is the first of a vector and of three dimensions, else the second: as MindSpore has it.
std::vector<ValueId> log_softmax(Form &f) {
  f.takes(1, 3);
  const size_t rank = f.dims().size();
  const int64_t axis = f.given(1) ? int64_t(f.axis(1)) : rank != 1 && rank != 3;
  const ValueId x = f.given(2) ? f.one("Cast", {f.x()}, {{"dtype", f.word(2)}}) : f.x();
  return {f.one("LogSoftmax", {x}, {{"axis", axis}})};
}

// The largest or smallest of any dimension, and their places as int64: TopK of the last one, of -x for the smallest.
std::vector<ValueId> topk(Form &f) {
  f.takes(2, 5);
  const size_t last = f.dims().size() - 1;
  if (f.dims().empty()) refuse("x must have at least 1 dimension");
  const size_t axis = f.given(2) ? f.axis(2) : last;
  const bool least = f.given(3) && !f.flag(3);
  ValueId x = f.x();
  if (axis != last) x = f.exchanged(x, axis, last);
  if (least) x = f.one("Neg", {x});
  const auto found = f.node("TopK", {x}, {{"k", f.number(1)}, {"sorted", !f.given(4) || f.flag(4)}}, f.name());
  ValueId values = least ? f.one("Neg", {found[0]}) : found[0];
  ValueId places = f.one("Cast", {found[1]}, {{"dtype", std::string("int64")}});
  if (axis != last) values = f.exchanged(values, axis, last), places = f.exchanged(places, axis, last);
  return {values, places};
}

// A pool in three dimensions, with a depth of one.
std::vector<ValueId> pool(Form &f) {
  f.takes(1, 1);
  const auto triple = [&](const char *name, int64_t depth) {
    const auto v = f.numbers(name);
    if (v.size() != 1 && v.size() != 2 && v.size() != 4)
      refuse(fmt::format("attribute {} must be 1, 2 or 4 numbers, got {}", name, v.size()));
    return std::vector<int64_t>{depth, v[v.size() < 2 ? 0 : v.size() - 2], v.back()};
  };
  if (f.dims().size() != 4) refuse(fmt::format("x must have 4 dimensions, got {}", f.dims().size()));
  const int64_t type = f.number("argmax_type", 4);
  if (type != 3 && type != 4) refuse(fmt::format("argmax_type must be 3 or 4, int32 or int64, got {}", type));
  const auto out = f.node("MaxPool3DWithArgmax", {f.one("ExpandDims", {f.x()}, {{"axis", int64_t(2)}})},
                          {{"ksize", triple("kernel_size", 1)},
                           {"strides", triple("strides", 1)},
                           {"pads", triple("pads", 0)},
                           {"dilation", triple("dilation", 1)},
                           {"ceil_mode", f.number("ceil_mode", 0) != 0}},
                          f.name());
  const Attrs depth{{"axis", std::vector<int64_t>{2}}};
  ValueId places = f.one("Squeeze", {out[1]}, depth);
  if (type == 3) places = f.one("Cast", {places}, {{"dtype", std::string("int32")}});
  return {f.one("Squeeze", {out[0]}, depth), places};
}

}  // namespace

bool is_form(const std::string &op) {
  return op == "Var" || op == "Std" || op == "VarMean" || op == "StdMean" || op == "LogSoftmaxExt" || op == "TopkExt" ||
         op == "MaxPoolWithArgmaxV2";
}

std::vector<ValueId> add_form(const std::string &op, Form form) {
  if (op == "LogSoftmaxExt") return log_softmax(form);
  if (op == "TopkExt") return topk(form);
  if (op == "MaxPoolWithArgmaxV2") return pool(form);
  return deviation(form, op.starts_with("Var"), op.ends_with("Mean"));
}

void drop_unread(Graph &graph, const std::vector<NodeId> &made) {
  if (made.empty()) return;
  std::vector<size_t> reads(graph.value_count());
  for (ValueId v : graph.outputs) ++reads[size_t(v)];
  for (NodeId id : graph.order())
    for (ValueId v : graph.node(id).inputs) ++reads[size_t(v)];
  for (auto id = made.rbegin(); id != made.rend(); ++id) {
    Node &n = graph.node(*id);
    n.dead = std::ranges::all_of(n.outputs, [&](ValueId v) { return reads[size_t(v)] == 0; });
    for (ValueId v : n.inputs) reads[size_t(v)] -= n.dead;
  }
  graph.sweep();
}

}  // namespace opgraft::mindir
