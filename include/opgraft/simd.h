// SIMD by Highway with run-time dispatch, for operator sources. Use in a kernel file:
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "swiglu.cc"   // this file; the build puts its folder on the path
//   #include "hwy/foreach_target.h"
//   #include "opgraft/simd.h"
//   HWY_BEFORE_NAMESPACE();
//   namespace opgraft::HWY_NAMESPACE { void Kernel(...) {...} }
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//   OPGRAFT_SIMD(Kernel)                     // defines Kernel_simd(), the best version for this CPU
//   #endif
//
// OPGRAFT_SIMD_FLOATS(Kernel) does so for a template over the storage type: Kernel_simd(dtype) is Kernel<float>,
// Kernel<float16> or Kernel<bfloat16>, which share a signature.
//
// The file is compiled for SSE4, AVX2 and AVX-512 (Highway's AVX3). Only Highway's headers are used:
// the choice is made here, so that an op depends on no shared library. OPGRAFT_SIMD=SSE4|AVX2|AVX3
// in the environment lowers the choice (tests run every target the machine has); AMX, the highest, is AVX3 and the
// tiles of amx() where the machine has them.

// --- once per compilation: the choice of target ---
#ifndef OPGRAFT_SIMD_ONCE_H_
#define OPGRAFT_SIMD_ONCE_H_

#include <cstring>
#include <type_traits>

#include "opgraft/half.h"
#include "opgraft/simd_target.h"

#define OPGRAFT_SIMD_CAT2(a, b) a##b
#define OPGRAFT_SIMD_CAT(a, b) OPGRAFT_SIMD_CAT2(a, b)
#ifdef OPGRAFT_ONE_TARGET  // sanitizer and debug builds: the static target only
#define OPGRAFT_SIMD(F) \
  static inline auto F##_simd() { return &HWY_STATIC_DISPATCH(F); }
#define OPGRAFT_SIMD_FLOATS(F)                                                        \
  static inline auto F##_simd(int32_t dtype) {                                        \
    return dtype == OPGRAFT_FLOAT32   ? &HWY_STATIC_DISPATCH(F<float>)                \
           : dtype == OPGRAFT_FLOAT16 ? &HWY_STATIC_DISPATCH(F<::opgraft::float16>)   \
                                      : &HWY_STATIC_DISPATCH(F<::opgraft::bfloat16>); \
  }
#else
#define OPGRAFT_SIMD(F)                                                                \
  static inline decltype(&N_SSE4::F) F##_simd() {                                      \
    static constexpr decltype(&N_SSE4::F) table[] = {N_SSE4::F, N_AVX2::F, N_AVX3::F}; \
    return table[::opgraft::simd::target()];                                           \
  }
#define OPGRAFT_SIMD_TYPES(N, F) \
  { N::F<float>, N::F<::opgraft::float16>, N::F<::opgraft::bfloat16> }
#define OPGRAFT_SIMD_FLOATS(F)                                                                                \
  static inline auto F##_simd(int32_t dtype) {                                                                \
    static constexpr decltype(&N_SSE4::F<float>) table[][3] = {                                               \
        OPGRAFT_SIMD_TYPES(N_SSE4, F), OPGRAFT_SIMD_TYPES(N_AVX2, F), OPGRAFT_SIMD_TYPES(N_AVX3, F)};         \
    return table[::opgraft::simd::target()][dtype == OPGRAFT_FLOAT32 ? 0 : dtype == OPGRAFT_FLOAT16 ? 1 : 2]; \
  }
#endif
#endif  // OPGRAFT_SIMD_ONCE_H_

#include "hwy/highway.h"

// Sanitizers add code to each access: with all of a kernel inlined they take minutes to compile it. Theirs is inlined
// as far as the compiler likes.
#ifdef OPGRAFT_ONE_TARGET
#undef HWY_INLINE
#define HWY_INLINE inline
#endif

// --- once per target: what Highway 1.0.3 lacks ---
#if defined(OPGRAFT_SIMD_PER_TARGET_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_SIMD_PER_TARGET_H_
#undef OPGRAFT_SIMD_PER_TARGET_H_
#else
#define OPGRAFT_SIMD_PER_TARGET_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Loads Lanes(d) elements of a storage type as float32; the pointer may be misaligned.
template <class D> HWY_INLINE hn::Vec<D> LoadF32(D d, const float *p) { return hn::LoadU(d, p); }
template <class D> HWY_INLINE hn::Vec<D> FromHalfBits(D d, hn::Vec<hn::Rebind<uint16_t, D>> bits, ::opgraft::bfloat16) {
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}
template <class D> HWY_INLINE hn::Vec<D> LoadF32(D d, const ::opgraft::bfloat16 *p) {
  const hn::Rebind<uint16_t, D> d16;
  return FromHalfBits(d, hn::LoadU(d16, reinterpret_cast<const uint16_t *>(p)), ::opgraft::bfloat16());
}
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
template <class D> HWY_INLINE hn::Vec<D> FromHalfBits(D d, hn::Vec<hn::Rebind<uint16_t, D>> bits, ::opgraft::float16) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
}
#endif
template <class D> HWY_INLINE hn::Vec<D> LoadF32(D d, const ::opgraft::float16 *p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<uint16_t, D> d16;
  return FromHalfBits(d, hn::LoadU(d16, reinterpret_cast<const uint16_t *>(p)), ::opgraft::float16());
#else  // without F16C Highway 1.0.3 misreads inf and NaN
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = float(p[i]);
  return hn::Load(d, lanes);
#endif
}

