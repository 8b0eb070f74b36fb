#include "registry/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace opgraft {
namespace {

// The first 32 bits of the broken part of the square roots of the first 8 primes, of the cube roots of the
// first 64 (section 4.2.2): 64-bit long double holds them exactly.
struct Constants {
  std::array<uint32_t, 8> start;
  std::array<uint32_t, 64> round;
  Constants() {
    auto broken = [](long double x) { return uint32_t(uint64_t((x - std::floor(x)) * 0x1p32L)); };
    int found = 0;
    for (int n = 2; found < 64; ++n) {
      bool prime = true;
      for (int d = 2; prime && d * d <= n; ++d) prime = n % d != 0;
      if (!prime) continue;
      if (found < 8) start[size_t(found)] = broken(std::sqrt(static_cast<long double>(n)));
      round[size_t(found++)] = broken(std::cbrt(static_cast<long double>(n)));
    }
  }
};

void mix(std::array<uint32_t, 8> &hash, const unsigned char *block, const Constants &k) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = uint32_t(block[4 * i]) << 24 | uint32_t(block[4 * i + 1]) << 16 | uint32_t(block[4 * i + 2]) << 8 |
           block[4 * i + 3];
  for (int i = 16; i < 64; ++i)
    w[i] = w[i - 16] + (std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
           (std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
  auto [a, b, c, d, e, f, g, h] = hash;
  for (int i = 0; i < 64; ++i) {
    const uint32_t t1 =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + k.round[size_t(i)] + w[i];
    const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t more[] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) hash[i] += more[i];
}

}  // namespace

std::string sha256(std::span<const char> bytes) {
  static const Constants k;
  auto hash = k.start;
  const auto *data = reinterpret_cast<const unsigned char *>(bytes.data());
  const size_t whole = bytes.size() / 64, rest = bytes.size() % 64;
  for (size_t i = 0; i < whole; ++i) mix(hash, data + 64 * i, k);
  // A one bit, zeros, and the length in bits fill the last one or two blocks.
  unsigned char last[128] = {};
  if (rest) std::memcpy(last, data + 64 * whole, rest);
  last[rest] = 0x80;
  const size_t blocks = rest < 56 ? 1 : 2;
  const uint64_t bits = uint64_t(bytes.size()) * 8;
  for (size_t i = 0; i < 8; ++i) last[64 * blocks - 1 - i] = static_cast<unsigned char>(bits >> (8 * i));
  for (size_t i = 0; i < blocks; ++i) mix(hash, last + 64 * i, k);
  std::string text;
  for (uint32_t word : hash) text += fmt::format("{:08x}", word);
  return text;
}

}  // namespace opgraft
