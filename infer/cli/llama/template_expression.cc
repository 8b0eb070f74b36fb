#include "infer/cli/llama/template_expression.h"

#include <fmt/format.h>

#include <algorithm>

namespace opgraft::llama {
namespace {

using Kind = Expression::Kind;
constexpr int kDeepestRun = 400;
constexpr size_t kStep = 16;            // what an expression counts for
constexpr int64_t kMostRange = 100000;  // Jinja's sandbox has it

Value missing(std::string why) { return Undefined{std::make_shared<const std::string>(std::move(why))}; }

Value missing_in(const Value &of, const std::string &name) {
  return missing(fmt::format("'{}' has no attribute '{}'", kind_of(of), name));
}

Value number_of(Value value) {
  if (value.undefined()) fail_undefined(*value.undefined());
  if (!value.number()) throw std::runtime_error(fmt::format("a sign before a {}", kind_of(value)));
  return value;
}

Value range(Arguments given, Budget &budget) {
  const auto all = bound("range", std::move(given), {"", "", ""}, 1);
  const int64_t first = integer_of(*all[0], "range");
  const int64_t begin = all[1] ? first : 0, end = all[1] ? integer_of(*all[1], "range") : first;
  const int64_t step = all[2] ? integer_of(*all[2], "range") : 1;
  if (!step) throw std::runtime_error("range: the step must not be 0");
  // Differences of 64-bit numbers fit 65 bits.
  using Wide = __int128;
  const Wide span = step > 0 ? Wide(end) - begin : Wide(begin) - end, stride = step > 0 ? Wide(step) : -Wide(step);
  const Wide count = span > 0 ? (span + stride - 1) / stride : 0;
  if (count > kMostRange) throw std::runtime_error(fmt::format("range: more than {} numbers", kMostRange));
  std::vector<Value> items;
  items.reserve(size_t(count));
  for (int64_t i = 0; i < int64_t(count); ++i) items.push_back(begin + i * step);
  return budget.sequence(Sequence::kRange, std::move(items));
}

Value of_loop(const Loop &loop, const std::string &name) {
  const auto &items = loop.over->items;
  const auto number = [](size_t n) { return Value(int64_t(n)); };
  if (name == "index") return number(loop.at + 1);
  if (name == "index0") return number(loop.at);
  if (name == "revindex") return number(items.size() - loop.at);
  if (name == "revindex0") return number(items.size() - loop.at - 1);
  if (name == "length") return number(items.size());
  if (name == "depth") return number(1);
  if (name == "depth0") return number(0);
  if (name == "first") return loop.at == 0;
  if (name == "last") return loop.at + 1 == items.size();
  if (name == "previtem") return loop.at ? items[loop.at - 1] : missing("there is no previous item");
  if (name == "nextitem") return loop.at + 1 < items.size() ? items[loop.at + 1] : missing("there is no next item");
  if (name == "cycle" || name == "changed") throw std::runtime_error(fmt::format("loop.{} is not known here", name));
  return missing(fmt::format("'loop' has no attribute '{}'", name));
}

}  // namespace

Evaluator::Deeper::Deeper(Evaluator &evaluator) : depth(evaluator.depth) {
  if (depth >= kDeepestRun) throw std::runtime_error(fmt::format("nested deeper than {}", kDeepestRun));
  ++depth;
}

Value Evaluator::value(const Expression &e) {
  const Deeper deeper(*this);
  budget.spend(kStep);
  line = e.line;
  const auto part = [&](size_t i) { return value(*e.parts[i]); };
  switch (e.kind) {
    case Kind::kConstant: return e.constant;
    case Kind::kName: return name(e.name);
    case Kind::kList:
    case Kind::kTuple: {
      std::vector<Value> items;
      items.reserve(e.parts.size());
      for (auto &p : e.parts) items.push_back(value(*p));
      return budget.sequence(e.kind == Kind::kList ? Sequence::kList : Sequence::kTuple, std::move(items));
    }
    case Kind::kDict: {
      Dict made{{}, 0};
      for (size_t i = 0; i < e.parts.size(); i += 2) {
        Value key = part(i), held = part(i + 1);
        if (!hashable(key)) throw std::runtime_error(fmt::format("a {} cannot be a key", kind_of(key)));
        if (const Value *there = made.find(key, budget)) const_cast<Value &>(*there) = std::move(held);
        else made.items.emplace_back(std::move(key), std::move(held));
      }
      return budget.dict(std::move(made.items));
    }
    case Kind::kAttribute: return attribute(part(0), e.name);
    case Kind::kItem: {
      const Value of = part(0);
      return item(of, part(1));
    }
    case Kind::kSlice: return slice(e);
    case Kind::kCall: return call(e);
    case Kind::kFilter: {
      const Value of = part(0);
      return filter(e.name, of, arguments(e));
    }
    case Kind::kTest: {
      const Value of = part(0);
      return test(e.name, of, arguments(e));
    }
    case Kind::kNot: return !truth(part(0));
    case Kind::kNegative: return arithmetic("*", int64_t(-1), number_of(part(0)), budget);
    case Kind::kPositive: return arithmetic("*", int64_t(1), number_of(part(0)), budget);
    case Kind::kArithmetic: {
      const Value left = part(0);
      return arithmetic(e.name, left, part(1), budget);
    }
    case Kind::kCompare: return compare(e);
    case Kind::kAnd:
    case Kind::kOr: {
      Value last;
      for (auto &p : e.parts) {
        last = value(*p);
        if (truth(last) == (e.kind == Kind::kOr)) break;
      }
      return last;
    }
    case Kind::kConcat: {
      std::string all;
      for (auto &p : e.parts) print(value(*p), false, all, budget);
      return budget.text(std::move(all));
    }
    case Kind::kIf: break;
  }
  if (truth(part(0))) return part(1);
  return e.parts.size() > 2 ? part(2) : missing("an if without else gave nothing");
}

Value Evaluator::name(const std::string &name) {
  budget.spend(name.size());
  for (const Scope *s = scope; s; s = s->outer)
    if (const auto found = s->names.find(name); found != s->names.end()) return found->second;
  static const auto known = {"range", "namespace", "dict", "lipsum", "cycler", "joiner"};
  if (std::ranges::count(known, name) || (macros && (name == "varargs" || name == "kwargs" || name == "caller")))
    throw std::runtime_error(fmt::format("'{}' is not known here", name));
  return missing(fmt::format("'{}' is undefined", name));
}

Value Evaluator::attribute(const Value &of, const std::string &name) {
  budget.spend(name.size());
  if (of.undefined()) fail_undefined(*of.undefined());
  if (auto *loop = std::get_if<std::shared_ptr<const Loop>>(&of.is)) return of_loop(**loop, name);
  if (auto *space = std::get_if<Namespace *>(&of.is)) {
    const auto found = (*space)->find(name);
    if (found != (*space)->end()) return found->second;
  } else if (has_attribute(of, name)) {
    throw std::runtime_error(fmt::format("{}.{} that is not called is not known here", kind_of(of), name));
  } else if (const Dict *dict = of.dict()) {
    if (const Value *found = dict->find(std::string_view(name), budget)) return *found;
  }
  if (name.starts_with("__")) throw std::runtime_error(fmt::format("'{}' is not known here", name));
  return missing_in(of, name);
}

Value Evaluator::item(const Value &of, const Value &key) {
  if (of.undefined()) fail_undefined(*of.undefined());
  const Sequence *all = of.sequence();
  if (const auto at = key.integer(); at && (of.text() || (all && all->kind <= Sequence::kRange))) {
    if (of.text()) budget.spend(of.text()->size());
    const int64_t size = int64_t(all ? all->items.size() : length(*of.text())), i = *at < 0 ? *at + size : *at;
    if (i < 0 || i >= size) return missing(fmt::format("the {} has no item {}", kind_of(of), *at));
    return all ? all->items[size_t(i)] : budget.text(std::string(characters(*of.text())[size_t(i)]));
  }
  if (of.dict() && hashable(key))
    if (const Value *found = of.dict()->find(key, budget)) return *found;
  if (!key.text()) return missing(fmt::format("the {} has no such item", kind_of(of)));
  // An attribute, but no item a second time.
  if (of.dict() && !has_attribute(of, *key.text())) return missing_in(of, *key.text());
  return attribute(of, *key.text());
}

Value Evaluator::slice(const Expression &e) {
  const Value of = value(*e.parts[0]);
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!e.parts[i + 1]) continue;
    const Value bound = value(*e.parts[i + 1]);
    if (!std::holds_alternative<None>(bound.is)) bounds[i] = integer_of(bound, "a bound of a slice");
  }
  if (of.undefined()) fail_undefined(*of.undefined());
  const Sequence *all = of.sequence();
  if (!of.text() && !(all && all->kind <= Sequence::kRange))
    throw std::runtime_error(fmt::format("a {} cannot be sliced", kind_of(of)));
  if (of.text()) budget.spend(of.text()->size());
  const auto parts = of.text() ? characters(*of.text()) : std::vector<std::string_view>();
  const int64_t size = int64_t(all ? all->items.size() : parts.size()), step = bounds[2].value_or(1);
  if (!step) throw std::runtime_error("the step of a slice must not be 0");
  // As Python's slice.indices: ends beyond the text are its ends, on a way back one place earlier.
  const int64_t lowest = step < 0 ? -1 : 0, highest = step < 0 ? size - 1 : size;
  const auto clipped = [&](std::optional<int64_t> at, int64_t otherwise) {
    return !at ? otherwise : std::clamp(*at < 0 ? *at + size : *at, lowest, highest);
  };
  const int64_t begin = clipped(bounds[0], step < 0 ? highest : lowest);
  const int64_t end = clipped(bounds[1], step < 0 ? lowest : highest);
  std::vector<Value> items;
  std::string text;
  for (int64_t i = begin; step < 0 ? i > end : i < end;) {
    if (all) items.push_back(all->items[size_t(i)]);
    else text += parts[size_t(i)];
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return all ? budget.sequence(all->kind, std::move(items)) : budget.text(std::move(text));
}