// Stores float32 lanes as a storage type, rounding to nearest even; a NaN stays a NaN.
template <class D> HWY_INLINE void StoreF32(hn::Vec<D> v, D d, float *p) { hn::StoreU(v, d, p); }
template <class D> HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> HalfBits(hn::Vec<D> v, D d, ::opgraft::bfloat16) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  auto u = hn::BitCast(du, v);
  auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  auto rounded = hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fffu)));
  auto nan = hn::Or(u, hn::Set(du, 0x400000u));
  auto bits = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), nan, rounded);
  return hn::TruncateTo(d16, hn::ShiftRight<16>(bits));
}
template <class D> HWY_INLINE void StoreF32(hn::Vec<D> v, D d, ::opgraft::bfloat16 *p) {
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(HalfBits(v, d, ::opgraft::bfloat16()), d16, reinterpret_cast<uint16_t *>(p));
}
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
template <class D> HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> HalfBits(hn::Vec<D> v, D, ::opgraft::float16) {
  return hn::BitCast(hn::Rebind<uint16_t, D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
}
#endif
template <class D> HWY_INLINE void StoreF32(hn::Vec<D> v, D d, ::opgraft::float16 *p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(HalfBits(v, d, ::opgraft::float16()), d16, reinterpret_cast<uint16_t *>(p));
#else  // without F16C Highway 1.0.3 truncates
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = ::opgraft::float16(lanes[i]);
#endif
}

// The first n (<= Lanes) elements; the rest of the vector is zero, nothing else is touched.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3  // their masked loads and stores touch nothing else
template <class D> HWY_INLINE hn::Vec<D> LoadF32N(D d, const float *p, size_t n) {
  return hn::MaskedLoad(hn::FirstN(d, n), d, p);
}
template <class D> HWY_INLINE void StoreF32N(hn::Vec<D> v, D d, float *p, size_t n) {
  hn::BlendedStore(v, hn::FirstN(d, n), d, p);
}
#if HWY_TARGET == HWY_AVX3
template <class D> HWY_INLINE hn::Vec<D> LoadBitsN(D d, const uint16_t *p, size_t n) {
  return hn::MaskedLoad(hn::FirstN(d, n), d, p);
}
template <class D> HWY_INLINE void StoreBitsN(hn::Vec<D> v, D d, uint16_t *p, size_t n) {
  hn::BlendedStore(v, hn::FirstN(d, n), d, p);
}
#else  // AVX2 has none of 16 bits: in pieces of 8, 4 and 2 bytes
HWY_INLINE uint64_t UpTo4(const uint16_t *p, size_t n) {
  uint64_t all = 0;
  if (n == 4) memcpy(&all, p, 8);
  else if (n) all = uint64_t(p[0]) | uint64_t(p[n / 2]) << 16 * (n / 2) | uint64_t(p[n - 1]) << 16 * (n - 1);
  return all;
}
template <class D> HWY_INLINE hn::Vec<D> LoadBitsN(D, const uint16_t *p, size_t n) {
  const uint64_t low = UpTo4(p, std::min<size_t>(n, 4)), high = n > 4 ? UpTo4(p + 4, n - 4) : 0;
  return hn::Vec<D>{_mm_set_epi64x(int64_t(high), int64_t(low))};
}
template <class D> HWY_INLINE void StoreBitsN(hn::Vec<D> v, D, uint16_t *p, size_t n) {
  uint64_t rest = uint64_t(_mm_cvtsi128_si64(v.raw));
  if (n == 8) return hn::StoreU(v, D(), p);
  if (n >= 4) {
    memcpy(p, &rest, 8);
    rest = uint64_t(_mm_extract_epi64(v.raw, 1));
    p += 4, n -= 4;
  }
  if (n >= 2) {
    memcpy(p, &rest, 4);
    rest >>= 32;
    p += 2;
  }
  if (n % 2) memcpy(p, &rest, 2);
}
#endif
template <class D, class T> HWY_INLINE hn::Vec<D> LoadF32N(D d, const T *p, size_t n) {
  const hn::Rebind<uint16_t, D> d16;
  return FromHalfBits(d, LoadBitsN(d16, reinterpret_cast<const uint16_t *>(p), n), T());
}
template <class D, class T> HWY_INLINE void StoreF32N(hn::Vec<D> v, D d, T *p, size_t n) {
  const hn::Rebind<uint16_t, D> d16;
  StoreBitsN(HalfBits(v, d, T()), d16, reinterpret_cast<uint16_t *>(p), n);
}
#else
template <class D, class T> HWY_INLINE hn::Vec<D> LoadF32N(D d, const T *p, size_t n) {
  HWY_ALIGN T buffer[hn::MaxLanes(d)] = {};
  for (size_t i = 0; i < n; ++i) buffer[i] = p[i];
  return LoadF32(d, buffer);
}
template <class D, class T> HWY_INLINE void StoreF32N(hn::Vec<D> v, D d, T *p, size_t n) {
  HWY_ALIGN T buffer[hn::MaxLanes(d)];
  StoreF32(v, d, buffer);
  for (size_t i = 0; i < n; ++i) p[i] = buffer[i];
}
#endif

// acc[i] + a[4i] b[4i] + ... + a[4i + 3] b[4i + 3] in every 32-bit lane i, exact but for wrapping modulo
// 2^32. `a` holds uint8_t or int8_t, `b` int8_t. kVnni only where simd::vnni(). Without it bytes are
// widened for pmaddwd: pmaddubsw would saturate at 255 * -128 * 2.
template <bool kVnni = false, class D, class VA>
HWY_INLINE hn::Vec<D> DotAdd(D d, VA a, hn::Vec<hn::Repartition<int8_t, D>> b, hn::Vec<D> acc) {
  constexpr bool kSigned = std::is_signed_v<hn::TFromV<VA>>;
#if HWY_TARGET == HWY_AVX3
  if constexpr (kVnni) {
    // As assembly: a caller compiled without VNNI could not inline the intrinsic.
    const hn::Repartition<uint8_t, D> du8;
    const auto bias = hn::Set(du8, uint8_t(0x80));
    const auto u = kSigned ? hn::Xor(hn::BitCast(du8, a), bias) : hn::BitCast(du8, a);  // signed: a + 128
    asm("vpdpbusd %2, %1, %0" : "+v"(acc.raw) : "v"(u.raw), "v"(b.raw));
    if constexpr (kSigned) {
      auto excess = hn::Zero(d);  // 128 b
      asm("vpdpbusd %2, %1, %0" : "+v"(excess.raw) : "v"(bias.raw), "v"(b.raw));
      acc = hn::Sub(acc, excess);
    }
    return acc;
  }
#endif
  static_assert(!kVnni || HWY_TARGET == HWY_AVX3);
  const hn::Repartition<int16_t, D> d16;
  const hn::Repartition<uint16_t, D> du16;
  const auto b16 = hn::BitCast(d16, b);
  const auto b_even = hn::ShiftRight<8>(hn::ShiftLeft<8>(b16)), b_odd = hn::ShiftRight<8>(b16);
  auto none = hn::Zero(d);
  if constexpr (kSigned) {
    const auto a16 = hn::BitCast(d16, a);
    acc = hn::ReorderWidenMulAccumulate(d, hn::ShiftRight<8>(hn::ShiftLeft<8>(a16)), b_even, acc, none);
    return hn::ReorderWidenMulAccumulate(d, hn::ShiftRight<8>(a16), b_odd, acc, none);
  } else {
    const auto a16 = hn::BitCast(du16, a);
    const auto a_even = hn::BitCast(d16, hn::And(a16, hn::Set(du16, uint16_t(0xff))));
    acc = hn::ReorderWidenMulAccumulate(d, a_even, b_even, acc, none);
    return hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, hn::ShiftRight<8>(a16)), b_odd, acc, none);
  }
}

