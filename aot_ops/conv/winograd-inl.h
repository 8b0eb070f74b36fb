// Per SIMD target: 3 x 3 windows with a stride of 1 by Winograd's F(2 x 2, 3 x 3), as A. Lavin and S. Gray give it
// (Fast Algorithms for Convolutional Neural Networks, CVPR 2016): a tile of 2 x 2 pixels takes 16 products for every
// input channel instead of 36. y = A' ((G w G') (B' x B)) A with
//   B' = 1  0 -1  0    G =  1    0    0    A' = 1  1  1  0
//        0  1  1  0        1/2  1/2  1/2        0  1 -1 -1
//        0 -1  1  0        1/2 -1/2  1/2
//        0  1  0 -1         0    0    1
// Vectors hold tiles. A pixel of y sees in these sums what its window does, but infinity would become NaN: rows that
// are not finite are summed by the formula. With a dilation of d a tile has pixels that lie d apart. Rows of y go phase
// by phase, every d-th of them; of columns, d tiles beside each other cover 2 d pixels.
#include "conv.h"

#if defined(OPGRAFT_CONV_WINOGRAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_CONV_WINOGRAD_INL_H_
#undef OPGRAFT_CONV_WINOGRAD_INL_H_
#else
#define OPGRAFT_CONV_WINOGRAD_INL_H_
#endif

#include "fill-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Products of one of the 16 positions: to[o * ldto + t] = sum over c < steps of w[o, c] v[c * ld + t], for R output
// channels o of each of P panels, `steps` by kTileRows floats apart, and V vectors of tiles t.
template <int R, int V, int P> HWY_INLINE void SumTiles(const float *HWY_RESTRICT w, const float *HWY_RESTRICT v,
                                                        int64_t steps, int64_t ld, float *HWY_RESTRICT to,
                                                        int64_t ldto) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kAheadOfWeights = 512;  // floats: large weights come from memory, once
  const int64_t next = steps * kTileRows;
  GemmVec acc[P][R][V], b[V];
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int i = 0; i < V; ++i) acc[p][r][i] = hn::Zero(d);
    }
  }
#pragma GCC unroll 4
  for (int64_t c = 0; c < steps; ++c, w += kTileRows, v += ld) {
#pragma GCC unroll 2
    for (int i = 0; i < V; ++i) b[i] = hn::LoadU(d, v + i * kLanes);
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
      __builtin_prefetch(w + p * next + kAheadOfWeights);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const auto a = hn::Set(d, w[p * next + r]);
#pragma GCC unroll 2
        for (int i = 0; i < V; ++i) acc[p][r][i] = hn::MulAdd(a, b[i], acc[p][r][i]);
      }
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int i = 0; i < V; ++i) hn::StoreU(acc[p][r][i], d, to + (p * kTileRows + r) * ldto + i * kLanes);
    }
  }
}

// -> the rows done: the first panel's, or those of two panels where one vector alone would wait for its sums.
HWY_NOINLINE inline int64_t AnySumTiles(int64_t rows, bool two, const float *w, const float *v, int64_t steps,
                                        int64_t ld, float *to, int64_t ldto) {
  constexpr bool kShort = kTileRows < 8;
  if (kShort && !two && rows >= 2 * kTileRows) {
    SumTiles<kTileRows, 1, kShort ? 2 : 1>(w, v, steps, ld, to, ldto);
    return 2 * kTileRows;
  }
#define OPGRAFT_SUM_TILES(R) \
  case R: two ? SumTiles<R, 2, 1>(w, v, steps, ld, to, ldto) : SumTiles<R, 1, 1>(w, v, steps, ld, to, ldto); return R
  switch (std::min<int64_t>(rows, kTileRows)) {
    OPGRAFT_SUM_TILES(1);
    OPGRAFT_SUM_TILES(2);
    OPGRAFT_SUM_TILES(3);
    OPGRAFT_SUM_TILES(4);
    OPGRAFT_SUM_TILES(5);
    OPGRAFT_SUM_TILES(6);
#if HWY_TARGET <= HWY_AVX3
    OPGRAFT_SUM_TILES(7);
    OPGRAFT_SUM_TILES(8);
    OPGRAFT_SUM_TILES(9);
    OPGRAFT_SUM_TILES(10);
    OPGRAFT_SUM_TILES(11);
    OPGRAFT_SUM_TILES(12);
#endif
    default: return rows;
  }
#undef OPGRAFT_SUM_TILES
}

