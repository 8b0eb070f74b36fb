// Windows down the columns of either layout; then, with the channels last, along each pixel's. Per SIMD target.
#include <algorithm>
#include <memory>

#include "pool.h"

#if defined(OPGRAFT_POOL_PIXELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_POOL_PIXELS_INL_H_
#undef OPGRAFT_POOL_PIXELS_INL_H_
#else
#define OPGRAFT_POOL_PIXELS_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// a, or b where it is larger or a NaN. The instruction gives its second operand where one is a NaN.
template <class D, class V> HWY_INLINE V Larger(D, V a, V b) { return hn::IfThenElse(hn::IsNaN(a), a, hn::Max(a, b)); }

// kRows: of as many rows, unless it is 0.
template <bool kMean, int kRows, class T>
HWY_NOINLINE void DownRows(const T *x, int64_t ld, int64_t rows, int64_t n, float *dst) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  if (kRows) rows = kRows;
  auto over = [&](int64_t i, auto load) HWY_ATTR {
    auto v = load(x + i);
#pragma GCC unroll 4
    for (int64_t k = 1; k < rows; ++k)
      v = kMean ? hn::Add(v, load(x + k * ld + i)) : Larger(d, v, load(x + k * ld + i));
    hn::StoreU(v, d, dst + i);
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) over(i, [&](const T *p) HWY_ATTR { return LoadF32(d, p); });
  if (i < n) over(i, [&](const T *p) HWY_ATTR { return LoadF32N(d, p, size_t(n - i)); });
}

// dst = the largest, or the sum, of n columns over rows of x; behind n there is room.
template <bool kMean, class T> HWY_INLINE void Down(const T *x, int64_t ld, int64_t rows, int64_t n, float *dst) {
  if (rows == 3) return DownRows<kMean, 3>(x, ld, rows, n, dst);
  if (rows == 2) return DownRows<kMean, 2>(x, ld, rows, n, dst);
  DownRows<kMean, 0>(x, ld, rows, n, dst);
}

// y = the same of n channels over `columns` of a line, a mean of `rows` rows.
template <bool kMean, class T>
HWY_INLINE void Across(const float *line, int64_t columns, int64_t rows, int64_t n, T *y) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto count = hn::Set(d, float(rows * columns));
  for (int64_t i = 0; i < n; i += lanes) {
    auto v = hn::LoadU(d, line + i);  // behind the line there is room
    for (int64_t l = 1; l < columns; ++l) {
      const auto e = hn::LoadU(d, line + l * n + i);
      v = kMean ? hn::Add(v, e) : Larger(d, v, e);
    }
    if (kMean) v = hn::Div(v, count);
    if (n - i >= lanes) StoreF32(v, d, y + i);
    else StoreF32N(v, d, y + i, size_t(n - i));
  }
}

// Units [begin, end) of (image, row of y, part of the channels).
template <bool kMean, class T> HWY_INLINE void Pixels(const Pool &g, int64_t begin, int64_t end) {
  const int64_t lanes = int64_t(hn::Lanes(hn::ScalableTag<float>())), ld = g.w.in * g.channels;
  const auto line = std::make_unique_for_overwrite<float[]>(size_t(g.columns() * g.part + lanes));
  for (int64_t u = begin; u < end; ++u) {
    const int64_t from = u % g.parts() * g.part, n = std::min(g.part, g.channels - from), row = u / g.parts();
    int64_t top, bottom;
    elements_in(g.h, row % g.h.out, &top, &bottom);
    const T *x = static_cast<const T *>(g.x) + (row / g.h.out * g.h.in + g.h.at(row % g.h.out, top)) * ld + from;
    T *y = static_cast<T *>(g.y) + row * g.w.out * g.channels + from;
    auto first = [&](int64_t j) { return std::max<int64_t>(0, g.w.at(j, 0)); };
    auto last = [&](int64_t j) { return std::min(g.w.in, g.w.at(j, 0) + g.w.kernel); };
    for (int64_t j = 0; j < g.w.out; j += g.run) {
      const int64_t behind = std::min(g.w.out, j + g.run), left = first(j), columns = last(behind - 1) - left;
      const T *seen = x + left * g.channels;
      if (n == g.channels) Down<kMean>(seen, ld, bottom - top, columns * n, line.get());
      else
        for (int64_t l = 0; l < columns; ++l)
          Down<kMean>(seen + l * g.channels, ld, bottom - top, n, line.get() + l * n);
      for (int64_t k = j; k < behind; ++k)
        Across<kMean>(line.get() + (first(k) - left) * n, last(k) - first(k), bottom - top, n, y + k * g.channels);
    }
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
