// A row of floats as whole numbers of four digits: see digits-inl.h.
#pragma once

#include <cstdint>

namespace opgraft {

// Rows that are multiplied so, and the steps of their sums: of fewer, one number might be most of a sum without being
// more than others; of more, 32 bits might not hold the sum of a digit's products.
constexpr int64_t kDigitRows = 2, kLeastDigits = 64, kMostDigits = 65536;

// sum over d of 256^d bytes[d * ld + i] is x[i] / step, rounded; eight numbers in the order 0, 2, 4, 6, 1, 3, 5, 7.
struct Digits {
  int8_t *bytes;
  int64_t ld;  // at least k, a multiple of 16
  double step;
  int64_t sum;  // of the whole numbers
};

}  // namespace opgraft
