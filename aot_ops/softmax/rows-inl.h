// Softmax of rows that lie side by side, per SIMD target.
#if defined(OPGRAFT_SOFTMAX_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_SOFTMAX_ROWS_INL_H_
#undef OPGRAFT_SOFTMAX_ROWS_INL_H_
#else
#define OPGRAFT_SOFTMAX_ROWS_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/norm-inl.h"
#include "rows.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

inline constexpr int kTogether = 2;
// Numbers that a thread keeps beside y, and of short rows.
inline constexpr int64_t kKept = 32768, kKeptShort = 8192;

// How far a score lies below the largest one: `below(s, most)`, by these two of scores as they are, and of x.
struct Difference {
  template <class V> HWY_INLINE V operator()(V s, V most) const { return hn::Sub(s, most); }
};
struct Scaled {
  hn::Vec<hn::ScalableTag<float>> scale;  // above 0
  template <class V> HWY_INLINE V operator()(V s, V most) const { return hn::Mul(hn::Sub(s, most), scale); }
};

// kRows neighbouring rows from row r on, of scores score(v, row, i) of a whole vector v from element i on,
// score(v, row, i, rest) of the last elements; together, since a row alone waits for its maximum and its sum. float32
// keeps in y the exponentials, and before them the scores where a mask makes them; half types, whose rounding before
// the division would cost accuracy, keep both beside it, or of long rows compute them anew.
template <int kRows, bool kMasked, class T, class Score, class Below = Difference>
HWY_INLINE void ContiguousRows(const SoftmaxRows &g, int64_t r, const Score &score, const Below &below = Below()) {
  const hn::ScalableTag<float> d;
  const int64_t n = g.n;
  const T *x = static_cast<const T *>(g.x) + r * n;
  T *y = static_cast<T *>(g.y) + r * n;
  const auto at = [&](int j, int64_t i, auto... k)
                      HWY_ATTR { return score(LoadSome(d, x + j * n + i, k...), j, i, k...); };
  const int64_t lanes = int64_t(hn::Lanes(d)), whole = n / lanes * lanes;
  const size_t rest = size_t(n - whole);
  const auto inside = hn::FirstN(d, rest);
  const auto lowest = hn::Set(d, -HUGE_VALF);
  constexpr bool kFloat = std::is_same_v<T, float>;
  float *HWY_RESTRICT room = g.room;
  // Two vectors at a time, of which only the larger waits for the maximum before. Of bfloat16 they are neighbours,
  // which take less to be read and to be rounded; a mask's elements would have to be as well.
  constexpr bool kPairs = std::is_same_v<T, ::opgraft::bfloat16> && !kMasked;
  const int64_t twos = n / (2 * lanes) * 2 * lanes;
  const auto load = [&](int j, int64_t i) HWY_ATTR {
    if constexpr (kPairs) return LoadPairs(d, x + j * n + i);
    else return Neighbours<hn::Vec<decltype(d)>>{at(j, i), at(j, i + lanes)};
  };
  const auto store = [&](auto a, auto b, int j, int64_t i) HWY_ATTR {
    if constexpr (kPairs) return StorePairs<decltype(d)>({a, b}, d, y + j * n + i);
    StoreF32(a, d, y + j * n + i);
    StoreF32(b, d, y + j * n + i + lanes);
  };
  const auto rows = [&](auto keeps) HWY_ATTR __attribute__((always_inline)) {
    constexpr bool kKeeps = decltype(keeps)::value;
    const auto place = [&](int j, int64_t i) {
      if constexpr (kFloat) return y + j * n + i;
      else return room + j * whole + i;
    };
    hn::Vec<decltype(d)> most[kRows], tail[kRows], sum[kRows];
    for (int j = 0; j < kRows; ++j) {
      tail[j] = rest ? hn::IfThenElse(inside, at(j, whole, rest), lowest) : lowest;
      most[j] = tail[j];
      sum[j] = hn::Zero(d);
    }
    constexpr bool kScores = kKeeps && (kMasked || !kFloat);
    for (int64_t i = 0; i < twos; i += 2 * lanes)
      for (int j = 0; j < kRows; ++j) {
        const auto s = load(j, i);
        if constexpr (kScores) hn::StoreU(s.even, d, place(j, i)), hn::StoreU(s.odd, d, place(j, i + lanes));
        most[j] = hn::Max(most[j], hn::Max(s.even, s.odd));
      }
    for (int64_t i = twos; i < whole; i += lanes)
      for (int j = 0; j < kRows; ++j) {
        const auto s = at(j, i);
        if constexpr (kScores) hn::StoreU(s, d, place(j, i));
        most[j] = hn::Max(most[j], s);
      }
    for (int j = 0; j < kRows; ++j) most[j] = hn::MaxOfLanes(d, most[j]);
    for (int64_t i = 0; i < whole; i += lanes)
      for (int j = 0; j < kRows; ++j) {
        auto s = most[j];
        if constexpr (kScores) s = hn::LoadU(d, place(j, i));
        else s = at(j, i);
        const auto e = ExpBelow0(d, below(s, most[j]));
        if constexpr (kKeeps) hn::StoreU(e, d, place(j, i));
        sum[j] = hn::Add(sum[j], e);
      }
    for (int j = 0; j < kRows; ++j) {
      if (rest) {
        tail[j] = hn::IfThenElseZero(inside, ExpBelow0(d, below(tail[j], most[j])));
        sum[j] = hn::Add(sum[j], tail[j]);
      }
      sum[j] = hn::Div(hn::Set(d, 1.0f), hn::SumOfLanes(d, sum[j]));
      if (rest) tail[j] = hn::Mul(tail[j], sum[j]);
    }
    for (int64_t i = 0; i < twos; i += 2 * lanes)
      for (int j = 0; j < kRows; ++j) {
        Neighbours<hn::Vec<decltype(d)>> e;
        if constexpr (kKeeps) {
          e = {hn::LoadU(d, place(j, i)), hn::LoadU(d, place(j, i + lanes))};
        } else {
          e = load(j, i);
          e = {ExpBelow0(d, below(e.even, most[j])), ExpBelow0(d, below(e.odd, most[j]))};
        }
        store(hn::Mul(e.even, sum[j]), hn::Mul(e.odd, sum[j]), j, i);
      }
    for (int64_t i = twos; i < whole; i += lanes)
      for (int j = 0; j < kRows; ++j) {
        auto e = hn::Zero(d);
        if constexpr (kKeeps) e = hn::LoadU(d, place(j, i));
        else e = ExpBelow0(d, below(at(j, i), most[j]));
        StoreF32(hn::Mul(e, sum[j]), d, y + j * n + i);
      }
    if (rest)
      for (int j = 0; j < kRows; ++j) StoreF32N(tail[j], d, y + j * n + whole, rest);
  };
  if (kFloat || kRows * whole <= g.kept) rows(std::true_type());
  else rows(std::false_type());
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