// The sum of a[i] b[i] over n bytes, modulo 2^32; the pointers may be misaligned.
template <bool kVnni, class A> HWY_INLINE int32_t DotRow(const A *a, const int8_t *b, size_t n) {
  const hn::ScalableTag<int32_t> d;
  const hn::Repartition<A, decltype(d)> da;
  const hn::Repartition<int8_t, decltype(d)> db;
  const size_t lanes = hn::Lanes(da);
  auto s0 = hn::Zero(d), s1 = s0;
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    s0 = DotAdd<kVnni>(d, hn::LoadU(da, a + i), hn::LoadU(db, b + i), s0);
    s1 = DotAdd<kVnni>(d, hn::LoadU(da, a + i + lanes), hn::LoadU(db, b + i + lanes), s1);
  }
  for (; i < n; i += lanes) {
    HWY_ALIGN A a_rest[hn::MaxLanes(da)] = {};
    HWY_ALIGN int8_t b_rest[hn::MaxLanes(db)] = {};
    const size_t rest = n - i < lanes ? n - i : lanes;
    std::memcpy(a_rest, a + i, rest);
    std::memcpy(b_rest, b + i, rest);
    s0 = DotAdd<kVnni>(d, hn::Load(da, a_rest), hn::Load(db, b_rest), s0);
  }
  // By halves: GCC's sum of all lanes of AVX-512 adds ints, which must not overflow.
  const hn::Half<decltype(d)> half;
  const auto sum = hn::Add(s0, s1);
  return hn::GetLane(hn::SumOfLanes(half, hn::Add(hn::LowerHalf(half, sum), hn::UpperHalf(half, sum))));
}
template <class A> HWY_INLINE int32_t Dot(const A *a, const int8_t *b, size_t n) {
#if HWY_TARGET == HWY_AVX3
  if (::opgraft::simd::vnni()) return DotRow<true>(a, b, n);
#endif
  return DotRow<false>(a, b, n);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per target
