// The host side of gemm-inl.h: float32 panels and rows. Include it in the HWY_ONCE part of an op's source, after
// gemm-inl.h.
#pragma once

#include "aot_ops/common/gemm.h"

namespace opgraft {
OPGRAFT_SIMD(PanelWidth)
OPGRAFT_SIMD(TileRows)
OPGRAFT_SIMD_FLOATS(Pack)
OPGRAFT_SIMD_FLOATS(Widen)
OPGRAFT_SIMD(PairRows)

// The functions of one storage type.
struct GemmKernels {
  decltype(Pack_simd(0)) pack;
  decltype(Widen_simd(0)) widen;
};
inline GemmKernels gemm_kernels(int32_t dtype) { return {Pack_simd(dtype), Widen_simd(dtype)}; }

inline int64_t panel_count(int64_t n) { return (n + PanelWidth_simd()() - 1) / PanelWidth_simd()(); }
// Floats of packed B[k, n].
inline int64_t packed_floats(int64_t k, int64_t n) { return panel_count(n) * PanelWidth_simd()() * k; }

// `batch` products; A and B are one of a_count, b_count matrices that lie one after another.
struct GemmProblem {
  int32_t dtype;
  int64_t m, n, k;
  MatrixRef a, b;
  void *c;
  const void *packed = nullptr;  // B as pack_b made it, or null
  const void *bias = nullptr, *residual = nullptr;
  Activation activation = Activation::kNone;
  int64_t batch = 1, a_count = 1, b_count = 1;
  // B holds int8_t, which `offset` is added to (where there is one) and `scale` multiplies, by column.
  bool int8 = false, has_offset = false;
  const float *scale = nullptr, *offset = nullptr;
  bool pairs = false;  // rows of A are read in pairs of bfloat16, as B is packed: see Bf16Pair

  int64_t steps() const { return pairs ? simd::pair_words(k) : k; }
  // A is read in place unless it must be widened or transposed, a pair or a tile's row would be of two rows, or its
  // rows, a multiple of 4 KiB apart, would all fall into one set of the L1 cache.
  bool copies_a() const {
    const bool words = 2 * steps() == k && a.row_stride % 2 == 0 && reinterpret_cast<uintptr_t>(a.data) % 4 == 0;
    const bool whole = pairs ? words : dtype == OPGRAFT_FLOAT32;
    return !whole || a.column_stride != 1 || (steps() * 4 % 4096 == 0 && m > 1);
  }
  int64_t lda() const { return copies_a() ? (steps() + 15) / 16 * 16 + 16 : a.row_stride / (pairs ? 2 : 1); }
  uint64_t a_floats() const { return copies_a() ? uint64_t(a_count * m * lda()) : 0; }
};

}  // namespace opgraft
