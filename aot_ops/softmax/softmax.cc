// Softmax: y = e^(s - max s) / sum of e^(s - max s) along one axis, of s = x or of s = x scale + mask, or where bools
// choose, of x scale and a number. Half types compute in float32. Without a mask the scale is a factor of x - max x:
// the compiler may fuse a product with a difference, so that the score whose product was rounded for the maximum would
// not be the one that this is taken away from, and of large ones the difference would be above 0.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#include "rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "softmax.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/norm-inl.h"
#include "mask-inl.h"
#include "rows-inl.h"
#include "in_vector-inl.h"
#include "strip-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// kVectors of neighbouring columns, or one of `width` elements, of n elements that are `stride` apart; load(k, j) gives
// their scores. They are kept side by side where there is room for them: far apart many share the cache's few places
// for such addresses. ahead(k) fetches what the next columns take.
inline constexpr int64_t kWide = 4;
template <int64_t kVectors, class T, class Load, class Ahead, class Below = Difference>
HWY_INLINE void Columns(const Load &load, const Ahead &ahead, float *HWY_RESTRICT kept, T *y, int64_t n, int64_t stride,
                        size_t width, const Below &below = Below()) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto put = [&](auto v, int64_t k, int64_t j) HWY_ATTR {
    if (kVectors > 1 || width == size_t(lanes)) StoreF32(v, d, y + k * stride + j * lanes);
    else StoreF32N(v, d, y + k * stride, width);
  };
  hn::Vec<decltype(d)> most[kVectors], sum[kVectors];
  for (int64_t j = 0; j < kVectors; ++j) most[j] = hn::Set(d, -HUGE_VALF), sum[j] = hn::Zero(d);
  if (kVectors > 1 || n * lanes <= kKept) {
    const auto place = [&](int64_t k, int64_t j) { return kept + (k * kVectors + j) * lanes; };
    for (int64_t k = 0; k < n; ++k)
      for (int64_t j = 0; j < kVectors; ++j) {
        const auto s = load(k, j);
        hn::Store(s, d, place(k, j));
        most[j] = hn::Max(most[j], s);
      }
    for (int64_t k = 0; k < n; ++k) {
      if (kVectors > 1) ahead(k);
      for (int64_t j = 0; j < kVectors; ++j) {
        const auto e = ExpBelow0(d, below(hn::Load(d, place(k, j)), most[j]));
        hn::Store(e, d, place(k, j));
        sum[j] = hn::Add(sum[j], e);
      }
    }
    for (int64_t j = 0; j < kVectors; ++j) sum[j] = hn::Div(hn::Set(d, 1.0f), sum[j]);
    for (int64_t k = 0; k < n; ++k)
      for (int64_t j = 0; j < kVectors; ++j) put(hn::Mul(hn::Load(d, place(k, j)), sum[j]), k, j);
    return;
  }
  for (int64_t k = 0; k < n; ++k) most[0] = hn::Max(most[0], load(k, 0));
  for (int64_t k = 0; k < n; ++k) sum[0] = hn::Add(sum[0], ExpBelow0(d, below(load(k, 0), most[0])));
  const auto factor = hn::Div(hn::Set(d, 1.0f), sum[0]);
  for (int64_t k = 0; k < n; ++k) put(hn::Mul(ExpBelow0(d, below(load(k, 0), most[0])), factor), k, 0);
}

// Scores without a mask, with one that is added, with one of bools.
template <int kRows, class T> HWY_INLINE void PlainRows(const SoftmaxRows &g, int64_t r) {
  const auto score = [](auto v, auto...) HWY_ATTR { return v; };
  if (g.scale == 1.0f) ContiguousRows<kRows, false, T>(g, r, score);
  else ContiguousRows<kRows, false, T>(g, r, score, Scaled{hn::Set(hn::ScalableTag<float>(), g.scale)});
}

template <int kRows, class T> HWY_INLINE void AddedRows(const SoftmaxRows &g, int64_t r, MaskRows &rows) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, g.scale), factor = hn::Set(d, g.mask_scale);
  const T *mask[kRows];
  for (int j = 0; j < kRows; ++j) mask[j] = static_cast<const T *>(g.mask.data) + rows.next();
  if (!g.mask.step())
    ContiguousRows<kRows, true, T>(g, r, [&](auto v, int j, auto...) HWY_ATTR {
      return hn::MulAdd(v, scale, hn::Mul(hn::Set(d, float(*mask[j])), factor));
    });
  else if (g.mask_scale == 1.0f)
    ContiguousRows<kRows, true, T>(g, r, [&](auto v, int j, int64_t i, auto... k) HWY_ATTR {
      return hn::MulAdd(v, scale, LoadSome(d, mask[j] + i, k...));
    });
  else
    ContiguousRows<kRows, true, T>(g, r, [&](auto v, int j, int64_t i, auto... k) HWY_ATTR {
      return hn::MulAdd(v, scale, hn::Mul(LoadSome(d, mask[j] + i, k...), factor));
    });
}

