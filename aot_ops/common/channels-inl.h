// Numbers by scales and offsets that are one value, or one for every index of an axis, per SIMD target.
#ifndef OPGRAFT_QUANT_SPAN
#define OPGRAFT_QUANT_SPAN
#include <cstdint>

namespace opgraft {
// Bits of what a row does besides scale and offset. kPast: its float32 goes past the caches.
// kLimited: codes have limits of their own.
enum Form { kPlain = 0, kDivide = 1, kRoundFirst = 2, kRelu = 4, kUnsigned = 8, kPast = 16, kLimited = 32 };

inline constexpr int kRowsTogether = 4;
// Numbers of one row, or of kRowsTogether rows one after another in memory, whose scales and offsets are the same.
struct QuantSpan {
  const void *x;
  void *y;
  int64_t n, rows;
  const float *scale, *offset;
  int64_t step;          // of these and of inverse from one element to the next: 1, or 0
  float least, most;     // of the codes
  const float *inverse;  // what x is multiplied by, where that is not scale
};
}  // namespace opgraft
#endif

#if defined(OPGRAFT_CHANNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CHANNELS_INL_H_
#undef OPGRAFT_CHANNELS_INL_H_
#else
#define OPGRAFT_CHANNELS_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class D, class Byte> HWY_INLINE hn::Vec<D> LoadByte(D d, const Byte *p) {
  return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(hn::Rebind<Byte, D>(), p)));
}
template <class D> HWY_INLINE hn::Vec<D> LoadWide(D d, const int8_t *p) { return LoadByte(d, p); }
template <class D> HWY_INLINE hn::Vec<D> LoadWide(D d, const uint8_t *p) { return LoadByte(d, p); }
template <class D> HWY_INLINE hn::Vec<D> LoadWide(D d, const int32_t *p) {
  return hn::ConvertTo(d, hn::LoadU(hn::RebindToSigned<D>(), p));
}
template <class D, class T> HWY_INLINE hn::Vec<D> LoadWide(D d, const T *p) { return LoadF32(d, p); }

// To nearest even, saturating; NaN gives 0.
template <class D> HWY_INLINE void Narrow(hn::Vec<D> v, D d, int8_t *p) {
#if HWY_TARGET == HWY_AVX3
  // What is too small becomes the least integer, which saturates.
  const __m512i i = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(v.raw, v.raw, _CMP_ORD_Q),
                                             _mm512_min_ps(v.raw, _mm512_set1_ps(127.0f)));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtsepi32_epi8(i));
#else
  const hn::Rebind<int8_t, D> d8;
  v = hn::IfThenElse(hn::IsNaN(v), hn::Zero(d), hn::Min(hn::Max(v, hn::Set(d, -128.0f)), hn::Set(d, 127.0f)));
  hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(v)), d8, p);
#endif
}
template <class D> HWY_INLINE void Narrow(hn::Vec<D> v, D d, uint8_t *p) {
  const hn::Rebind<uint8_t, D> d8;
  v = hn::IfThenElse(hn::IsNaN(v), hn::Zero(d), hn::Min(hn::Max(v, hn::Zero(d)), hn::Set(d, 255.0f)));
  hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(v)), d8, p);
}
template <class D, class T> HWY_INLINE void Narrow(hn::Vec<D> v, D d, T *p) { StoreF32(v, d, p); }

#if HWY_TARGET == HWY_AVX2
// Four vectors, as Narrow does each. What is too small becomes the least integer, which saturates.
template <class Byte> HWY_INLINE void NarrowFour(const hn::Vec<hn::ScalableTag<float>> (&v)[4], Byte *p) {
  constexpr bool kSigned = std::is_signed_v<Byte>;
  const __m256 most = _mm256_set1_ps(kSigned ? 127.0f : 255.0f);
  const auto ints = [&](int j) HWY_ATTR {
    const __m256 x = v[j].raw;
    return _mm256_cvtps_epi32(_mm256_and_ps(_mm256_cmp_ps(x, x, _CMP_ORD_Q), _mm256_min_ps(x, most)));
  };
  const __m256i lower = _mm256_packs_epi32(ints(0), ints(1)), upper = _mm256_packs_epi32(ints(2), ints(3));
  const __m256i bytes = kSigned ? _mm256_packs_epi16(lower, upper) : _mm256_packus_epi16(lower, upper);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p),
                      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}
