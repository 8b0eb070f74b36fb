// Which instructions kernels may use: what this machine has, and what OPGRAFT_SIMD leaves of it. simd.h has the
// dispatch.
#pragma once

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace opgraft::simd {

enum Target { kSse4 = 0, kAvx2 = 1, kAvx3 = 2, kAmx = 3 };  // kAmx: kAvx3's kernels, and see amx()

inline int machine_target() {
#ifdef OPGRAFT_ONE_TARGET
  return OPGRAFT_ONE_TARGET;
#endif
  __builtin_cpu_init();  // checks that the OS saves the wide registers, too
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  bool avx3 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512cd");
  return avx3 ? kAvx3 : avx2 ? kAvx2 : kSse4;
}

// The highest target that OPGRAFT_SIMD allows. Fixed at first use, which throws std::invalid_argument where it names
// none.
inline int most() {
  static const int chosen = [] {
    const char *wanted = std::getenv("OPGRAFT_SIMD");
    if (!wanted || !*wanted) return int(kAmx);
    static constexpr const char *kNames[] = {"SSE4", "AVX2", "AVX3", "AMX"};
    for (int t = kSse4; t <= kAmx; ++t)
      if (!std::strcmp(wanted, kNames[t])) return t;
    throw std::invalid_argument(std::string("OPGRAFT_SIMD must be one of SSE4, AVX2, AVX3, AMX, got '") + wanted + "'");
  }();
  return chosen;
}
// The target in force, of those that kernels are compiled for: the machine's, or a lower one that OPGRAFT_SIMD names.
inline int target() {
  static const int chosen = std::min(machine_target(), most());
  return chosen;
}

// A core of Intel's: what some kernels do with memory was measured to help there, and there alone.
inline bool intel() { return __builtin_cpu_is("intel"); }

// Products of pairs of bfloat16 are best added by AVX-512's vdpbf16ps; no target implies it. Intel's cores begin one in
// two cycles (Emerald Rapids: 1.38e9 a second beside 5.5e9 vfmadd231ps), half of what widening and float32 make.
inline bool bf16_dot() {
  static const bool has = target() == kAvx3 && __builtin_cpu_supports("avx512bf16") && !intel();
  return has;
}
// Dot products may use AVX-512's vpdpbusd; no target implies it.
inline bool vnni() {
  static const bool has = target() == kAvx3 && __builtin_cpu_supports("avx512vnni");
  return has;
}

// Tiles of bytes and of pairs of bfloat16 are multiplied by Intel's AMX: the processor has it, and the system lets this
// process use it, which it must be asked for once.
inline bool amx() {
  static const bool has = [] {
    if (target() != kAvx3 || most() != kAmx || !vnni() || !__builtin_cpu_supports("avx512bf16")) return false;
    unsigned a, b, c, d;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAll) != kAll) return false;
    constexpr long kAskForState = 0x1023, kTiles = 18;  // ARCH_REQ_XCOMP_PERM, of Linux 5.16
    return syscall(SYS_arch_prctl, kAskForState, kTiles) == 0;
  }();
  return has;
}

// Whether so many rows are multiplied by AMX: a tile takes as long for one row as for 16, and one or two wait for
// memory whatever multiplies them.
inline bool by_amx(int64_t rows) { return rows > 2 && amx(); }

// Whether products of bfloat16 are made of pairs, and the words that pairs of k numbers fill: whole tiles with AMX.
inline bool bf16_pairs() { return bf16_dot() || amx(); }
constexpr int64_t kAmxWords = 16, kAmxRows = 32;  // of a row, and rows, that are multiplied at a time
inline int64_t pair_words(int64_t k) {
  const int64_t words = (k + 1) / 2;
  return amx() ? (words + kAmxWords - 1) / kAmxWords * kAmxWords : words;
}

}  // namespace opgraft::simd
