// float16 and bfloat16 as storage types with exact widening and round-to-nearest-even narrowing.
#pragma once

#include <bit>
#include <cstdint>

namespace opgraft {

struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  // Round to nearest even; a NaN stays a (quiet) NaN.
  explicit bfloat16(float f) {
    uint32_t u = std::bit_cast<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) bits = uint16_t((u >> 16) | 0x40u);
    else bits = uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

struct float16 {
  uint16_t bits = 0;
  float16() = default;
  explicit float16(float f) {
    uint32_t u = std::bit_cast<uint32_t>(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) bits = uint16_t(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    else if (a >= 0x477ff000u) bits = uint16_t(sign | 0x7c00u);  // rounds to 65536 or more: inf
    else if (a < 0x38800000u)  // subnormal: adding 0.5 aligns the mantissa, the FPU rounds
      bits = uint16_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000u));
    else bits = uint16_t(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
  }
  explicit operator float() const {
    uint32_t sign = uint32_t(bits & 0x8000u) << 16, e = (bits >> 10) & 31u, m = bits & 0x3ffu;
    if (e == 31) return std::bit_cast<float>(sign | 0x7f800000u | (m << 13));
    if (e != 0) return std::bit_cast<float>(sign | ((e + 112u) << 23) | (m << 13));
    float f = float(m) * 0x1p-24f;
    return sign ? -f : f;
  }
};

}  // namespace opgraft
