// Windows over the height and width of planes: down the columns, then along the lines. Per SIMD target.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "pool.h"

#if defined(OPGRAFT_POOL_PLANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_POOL_PLANES_INL_H_
#undef OPGRAFT_POOL_PLANES_INL_H_
#else
#define OPGRAFT_POOL_PLANES_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/window-inl.h"
#include "pixels-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// y = the largest, or the mean, of each window along a line. shares: of a mean, by window, 1 over the number of its
// elements. kStride, kKernel: the window's, or 0, any. Not inlined, as Down: side by side in one function they take 1.1
// to 1.3 times as long.
template <bool kMean, int kStride, int kKernel, class T>
HWY_NOINLINE void AlongBy(const Pool &g, const float *line, const float *shares, T *y) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), kernel = kKernel ? kKernel : g.w.kernel;
  const int64_t n = g.w.out, stride = g.w.stride;
  HWY_ALIGN float gathered[hn::MaxLanes(d)] = {};
  for (int64_t j = 0; j < n; j += lanes) {
    auto at = [&](int64_t l) HWY_ATTR {
      if constexpr (kStride == 1) return hn::LoadU(d, line + j + l);
      if constexpr (kStride == 2) return EverySecond(d, line + 2 * j + l);
      for (int64_t i = 0; i < std::min(lanes, n - j); ++i) gathered[i] = line[stride * (j + i) + l];
      return hn::Load(d, gathered);
    };
    auto v = at(0);
#pragma GCC unroll 4
    for (int64_t l = 1; l < kernel; ++l) v = kMean ? hn::Add(v, at(l)) : Larger(d, v, at(l));
    if (kMean) v = hn::Mul(v, hn::LoadU(d, shares + j));
    if (n - j >= lanes) StoreF32(v, d, y + j);
    else StoreF32N(v, d, y + j, size_t(n - j));
  }
}

template <bool kMean, class T> HWY_INLINE void Along(const Pool &g, const float *line, const float *shares, T *y) {
  if (g.w.stride == 1)
    return g.w.kernel == 3 ? AlongBy<kMean, 1, 3>(g, line, shares, y) : AlongBy<kMean, 1, 0>(g, line, shares, y);
  if (g.w.stride != 2) return AlongBy<kMean, 0, 0>(g, line, shares, y);
  if (g.w.kernel == 3) return AlongBy<kMean, 2, 3>(g, line, shares, y);
  if (g.w.kernel == 2) return AlongBy<kMean, 2, 2>(g, line, shares, y);
  AlongBy<kMean, 2, 0>(g, line, shares, y);
}

// What the sums of a row's windows are multiplied by for their means.
class Shares {
 public:
  explicit Shares(const Pool &g) : counts_(size_t(g.w.out + int64_t(hn::Lanes(d_))), 1.0f), shares_(counts_) {
    for (int64_t j = 0; j < g.w.out; ++j) {
      int64_t first, last;
      elements_in(g.w, j, &first, &last);
      counts_[size_t(j)] = g.count(j, last - first);
    }
  }
  // rows: as Pool::rows has them.
  HWY_INLINE const float *of(float rows) {
    if (rows != rows_)
      for (size_t j = 0; j + hn::Lanes(d_) <= counts_.size(); j += hn::Lanes(d_))
        hn::StoreU(hn::Div(hn::Set(d_, 1.0f), hn::Mul(hn::Set(d_, rows), hn::LoadU(d_, counts_.data() + j))), d_,
                   shares_.data() + j);
    rows_ = rows;
    return shares_.data();
  }

 private:
  static constexpr hn::ScalableTag<float> d_{};
  std::vector<float> counts_, shares_;
  float rows_ = 0;
};

// A row of y of means of three columns, one apart, the first of which begins at most one before x's: without a line
// between, and summed up as AlongBy does. x: the first of kRows rows.
template <int kRows, class T> HWY_NOINLINE void Threes(const Pool &g, const T *x, const float *shares, T *y) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const int64_t lanes = int64_t(hn::Lanes(d)), ld = g.w.in, n = g.w.out;
  const auto turned = [&](int64_t by) HWY_ATTR {  // lane i of it is lane i + by, round about
    return hn::IndicesFromVec(d, hn::And(hn::Iota(di, int32_t(by)), hn::Set(di, int32_t(lanes - 1))));
  };
  const auto by1 = turned(1), by2 = turned(2);
  const auto here1 = hn::FirstN(d, size_t(lanes - 1)), here2 = hn::FirstN(d, size_t(lanes - 2));
  const auto down = [&](const T *from, auto load) HWY_ATTR {
    auto v = load(from);
    if constexpr (kRows > 1) v = hn::Add(v, load(from + ld));
    if constexpr (kRows > 2) v = hn::Add(v, load(from + 2 * ld));
    return v;
  };
  const auto load = [&](const T *p) HWY_ATTR { return LoadF32(d, p); };
  const auto part = [&](int64_t column) HWY_ATTR {  // 0 behind x's
    const size_t left = size_t(std::clamp<int64_t>(ld - column, 0, lanes));
    return down(x + std::min(column, ld), [&](const T *p) HWY_ATTR { return LoadF32N(d, p, left); });
  };
  auto a = ld >= lanes ? down(x, load) : part(0);
  if (g.w.before) a = hn::IfThenZeroElse(hn::FirstN(d, 1), hn::TableLookupLanes(a, turned(lanes - 1)));
  auto a1 = hn::TableLookupLanes(a, by1), a2 = hn::TableLookupLanes(a, by2);
  const auto mean = [&](int64_t j, auto b) HWY_ATTR {  // b: the columns of the vector behind a
    const auto b1 = hn::TableLookupLanes(b, by1), b2 = hn::TableLookupLanes(b, by2);
    const auto sum = hn::Add(hn::Add(a, hn::IfThenElse(here1, a1, b1)), hn::IfThenElse(here2, a2, b2));
    a = b, a1 = b1, a2 = b2;
    return hn::Mul(sum, hn::LoadU(d, shares + j));
  };
  int64_t j = 0, column = lanes - g.w.before;
  for (; j + lanes <= n && column + lanes <= ld; j += lanes, column += lanes)
    StoreF32(mean(j, down(x + column, load)), d, y + j);
  for (; j < n; j += lanes, column += lanes) {
    const auto v = mean(j, part(column));
    if (n - j >= lanes) StoreF32(v, d, y + j);
    else StoreF32N(v, d, y + j, size_t(n - j));
  }
}