#endif

// NaN stays NaN.
template <class V> HWY_INLINE V Within(V v, V least, V most) {
  v = hn::IfThenElse(hn::Lt(v, least), least, v);
  return hn::IfThenElse(hn::Gt(v, most), most, v);
}

// The rows' elements by f(x, scale, offset), where there is an inverse by f(x, scale, offset, inverse).
template <class X, class Y, bool kInverse = false, class F>
HWY_INLINE void Each(const QuantSpan &s, int form, const F &f) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), n = s.n, rows = s.rows, step = s.step;  // not s: y's bytes might be s's
  const X *x = static_cast<const X *>(s.x);
  Y *y = static_cast<Y *>(s.y);
  const float *scale = s.scale, *offset = s.offset, *inverse = s.inverse;
  const auto at = [&](const float *p, int64_t i) HWY_ATTR { return step ? hn::LoadU(d, p + i) : hn::Set(d, *p); };
  int64_t i = 0;
  const auto vector = [&]() HWY_ATTR {
    if constexpr (kInverse) return f(LoadWide(d, x + i), at(scale, i), at(offset, i), at(inverse, i));
    else return f(LoadWide(d, x + i), at(scale, i), at(offset, i));
  };
  if constexpr (std::is_same_v<Y, float>) {
    if (form & kPast && reinterpret_cast<uintptr_t>(y) % (4 * size_t(lanes)) == 0 && rows == 1)
      for (; i + lanes <= n; i += lanes) hn::Stream(vector(), d, y + i);
  }
#if HWY_TARGET == HWY_AVX2
  if constexpr (sizeof(Y) == 1 && !kInverse) {
    for (; i + 4 * lanes <= n; i += 4 * lanes)
      for (int64_t r = 0; r < rows; ++r) {
        hn::Vec<decltype(d)> four[4];
#pragma GCC unroll 4
        for (int64_t j = 0; j < 4; ++j) {
          const int64_t to = i + j * lanes;
          four[j] = f(LoadWide(d, x + r * n + to), at(scale, to), at(offset, to));
        }
        NarrowFour(four, y + r * n + i);
      }
  }
#endif
  if (rows == kRowsTogether) {
    for (; i + lanes <= n; i += lanes) {
      const auto factor = at(scale, i), shift = at(offset, i);
      if constexpr (kInverse) {
        const auto first = at(inverse, i);
#pragma GCC unroll 4
        for (int r = 0; r < kRowsTogether; ++r)
          Narrow(f(LoadWide(d, x + r * n + i), factor, shift, first), d, y + r * n + i);
      } else {
#pragma GCC unroll 4
        for (int r = 0; r < kRowsTogether; ++r) Narrow(f(LoadWide(d, x + r * n + i), factor, shift), d, y + r * n + i);
      }
    }
  } else {
    for (; i + lanes <= n; i += lanes) Narrow(vector(), d, y + i);
  }
  if (i == n) return;
  HWY_ALIGN X xs[hn::MaxLanes(d)] = {};
  HWY_ALIGN Y ys[hn::MaxLanes(d)];
  HWY_ALIGN float scales[hn::MaxLanes(d)] = {}, offsets[hn::MaxLanes(d)] = {}, inverses[hn::MaxLanes(d)] = {};
  for (int64_t j = i; j < n; ++j) {
    scales[j - i] = scale[j * step], offsets[j - i] = offset[j * step];
    if (kInverse) inverses[j - i] = inverse[j * step];
  }
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    for (int64_t j = i; j < n; ++j) xs[j - i] = x[j];
    const auto v = LoadWide(d, xs), factor = hn::Load(d, scales), shift = hn::Load(d, offsets);
    if constexpr (kInverse) Narrow(f(v, factor, shift, hn::Load(d, inverses)), d, ys);
    else Narrow(f(v, factor, shift), d, ys);
    for (int64_t j = i; j < n; ++j) y[j] = ys[j - i];
  }
}

// The compiler would make one rounding of the product's and the sum's: other results than those of Mul and Add.
template <class V> HWY_INLINE V Rounded(V v) {
#if HWY_ARCH_X86
  asm("" : "+v"(v.raw));
#endif
  return v;
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