template <int kRows, class T> HWY_INLINE void ChosenRows(const SoftmaxRows &g, int64_t r, MaskRows &rows) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, g.scale), fill = hn::Set(d, g.fill);
  const Hidden hidden(d, g.mask);
  const uint8_t *mask[kRows];
  for (int j = 0; j < kRows; ++j) mask[j] = g.mask.bools() + rows.next();
  if (g.mask.step()) {
    ContiguousRows<kRows, true, T>(g, r, [&](auto v, int j, int64_t i, auto... k) HWY_ATTR {
      return hn::IfThenElse(hidden(mask[j] + i, k...), fill, hn::Mul(v, scale));
    });
    return;
  }
  // By lanes, all of a row: behind a branch the compiler might fuse the product with what follows.
  hn::Mask<decltype(d)> gone[kRows];
  for (int j = 0; j < kRows; ++j) gone[j] = AllLanes(d, (*mask[j] != 0) == g.mask.hides);
  ContiguousRows<kRows, true, T>(
      g, r, [&](auto v, int j, auto...) HWY_ATTR { return hn::IfThenElse(gone[j], fill, hn::Mul(v, scale)); });
}

// Rows [begin, end) along the last axis. Each kind of mask has its loop: constants are loaded once for many short rows.
enum Kind { kPlain, kAdded, kChosen };
template <Kind kind, int kRows, class T> HWY_INLINE void ScoreRows(const SoftmaxRows &g, int64_t r, MaskRows &rows) {
  if constexpr (kind == kPlain) PlainRows<kRows, T>(g, r);
  if constexpr (kind == kAdded) AddedRows<kRows, T>(g, r, rows);
  if constexpr (kind == kChosen) ChosenRows<kRows, T>(g, r, rows);
}
template <Kind kind, int kMost, int64_t kRoom, class T>
HWY_NOINLINE void RowsKept(SoftmaxRows g, int64_t begin, int64_t end) {
  HWY_ALIGN float room[kRoom];
  g.room = room, g.kept = kRoom;
  MaskRows rows(g.mask, begin);
  int64_t r = begin;
  if constexpr (kMost > 1)  // short ones wait the longer for it; four masks beside four rows want too many registers
    if (g.n <= int64_t(hn::Lanes(hn::ScalableTag<float>())) * (kind == kPlain ? 2 : 1))
      for (; r + 2 * kMost <= end; r += 2 * kMost) ScoreRows<kind, 2 * kMost, T>(g, r, rows);
  if constexpr (kMost > 1)
    for (; r + kMost <= end; r += kMost) ScoreRows<kind, kMost, T>(g, r, rows);
  for (; r < end; ++r) ScoreRows<kind, 1, T>(g, r, rows);
}
template <Kind kind, class T> void RowsTogether(const SoftmaxRows &g, int64_t begin, int64_t end) {
  if (RowsInVector::several(g.n)) {
    if constexpr (kind == kPlain) return PlainInVectors<T>(g, begin, end);
    if constexpr (kind == kAdded) return AddedInVectors<T>(g, begin, end);
    if constexpr (kind == kChosen) return ChosenInVectors<T>(g, begin, end);
  }
  if constexpr (std::is_same_v<T, float>) return RowsKept<kind, kTogether, 1, T>(g, begin, end);
  else if (kTogether * g.n <= kKeptShort || g.n > kKept) return RowsKept<kind, kTogether, kKeptShort, T>(g, begin, end);
  else return RowsKept<kind, 1, kKept, T>(g, begin, end);
}

// Rows [begin, end) that are NaN, which they are throughout.
template <class T> void NanToZero(const SoftmaxRows &g, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    T *y = static_cast<T *>(g.y) + g.begin(r);
    if (!std::isnan(float(*y))) continue;
    for (int64_t k = 0; k < g.n; ++k) y[k * g.inner] = T(0.0f);
  }
}