// The numbers of two vectors in another order: element i of the result is the element that was set for it, of both
// together.
class Order {
 public:
  void set(int64_t i, int64_t from) { lane_[i] = int32_t(from % kLanes), upper_[i] = from < kLanes ? 0 : -1; }
  HWY_INLINE GemmVec operator()(GemmVec lower, GemmVec upper) const {
    const hn::ScalableTag<float> d;
    const hn::RebindToSigned<decltype(d)> di;
    const auto lanes = hn::IndicesFromVec(d, hn::Load(di, lane_));
    const auto choice = hn::MaskFromVec(hn::BitCast(d, hn::Load(di, upper_)));
    return hn::IfThenElse(choice, hn::TableLookupLanes(upper, lanes), hn::TableLookupLanes(lower, lanes));
  }

 private:
  alignas(64) int32_t lane_[kLanes], upper_[kLanes];
};
// Tiles whose columns lie `far` <= kLanes apart: of so many tiles the first columns, beside each other, then their
// second ones. `step` tiles are whole such groups in a vector. The orders are set where there is a dilation.
struct Columns {
  int64_t far, step;
  Order first, second;  // columns of tiles, from two vectors of columns
  Order lower, upper;   // columns, from tiles' first and their second ones

  explicit Columns(int64_t apart) : far(apart), step(kLanes / apart * apart) {
    for (int64_t i = 0; far > 1 && i < kLanes; ++i) {
      const int64_t column = i / far * 2 * far + i % far, last = 2 * kLanes - 1;
      const auto tile = [&](int64_t of) {
        return std::min(of / (2 * far) * far + of % far, kLanes - 1) + of / far % 2 * kLanes;
      };
      first.set(i, std::min(column, last)), second.set(i, std::min(column + far, last));
      lower.set(i, tile(i)), upper.set(i, tile(i + kLanes));
    }
  }
};

// B' x B of `count` tiles beside each other: x their rows, `line` apart; position p goes to v + p * ld. Writes and
// reads whole vectors. kFar: with a dilation.
template <bool kFar>
HWY_NOINLINE void IntoTiles(const Columns &c, const float *x, int64_t line, int64_t count, float *v, int64_t ld) {
  const hn::ScalableTag<float> d;
  const int64_t two = kFar ? 2 * c.far : 2, step = kFar ? c.step : kLanes;
  for (int64_t j = 0; j < count; j += step) {
    const float *at = x + 2 * j;
    const auto row = [&](int of, int64_t column) HWY_ATTR { return hn::LoadU(d, at + of * line + column); };
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const auto down = [&](int64_t column) HWY_ATTR {
        if (r == 0) return hn::Sub(row(0, column), row(2, column));
        if (r == 1) return hn::Add(row(1, column), row(2, column));
        if (r == 2) return hn::Sub(row(2, column), row(1, column));
        return hn::Sub(row(1, column), row(3, column));
      };
      const auto a = down(0), b = down(kLanes), e = down(two), f = down(kLanes + two);
      GemmVec x0, x1, x2, x3;
      if constexpr (kFar) {
        x0 = c.first(a, b), x1 = c.second(a, b), x2 = c.first(e, f), x3 = c.second(e, f);
      } else {
        x0 = hn::ConcatEven(d, b, a), x1 = hn::ConcatOdd(d, b, a);
        x2 = hn::ConcatEven(d, f, e), x3 = hn::ConcatOdd(d, f, e);
      }
      float *to = v + 4 * r * ld + j;
      hn::StoreU(hn::Sub(x0, x2), d, to);
      hn::StoreU(hn::Add(x1, x2), d, to + ld);
      hn::StoreU(hn::Sub(x2, x1), d, to + 2 * ld);
      hn::StoreU(hn::Sub(x1, x3), d, to + 3 * ld);
    }
  }
}

