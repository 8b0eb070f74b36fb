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
// The file is compiled for SSE4, AVX2 and AVX-512 (Highway's AVX3). Only Highway's headers are used:
// the choice is made here, so that an op depends on no shared library. OPGRAFT_SIMD=SSE4|AVX2|AVX3
// in the environment lowers the choice (tests run every target the machine has).

// --- once per compilation: the choice of target ---
#ifndef OPGRAFT_SIMD_ONCE_H_
#define OPGRAFT_SIMD_ONCE_H_

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "opgraft/half.h"

namespace opgraft::simd {

enum Target { kSse4 = 0, kAvx2 = 1, kAvx3 = 2 };

inline int machine_target() {
  __builtin_cpu_init();  // checks that the OS saves the wide registers, too
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  bool avx3 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512cd");
  return avx3 ? kAvx3 : avx2 ? kAvx2 : kSse4;
}

// The target in force: the machine's, or a lower one that OPGRAFT_SIMD names. Fixed at first use.
inline int target() {
  static const int chosen = [] {
    int machine = machine_target();
    const char *wanted = std::getenv("OPGRAFT_SIMD");
    if (!wanted) return machine;
    int t = !std::strcmp(wanted, "SSE4") ? kSse4 : !std::strcmp(wanted, "AVX2") ? kAvx2 : kAvx3;
    return t < machine ? t : machine;
  }();
  return chosen;
}

}  // namespace opgraft::simd

#define OPGRAFT_SIMD_CAT2(a, b) a##b
#define OPGRAFT_SIMD_CAT(a, b) OPGRAFT_SIMD_CAT2(a, b)
#ifdef OPGRAFT_ONE_TARGET  // sanitizer and debug builds: the static target only
#define OPGRAFT_SIMD(F) \
  static inline auto F##_simd() { return &HWY_STATIC_DISPATCH(F); }
#else
#define OPGRAFT_SIMD(F)                                                                \
  static inline decltype(&N_SSE4::F) F##_simd() {                                      \
    static constexpr decltype(&N_SSE4::F) table[] = {N_SSE4::F, N_AVX2::F, N_AVX3::F}; \
    return table[::opgraft::simd::target()];                                           \
  }
#endif
#endif  // OPGRAFT_SIMD_ONCE_H_

#include "hwy/highway.h"

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
template <class D> HWY_INLINE hn::Vec<D> LoadF32(D d, const ::opgraft::bfloat16 *p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  auto half = hn::LoadU(d16, reinterpret_cast<const uint16_t *>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, half)));
}
template <class D> HWY_INLINE hn::Vec<D> LoadF32(D d, const ::opgraft::float16 *p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t *>(p)));
#else  // without F16C Highway 1.0.3 misreads inf and NaN
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = float(p[i]);
  return hn::Load(d, lanes);
#endif
}

// Stores float32 lanes as a storage type, rounding to nearest even; a NaN stays a NaN.
template <class D> HWY_INLINE void StoreF32(hn::Vec<D> v, D d, float *p) { hn::StoreU(v, d, p); }
template <class D> HWY_INLINE void StoreF32(hn::Vec<D> v, D d, ::opgraft::bfloat16 *p) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  auto u = hn::BitCast(du, v);
  auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  auto rounded = hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fffu)));
  auto nan = hn::Or(u, hn::Set(du, 0x400000u));
  auto bits = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), nan, rounded);
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(bits)), d16, reinterpret_cast<uint16_t *>(p));
}
template <class D> HWY_INLINE void StoreF32(hn::Vec<D> v, D d, ::opgraft::float16 *p) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t *>(p));
#else  // without F16C Highway 1.0.3 truncates
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = ::opgraft::float16(lanes[i]);
#endif
}

// The first n (< Lanes) elements; the rest of the vector is zero, nothing else is touched.
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

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per target
