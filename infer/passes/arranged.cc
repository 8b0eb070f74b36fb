// Conditions on what nodes that move values make of them: asked of the operators themselves, with numbered elements.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "infer/passes/pattern.h"
#include "infer/session.h"

namespace opgraft::passes {
namespace {

constexpr int64_t kMostElements = int64_t(1) << 25;  // that are numbered
constexpr int kMostMoves = 16;                       // one after another
constexpr size_t kMostMet = 256;                     // values that what is looked for is among
constexpr int64_t kFew = 1 << 14;                    // elements: of more some stand for all, where they can

bool moves(const Node &n) { return n.impl->manifest.moves_values && !n.inputs.empty(); }
// An input that says where the elements go; the first one holds them.
bool says_where(const Graph &g, const Node &n, size_t input) {
  const Value &x = g.value(n.inputs[input]);
  return input > 0 && (x.stays() || x.known);
}

// Sizes of dimensions, the smallest last, and a smaller one that stands for each: only so many elements are numbered.
using Fewer = std::vector<std::pair<int64_t, int64_t>>;

class Arranged {
 public:
  explicit Arranged(const Graph &g, Fewer fewer = {}) : g_(g), fewer_(std::move(fewer)) {
    // Sizes that differ, and of which an order can be told.
    for (size_t i = 0; i < g.symbols.free_count(); ++i) sizes_.push_back(2 + int64_t(i % 3));
  }

  int64_t number(int64_t dim) const {
    for (auto [size, instead] : fewer_)
      if (dim == size) return instead;
    return known(dim);
  }
  // -1: not known.
  int64_t elements(const Shape &dims) const { return element_count(numbers(dims)); }

  // Elements of `from`, numbered, as they arrive at `v`; an empty tensor where that cannot be told.
  Tensor follow(ValueId v, ValueId from, int depth = 0) {
    const Value &x = g_.value(v);
    if (v == from) {
      const Shape dims = numbers(x.type.dims);
      const int64_t n =
          std::count_if(dims.begin(), dims.end(), [](auto d) { return d < 0; }) ? -1 : element_count(dims);
      if (!x.type.ranked || n < 0 || n > kMostElements) return {};
      Tensor t(OPGRAFT_INT32, dims);
      for (int64_t i = 0; i < n; ++i) t.data<int32_t>()[i] = int32_t(i);
      return t;
    }
    if (auto it = met_.find(v); it != met_.end()) return it->second;
    if (x.kind != Value::kResult || depth > kMostMoves) return {};
    const Node &n = g_.node(x.producer);
    if (!moves(n)) return {};
    std::vector<Tensor> in;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      if (says_where(g_, n, i)) {
        in.push_back(where(n, i));
      } else {
        in.push_back(follow(n.inputs[i], from, depth + 1));
        if (!in.back()) return {};
      }
    }
    const Tensor got = run_op(n.impl, in, n.attrs)[size_t(x.index)];
    if (!fewer_.empty() && !stands_for_all(n, x.type, got))
      throw Error(OPGRAFT_UNSUPPORTED, n.name + ": cuts a dimension, or mixes it with another");
    return met_[v] = got;
  }

 private:
  int64_t known(int64_t dim) const { return is_symbol(dim) ? g_.symbols.evaluate(dim, sizes_) : dim; }
  Shape numbers(const Shape &dims) const {
    Shape out;
    for (int64_t d : dims) out.push_back(number(d));
    return out;
  }

  // What an input says of where the elements go; of shapes and the like, with the sizes that are numbered.
  Tensor where(const Node &n, size_t input) const {
    const Value &x = g_.value(n.inputs[input]);
    const ManifestTensor *declared = n.impl->manifest.input(input);
    const bool sizes = declared && declared->value;
    if (x.stays() && (fewer_.empty() || !sizes || !x.known)) return x.constant;
    Tensor t(OPGRAFT_INT64, x.type.dims);
    for (size_t k = 0; k < x.known->size(); ++k)
      t.data<int64_t>()[k] = sizes ? number((*x.known)[k]) : known((*x.known)[k]);
    return t;
  }

