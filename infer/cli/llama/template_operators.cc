// Python's operators between the values of a chat template.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "infer/cli/llama/template_expression.h"

namespace opgraft::llama {
namespace {

[[noreturn]] void fail(std::string_view op, const Value &a, const Value &b) {
  throw std::runtime_error(fmt::format("{} {} {} is not known here", kind_of(a), op, kind_of(b)));
}

int64_t floor_quotient(int64_t a, int64_t b) { return a / b - (a % b && (a < 0) != (b < 0)); }

// In 64 bits, or nothing.
std::optional<int64_t> power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent; exponent >>= 1) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return std::nullopt;
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return std::nullopt;
  }
  return result;
}

Value of_integers(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool fits = true;
  if (op == "+") fits = !__builtin_add_overflow(a, b, &result);
  else if (op == "-") fits = !__builtin_sub_overflow(a, b, &result);
  else if (op == "*") fits = !__builtin_mul_overflow(a, b, &result);
  else if (op == "**") {
    const auto found = power(a, b);
    fits = found.has_value();
    result = found.value_or(0);
  } else if (b == -1) {
    fits = op == "%" || !__builtin_sub_overflow(int64_t(0), a, &result);
  } else {
    result = op == "//" ? floor_quotient(a, b) : a - floor_quotient(a, b) * b;
  }
  if (!fits) throw std::runtime_error(fmt::format("{} {} {} does not fit 64 bits", a, op, b));
  return result;
}

Value of_numbers(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "/") return a / b;
  if (op == "**") {
    const double result = std::pow(a, b);
    // Python has an error there, or a complex number.
    if (!std::isfinite(result) && std::isfinite(a) && std::isfinite(b))
      throw std::runtime_error(fmt::format("{} ** {} is no number", a, b));
    return result;
  }
  double rest = std::fmod(a, b);
  if (rest != 0 && (b < 0) != (rest < 0)) rest += b;
  if (op == "%") return rest == 0 ? std::copysign(0.0, b) : rest;
  const double quotient = (a - rest) / b, whole = std::floor(quotient);
  return quotient == 0 ? std::copysign(0.0, a / b) : quotient - whole > 0.5 ? whole + 1 : whole;
}

Value repeated(const Value &of, int64_t times, Budget &budget) {
  const size_t size = of.text() ? of.text()->size() : of.sequence()->items.size();
  const size_t most = of.text() ? kMostBytes : kMostItems;
  times = std::max<int64_t>(times, 0);
  if (size && size_t(times) > most / size)
    throw std::runtime_error(fmt::format("a {} of more than {}", of.text() ? "text" : "list", most));
  std::string text;
  std::vector<Value> items;
  for (int64_t i = 0; size && i < times; ++i) {
    budget.spend(1);
    if (of.text()) text += *of.text();
    else items.insert(items.end(), of.sequence()->items.begin(), of.sequence()->items.end());
  }
  return of.text() ? budget.text(std::move(text)) : budget.sequence(of.sequence()->kind, std::move(items));
}

bool is_plain(const Value &v) { return v.sequence() && v.sequence()->kind <= Sequence::kTuple; }

}  // namespace

Value arithmetic(std::string_view op, const Value &a, const Value &b, Budget &budget) {
  for (const Value *v : {&a, &b})
    if (v->undefined()) fail_undefined(*v->undefined());
  if (a.number() && b.number()) {
    const bool divides = op == "/" || op == "//" || op == "%";
    if ((divides && b.real() == 0) || (op == "**" && a.real() == 0 && b.real() < 0))
      throw std::runtime_error(fmt::format("{} {} 0 is no number", a.real(), op));
    if (!a.integer() || !b.integer()) return of_numbers(op, a.real(), b.real());
    if (op == "**" && *b.integer() < 0) return of_numbers(op, a.real(), b.real());
    if (op != "/") return of_integers(op, *a.integer(), *b.integer());
    constexpr int64_t exact = int64_t(1) << 53;
    if (std::abs(a.real()) > exact || std::abs(b.real()) > exact)
      throw std::runtime_error(fmt::format("{} / {} is not known here", *a.integer(), *b.integer()));
    return a.real() / b.real();
  }
  if (op == "+" && a.text() && b.text()) {
    budget.spend(a.text()->size() + b.text()->size());
    return budget.text(*a.text() + *b.text());
  }
  if (op == "+" && is_plain(a) && is_plain(b) && a.sequence()->kind == b.sequence()->kind) {
    auto items = a.sequence()->items;
    items.insert(items.end(), b.sequence()->items.begin(), b.sequence()->items.end());
    return budget.sequence(a.sequence()->kind, std::move(items));
  }
  if (op == "*" && (a.text() || is_plain(a)) && b.integer()) return repeated(a, *b.integer(), budget);
  if (op == "*" && (b.text() || is_plain(b)) && a.integer()) return repeated(b, *a.integer(), budget);
  fail(op, a, b);
}

bool compared(std::string_view op, const Value &a, const Value &b, Budget &budget) {
  if (op == "==") return same(a, b, budget);
  if (op == "!=") return !same(a, b, budget);
  if (op == "not in") return !compared("in", a, b, budget);
  if (op == "in") {
    if (b.text()) {
      if (!a.text()) fail(op, a, b);
      budget.spend(a.text()->size() + b.text()->size());
      return found_at(*b.text(), *a.text()) != std::string::npos;
    }
    if (b.dict()) {
      if (!hashable(a)) fail(op, a, b);
      return b.dict()->find(a, budget) != nullptr;
    }
    if (b.undefined()) return false;
    if (!b.sequence() || b.sequence()->kind == Sequence::kIterator) fail(op, a, b);
    return std::ranges::any_of(b.sequence()->items, [&](auto &item) { return same(a, item, budget); });
  }
  const auto ordered = order(a, b, budget);
  return op == "<" ? ordered < 0 : op == "<=" ? ordered <= 0 : op == ">" ? ordered > 0 : ordered >= 0;
}

}  // namespace opgraft::llama
