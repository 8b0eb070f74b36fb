// Rows shorter than a vector, several of them in one, per SIMD target.
#if defined(OPGRAFT_ROWS_IN_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_ROWS_IN_VECTOR_INL_H_
#undef OPGRAFT_ROWS_IN_VECTOR_INL_H_
#else
#define OPGRAFT_ROWS_IN_VECTOR_INL_H_
#endif

#include <cstdint>

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Whole rows of n elements side by side in one vector: n is at most half of it, or all.
struct RowsInVector {
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  using Ints = hn::RebindToSigned<D>;
  using Places = decltype(hn::IndicesFromVec(D(), hn::Zero(Ints())));

  int64_t rows, width;  // of a vector: rows, and the elements that they have together
  int steps;
  bool halves;
  Places turned[hn::MaxLanes(D()) / 2], first, each;

  static bool several(int64_t n) { return n > 0 && 2 * n <= int64_t(hn::Lanes(D())); }
  static bool fits(int64_t n) { return several(n) || n == int64_t(hn::Lanes(D())); }

  HWY_INLINE explicit RowsInVector(int64_t n) : rows(int64_t(hn::Lanes(D())) / n), width(rows * n), steps(0) {
    const D d;
    const Ints di;
    const auto at = hn::Iota(di, 0), length = hn::Set(di, int32_t(n)), within = hn::Set(di, int32_t(width));
    const auto middle = hn::Add(hn::ConvertTo(d, at), hn::Set(d, 0.5f));
    const auto row = hn::ConvertTo(di, hn::Mul(middle, hn::Set(d, 1.0f / float(n))));
    const auto begin = hn::Mul(row, length);
    const auto places = [&](auto v) HWY_ATTR {  // any, but in the vector, behind the rows
      return hn::IndicesFromVec(d, hn::IfThenElseZero(hn::Lt(at, within), v));
    };
    halves = (n & (n - 1)) == 0;
    if (halves)
      for (int64_t s = 1; s < n; s *= 2) turned[steps++] = places(hn::Xor(at, hn::Set(di, int32_t(s))));
    else
      for (int64_t s = 0; s < n; ++s) turned[steps++] = places(hn::Add(begin, hn::Set(di, int32_t(s))));
    first = hn::IndicesFromVec(d, hn::IfThenElseZero(hn::Lt(at, hn::Set(di, int32_t(rows))), hn::Mul(at, length)));
    each = places(row);
  }

  // Each row's sum, and its largest element, in all its elements, the same bits. Of a power of two by halves.
  HWY_INLINE V Sum(V v) const {
    return Folded(v, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
  }
  HWY_INLINE V Most(V v) const {
    return Folded(v, [](V a, V b) HWY_ATTR { return hn::Max(a, b); });
  }
  template <class Both> HWY_INLINE V Folded(V v, const Both &both) const {
    V all = v;
    if (halves) {
      for (int k = 0; k < steps; ++k) all = both(all, hn::TableLookupLanes(all, turned[k]));
    } else {
      all = hn::TableLookupLanes(v, turned[0]);
      for (int k = 1; k < steps; ++k) all = both(all, hn::TableLookupLanes(v, turned[k]));
    }
    return all;
  }

  // `count` numbers, which divide n, again and again; none: `otherwise`.
  template <class T> HWY_INLINE V Repeated(const T *p, int64_t count, float otherwise) const {
    const D d;
    if (!p) return hn::Set(d, otherwise);
    HWY_ALIGN float all[2 * hn::MaxLanes(d)];
    for (int64_t i = 0; i < width; i += count) StoreF32N(LoadF32N(d, p, size_t(count)), d, all + i, size_t(count));
    return LoadF32N(d, all, size_t(width));
  }
};

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