  // Whether a node does with fewer elements along some dimensions what it does with all: each of them is there before
  // and after, in a dimension of its own, and a view has as many elements behind it. No other dimension is as long: so
  // large a number in an input is a size then, and no place.
  bool stands_for_all(const Node &n, const TensorType &type, const Tensor &got) const {
    if (!type.ranked || got.dims() != numbers(type.dims)) return false;
    for (int64_t d : type.dims)
      if (number(d) == known(d) && known(d) >= fewer_.back().first) return false;
    auto &view = n.impl->manifest.view;
    return view.empty() || places(g_.value(n.inputs[size_t(view[0].second)]).type.dims) == places(type.dims);
  }
  // The sizes that others stand for, and the elements behind each, from the last dimension on.
  Fewer places(const Shape &dims) const {
    Fewer found;
    int64_t behind = 1;
    for (auto d = dims.rbegin(); d != dims.rend(); behind *= number(*d++))
      if (number(*d) != known(*d)) found.push_back({*d, behind});
    return found;
  }

  const Graph &g_;
  const Fewer fewer_;
  std::vector<int64_t> sizes_;
  std::map<ValueId, Tensor> met_;  // what several take is followed once
};

// The axis of x from the front, how long x is along it, and what is made of it.
struct Lengths {
  size_t axis;
  int64_t whole, part;
};

// Nothing where the shapes alone say that `a` cannot be made of x as the condition says.
std::optional<Lengths> lengths(const TensorType &a, const TensorType &x, const Pattern::Setting &s) {
  using Kind = Pattern::Setting;
  const size_t rank = x.dims.size();
  const int64_t from_front = s.index < 0 ? s.index + int64_t(rank) : s.index;
  if (!a.ranked || !x.ranked || from_front < 0 || from_front >= int64_t(rank)) return std::nullopt;
  const size_t axis = size_t(from_front);
  Shape dims = a.dims;
  const bool repeats = s.kind == Kind::kRepeats;
  if (repeats && dims.size() == rank + 1) {  // the copies in a dimension of their own
    if (dims[axis] < 0 || dims[axis + 1] < 0) return std::nullopt;
    dims[axis] *= dims[axis + 1];
    dims.erase(dims.begin() + from_front + 1);
  }
  if (!repeats && dims.size() + 1 == rank)
    dims.insert(dims.begin() + from_front, 1);  // one element, its dimension dropped
  if (dims.size() != rank) return std::nullopt;
  for (size_t k = 0; k < rank; ++k)
    if (k != axis && (dims[k] != x.dims[k] || x.dims[k] == -1)) return std::nullopt;
  const int64_t whole = x.dims[axis], part = dims[axis];
  if (whole < 1 || part < 1) return std::nullopt;
  const bool ends = s.kind == Kind::kFirst || s.kind == Kind::kLast;
  if (ends ? part > whole : repeats ? part % whole != 0 : part * s.count != whole) return std::nullopt;
  return Lengths{axis, whole, part};
}

bool arranged(const Graph &g, ValueId of, ValueId from, const Pattern::Setting &s, const Lengths &fit,
              const Fewer &fewer) {
  const TensorType &x = g.value(from).type;
  const auto [axis, whole, part] = fit;
  Arranged numbers(g, fewer);
  const Tensor got = numbers.follow(of, from);
  if (!got) return false;
  using Kind = Pattern::Setting;
  int64_t outer = 1, inner = 1;
  for (size_t k = 0; k < x.dims.size(); ++k) (k < axis ? outer : inner) *= k == axis ? 1 : numbers.number(x.dims[k]);
  if (got.size() != outer * part * inner) return false;
  const int32_t *at = got.data<int32_t>();
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t p = 0; p < part; ++p) {
      const int64_t source = s.kind == Kind::kFirst     ? p
                             : s.kind == Kind::kLast    ? whole - part + p
                             : s.kind == Kind::kRepeats ? p / (part / whole)
                             : s.kind == Kind::kPart    ? s.part * part + p
                                                        : p * s.count + s.part;
      for (int64_t i = 0; i < inner; ++i)
        if (*at++ != int32_t((o * whole + source) * inner + i)) return false;
    }
  return true;
}