// Rows [begin, end) of (plane, row of y) where all windows are as Threes has them.
template <class T> HWY_INLINE void ThreeWide(const Pool &g, int64_t begin, int64_t end) {
  Shares shares(g);
  int64_t plane = begin / g.h.out, i = begin % g.h.out;
  for (int64_t u = begin; u < end; ++u, ++i) {
    if (i == g.h.out) i = 0, ++plane;
    const int64_t from = g.h.at(i, 0), first = std::max<int64_t>(from, 0);
    const int64_t rows = std::min(from + g.h.kernel, g.h.in) - first;
    const float *by = shares.of(g.rows(i, rows));
    const T *x = static_cast<const T *>(g.x) + (plane * g.h.in + first) * g.w.in;
    T *y = static_cast<T *>(g.y) + u * g.w.out;
    if (rows == 3) Threes<3>(g, x, by, y);
    else if (rows == 2) Threes<2>(g, x, by, y);
    else Threes<1>(g, x, by, y);
  }
}
inline bool three_wide(const Pool &g) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return g.mean && g.w.kernel == 3 && g.w.stride == 1 && g.w.before <= 1 && g.h.kernel <= 3;
#else
  return false;  // lanes are turned slowly
#endif
}

// Rows [begin, end) of (plane, row of y): first down the columns into lines with their padding, then along them. Some
// lines at once: what has just been written cannot be read yet at another offset.
template <bool kMean, class T> HWY_INLINE void Separable(const Pool &g, int64_t begin, int64_t end) {
  const int64_t lanes = int64_t(hn::Lanes(hn::ScalableTag<float>()));
  std::optional<Shares> shares;
  if (kMean) shares.emplace(g);
  int64_t plane = begin / g.h.out, i = begin % g.h.out;
  constexpr int64_t kLines = 16, kFloats = 4096;
  const int64_t length = (g.w.out - 1) * g.w.stride + g.w.kernel;
  const int64_t inside = std::min(g.w.in, length - g.w.before);
  // What is read behind the last window belongs to lanes that are not stored.
  const int64_t step = length + 4 * lanes, most = std::clamp<int64_t>(kFloats / step, 1, kLines);
  const float fill = kMean ? 0.0f : -HUGE_VALF;
  std::vector<float> lines(size_t(most * step), fill);
  for (int64_t u = begin; u < end; u += most) {
    const int64_t n = std::min(most, end - u);
    float rows[kLines];
    for (int64_t r = 0; r < n; ++r, ++i) {
      if (i == g.h.out) i = 0, ++plane;
      int64_t first, last;
      elements_in(g.h, i, &first, &last);
      const T *x = static_cast<const T *>(g.x) + (plane * g.h.in + g.h.at(i, first)) * g.w.in;
      float *line = lines.data() + r * step;
      Down<kMean>(x, g.w.in, last - first, inside, line + g.w.before);
      for (int64_t k = g.w.before + inside; k < length; ++k) line[k] = fill;
      rows[r] = kMean ? g.rows(i, last - first) : 0;
    }
    for (int64_t r = 0; r < n; ++r) {
      const float *by = kMean ? shares->of(rows[r]) : nullptr;
      Along<kMean>(g, lines.data() + r * step, by, static_cast<T *>(g.y) + (u + r) * g.w.out);
    }
  }
}

// The sum of n elements: in vectors of float, parts of 16384 in double.
template <class T> HWY_INLINE double SumOf(const T *x, int64_t n) {
  constexpr int64_t kPart = 16384;
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  double total = 0;
  for (int64_t left; n > 0; x += left, n -= left) {
    left = std::min(n, kPart);
    auto a = hn::Zero(d), b = a;
    int64_t i = 0;
    for (; i + 2 * lanes <= left; i += 2 * lanes)
      a = hn::Add(a, LoadF32(d, x + i)), b = hn::Add(b, LoadF32(d, x + i + lanes));
    if (i + lanes <= left) a = hn::Add(a, LoadF32(d, x + i)), i += lanes;
    if (i < left && left < lanes) b = LoadF32N(d, x, size_t(left));
    else if (i < left)  // the last vector, without what is added already
      b = hn::Add(b, hn::IfThenZeroElse(hn::FirstN(d, size_t(i + lanes - left)), LoadF32(d, x + left - lanes)));
    total += double(hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b))));
  }
  return total;
}

// Rows [begin, end) of (plane, row of y), of means over the whole width: a window's rows lie one after another.
template <class T> HWY_INLINE void Whole(const Pool &g, int64_t begin, int64_t end) {
  for (int64_t u = begin; u < end; ++u) {
    const int64_t i = u % g.h.out;
    int64_t first, last;
    elements_in(g.h, i, &first, &last);
    const T *x = static_cast<const T *>(g.x) + (u / g.h.out * g.h.in + g.h.at(i, first)) * g.w.in;
    const double count = double(g.rows(i, last - first)) * double(g.count(0, g.w.in));
    static_cast<T *>(g.y)[u] = T(float(SumOf(x, (last - first) * g.w.in) / count));
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
