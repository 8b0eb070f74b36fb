// SiLU of a product's tile times another's, per SIMD target.
#if defined(OPGRAFT_GATED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_GATED_INL_H_
#undef OPGRAFT_GATED_INL_H_
#else
#define OPGRAFT_GATED_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// y[rows, width] = SiLU(gate) up; rows of gate and up are `ld` apart, those of y `ldy`.
template <class T>
void GatedRows(const float *gate, const float *up, int64_t ld, int64_t rows, int64_t width, void *y, int64_t ldy) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r) {
    const float *a = gate + r * ld, *b = up + r * ld;
    T *to = static_cast<T *>(y) + r * ldy;
    int64_t j = 0;
    for (; j + lanes <= width; j += lanes)
      StoreF32(hn::Mul(Silu<T>(d, hn::LoadU(d, a + j)), hn::LoadU(d, b + j)), d, to + j);
    if (const size_t rest = size_t(width - j))
      StoreF32N(hn::Mul(Silu<T>(d, LoadF32N(d, a + j, rest)), LoadF32N(d, b + j, rest)), d, to + j, rest);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
