// BlockQuantMatMul's arguments to the functions of a SIMD target.
#pragma once

#include "aot_ops/block_quant/formats.h"

namespace opgraft {

// Rows of x in eight bits: of a block the codes, then what they are multiplied by.
struct QuantRows {
  int8_t *codes;  // [m, k]
  float *scale;   // [m, k / 32]
  int32_t *sum;   // [m, k / 32], of the codes
  QuantRows from(int64_t m, int64_t k) const {
    return {codes + m * k, scale + m * (k / kBlock), sum + m * (k / kBlock)};
  }
};

struct BlockTile {
  const BlockFormat *format;
  QuantRows x;
  int64_t k, n;  // n: columns of y
  void *y;
};

}  // namespace opgraft
