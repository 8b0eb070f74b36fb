// What a product of tensors of eight bits consists of, shared by its SIMD kernels and its host side.
#pragma once

#include <cstdint>

#include "aot_ops/common/gemm.h"

namespace opgraft {

// C[m, n] = ((A B)[m, n] + bias[n]) scale[n] token_scale[m] + offset[n]; as int32 the sum and the bias alone.
struct DotTile {
  const void *a;  // rows as WidenDot makes them, `lda` bytes apart
  int64_t lda;
  const int8_t *b;             // as PackDot makes it
  const int32_t *column_sums;  // 128 times the sum of B's columns, with VNNI
  void *c;
  const int32_t *bias;  // or null
  const float *scale, *offset, *token_scale;
  int64_t scale_step, offset_step;  // 0: one value for all columns
  int64_t n, k;
};

}  // namespace opgraft
