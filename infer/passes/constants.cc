// Conditions on what a constant holds: what a mask hides, how a matrix turns.
#include <cmath>

#include "infer/passes/pattern.h"

namespace opgraft::passes {
namespace {

// -10^4, as bfloat16 holds it: what leaves no weight in any type.
constexpr double kHides = -9984;

// A bool is 0 or 1; NaN of a dtype that has no product.
double element(const Tensor &t, int64_t i) {
  switch (t.dtype()) {
    case OPGRAFT_FLOAT32: return double(t.data<float>()[i]);
    case OPGRAFT_FLOAT16: return double(float(t.data<float16>()[i]));
    case OPGRAFT_BFLOAT16: return double(float(t.data<bfloat16>()[i]));
    case OPGRAFT_BOOL: return double(t.data<uint8_t>()[i] != 0);
    default: return NAN;
  }
}

// sees(x) where query s of S sees one of T - S + 1 + s keys, hides(x) elsewhere. One row may be that of all queries.
template <class Sees, class Hides> bool triangle(const Value &v, Sees sees, Hides hides) {
  if (!v.stays() || v.parameter || v.constant.dims().size() < 2) return false;
  const Shape &dims = v.constant.dims();
  const int64_t s = dims[dims.size() - 2], t = dims.back();
  if (v.constant.size() != s * t || s < 2 || s > t) return false;
  for (int64_t i = 0; i < s * t; ++i) {
    const double x = element(v.constant, i);
    if (!(i % t <= t - s + i / t ? sees(x) : hides(x))) return false;
  }
  return true;
}

}  // namespace

bool causal(const Value &v) {
  const auto sees = [](double x) { return x == 0; };
  const auto hides = [](double x) { return x <= kHides; };
  return v.type.dtype != OPGRAFT_BOOL && triangle(v, sees, hides);
}

bool causal(const Value &v, bool sees, double fill) {
  const auto seen = [=](double x) { return x == double(sees); };
  const auto hidden = [=](double x) { return x != double(sees); };
  return v.type.dtype == OPGRAFT_BOOL && fill <= kHides && triangle(v, seen, hidden);
}

Tensor bools(const Value &v) {
  if (!v.stays() || v.parameter) return {};
  Tensor out(OPGRAFT_BOOL, v.constant.dims());
  for (int64_t i = 0; i < out.size(); ++i) {
    const double x = element(v.constant, i);
    if (x != 0 && x != 1) return {};
    out.data<uint8_t>()[i] = x == 1;
  }
  return out;
}

std::optional<double> off(const Value &c, const Value &b) {
  if (!c.stays() || c.parameter) return std::nullopt;
  const Tensor on = bools(b);
  if (!on || c.constant.dims() != on.dims()) return std::nullopt;
  std::optional<double> found;
  for (int64_t i = 0; i < on.size(); ++i) {
    const double x = element(c.constant, i);
    const bool is_on = on.data<uint8_t>()[i];
    if (!std::isfinite(x) || x != (is_on ? 0 : found.value_or(x))) return std::nullopt;
    if (!is_on) found = x;
  }
  return found.value_or(0);
}

bool turns(const Value &v, bool pairs, bool back) {
  if (!v.stays() || v.parameter || v.constant.dims().size() < 2) return false;
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

}  // namespace opgraft::passes