Arguments Evaluator::arguments(const Expression &e) {
  Arguments given;
  for (size_t i = 1; i < e.parts.size(); ++i) given.list.push_back(value(*e.parts[i]));
  for (auto &[name, part] : e.named) given.named.emplace_back(name, value(*part));
  return given;
}

Value Evaluator::call(const Expression &e) {
  const Expression &function = *e.parts[0];
  if (function.kind == Kind::kAttribute) {
    const Value of = value(*function.parts[0]);
    if (of.undefined()) fail_undefined(*of.undefined());
    if (has_attribute(of, function.name)) return called_method(*this, of, function.name, arguments(e));
    if (auto *loop = std::get_if<std::shared_ptr<const Loop>>(&of.is); loop && function.name == "cycle") {
      Arguments given = arguments(e);
      if (given.list.empty() || !given.named.empty()) throw std::runtime_error("loop.cycle takes items");
      return given.list[(*loop)->at % given.list.size()];
    }
    return call(attribute(of, function.name), e);
  }
  if (function.kind == Kind::kName) {
    bool ours = true;
    for (const Scope *s = scope; s; s = s->outer) ours = ours && !s->names.contains(function.name);
    if (ours && function.name == "range") return range(arguments(e), budget);
    if (ours && function.name == "namespace") return make_namespace(arguments(e));
    if (ours && function.name == "raise_exception") {
      const auto said = bound("raise_exception", arguments(e), {"message"}, 1);
      throw Raised(printed(*said[0], budget));
    }
  }
  return call(value(function), e);
}

