// Rows of weights in blocks of 32, as GGUF files store them (ggml's quantisation formats): a block has a scale d, or a
// scale and a least value m, in float16, then its codes. All are d u + m of unsigned codes u, but for the offset.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "opgraft/op.h"

namespace opgraft {

constexpr int64_t kBlock = 32;  // weights

struct BlockFormat {
  const char *name;
  int bits;        // of a code: 4 or 8
  bool has_least;  // m is stored; else it is -offset d
  int32_t offset;  // what a stored code means is code - offset
  int64_t bytes() const { return 2 + 2 * has_least + kBlock * bits / 8; }
  // Of bytes as stored, code i of a block as an unsigned number, and its meaning.
  int32_t code(const uint8_t *block, int64_t i) const {
    const uint8_t *codes = block + 2 + 2 * has_least;
    if (bits == 8) return uint8_t(codes[i] ^ 0x80);
    return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
  }
  float scale(const uint8_t *block) const { return half(block); }
  float least(const uint8_t *block) const { return has_least ? half(block + 2) : 0.0f; }
  static float half(const uint8_t *at) {
    float16 h;
    std::memcpy(&h, at, 2);
    return float(h);
  }
  float value(const uint8_t *block, int64_t i) const {
    return scale(block) * float(code(block, i) - offset) + least(block);
  }
};

constexpr BlockFormat kFormats[] = {{"q4_0", 4, false, 8}, {"q4_1", 4, true, 0}, {"q8_0", 8, false, 128}};

inline const BlockFormat &format_of(const Arguments &c) {
  const std::string name = c.attr_string("format", "q4_0");
  for (auto &f : kFormats)
    if (name == f.name) return f;
  c.fail(OPGRAFT_INVALID_VALUE, "format must be one of q4_0, q4_1, q8_0, got '", name, "'");
}

// weight[N, bytes of a row] of K weights; K where it is not known (-1) follows from the row.
inline void check_rows(const Arguments &c, int i, const std::string &name, const BlockFormat &f, int64_t k) {
  c.check_dtype(i, name.c_str(), {OPGRAFT_UINT8});
  const auto w = c.input(i).shape();
  c.check(w.size() == 2, name, " must have 2 dimensions, got shape ", w);
  c.check(w[1] < 0 || w[1] % f.bytes() == 0, name, "'s rows must be whole blocks of ", f.bytes(), " bytes, got shape ",
          w);
  c.check(k < 0 || w[1] < 0 || k == w[1] / f.bytes() * kBlock, "x's K must be ", name, "'s ", w[1] / f.bytes() * kBlock,
          ", got ", k, " (", name, " ", w, ", ", f.name, ")");
}

}  // namespace opgraft