// A' m A of `count` tiles beside each other: two rows of y. Writes and reads whole vectors.
template <bool kFar>
HWY_NOINLINE void FromTiles(const Columns &c, const float *m, int64_t ld, int64_t count, float *upper, float *lower) {
  const hn::ScalableTag<float> d;
  const auto store = [&](GemmVec first, GemmVec second, float *to) HWY_ATTR {
    if constexpr (kFar) {
      hn::StoreU(c.lower(first, second), d, to);
      hn::StoreU(c.upper(first, second), d, to + kLanes);
    } else {
      hn::StoreInterleaved2(first, second, d, to);
    }
  };
  for (int64_t j = 0; j < count; j += kFar ? c.step : kLanes) {
    GemmVec up[4], low[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const float *at = m + k * ld + j;
      const auto m0 = hn::LoadU(d, at), m1 = hn::LoadU(d, at + 4 * ld);
      const auto m2 = hn::LoadU(d, at + 8 * ld), m3 = hn::LoadU(d, at + 12 * ld);
      up[k] = hn::Add(hn::Add(m0, m1), m2);
      low[k] = hn::Sub(hn::Sub(m1, m2), m3);
    }
    store(hn::Add(hn::Add(up[0], up[1]), up[2]), hn::Sub(hn::Sub(up[1], up[2]), up[3]), upper + 2 * j);
    store(hn::Add(hn::Add(low[0], low[1]), low[2]), hn::Sub(hn::Sub(low[1], low[2]), low[3]), lower + 2 * j);
  }
}

HWY_INLINE bool AllFinite(const float *x, int64_t n) {
  const hn::ScalableTag<float> d;
  auto sum = hn::Zero(d);  // of zeros, or NaN
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto v = hn::LoadU(d, x + i);
    sum = hn::Add(sum, hn::Sub(v, v));
  }
  float rest = 0;
  for (; i < n; ++i) rest += x[i] - x[i];
  return hn::GetLane(hn::SumOfLanes(d, sum)) + rest == 0;
}

// The sums of n pixels of row i from column j on, by the formula. x: of the image and group; o: of the group.
template <class T> HWY_NOINLINE void SumByFormula(const Conv &g, const T *x, int64_t group, int64_t o, int64_t i,
                                                  int64_t j, int64_t n, float *to) {
  const int64_t each = g.channels / g.groups, plane = g.h.in * g.w.in;
  const T *weight = static_cast<const T *>(g.weight) + (group * g.m() + o) * each * 9;
  for (int64_t p = 0; p < n; ++p) {
    float sum = 0;
    for (int64_t c = 0; c < each; ++c)
      for (int64_t tap = 0; tap < 9; ++tap) {
        const int64_t row = g.h.at(i, tap / 3), column = g.w.at(j + p, tap % 3), pixel = row * g.w.in + column;
        const bool inside = row >= 0 && row < g.h.in && column >= 0 && column < g.w.in;
        const float value = inside ? float(x[g.nhwc ? pixel * g.channels + c : c * plane + pixel]) : 0.0f;
        sum += value * float(weight[g.nhwc ? tap * each + c : c * 9 + tap]);
      }
    to[p] = sum;
  }
}