Value Evaluator::call(const Value &function, const Expression &e) {
  if (function.undefined()) fail_undefined(*function.undefined());
  auto *macro = std::get_if<const Statement *>(&function.is);
  if (!macro) throw std::runtime_error(fmt::format("a {} cannot be called", kind_of(function)));
  return macro_(**macro, arguments(e));
}

Value Evaluator::make_namespace(Arguments given) {
  if (given.list.size() > 1) throw std::runtime_error("namespace takes at most one dict");
  budget.spend(256);
  Namespace made;
  if (!given.list.empty()) {
    const Dict *dict = given.list[0].dict();
    if (!dict) throw std::runtime_error(fmt::format("namespace takes a dict, got {}", kind_of(given.list[0])));
    for (auto &[key, held] : dict->items) made.insert_or_assign(text_of(key, "a name in a namespace"), held);
  }
  for (auto &[key, held] : given.named) made.insert_or_assign(std::string(key), held);
  budget.spend(64 * made.size());
  return &namespaces_.emplace_back(std::move(made));
}

Value Evaluator::compare(const Expression &e) {
  Value left = value(*e.parts[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = value(*e.parts[i + 1]);
    if (!compared(e.operators[i], left, right, budget)) return false;
    left = std::move(right);
  }
  return true;
}

}  // namespace opgraft::llama
