// Products of tiles by Intel's AMX, of words: pairs of bfloat16, as in the panels of gemm-inl.h and a convolution's
// columns, or fours of bytes, as in dot-inl.h's. Compiled for AVX-512 and called where simd::by_amx says so.
#include <cstdint>

#if defined(OPGRAFT_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_AMX_INL_H_
#undef OPGRAFT_AMX_INL_H_
#else
#define OPGRAFT_AMX_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3
// As assembly, as in simd.h; the compiler knows nothing of the tiles and keeps nothing in them.
#define OPGRAFT_AMX_LOAD(tile, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(stride) : "memory")
#define OPGRAFT_AMX_STORE(tile, to, stride) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(stride) : "memory")
#define OPGRAFT_AMX_ZERO(tile) asm volatile("tilezero %%tmm" #tile : :)
#define OPGRAFT_AMX_ADD(instruction, sum, a, b) asm volatile(instruction " %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : :)

// Rows that begin `apart` bytes from one another.
template <class P> struct AmxMatrix {
  P *at;
  int64_t apart;
};
using AmxRows = AmxMatrix<const void>;
constexpr int64_t kPanelRow = 128;  // bytes of a step of a panel

// This thread's tiles: sums of two by two in 0 to 3, rows of A in 4 and 5, columns of B in 6 and 7. Given back at
// the end, so that the system need not keep them.
class AmxTiles {
 public:
  AmxTiles() = default;
  AmxTiles(const AmxTiles &) = delete;
  AmxTiles &operator=(const AmxTiles &) = delete;
  ~AmxTiles() {
    if (rows_) asm volatile("tilerelease" : :);
  }

  // c[rows, 32] = (add ? add : 0) + a[rows, words] b[words, 32]: words of pairs of bfloat16 with float32 sums, or of
  // four bytes, A's without and B's with a sign, with int32 sums. `words` is a multiple of kAmxWords, `rows` at most
  // kAmxRows. Where the tiles get another number of rows that takes 70 ns.
  template <bool kBytes>
  HWY_INLINE void Multiply(int64_t rows, AmxRows a, AmxRows b, int64_t words, AmxRows add, AmxMatrix<void> c) {
    if (rows != rows_) Configure(rows);
    if (rows > kWords) Tiles<kBytes, true>(a, b, words, add, c);
    else Tiles<kBytes, false>(a, b, words, add, c);
  }

 private:
  static constexpr int64_t kWords = ::opgraft::simd::kAmxWords;  // and rows of a tile

  // What ldtilecfg reads (Intel's manual, volume 1, 18.3).
  struct alignas(64) Configuration {
    uint8_t palette = 1, start = 0, none[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  void Configure(int64_t rows) {
    Configuration of;
    const auto upper = uint8_t(rows < kWords ? rows : kWords), lower = uint8_t(rows > kWords ? rows - kWords : 1);
    const uint8_t each[8] = {upper, upper, lower, lower, upper, lower, kWords, kWords};
    for (int i = 0; i < 8; ++i) of.row_bytes[i] = 64, of.rows[i] = each[i];
    asm volatile("ldtilecfg %0" : : "m"(of));
    rows_ = rows;
  }

  template <bool kBytes, bool kBoth>
  static HWY_INLINE void Tiles(AmxRows a, AmxRows b, int64_t words, AmxRows add, AmxMatrix<void> c) {
    const char *upper = static_cast<const char *>(a.at), *lower = upper + kWords * a.apart;
    const char *at = static_cast<const char *>(b.at), *old = static_cast<const char *>(add.at);
    char *to = static_cast<char *>(c.at);
    if (old) {
      OPGRAFT_AMX_LOAD(0, old, add.apart);
      OPGRAFT_AMX_LOAD(1, old + 64, add.apart);
    } else {
      OPGRAFT_AMX_ZERO(0);
      OPGRAFT_AMX_ZERO(1);
    }
    if (kBoth && old) {
      OPGRAFT_AMX_LOAD(2, old + kWords * add.apart, add.apart);
      OPGRAFT_AMX_LOAD(3, old + kWords * add.apart + 64, add.apart);
    } else if (kBoth) {
      OPGRAFT_AMX_ZERO(2);
      OPGRAFT_AMX_ZERO(3);
    }
    for (int64_t i = 0; i < words; i += kWords, upper += 64, lower += 64, at += kWords * b.apart) {
      OPGRAFT_AMX_LOAD(4, upper, a.apart);
      OPGRAFT_AMX_LOAD(6, at, b.apart);
      OPGRAFT_AMX_LOAD(7, at + 64, b.apart);
      if (kBytes) OPGRAFT_AMX_ADD("tdpbusd", 0, 4, 6);
      else OPGRAFT_AMX_ADD("tdpbf16ps", 0, 4, 6);
      if (kBoth) OPGRAFT_AMX_LOAD(5, lower, a.apart);
      if (kBytes) OPGRAFT_AMX_ADD("tdpbusd", 1, 4, 7);
      else OPGRAFT_AMX_ADD("tdpbf16ps", 1, 4, 7);
      if (!kBoth) continue;
      if (kBytes) OPGRAFT_AMX_ADD("tdpbusd", 2, 5, 6);
      else OPGRAFT_AMX_ADD("tdpbf16ps", 2, 5, 6);
      if (kBytes) OPGRAFT_AMX_ADD("tdpbusd", 3, 5, 7);
      else OPGRAFT_AMX_ADD("tdpbf16ps", 3, 5, 7);
    }
    OPGRAFT_AMX_STORE(0, to, c.apart);
    OPGRAFT_AMX_STORE(1, to + 64, c.apart);
    if (kBoth) {
      OPGRAFT_AMX_STORE(2, to + kWords * c.apart, c.apart);
      OPGRAFT_AMX_STORE(3, to + kWords * c.apart + 64, c.apart);
    }
  }

  int64_t rows_ = 0;  // of the tiles as they are; 0: there are none
};
#undef OPGRAFT_AMX_LOAD
#undef OPGRAFT_AMX_STORE
#undef OPGRAFT_AMX_ZERO
#undef OPGRAFT_AMX_ADD
#endif

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
