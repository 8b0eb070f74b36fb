// The loop of element-wise kernels, per SIMD target.
#if defined(OPGRAFT_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_MAP_INL_H_
#undef OPGRAFT_MAP_INL_H_
#else
#define OPGRAFT_MAP_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Elements 0, 2, 4... and 1, 3, 5... of 2 Lanes(d) ones. Neighbours of a half type are the halves of a 32-bit lane, so
// that none moves to another lane: of bfloat16 the even ones need a shift to be float32 and the odd ones a mask.
template <class V> struct Neighbours { V even, odd; };
template <class D> HWY_INLINE Neighbours<hn::Vec<D>> LoadPairs(D d, const float *p) {
  const auto a = hn::LoadU(d, p), b = hn::LoadU(d, p + hn::Lanes(d));
  return {hn::ConcatEven(d, b, a), hn::ConcatOdd(d, b, a)};  // the upper half from their first operand
}
template <class D> HWY_INLINE Neighbours<hn::Vec<D>> LoadPairs(D d, const ::opgraft::bfloat16 *p) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, hn::LoadU(d, reinterpret_cast<const float *>(p)));
  return {hn::BitCast(d, hn::ShiftLeft<16>(bits)), hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000u)))};
}
template <class D> HWY_INLINE Neighbours<hn::Vec<D>> LoadPairs(D d, const ::opgraft::float16 *p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> half;
  const auto bits = hn::BitCast(du, hn::LoadU(d, reinterpret_cast<const float *>(p)));
  const auto even = hn::TruncateTo(d16, bits), odd = hn::TruncateTo(d16, hn::ShiftRight<16>(bits));
  return {hn::PromoteTo(d, hn::BitCast(half, even)), hn::PromoteTo(d, hn::BitCast(half, odd))};
#else
  const auto a = LoadF32(d, p), b = LoadF32(d, p + hn::Lanes(d));
  return {hn::ConcatEven(d, b, a), hn::ConcatOdd(d, b, a)};
#endif
}

// float32 with bfloat16's rounding in the upper half of each lane. A NaN stays one without a test where what was loaded
// was of a half type: the NaNs of arithmetic have the default's bits or those of an operand, and the sum changes their
// sign only if all 17 bits from the 15th on are ones.
template <class D> HWY_INLINE auto RoundToUpper(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto u = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  return hn::Add(hn::Add(u, hn::Set(du, 0x7fffu)), odd);
}
template <class D> HWY_INLINE void StorePairs(Neighbours<hn::Vec<D>> v, D d, float *p) {
  hn::StoreInterleaved2(v.even, v.odd, d, p);
}
template <class D> HWY_INLINE void StorePairs(Neighbours<hn::Vec<D>> v, D d, ::opgraft::bfloat16 *p) {
  const hn::Repartition<uint16_t, D> d16;
  const auto even = hn::BitCast(d16, hn::ShiftRight<16>(RoundToUpper(d, v.even)));
  const auto both = hn::OddEven(hn::BitCast(d16, RoundToUpper(d, v.odd)), even);
  hn::StoreU(hn::BitCast(d, both), d, reinterpret_cast<float *>(p));
}
template <class D> HWY_INLINE void StorePairs(Neighbours<hn::Vec<D>> v, D d, ::opgraft::float16 *p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> half;
  const auto even = hn::PromoteTo(du, hn::BitCast(d16, hn::DemoteTo(half, v.even)));
  const auto odd = hn::PromoteTo(du, hn::BitCast(d16, hn::DemoteTo(half, v.odd)));
  hn::StoreU(hn::BitCast(d, hn::Or(even, hn::ShiftLeft<16>(odd))), d, reinterpret_cast<float *>(p));
#else
  HWY_ALIGN float both[2 * hn::MaxLanes(d)];
  hn::StoreInterleaved2(v.even, v.odd, d, both);
  for (size_t i = 0; i < 2 * hn::Lanes(d); ++i) p[i] = ::opgraft::float16(both[i]);
#endif
}
// The first n (< Lanes) pairs and no element more.
template <class D, class T> HWY_INLINE Neighbours<hn::Vec<D>> LoadPairsN(D d, const T *p, size_t n) {
  HWY_ALIGN T buffer[2 * hn::MaxLanes(d)] = {};
  for (size_t i = 0; i < 2 * n; ++i) buffer[i] = p[i];
  return LoadPairs(d, buffer);
}
template <class D, class T> HWY_INLINE void StorePairsN(Neighbours<hn::Vec<D>> v, D d, T *p, size_t n) {
  HWY_ALIGN T buffer[2 * hn::MaxLanes(d)];
  StorePairs(v, d, buffer);
  for (size_t i = 0; i < 2 * n; ++i) p[i] = buffer[i];
}

// y[i] = f(d, x[i]...) over n elements: f works on float32 vectors, storage types round once. The last,
// partial vector reads and writes n elements and no more. y may be one of x.
template <class T, class F, class... X> HWY_INLINE void Map(F f, T *y, int64_t n, const X *...x) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  if constexpr (std::is_same_v<T, ::opgraft::bfloat16> && (std::is_same_v<X, T> && ...)) {
    auto both = [&](auto... v) HWY_ATTR { StorePairs<decltype(d)>({f(d, v.even...), f(d, v.odd...)}, d, y + i); };
    for (; i + 2 * lanes <= n; i += 2 * lanes) both(LoadPairs(d, x + i)...);
  }
  for (; i + lanes <= n; i += lanes) StoreF32(f(d, LoadF32(d, x + i)...), d, y + i);
  if (size_t rest = size_t(n - i)) StoreF32N(f(d, LoadF32N(d, x + i, rest)...), d, y + i, rest);
}

// The same for two results: f(d, x[i]...) is a struct of two vectors.
template <class T, class F, class... X> HWY_INLINE void MapTwo(F f, T *first, T *second, int64_t n, const X *...x) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  if constexpr (std::is_same_v<T, ::opgraft::bfloat16> && (std::is_same_v<X, T> && ...)) {
    auto both = [&](auto... v) HWY_ATTR {
      const auto [e1, e2] = f(d, v.even...);
      const auto [o1, o2] = f(d, v.odd...);
      StorePairs<decltype(d)>({e1, o1}, d, first + i);
      StorePairs<decltype(d)>({e2, o2}, d, second + i);
    };
    for (; i + 2 * lanes <= n; i += 2 * lanes) both(LoadPairs(d, x + i)...);
  }
  for (; i + lanes <= n; i += lanes) {
    const auto [a, b] = f(d, LoadF32(d, x + i)...);
    StoreF32(a, d, first + i);
    StoreF32(b, d, second + i);
  }
  if (size_t rest = size_t(n - i)) {
    const auto [a, b] = f(d, LoadF32N(d, x + i, rest)...);
    StoreF32N(a, d, first + i, rest);
    StoreF32N(b, d, second + i, rest);
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