// The same, told from fewer elements along x's longest other dimensions, of two numbers; nothing where these do not
// stand for all.
std::optional<bool> arranged_in_few(const Graph &g, ValueId of, ValueId from, const Pattern::Setting &s,
                                    const Lengths &fit) {
  const Shape &dims = g.value(from).type.dims;
  std::set<int64_t, std::greater<>> long_ones;
  for (size_t k = 0; k < dims.size(); ++k)
    if (k != fit.axis && dims[k] > std::max({fit.whole, fit.part, int64_t(32)})) long_ones.insert(dims[k]);
  const std::vector<int64_t> sizes(long_ones.begin(), long_ones.end());
  static constexpr int64_t kInstead[2][2] = {{7, 13}, {11, 17}};
  for (size_t count = std::min<size_t>(sizes.size(), 2); count > 0; --count) try {
      bool holds = true;
      for (auto &instead : kInstead) {
        Fewer fewer;
        for (size_t i = 0; i < count; ++i) fewer.push_back({sizes[i], instead[i]});
        holds = holds && arranged(g, of, from, s, fit, fewer);
      }
      return holds;
    } catch (const std::exception &) {
    }  // with the longest alone
  return std::nullopt;
}

bool holds(const Graph &g, ValueId of, ValueId from, const Pattern::Setting &s) {
  const auto fit = lengths(g.value(of).type, g.value(from).type, s);
  if (!fit) return false;
  try {
    if (Arranged(g).elements(g.value(of).type.dims) > kFew)
      if (const auto told = arranged_in_few(g, of, from, s, *fit)) return *told;
    return arranged(g, of, from, s, *fit, {});
  } catch (const std::exception &) {
    return false;  // an operator that refuses the sizes that stand for open ones says nothing
  }
}

// The nodes that make `of` of `from`.
void add_between(const Graph &g, ValueId of, ValueId from, std::vector<NodeId> &nodes) {
  const Value &v = g.value(of);
  if (of == from || v.kind != Value::kResult) return;
  if (std::find(nodes.begin(), nodes.end(), v.producer) != nodes.end()) return;
  const Node &n = g.node(v.producer);
  if (!moves(n)) return;
  nodes.push_back(v.producer);
  for (size_t k = 0; k < n.inputs.size(); ++k)
    if (!says_where(g, n, k)) add_between(g, n.inputs[k], from, nodes);
}

}  // namespace

bool find_sources(const Graph &g, const Pattern &pattern, Match &m) {
  for (auto &s : pattern.settings) {
    if (!pattern.sought(s) || m.values.count(s.other)) continue;
    ValueId of = kNone;
    if (auto it = m.values.find(s.name); it != m.values.end()) of = it->second;
    else if (auto label = pattern.labels.find(s.name); label != pattern.labels.end())
      of = g.node(m.nodes[size_t(label->second.node)]).outputs[size_t(label->second.output)];
    if (of == kNone) return false;
    const TensorType &type = g.value(of).type;
    std::vector<ValueId> met{of};
    std::vector<std::pair<int64_t, ValueId>> fitting;  // and how long they are
    for (size_t i = 0; i < met.size() && i < kMostMet; ++i) {
      const Value &v = g.value(met[i]);
      const auto fit = i > 0 ? lengths(type, v.type, s) : std::nullopt;
      if (fit && (fit->part != fit->whole || v.type.dims.size() != type.dims.size()))
        fitting.push_back({fit->whole, met[i]});
      if (v.kind != Value::kResult || !moves(g.node(v.producer))) continue;
      const Node &n = g.node(v.producer);
      for (size_t k = 0; k < n.inputs.size(); ++k)
        if (!says_where(g, n, k) && std::find(met.begin(), met.end(), n.inputs[k]) == met.end())
          met.push_back(n.inputs[k]);
    }
    if (fitting.empty()) return false;
    // The smallest that it is made of. One alone is asked later, when all else is known to fit.
    std::stable_sort(fitting.begin(), fitting.end(), [](auto &a, auto &b) { return a.first < b.first; });
    ValueId &from = m.values[s.other] = fitting[0].second;
    for (size_t i = 0; i < fitting.size() && fitting.size() > 1; ++i)
      if (holds(g, of, fitting[i].second, s)) {
        from = fitting[i].second;
        break;
      }
    add_between(g, of, from, m.nodes);
  }
  return true;
}

bool Pattern::sought(const Setting &s) const {
  const auto takes = [&](const Call &c) {
    return std::any_of(c.args.begin(), c.args.end(),
                       [&](const Arg &a) { return a.kind == Arg::kVariable && a.name == s.other; });
  };
  return s.arranged() && !labels.count(s.other) && std::none_of(calls.begin(), calls.end(), takes);
}

void check_arranged(const Graph &g, ValueId of, ValueId from, const Pattern::Setting &s) {
  if (!holds(g, of, from, s)) throw Error(OPGRAFT_INVALID_VALUE, "the pattern's " + s.text() + " does not hold");
}

}  // namespace opgraft::passes
