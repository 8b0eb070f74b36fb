// What stands behind `->` in a pattern: conditions on what was matched, and the attributes of the operator that goes
// in.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "infer/passes/pattern.h"

namespace opgraft::passes {
namespace {

// Conditions that are a name, what is in its brackets, and what may follow them.
constexpr std::pair<Pattern::Setting::Kind, const char *> kConditions[] = {
    {Pattern::Setting::kPart, "part"},       {Pattern::Setting::kEvery, "every"},
    {Pattern::Setting::kFirst, "first"},     {Pattern::Setting::kLast, "last"},
    {Pattern::Setting::kRepeats, "repeats"}, {Pattern::Setting::kShared, "shared"},
    {Pattern::Setting::kRow, "row"},         {Pattern::Setting::kRows, "rows"},
    {Pattern::Setting::kColumns, "columns"}, {Pattern::Setting::kCount, "columns"},
    {Pattern::Setting::kOpen, "open"},       {Pattern::Setting::kAlong, "along"},
    {Pattern::Setting::kFixed, "fixed"},     {Pattern::Setting::kCausal, "causal"},
    {Pattern::Setting::kTurns, "turns"}};

double number(const AttrValue &v) {
  if (auto f = std::get_if<double>(&v)) return *f;
  if (auto i = std::get_if<int64_t>(&v)) return double(*i);
  throw Error(OPGRAFT_INVALID_VALUE, "pattern: 1/name needs a number");
}

// The share of elements that are not 0; 1 of a dtype that has no product.
double density(const Tensor &t) {
  auto share = [&](auto zero) {
    auto *x = t.data<decltype(zero)>();
    const auto zeros = std::count_if(x, x + t.size(), [](auto v) { return float(v) == 0.0f; });
    return t.size() == 0 ? 1.0 : 1.0 - double(zeros) / double(t.size());
  };
  switch (t.dtype()) {
    case OPGRAFT_FLOAT32: return share(float());
    case OPGRAFT_FLOAT16: return share(float16());
    case OPGRAFT_BFLOAT16: return share(bfloat16());
    default: return 1.0;
  }
}

ValueId bound(const Graph &g, const Pattern &pattern, const Match &m, const std::string &name) {
  if (auto it = m.values.find(name); it != m.values.end()) return it->second;
  if (auto it = pattern.labels.find(name); it != pattern.labels.end())
    return g.node(m.nodes[size_t(it->second.node)]).outputs[size_t(it->second.output)];
  throw Error(OPGRAFT_INVALID_VALUE, fmt::format("pattern: {} is not bound", name));
}

// One number for each index of an axis of x, or of any: a's dimensions, counted from the last as they broadcast, are 1
// but for that one, which is known to be as long as x's.
bool along(const TensorType &a, const TensorType &x, const Pattern::Setting &s) {
  if (!a.ranked || !x.ranked || a.dims.size() > x.dims.size()) return false;
  const size_t rank = x.dims.size(), lead = rank - a.dims.size();
  const auto fits = [&](size_t axis) {
    for (size_t i = lead; i < rank; ++i)
      if (a.dims[i - lead] != (i == axis ? x.dims[i] : 1)) return false;
    return axis >= lead && axis < rank && x.dims[axis] != -1;
  };
  if (!s.any_axis) return fits(size_t(s.index < 0 ? s.index + int64_t(rank) : s.index));
  for (size_t axis = lead; axis < rank; ++axis)
    if (fits(axis)) return true;
  return false;
}

// Made of constants and Parameters alone.
bool fixed(const Graph &g, ValueId of) {
  std::set<ValueId> met{of};
  std::vector<ValueId> next{of};
  while (!next.empty()) {
    const Value &v = g.value(next.back());
    next.pop_back();
    if (v.kind == Value::kInput || v.state) return false;
    if (v.kind != Value::kResult) continue;
    for (ValueId x : g.node(v.producer).inputs)
      if (met.insert(x).second) next.push_back(x);
  }
  return true;
}

// A number, the id of a symbol, or -1.
int64_t dimension(const Graph &g, const Pattern &pattern, const Match &m, const std::string &name, int64_t index) {
  auto &dims = g.value(bound(g, pattern, m, name)).type.dims;
  const int64_t i = index < 0 ? index + int64_t(dims.size()) : index;
  return i < 0 || i >= int64_t(dims.size()) ? -1 : dims[size_t(i)];
}

// A name as a number: an attribute that was bound, or a constant.
bool number_of(const Graph &g, const Pattern &pattern, const Match &m, const std::string &name, double &out) {
  if (auto attr = m.attrs.find(name); attr != m.attrs.end()) return out = number(attr->second), true;
  return scalar(g.value(bound(g, pattern, m, name)), out);
}

std::optional<double> off(const Graph &g, const Pattern &pattern, const Match &m, const Pattern::Setting &s) {
  return passes::off(g.value(bound(g, pattern, m, s.name)), g.value(bound(g, pattern, m, s.other)));
}

AttrValue setting(const Graph &g, const Pattern &pattern, const Match &m, const Manifest &op,
                  const Pattern::Setting &s) {
  auto attr = m.attrs.find(s.name);
  switch (s.kind) {
    case Pattern::Setting::kLiteral: return s.literal;
    case Pattern::Setting::kName: {
      if (attr != m.attrs.end()) return attr->second;
      auto *declared = op.attr(s.attr);
      if (declared && declared->kind == OPGRAFT_ATTR_STRING) return s.name;
      throw Error(OPGRAFT_INVALID_VALUE, fmt::format("pattern: {} is not bound", s.name));
    }
    case Pattern::Setting::kInverse:
    case Pattern::Setting::kProduct: {
      double a = 1, b = 1;
      for (auto &[name, to] : {std::pair(s.name, &a), std::pair(s.other, &b)})
        if (!name.empty() && !number_of(g, pattern, m, name, *to))
          throw Error(OPGRAFT_INVALID_VALUE, fmt::format("pattern: {} is no constant", name));
      return s.kind == Pattern::Setting::kProduct ? a * b : 1.0 / a / b;
    }
    case Pattern::Setting::kOff: return off(g, pattern, m, s).value() * (s.inverse ? -1 : 1);
    default: {
      const int64_t d = dimension(g, pattern, m, s.name, s.index);
      if (d < 0)
        throw Error(OPGRAFT_INVALID_VALUE, fmt::format("dimension {} of {} is not a known number", s.index, s.name));
      return d;
    }
  }
}

}  // namespace

std::optional<Pattern::Setting::Kind> Pattern::Setting::named(const std::string &name) {
  for (auto &[kind, called] : kConditions)
    if (name == called) return kind;
  return std::nullopt;
}

std::string Pattern::Setting::text() const {
  if (kind == kSize) return fmt::format("dim({}, {})={}", name, index, count);
  const char *called =
      std::find_if(std::begin(kConditions), std::end(kConditions), [&](auto &c) { return c.first == kind; })->second;
  std::string s = fmt::format("{}({}{}", called, kind == kCausal && inverse ? "-" : "", name);
  if (kind == kCount) return fmt::format("{})={}{}", s, inverse ? "1/" : "", other);
  if (kind == kTurns) return fmt::format("{})={}{}", s, inverse ? "-" : "", pairs ? "pairs" : "halves");
  if (any_axis) return s + fmt::format(", {})", other);
  if (!other.empty()) s += fmt::format(", {}, {}", other, index);
  if (kind == kRows || kind == kColumns) return fmt::format("{})>={}", s, index);
  return s + ")" + (count ? fmt::format("={}/{}", part, count) : "");
}

bool applies(const Graph &graph, const Pattern &pattern, const Match &m) {
  return std::all_of(pattern.settings.begin(), pattern.settings.end(), [&](auto &s) {
    if (s.kind == Pattern::Setting::kBools) return bool(bools(graph.value(bound(graph, pattern, m, s.name))));
    if (s.kind == Pattern::Setting::kOff) return bool(off(graph, pattern, m, s));
    if (double x; !s.condition() && !s.other.empty())
      return number_of(graph, pattern, m, s.name, x) && number_of(graph, pattern, m, s.other, x);
    if (!s.silent() && s.kind != Pattern::Setting::kRank) return true;
    const Value &v = graph.value(bound(graph, pattern, m, s.name));
    // An unknown rank is told of: see attributes.
    if (s.kind == Pattern::Setting::kRank) return !v.type.ranked || int64_t(v.type.dims.size()) == s.index;
    if (s.kind == Pattern::Setting::kDtype) {
      auto &wanted = std::get<std::vector<int64_t>>(s.literal);
      return std::count(wanted.begin(), wanted.end(), v.type.dtype) > 0;
    }
    if (s.kind == Pattern::Setting::kCausal && s.other.empty()) return causal(v);
    if (s.kind == Pattern::Setting::kCausal) {
      double fill;
      return number_of(graph, pattern, m, s.other, fill) && causal(v, !s.inverse, fill);
    }
    if (s.kind == Pattern::Setting::kTurns) return turns(v, s.pairs, s.inverse);
    if (s.kind == Pattern::Setting::kOpen) return !v.type.concrete();
    if (s.kind == Pattern::Setting::kFixed) return fixed(graph, bound(graph, pattern, m, s.name));
    if (s.kind == Pattern::Setting::kAlong)
      return along(v.type, graph.value(bound(graph, pattern, m, s.other)).type, s);
    if (s.kind == Pattern::Setting::kSize) return dimension(graph, pattern, m, s.name, s.index) == s.count;
    if (s.kind == Pattern::Setting::kRow) {
      const std::span<const int64_t> dims = v.type.dims;
      return !dims.empty() && element_count(dims.first(dims.size() - 1)) == 1;
    }
    if (s.kind == Pattern::Setting::kRows || s.kind == Pattern::Setting::kColumns) {
      const std::span<const int64_t> dims = v.type.dims;
      if (!v.type.ranked || dims.empty()) return false;
      return element_count(s.kind == Pattern::Setting::kRows ? dims.first(dims.size() - 1) : dims.last(1)) >= s.index;
    }
    if (s.kind == Pattern::Setting::kCount) {
      double n;
      if (!v.type.ranked || v.type.dims.empty() || v.type.dims.back() < 1) return false;
      if (!number_of(graph, pattern, m, s.other, n)) return false;
      // 1/n rounds in float32, once in the product of all.
      return std::abs((s.inverse ? 1 / n : n) - double(v.type.dims.back())) <= 1e-6 * double(v.type.dims.back());
    }
    if (s.kind == Pattern::Setting::kSameShape) {
      const TensorType &other = graph.value(bound(graph, pattern, m, s.other)).type;
      return !v.type.ranked || !other.ranked || may_equal(v.type.dims, other.dims);
    }
    return v.stays() && density(v.constant) < number(s.literal);
  });
}

Attrs attributes(const Graph &graph, const Pattern &pattern, const Match &m, const Op &op) {
  Attrs attrs;
  for (auto &[k, v] : m.attrs)
    if (op.manifest.attr(k)) attrs[k] = v;
  for (auto &s : pattern.settings) {
    if (s.kind == Pattern::Setting::kBools) continue;  // make_inputs
    if (!s.condition()) {
      attrs[s.attr] = setting(graph, pattern, m, op.manifest, s);
      continue;
    }
    if (s.silent() || s.kind == Pattern::Setting::kShared) continue;  // applies; see Substituter
    if (s.arranged()) {
      check_arranged(graph, bound(graph, pattern, m, s.name), bound(graph, pattern, m, s.other), s);
      continue;
    }
    if (s.kind == Pattern::Setting::kSameDim) {
      const int64_t a = dimension(graph, pattern, m, s.name, s.index);
      if (a == -1 || a != dimension(graph, pattern, m, s.other, s.other_index))
        throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: dimension {} of {} must be dimension {} of {}", op.spec(),
                                                       s.index, s.name, s.other_index, s.other));
      continue;
    }
    auto &type = graph.value(bound(graph, pattern, m, s.name)).type;
    if (!type.ranked)
      throw Error(OPGRAFT_INVALID_VALUE,
                  fmt::format("{}: {} must have {} dimensions, got {}", op.spec(), s.name, s.index, type.text()));
  }
  return attrs;
}

void make_inputs(Graph &g, const Pattern &pattern, Match &m) {
  for (auto &s : pattern.settings)
    if (s.kind == Pattern::Setting::kBools)
      m.values[s.attr] = g.add_constant(bools(g.value(bound(g, pattern, m, s.name))));
}

}  // namespace opgraft::passes
