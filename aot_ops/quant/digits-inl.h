// Products of few rows of floats by packed weights of eight bits, per SIMD target, where a machine multiplies bytes
// four at a time (VNNI). Widened, so few rows wait for the weights' conversion and not for memory. Here the numbers of
// a row of x become whole numbers, steps of 2^-29 of the largest's power of two, and these four signed digits of base
// 256 each, whose products by the weights are summed exactly; the sum is rounded once.
#include <cmath>
#include <limits>

#if defined(OPGRAFT_DIGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_DIGITS_INL_H_
#undef OPGRAFT_DIGITS_INL_H_
#else
#define OPGRAFT_DIGITS_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/product-inl.h"
#include "aot_ops/quant/digits.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// The digits of k numbers. false where float32's sums are the better ones: of numbers that are not finite, or next to
// denormal, or one of which is more than 64 times their mean. Else half a step, the most that a number is off, is 2^-24
// of the mean at most.
inline bool MakeDigits(const float *x, int64_t k, Digits &to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  constexpr int64_t kLanes = kPanel / 2;
  constexpr float kLeast = 0x1p-90f, kFarthest = 64;
  const auto load = [&](int64_t i)
                        HWY_ATTR { return i + kLanes <= k ? hn::LoadU(d, x + i) : LoadF32N(d, x + i, size_t(k - i)); };
  auto most = hn::Zero(d), all = hn::Zero(d);
  for (int64_t i = 0; i < k; i += kLanes) {
    const auto v = hn::Abs(load(i));
    most = hn::Max(most, v), all = hn::Add(all, v);
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most)), sum = hn::GetLane(hn::SumOfLanes(d, all));
  // Not of NaN; and what may overflow, beside the finite sum, is on the left.
  const bool level = sum <= std::numeric_limits<float>::max() && largest * (float(k) / kFarthest) <= sum;
  if (!level || (largest < kLeast && largest > 0)) return false;
  const int exponent = largest > 0 ? std::ilogb(largest) : 0;
  to.step = std::ldexp(1.0, exponent - 29);
  const auto steps = hn::Set(d, std::ldexp(1.0f, 29 - exponent));
  // Of eight rows of weights the even ones are multiplied in the lower half of a vector, the odd ones in the upper.
  HWY_ALIGN static constexpr int32_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  const auto order = hn::IndicesFromVec(d, hn::Load(di, kOrder));
  const auto zero = hn::Set(du, 0x80808080u);    // each digit is one of 0 to 255, less 128
  auto low = hn::Zero(di), high = hn::Zero(di);  // sums of halves of 16 bits, of 4096 numbers in a lane at most
  for (int64_t i = 0; i < k; i += kLanes) {
    const auto q = hn::NearestInt(hn::TableLookupLanes(hn::Mul(load(i), steps), order));
    low = hn::Add(low, hn::And(q, hn::Set(di, 0xffff))), high = hn::Add(high, hn::ShiftRight<16>(q));
    auto bytes = hn::Xor(hn::Add(hn::BitCast(du, q), zero), zero);
#pragma GCC unroll 4
    for (int64_t digit = 0; digit < 4; ++digit, bytes = hn::ShiftRight<8>(bytes))
      hn::StoreU(hn::TruncateTo(d8, bytes), d8, reinterpret_cast<uint8_t *>(to.bytes) + digit * to.ld + i);
  }
  HWY_ALIGN int32_t lanes[2][kLanes];
  hn::Store(low, di, lanes[0]), hn::Store(high, di, lanes[1]);
  to.sum = 0;
  for (int64_t j = 0; j < kLanes; ++j) to.sum += lanes[0][j] + int64_t(lanes[1][j]) * 65536;
  return true;
}

#if HWY_TARGET == HWY_AVX3
using ByteVec = hn::Vec<hn::ScalableTag<uint8_t>>;
using DigitSums = hn::Vec<hn::ScalableTag<int32_t>>[4][4];  // by digit; by eight columns, even rows below odd ones