// Along another axis than the last, a vector of neighbouring columns at a time: they read as many neighbours of the
// mask, or one element, or each its own where the mask is broadcast in between. What the loops read is copied, from g
// and into their functions: a vector that is stored might lie there, for all that the compiler knows.
template <class T> void RowsApart(const SoftmaxRows &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), inner = g.inner, step = g.mask.step();
  const int64_t room = kKept / std::max<int64_t>(g.n * lanes, 1);
  const int64_t wide = lanes * (room < kWide ? std::clamp<int64_t>(room, 1, 2) : kWide);
  const auto scale = hn::Set(d, g.scale), fill = hn::Set(d, g.fill), factor = hn::Set(d, g.mask_scale);
  const Hidden hidden(d, g.mask);
  const bool hides = g.mask.hides;
  const auto [length, along] = g.mask.run(g.mask.axis + 1);
  HWY_ALIGN float kept[kKept];
  const int64_t size = g.mask.chosen ? 1 : int64_t(sizeof(T));
  const char *beside = nullptr;  // what lies along x in the mask
  int64_t from = -1;             // where the mask lies for row r
  for (int64_t r = begin, width; r < end; r += width) {
    const int64_t column = r % inner, left = length - column % length;
    if constexpr (std::is_same_v<T, float>)
      if (width = strip_width(g.n, std::min(inner - column, end - r)); !g.mask.data && width > 0) {
        const float *x = static_cast<const float *>(g.x) + g.begin(r);
        float *y = static_cast<float *>(g.y) + g.begin(r);
        if (g.scale == 1.0f) Strip(x, y, g.n, inner, width, Difference());
        else Strip(x, y, g.n, inner, width, Scaled{scale});
        continue;
      }
    width = std::min({inner - column, end - r, length < lanes ? lanes : left});
    width = width >= wide ? wide : std::min(width, lanes);
    const int64_t at = g.begin(r);
    const T *x = static_cast<const T *>(g.x) + at;
    T *y = static_cast<T *>(g.y) + at;
    // score(p, i, k) of a vector at p, the i-th column of these and the k-th element, score(p, i, k, count) of less.
    const auto columns = [&](const auto &score, auto... below) HWY_ATTR {
      const auto vectors = [=](int64_t k, int64_t j)
                               HWY_ATTR { return score(x + k * inner + j * lanes, j * lanes, k); };
      const auto some = [=](int64_t k, int64_t) HWY_ATTR { return score(x + k * inner, 0, k, size_t(width)); };
      const auto ahead = [=](int64_t k) HWY_ATTR {
        for (int64_t i = wide; i < 2 * wide; i += int64_t(64 / sizeof(T))) hwy::Prefetch(x + k * inner + i);
        if (!beside) return;
        for (int64_t i = wide; i < 2 * wide; i += int64_t(64) / size) hwy::Prefetch(beside + (k * step + i) * size);
      };
      if (width == kWide * lanes) Columns<kWide>(vectors, ahead, kept, y, g.n, inner, size_t(lanes), below...);
      else if (width == 2 * lanes) Columns<2>(vectors, ahead, kept, y, g.n, inner, size_t(lanes), below...);
      else if (width == lanes) Columns<1>(vectors, ahead, kept, y, g.n, inner, size_t(lanes), below...);
      else Columns<1>(some, ahead, kept, y, g.n, inner, size_t(width), below...);
    };
    if (!g.mask.data) {
      const auto score = [=](const T *p, int64_t, int64_t, auto... some) HWY_ATTR { return LoadSome(d, p, some...); };
      if (g.scale == 1.0f) columns(score);
      else columns(score, Scaled{scale});
      continue;
    }
    if (from < 0 || column % length == 0) from = g.mask.row(r);
    if (along) beside = static_cast<const char *>(g.mask.data) + from * size;
    if (width > left) {
      HWY_ALIGN float mask[hn::MaxLanes(d)] = {};
      int64_t each[hn::MaxLanes(d)];
      for (int64_t i = 0; i < width; ++i) each[i] = g.mask.row(r + i);
      from = -1;
      columns([&](const T *p, int64_t, int64_t k, auto... some) HWY_ATTR {
        for (int64_t i = 0; i < width; ++i) {
          const int64_t m = each[i] + k * step;
          mask[i] = g.mask.chosen ? float(g.mask.gone(m)) : float(static_cast<const T *>(g.mask.data)[m]);
        }
        const auto v = LoadSome(d, p, some...), m = hn::Load(d, mask);
        if (!g.mask.chosen) return hn::MulAdd(v, scale, hn::Mul(m, factor));
        return hn::IfThenElse(hn::Ne(m, hn::Zero(d)), fill, hn::Mul(v, scale));
      });
      continue;
    }
    if (g.mask.chosen) {
      const uint8_t *bools = g.mask.bools() + from;
      if (along)
        columns([=](const T *p, int64_t i, int64_t k, auto... some) HWY_ATTR {
          return hn::IfThenElse(hidden(bools + k * step + i, some...), fill, hn::Mul(LoadSome(d, p, some...), scale));
        });
      else
        columns([=](const T *p, int64_t, int64_t k, auto... some) HWY_ATTR {
          const auto gone = AllLanes(d, (bools[k * step] != 0) == hides);
          return hn::IfThenElse(gone, fill, hn::Mul(LoadSome(d, p, some...), scale));
        });
    } else {
      const T *added = static_cast<const T *>(g.mask.data) + from;
      if (along)
        columns([=](const T *p, int64_t i, int64_t k, auto... some) HWY_ATTR {
          return hn::MulAdd(LoadSome(d, p, some...), scale,
                            hn::Mul(LoadSome(d, added + k * step + i, some...), factor));
        });
      else
        columns([=](const T *p, int64_t, int64_t k, auto... some) HWY_ATTR {
          return hn::MulAdd(LoadSome(d, p, some...), scale, hn::Mul(hn::Set(d, float(added[k * step])), factor));
        });
    }
    if (along) from += width;
  }
}

