// What the operand `variance` of a normalisation by given statistics holds.
#pragma once

#include <cmath>
#include <string>

#include "opgraft/op.h"

namespace opgraft {

// Itself, the deviation sqrt(variance + epsilon), or 1 over that.
enum class Spread { kVariance, kDeviation, kInverse };

inline Spread spread(const Arguments &c) {
  const std::string name = c.attr_string("spread", "variance");
  static constexpr const char *kNames[] = {"variance", "deviation", "inverse"};
  for (int i = 0; i < 3; ++i)
    if (name == kNames[i]) return Spread(i);
  c.fail(OPGRAFT_INVALID_VALUE, "spread must be one of variance, deviation, inverse, got '", name, "'");
}

// gamma over the deviation.
inline double normalised_scale(double gamma, double variance, Spread spread, double epsilon) {
  if (spread == Spread::kInverse) return gamma * variance;
  return gamma / (spread == Spread::kDeviation ? variance : std::sqrt(variance + epsilon));
}

}  // namespace opgraft
