// Softmax of rows of which a vector holds several, per SIMD target.
#if defined(OPGRAFT_SOFTMAX_IN_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_SOFTMAX_IN_VECTOR_INL_H_
#undef OPGRAFT_SOFTMAX_IN_VECTOR_INL_H_
#else
#define OPGRAFT_SOFTMAX_IN_VECTOR_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/norm-inl.h"
#include "aot_ops/common/rows_in_vector-inl.h"
#include "mask-inl.h"
#include "rows.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Rows [begin, end) along the last axis. score(v, r, some...): what x's elements v become, from row r on: of a whole
// vector, or of the first `some`, behind which there may be nothing.
template <class T, class Score, class Below = Difference>
HWY_INLINE void VectorsOfRows(const SoftmaxRows &g, const RowsInVector &in, int64_t begin, int64_t end,
                              const Score &score, const Below &below = Below()) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t r = begin; r < end; r += in.rows) {
    const T *x = static_cast<const T *>(g.x) + r * g.n;
    T *y = static_cast<T *>(g.y) + r * g.n;
    const int64_t left = (end - r) * g.n;
    const auto s = left >= lanes ? score(LoadF32(d, x), r) : score(LoadF32N(d, x, size_t(left)), r, size_t(left));
    const auto e = ExpBelow0(d, below(s, in.Most(s)));
    const auto p = hn::Div(e, in.Sum(e));
    if (in.width == lanes && left >= lanes) StoreF32(p, d, y);
    else StoreF32N(p, d, y, size_t(std::min(in.width, left)));  // y may be x: no element more
  }
}

template <class T> HWY_NOINLINE void PlainInVectors(const SoftmaxRows &g, int64_t begin, int64_t end) {
  const RowsInVector in(g.n);
  const auto score = [](auto v, auto...) HWY_ATTR { return v; };
  if (g.scale == 1.0f) VectorsOfRows<T>(g, in, begin, end, score);
  else VectorsOfRows<T>(g, in, begin, end, score, Scaled{hn::Set(hn::ScalableTag<float>(), g.scale)});
}

// With a mask of type M. load(p, some...): a vector of it, or the first `some`; both(v, m): the scores.
template <class T, class M, class Load, class Both>
HWY_INLINE void MaskedInVectors(const SoftmaxRows &g, int64_t begin, int64_t end, const Load &load, const Both &both) {
  const RowsInVector in(g.n);
  const M *const mask = static_cast<const M *>(g.mask.data);
  const int64_t step = g.mask.step();
  MaskRows rows(g.mask, begin);
  M gathered[hn::MaxLanes(hn::ScalableTag<float>())] = {};
  const auto gather = [&](int64_t from, int64_t apart, int64_t count) {
    M *to = gathered;
    for (int64_t i = 0; i < count; ++i, from += apart)
      for (int64_t k = 0; k < g.n; ++k) *to++ = mask[from + k * step];
    return static_cast<const M *>(gathered);
  };
  for (int64_t r = begin, count; r < end; r += count) {
    count = std::min(rows.left(), end - r);
    const int64_t from = rows.next(count), apart = rows.apart();
    if (step == 1 && apart == g.n) {  // side by side
      const M *const at = mask + from;
      VectorsOfRows<T>(g, in, r, r + count, [&](auto v, int64_t row, auto... some) HWY_ATTR {
        return both(v, load(at + (row - r) * g.n, some...));
      });
    } else if (!apart) {  // one for all
      const auto m = load(gather(from, 0, in.rows));
      VectorsOfRows<T>(g, in, r, r + count, [&](auto v, auto...) HWY_ATTR { return both(v, m); });
    } else {
      VectorsOfRows<T>(g, in, r, r + count, [&](auto v, int64_t row, auto...) HWY_ATTR {
        return both(v, load(gather(from + (row - r) * apart, apart, std::min(in.rows, r + count - row))));
      });
    }
  }
}

template <class T> HWY_NOINLINE void AddedInVectors(const SoftmaxRows &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, g.scale), factor = hn::Set(d, g.mask_scale);
  MaskedInVectors<T, T>(
      g, begin, end, [&](const T *p, auto... some) HWY_ATTR { return LoadSome(d, p, some...); },
      [&](auto v, auto m) HWY_ATTR { return hn::MulAdd(v, scale, hn::Mul(m, factor)); });
}

template <class T> HWY_NOINLINE void ChosenInVectors(const SoftmaxRows &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, g.scale), fill = hn::Set(d, g.fill);
  MaskedInVectors<T, uint8_t>(g, begin, end, Hidden(d, g.mask), [&](auto v, auto gone) HWY_ATTR {
    return hn::IfThenElse(gone, fill, hn::Mul(v, scale));
  });
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
