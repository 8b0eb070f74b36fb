// Products of tiles by Intel's AMX, of words: pairs of bfloat16, as in the panels of gemm-inl.h and a convolution's
// columns, or fours of bytes, as in dot-inl.h's. Compiled for AVX-512 and called where simd::by_amx says so.
#include <algorithm>
#include <cstdint>
#include <type_traits>

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
// The next 16 words of A's rows, and the next 16 rows of B.
HWY_INLINE void NextWords(AmxRows &a) { a.at = static_cast<const char *>(a.at) + 64; }
HWY_INLINE void NextStep(AmxRows &b) { b.at = static_cast<const char *>(b.at) + ::opgraft::simd::kAmxWords * b.apart; }
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
  // kAmxRows. Where the tiles get another number of rows that takes 70 ns. meanwhile() is called with each of the
  // words / kAmxWords steps: what it does by vectors takes no time of the tiles. kFetch: the next step's words of B
  // are brought into L1. Where another process has the core's other half a product takes 0.6 of the time so, else up
  // to 1.05; lines of B that lie far apart do not gain by it. A and B: AmxRows, or what has their `at` and `apart`
  // and a NextWords or NextStep of its own.
  template <bool kBytes, bool kFetch, class A, class B, class Meanwhile>
  HWY_INLINE void Multiply(int64_t rows, A a, B b, int64_t words, AmxRows add, AmxMatrix<void> c,
                           const Meanwhile &meanwhile) {
    if (rows != rows_) Configure(rows);
    if (rows > kWords) Tiles<kBytes, kFetch, true>(a, b, words, add, c, meanwhile);
    else Tiles<kBytes, kFetch, false>(a, b, words, add, c, meanwhile);
  }
  template <bool kBytes, bool kFetch>
  HWY_INLINE void Multiply(int64_t rows, AmxRows a, AmxRows b, int64_t words, AmxRows add, AmxMatrix<void> c) {
    Multiply<kBytes, kFetch>(rows, a, b, words, add, c, [] {});
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

  // The lines of a quarter of the next step's words of B, into L1, between two products.
  template <int kQuarter> static HWY_INLINE void Fetch(const char *next, int64_t apart) {
    constexpr int64_t kRows = kWords / 4;
#pragma GCC unroll 4
    for (int64_t row = kQuarter * kRows; row < (kQuarter + 1) * kRows; ++row) {
      __builtin_prefetch(next + row * apart);
      __builtin_prefetch(next + row * apart + 64);
    }
  }

  template <bool kBytes, bool kFetch, bool kBoth, class A, class B, class Meanwhile>
  static HWY_INLINE void Tiles(A a, B b, int64_t words, AmxRows add, AmxMatrix<void> c, const Meanwhile &meanwhile) {
    const char *old = static_cast<const char *>(add.at);
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
    for (int64_t i = 0; i < words; i += kWords) {
      const char *upper = static_cast<const char *>(a.at), *lower = upper + kWords * a.apart;
      NextWords(a);
      const char *at = static_cast<const char *>(b.at);
      NextStep(b);
      const char *next = static_cast<const char *>(b.at);
      OPGRAFT_AMX_LOAD(4, upper, a.apart);
      OPGRAFT_AMX_LOAD(6, at, b.apart);
      OPGRAFT_AMX_LOAD(7, at + 64, b.apart);
      if (kFetch) Fetch<0>(next, b.apart);
      if (kBytes) OPGRAFT_AMX_ADD("tdpbusd", 0, 4, 6);
      else OPGRAFT_AMX_ADD("tdpbf16ps", 0, 4, 6);
      if (kBoth) OPGRAFT_AMX_LOAD(5, lower, a.apart);
      if (kFetch) Fetch<1>(next, b.apart);
      if (kBytes) OPGRAFT_AMX_ADD("tdpbusd", 1, 4, 7);
      else OPGRAFT_AMX_ADD("tdpbf16ps", 1, 4, 7);
      if (kFetch) Fetch<2>(next, b.apart);
      if (kBoth && kBytes) OPGRAFT_AMX_ADD("tdpbusd", 2, 5, 6);
      else if (kBoth) OPGRAFT_AMX_ADD("tdpbf16ps", 2, 5, 6);
      if (kFetch) Fetch<3>(next, b.apart);
      if (kBoth && kBytes) OPGRAFT_AMX_ADD("tdpbusd", 3, 5, 7);
      else if (kBoth) OPGRAFT_AMX_ADD("tdpbf16ps", 3, 5, 7);
      meanwhile();
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

// Products by tiles, and what follows their sums by vectors: the rows of one are finished with the steps of the next
// one, a few with each, since by itself that would stop the tiles. Sum: float for bfloat16, int32_t for bytes; Place:
// what follow(place, row, rows, sums) has to know of a product, of whose rows [row, row + rows) the sums are, 32 to a
// row.
template <class Sum, class Place, class Follow> class AmxFollowed {
 public:
  explicit AmxFollowed(const Follow &follow) : follow_(follow) {}

  // As AmxTiles has it; `place` is kept until the next call.
  template <class A>
  HWY_INLINE void Multiply(int64_t rows, A a, AmxRows b, int64_t words, AmxRows add, const Place &place) {
    Add(rows, a, b, words, add, {sums_[odd_], kPanelRow});
    Finish();  // where there are no words
    place_ = place, row_ = 0, rows_ = rows, odd_ = !odd_;
  }
  // Sums that nothing follows, to c.
  template <class A> HWY_INLINE void Add(int64_t rows, A a, AmxRows b, int64_t words, AmxRows add, AmxMatrix<void> c) {
    const int64_t steps = std::max<int64_t>(words / ::opgraft::simd::kAmxWords, 1);
    const int64_t each = (rows_ - row_ + steps - 1) / steps;
    tiles_.template Multiply<std::is_same_v<Sum, int32_t>, true>(rows, a, b, words, add, c,
                                                                 [&]() HWY_ATTR { Some(each); });
  }
  // The last product's.
  HWY_INLINE void Finish() { Some(rows_); }

 private:
  static constexpr int64_t kWide = kPanelRow / int64_t(sizeof(Sum));

  HWY_INLINE void Some(int64_t most) {
    const int64_t rows = std::min(most, rows_ - row_);
    if (rows <= 0) return;
    follow_(place_, row_, rows, sums_[!odd_] + row_ * kWide);
    row_ += rows;
  }

  HWY_ALIGN Sum sums_[2][::opgraft::simd::kAmxRows * kWide];
  AmxTiles tiles_;
  Follow follow_;
  Place place_;
  int64_t row_ = 0, rows_ = 0;  // of the product before: those from row_ on are left
  bool odd_ = false;
};
#undef OPGRAFT_AMX_LOAD
#undef OPGRAFT_AMX_STORE
#undef OPGRAFT_AMX_ZERO
#undef OPGRAFT_AMX_ADD
#endif

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
