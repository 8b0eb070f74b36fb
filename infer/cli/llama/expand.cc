#include "infer/cli/llama/expand.h"

#include <cstring>

#include "opgraft/half.h"

namespace opgraft::llama {
namespace {

// A block's bytes, read at their places. A code's bits may lie in two of its fields.
using Bytes = const uint8_t *;

float half_at(Bytes at) {
  float16 h;
  std::memcpy(&h, at, sizeof h);
  return float(h);
}

// 32 numbers: a scale (and a least value), a bit 4 of each code, the lower four, those of the second half above.
template <bool kLeast> void five_bits(Bytes block, float *to) {
  const float scale = half_at(block), least = kLeast ? half_at(block + 2) : 0;
  Bytes at = block + (kLeast ? 4 : 2);
  uint32_t high;
  std::memcpy(&high, at, sizeof high);
  for (int i = 0; i < 32; ++i) {
    const int low = i < 16 ? at[4 + i] & 15 : at[4 + i - 16] >> 4;
    const int code = low | int(high >> i & 1) << 4;
    to[i] = kLeast ? scale * float(code) + least : scale * float(code - 16);
  }
}

// Blocks of 256 in parts, each with a scale of few bits that multiplies the block's own.

// Parts of 16: a byte of scale and least value; codes of two bits, four parts' in the same bytes.
void q2_k(Bytes block, float *to) {
  const float scale = half_at(block + 80), least = half_at(block + 82);
  for (int i = 0; i < 256; ++i) {
    const int part = i / 16, s = block[part];
    const int code = block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    to[i] = scale * float(s & 15) * float(code) - least * float(s >> 4);
  }
}

// Parts of 16: scales of six bits, codes of two, and one bit of each code that says that four is not to be taken away.
void q3_k(Bytes block, float *to) {
  const float scale = half_at(block + 108);
  Bytes high = block, low = block + 32, scales = block + 96;
  for (int i = 0; i < 256; ++i) {
    const int part = i / 16;
    const int s = (part < 8 ? scales[part] & 15 : scales[part - 8] >> 4) | (scales[8 + part % 4] >> part / 4 * 2 & 3)
                                                                               << 4;
    const int code = (low[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - (high[i % 32] >> i / 32 & 1 ? 0 : 4);
    to[i] = scale * float(s - 32) * float(code);
  }
}

// Parts of 32: scales and least values of six bits; codes of four, or of five, whose bits 4 lie together.
template <bool kFive> void q45_k(Bytes block, float *to) {
  const float scale = half_at(block), least = half_at(block + 2);
  Bytes packed = block + 4, high = block + 16, low = block + (kFive ? 48 : 16);
  for (int part = 0; part < 8; ++part) {
    int s, m;
    if (part < 4) {
      s = packed[part] & 63, m = packed[part + 4] & 63;
    } else {
      s = (packed[part + 4] & 15) | packed[part - 4] >> 6 << 4;
      m = packed[part + 4] >> 4 | packed[part] >> 6 << 4;
    }
    const float by = scale * float(s), minus = least * float(m);
    for (int i = 0; i < 32; ++i) {
      int code = low[part / 2 * 32 + i] >> (part % 2 * 4) & 15;
      if (kFive) code |= (high[i] >> part & 1) << 4;
      to[part * 32 + i] = by * float(code) - minus;
    }
  }
}

// Parts of 16: scales of eight bits, codes of six in two fields.
void q6_k(Bytes block, float *to) {
  const float scale = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i % 128 / 32;
    const int low = block[half * 64 + quarter % 2 * 32 + i % 32] >> (quarter / 2 * 4) & 15;
    const int high = block[128 + half * 32 + i % 32] >> (quarter * 2) & 3;
    to[i] = scale * float(int8_t(block[192 + i / 16])) * float((low | high << 4) - 32);
  }
}

constexpr struct {
  std::string_view name;
  void (*expand)(Bytes, float *);
} kExpanded[] = {{"Q5_0", five_bits<false>}, {"Q5_1", five_bits<true>}, {"Q2_K", q2_k}, {"Q3_K", q3_k},
                 {"Q4_K", q45_k<false>},     {"Q5_K", q45_k<true>},     {"Q6_K", q6_k}};

}  // namespace

bool expand(const GgmlType &type, std::string_view blocks, float *to) {
  for (auto &[name, f] : kExpanded) {
    if (type.name != name) continue;
    auto *at = reinterpret_cast<Bytes>(blocks.data());
    for (size_t i = 0; i < blocks.size() / size_t(type.bytes); ++i)
      f(at + i * size_t(type.bytes), to + i * size_t(type.block));
    return true;
  }
  return false;
}

}  // namespace opgraft::llama