// Rows [begin, end) of the outer * inner rows.
template <class T> void Rows(const SoftmaxRows &g, int64_t begin, int64_t end) {
  if (g.inner != 1) RowsApart<T>(g, begin, end);
  else if (!g.mask.data) RowsTogether<kPlain, T>(g, begin, end);
  else if (g.mask.chosen) RowsTogether<kChosen, T>(g, begin, end);
  else RowsTogether<kAdded, T>(g, begin, end);
  if (g.nan_to_zero) NanToZero<T>(g, begin, end);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(Rows)

namespace {

void InferMasked(InferContext &c) {
  c.check_inputs(1, 2);
  if (c.inputs() == 2) check_mask(c, 1, "x");
  infer_softmax(c);
}

SoftmaxRows rows_of(const Context &c) {
  SoftmaxRows g{};
  static_cast<SoftmaxAxis &>(g) = softmax_axis(c, "axis");
  g.x = c.input(0).raw();
  g.y = c.output(0).raw();
  g.scale = float(c.attr_float("scale", 1.0));
  g.mask_scale = float(c.attr_float("mask_scale", 1.0));
  g.fill = float(c.attr_float("fill", -HUGE_VAL)) * g.mask_scale;
  g.nan_to_zero = c.attr_bool("nan_to_zero", false);
  g.mask = softmax_mask(c, 1, g.axis);
  // By a scale below 0 the largest score is none of the largest x, and by a tiny one it may count how far x lie apart
  // that differ by more than float32 holds: a mask of 0, of any dtype, makes scores of them that are rounded once.
  static constexpr float kNothing = 0.0f;
  if (!g.mask.data && !(g.scale > 1e-36f)) g.mask.data = &kNothing, g.mask_scale = 1.0f;
  return g;
}

void Kernel(Context &c) {
  const SoftmaxRows g = rows_of(c);
  auto rows = Rows_simd(c.input(0).dtype());
  c.parallel_for(g.rows, g.grain(16384), [&](int64_t begin, int64_t end) { rows(g, begin, end); });
}

void Reference(Context &c) {
  const SoftmaxRows g = rows_of(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t r = 0; r < g.rows; ++r) {
      const int64_t at = g.begin(r), from = g.mask.data ? g.mask.row(r) : 0;
      const T *x = c.input(0).data<T>() + at;
      T *y = c.output(0).data<T>() + at;
      auto score = [&](int64_t k) {
        const double v = double(float(x[k * g.inner])) * double(g.scale);
        if (!g.mask.data) return v;
        const int64_t i = from + k * g.mask.step();
        if (g.mask.chosen) return g.mask.gone(i) ? double(g.fill) : v;
        return v + double(g.mask_scale) * double(float(static_cast<const T *>(g.mask.data)[i]));
      };
      double most = -HUGE_VAL, sum = 0;
      for (int64_t k = 0; k < g.n; ++k) most = std::max(most, score(k));
      for (int64_t k = 0; k < g.n; ++k) sum += std::exp(score(k) - most);
      const bool zero = g.nan_to_zero && std::isnan(sum);
      for (int64_t k = 0; k < g.n; ++k) y[k * g.inner] = T(zero ? 0.0f : float(std::exp(score(k) - most) / sum));
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Softmax, .inputs = 1, .infer = infer_softmax, .kernel = Kernel, .reference = Reference)
OPGRAFT_OP(ScaledMaskedSoftmax, .inputs = -1, .infer = InferMasked, .kernel = Kernel, .reference = Reference)
#endif
