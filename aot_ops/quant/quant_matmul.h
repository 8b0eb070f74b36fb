// What the products of tensors of eight bits share: their optional inputs, and what a tile of one consists of.
#pragma once

#include <cstdint>

#include "aot_ops/common/gemm.h"
#include "opgraft/simd_target.h"

namespace opgraft {

// An optional input that others follow is left out as a tensor without elements.
inline bool given(const Arguments &c, int i) { return c.inputs() > i && c.input(i).size() != 0; }

// K of the sums of bytes, four at a time: padded with zeros, with AMX to whole tiles.
inline int64_t dot_padded(int64_t k) { return simd::amx() ? (k + 63) / 64 * 64 : (k + 3) / 4 * 4; }

// C[m, n] = (((A - zero) (B - b_zero))[m, n] + bias[n]) scale[n] a_scale token_scale[m] + offset[n]; as int32 the sum
// and the bias.
struct DotTile {
  const void *a;  // rows as WidenDot makes them, `lda` bytes apart
  int64_t lda;
  const int8_t *b;             // as PackDot makes it
  const int32_t *column_sums;  // of B
  void *c;
  const int32_t *bias;  // or null
  const float *scale, *offset, *token_scale;
  int64_t scale_step, offset_step;  // 0: one value for all columns
  int64_t n, k;
  bool is_unsigned;         // A's numbers are 0 to 255
  int32_t zero;             // of A
  int32_t b_zero;           // of B as PackDot makes it
  const int32_t *row_sums;  // of A - zero; null where b_zero is 0
  float a_scale;
};

}  // namespace opgraft