// Eight rows of a panel at `w` times the digits at `x`.
HWY_INLINE void AddEight(const int8_t *w, const int8_t *x, int64_t ld, DigitSums &sums) {
  const hn::ScalableTag<uint8_t> d8;
  const hn::Repartition<uint16_t, decltype(d8)> d16;
  const hn::Repartition<int32_t, decltype(d8)> d32;
  const auto flip = hn::Set(d8, uint8_t(0x80));  // one factor has no sign: weights are 128 more
  ByteVec rows[4], fours[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) rows[i] = hn::Xor(hn::LoadU(d8, reinterpret_cast<const uint8_t *>(w) + i * 64), flip);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const auto both = [&](ByteVec a, ByteVec b) HWY_ATTR {
      return hn::BitCast(d16, i ? hn::InterleaveUpper(d8, a, b) : hn::InterleaveLower(d8, a, b));
    };
    const auto first = both(rows[0], rows[1]), second = both(rows[2], rows[3]);
    fours[2 * i] = hn::BitCast(d8, hn::InterleaveLower(d16, first, second));
    fours[2 * i + 1] = hn::BitCast(d8, hn::InterleaveUpper(d16, first, second));
  }
  const auto odd = hn::Not(hn::FirstN(d32, hn::Lanes(d32) / 2));
#pragma GCC unroll 4
  for (int digit = 0; digit < 4; ++digit, x += ld) {
    int32_t four[2];
    std::memcpy(four, x, sizeof four);
    const auto factors = hn::IfThenElse(odd, hn::Set(d32, four[1]), hn::Set(d32, four[0]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      // As assembly, as in simd.h: a caller compiled without VNNI could not inline the intrinsic.
      asm("vpdpbusd %2, %1, %0" : "+v"(sums[digit][i].raw) : "v"(fours[i].raw), "v"(factors.raw));
  }
}

// to[kPanel]: the products of one row and a panel.
HWY_NOINLINE inline void DigitPanel(const Digits &x, const int8_t *w, int64_t k, float *to) {
  const hn::ScalableTag<int32_t> d;
  constexpr int64_t kHalf = kPanel / 4;
  DigitSums sums;
#pragma GCC unroll 4
  for (int digit = 0; digit < 4; ++digit) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[digit][i] = hn::Zero(d);
  }
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    __builtin_prefetch(w + i * kPanel + 4096, 0, 2);
    AddEight(w + i * kPanel, x.bytes + i, x.ld, sums);
  }
  if (i < k) {
    HWY_ALIGN int8_t rest[8 * kPanel] = {};
    std::memcpy(rest, w + i * kPanel, size_t((k - i) * kPanel));
    AddEight(rest, x.bytes + i, x.ld, sums);
  }
  HWY_ALIGN int32_t lanes[4][4][2 * kHalf];
#pragma GCC unroll 4
  for (int digit = 0; digit < 4; ++digit) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) hn::Store(sums[digit][v], d, lanes[digit][v]);
  }
  for (int64_t v = 0; v < 4; ++v)
    for (int64_t j = 0; j < kHalf; ++j) {
      int64_t sum = -128 * x.sum;
      for (int digit = 0; digit < 4; ++digit)
        sum += (int64_t(lanes[digit][v][j]) + lanes[digit][v][j + kHalf]) * (int64_t(1) << 8 * digit);
      // Lane 4 l + n of vector v is column 16 l + 4 v + n: halves were interleaved.
      to[j / 4 * 2 * kHalf + v * 4 + j % 4] = float(double(sum) * x.step);
    }
}
#endif

// Panels [p0, p1) of all rows of A by their digits.
template <class T> void DigitPanels(const GemmTile &g, const Digits *rows, int64_t p0, int64_t p1) {
#if HWY_TARGET == HWY_AVX3
  HWY_ALIGN float acc[kDigitRows * kPanel];
  for (int64_t panel = p0; panel < p1; ++panel) {
    const int64_t column = panel * kPanel;
    for (int64_t r = 0; r < g.m; ++r)
      DigitPanel(rows[r], static_cast<const int8_t *>(g.b) + column * g.k, g.k, acc + r * kPanel);
    Epilogue<T>(g, acc, kPanel, 0, g.m, column, std::min(g.n - column, kPanel));
  }
#else
  (void)g, (void)rows, (void)p0, (void)p1;
#endif
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
