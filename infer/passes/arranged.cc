// Conditions on what nodes that move values make of them: asked of the operators themselves, with numbered elements.
#include <algorithm>
#include <cmath>
#include <map>

#include "infer/passes/pattern.h"
#include "infer/session.h"

namespace opgraft::passes {
namespace {

constexpr int64_t kMostElements = int64_t(1) << 25;  // that are numbered

class Arranged {
 public:
  explicit Arranged(const Graph &g) : g_(g) {
    // Sizes that differ, and of which an order can be told.
    for (size_t i = 0; i < g.symbols.free_count(); ++i) sizes_.push_back(2 + int64_t(i % 3));
  }

  int64_t number(int64_t dim) const { return is_symbol(dim) ? g_.symbols.evaluate(dim, sizes_) : dim; }

  // Elements of `from`, numbered, as they arrive at `v`; an empty tensor where that cannot be told.
  Tensor follow(ValueId v, ValueId from, int depth = 0) {
    const Value &x = g_.value(v);
    if (v == from) {
      Shape dims;
      for (int64_t d : x.type.dims) dims.push_back(number(d));
      const int64_t n =
          std::count_if(dims.begin(), dims.end(), [](auto d) { return d < 0; }) ? -1 : element_count(dims);
      if (!x.type.ranked || n < 0 || n > kMostElements) return {};
      Tensor t(OPGRAFT_INT32, dims);
      for (int64_t i = 0; i < n; ++i) t.data<int32_t>()[i] = int32_t(i);
      return t;
    }
    if (auto it = met_.find(v); it != met_.end()) return it->second;
    if (x.kind != Value::kResult || depth > 16) return {};
    const Node &n = g_.node(x.producer);
    if (!n.impl->manifest.moves_values || n.inputs.empty()) return {};
    std::vector<Tensor> in;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      const Value &input = g_.value(n.inputs[i]);
      if (i > 0 && input.kind == Value::kConstant) {
        in.push_back(input.constant);
      } else if (i > 0 && input.known) {
        Tensor t(OPGRAFT_INT64, input.type.dims);
        for (size_t k = 0; k < input.known->size(); ++k) t.data<int64_t>()[k] = number((*input.known)[k]);
        in.push_back(t);
      } else {
        in.push_back(follow(n.inputs[i], from, depth + 1));
        if (!in.back()) return {};
      }
    }
    return met_[v] = run_op(n.impl, in, n.attrs)[size_t(x.index)];
  }

 private:
  const Graph &g_;
  std::vector<int64_t> sizes_;
  std::map<ValueId, Tensor> met_;  // what several take is followed once
};

bool arranged(const Graph &g, ValueId of, ValueId from, const Pattern::Setting &s) {
  const TensorType &a = g.value(of).type, &x = g.value(from).type;
  const size_t rank = x.dims.size();
  const int64_t axis = s.index < 0 ? s.index + int64_t(rank) : s.index;
  if (!a.ranked || !x.ranked || axis < 0 || axis >= int64_t(rank)) return false;
  Shape dims = a.dims;
  if (dims.size() + 1 == rank) dims.insert(dims.begin() + axis, 1);  // one element, its dimension dropped
  if (dims.size() != rank) return false;
  for (size_t k = 0; k < rank; ++k)
    if (int64_t(k) != axis && (dims[k] != x.dims[k] || x.dims[k] == -1)) return false;
  const int64_t whole = x.dims[size_t(axis)], part = dims[size_t(axis)];
  if (whole < 1 || part < 1) return false;
  using Kind = Pattern::Setting;
  const bool ends = s.kind == Kind::kFirst || s.kind == Kind::kLast, repeats = s.kind == Kind::kRepeats;
  if (ends ? part > whole : repeats ? part % whole != 0 : part * s.count != whole) return false;
  Arranged numbers(g);
  const Tensor got = numbers.follow(of, from);
  if (!got) return false;
  int64_t outer = 1, inner = 1;
  for (size_t k = 0; k < rank; ++k)
    (int64_t(k) < axis ? outer : inner) *= int64_t(k) == axis ? 1 : numbers.number(x.dims[k]);
  if (got.size() != outer * part * inner) return false;
  const int32_t *at = got.data<int32_t>();
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t p = 0; p < part; ++p) {
      const int64_t source = s.kind == Kind::kFirst  ? p
                             : s.kind == Kind::kLast ? whole - part + p
                             : repeats               ? p / (part / whole)
                             : s.kind == Kind::kPart ? s.part * part + p
                                                     : p * s.count + s.part;
      for (int64_t i = 0; i < inner; ++i)
        if (*at++ != int32_t((o * whole + source) * inner + i)) return false;
    }
  return true;
}

// NaN of a dtype that has no product.
double element(const Tensor &t, int64_t i) {
  switch (t.dtype()) {
    case OPGRAFT_FLOAT32: return double(t.data<float>()[i]);
    case OPGRAFT_FLOAT16: return double(float(t.data<float16>()[i]));
    case OPGRAFT_BFLOAT16: return double(float(t.data<bfloat16>()[i]));
    default: return NAN;
  }
}

}  // namespace

bool causal(const Value &v) {
  if (v.kind != Value::kConstant || v.parameter || v.constant.dims().size() < 2) return false;
  const Shape &dims = v.constant.dims();
  const int64_t s = dims[dims.size() - 2], t = dims.back();
  if (v.constant.size() != s * t || s > t) return false;
  for (int64_t i = 0; i < s * t; ++i) {
    const double x = element(v.constant, i);
    if (i % t <= t - s + i / t ? x != 0 : !(x <= -1e4)) return false;
  }
  return true;
}

bool turns(const Value &v, bool pairs, bool back) {
  if (v.kind != Value::kConstant || v.parameter || v.constant.dims().size() < 2) return false;
  const Shape &dims = v.constant.dims();
  const int64_t n = dims.back(), half = n / 2;
  if (n < 2 || n % 2 != 0 || dims[dims.size() - 2] != n || v.constant.size() != n * n) return false;
  for (int64_t row = 0; row < n; ++row) {
    const bool first = pairs ? row % 2 == 0 : row < half;
    const int64_t goes_to = row + (first ? 1 : -1) * (pairs ? 1 : half);
    const double sign = first != back ? 1 : -1;
    for (int64_t column = 0; column < n; ++column)
      if (element(v.constant, row * n + column) != (column == goes_to ? sign : 0)) return false;
  }
  return true;
}

void check_arranged(const Graph &g, ValueId of, ValueId from, const Pattern::Setting &s) {
  bool holds = false;
  try {
    holds = arranged(g, of, from, s);
  } catch (const std::exception &) {
    // An operator that refuses the sizes that stand for open ones says nothing.
  }
  if (!holds) throw Error(OPGRAFT_INVALID_VALUE, "the pattern's " + s.text() + " does not hold");
}

}  // namespace opgraft::passes