template <class T> void WinogradUnits(const Conv &whole, int64_t begin, int64_t end, float *scratch) {
  Conv g = whole;  // what of x a unit's tiles see: windows of one element, from its first column on, of its phase
  const ConvCut &c = g.cut;
  const int64_t each = g.channels / g.groups, m = g.m(), panels = (m + kTileRows - 1) / kTileRows;
  const int64_t far = g.h.dilation, of_phase = (c.size + c.grain - 1) / c.grain;
  const Columns columns(g.w.dilation);
  const auto into_tiles = g.w.dilation > 1 ? IntoTiles<true> : IntoTiles<false>;
  const auto from_tiles = g.w.dilation > 1 ? FromTiles<true> : FromTiles<false>;
  g.h.kernel = g.w.kernel = g.h.dilation = g.w.dilation = 1, g.h.stride = far;
  const int64_t rows_of_bands = c.bands / c.strips, outputs = c.block * kTileRows, wide = c.wide;
  int64_t *held = reinterpret_cast<int64_t *>(scratch);  // which unit's tiles lie in the scratch
  float *v = scratch + 16, *sums = v + 16 * c.position, *rows = sums + 16 * c.sums_position;
  float *padded = rows + 2 * outputs * wide, *turned = padded;
  for (int64_t unit = begin; unit < end; ++unit) {
    const ConvUnit u(g, unit);
    const int64_t band = u.band, group = u.group, image = u.image, strip = band % c.strips;
    const int64_t of_rows = band / c.strips % rows_of_bands, phase = of_rows / of_phase;
    const int64_t row = of_rows % of_phase * c.grain, column = strip * c.columns;
    const int64_t tall = std::min(c.grain, c.size - row);
    const int64_t across = std::min(c.columns, winograd_tiles(whole.w) - column), count = tall * across;
    const T *x = static_cast<const T *>(g.x) + (g.nhwc ? image * g.h.in * g.w.in * g.channels + group * each
                                                       : (image * g.channels + group * each) * g.h.in * g.w.in);
    if (*held != band) {
      if (*held < 0) {  // whole vectors are read, also behind the last tile: see kReach
        for (int64_t i = 0; i < 16 * each && count < c.tiles; ++i)
          Zeros(v + i / each * c.position + i % each * c.tiles + count, c.tiles - count);
        for (int64_t i = 0; i < 16 * outputs; ++i)
          Zeros(sums + i / outputs * c.sums_position + i % outputs * c.sums + count, c.sums - count);
      }
      g.h.before = whole.h.before - phase, g.w.before = whole.w.before - 2 * column;
      for (int64_t from = 0; from < each; from += c.together) {
        const int64_t some = std::min(c.together, each - from);
        FillPadded(g, x + from * (g.nhwc ? 1 : g.h.in * g.w.in), 2 * row, 2 * (row + tall) + 2, some, padded);
        for (int64_t k = 0; k < some; ++k)
          for (int64_t r = 0; r < tall; ++r)
            into_tiles(columns, padded + k * c.stride + 2 * r * c.line, c.line, across,
                       v + (from + k) * c.tiles + r * across, c.position);
      }
      *held = band;
    }
    const int64_t last = u.last_panel(c, panels);
    for (int64_t first = u.first_panel(c, panels), some; first < last; first += some) {
      some = std::min(c.block, last - first);
      const int64_t o = first * kTileRows, these = std::min(some * kTileRows, m - o), y = group * m + o;
      for (int64_t p = 0; p < 16; ++p)
        for (int64_t t = 0; t < count; t += 2 * kLanes)
          for (int64_t k = 0; k < these;)
            k += AnySumTiles(these - k, count - t > kLanes,
                             g.packed + ((group * 16 + p) * panels * kTileRows + o + k) * each, v + p * c.position + t,
                             each, c.tiles, sums + p * c.sums_position + k * c.sums + t, c.sums);
      const int64_t n = std::min(2 * across, g.w.out - 2 * column);
      for (int64_t r = 0; r < tall; ++r) {
        const int64_t i = 2 * (row + r) * far + phase;  // and, of the lower row, i + far
        const int64_t two = i + far < g.h.out ? 2 : i < g.h.out ? 1 : 0;
        for (int64_t k = 0; two > 0 && k < these; ++k) {
          float *upper = rows + 2 * k * wide;
          from_tiles(columns, sums + k * c.sums + r * across, c.sums_position, across, upper, upper + wide);
          for (int64_t l = 0; l < two; ++l) {
            if (!AllFinite(upper + l * wide, n))
              SumByFormula(whole, x, group, o + k, i + l * far, 2 * column, n, upper + l * wide);
            if (!g.nhwc)
              Finish<false, T>(g, y + k, upper + l * wide,
                               ((image * g.outputs + y + k) * g.h.out + i + l * far) * g.w.out + 2 * column, n);
          }
        }
        for (int64_t l = 0; g.nhwc && l < two; ++l) {
          Gather(static_cast<const float *>(rows + l * wide), 1, 2 * wide, n, these, turned, outputs);
          for (int64_t j = 0; j < n; ++j)
            Finish<true, T>(g, y, turned + j * outputs,
                            ((image * g.h.out + i + l * far) * g.w.out + 2 * column + j) * g.outputs + y, these);
        }
      }
    }
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
