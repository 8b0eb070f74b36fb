// The kernels of the convolutions: how their work is cut, and their weights' packed form.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "opgraft/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "general-inl.h"
#include "tiles-inl.h"
#include "pixels-inl.h"
#include "depthwise-inl.h"
#include "winograd-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/gemm-host.h"
#include "aot_ops/common/tiles.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(GeneralUnits)
OPGRAFT_SIMD(TileUnits)
OPGRAFT_SIMD(PairUnits)
OPGRAFT_SIMD(PixelUnits)
OPGRAFT_SIMD(MaskedTiles)
OPGRAFT_SIMD_FLOATS(DepthwiseUnits)
OPGRAFT_SIMD(DepthwiseSlack)
OPGRAFT_SIMD_FLOATS(WinogradUnits)

// Whether all of x that a window spans may be held.
static bool dense(const Conv &g) {
  const auto one = [](const Window &w) { return w.span() <= 64 && w.stride <= 4; };
  return one(g.h) && one(g.w);
}
// AMX's tiles have 32 rows and columns, of output channels and pixels, and 32 numbers in a row.
bool in_tiles(const Conv &g) {
  return simd::amx() && g.dtype == OPGRAFT_BFLOAT16 && g.m() >= 16 && g.k() >= 32 && dense(g);
}
bool in_words_by_tap(const Conv &g) {
  const int64_t each = g.channels / g.groups;
  if (!g.tiles) return g.pairs && g.nhwc && each % 2 == 0 && dense(g);
  return g.taps() > 1 && (g.nhwc ? each % (2 * simd::kAmxWords) == 0 : each >= 16);
}
bool in_pairs(const Conv &g) { return g.dtype == OPGRAFT_BFLOAT16 && g.channels > g.groups && simd::bf16_dot(); }

int64_t general_packed_floats(const Conv &g) {
  if (g.tiles && !g.nhwc) return g.outputs * odd_lines(g.steps());
  return g.groups * packed_floats(g.steps(), g.m());
}

// Weights of `outputs` as words of two channels, [O, C / 2, kH, kW].
static void pair_weights(const Conv &g, int64_t outputs, const uint16_t *from, uint32_t *to) {
  const int64_t taps = g.taps(), each = g.channels / g.groups;
  for (int64_t o = 0; o < outputs; ++o, from += each * taps)
    for (int64_t c = 0; c < each; c += 2)
      for (int64_t t = 0; t < taps; ++t) {
        const auto at = [&](int64_t i) -> uint32_t {
          return i < each ? from[g.nhwc ? t * each + i : i * taps + t] : 0;
        };
        *to++ = at(c) | at(c + 1) << 16;
      }
}

int64_t general_pack_units(const Conv &g) { return g.groups * panel_count(g.m()); }

void general_pack(const Conv &g, int64_t begin, int64_t end, float *dst) {
  const int64_t k = g.k(), m = g.m(), taps = g.taps(), each = k / taps, element = int64_t(dtype_size(g.dtype));
  const int64_t panels = panel_count(m), width = PanelWidth_simd()();
  const auto kernels = gemm_kernels(g.dtype), words = gemm_kernels(OPGRAFT_FLOAT32);
  std::vector<float> turned(g.nhwc || g.pairs ? size_t(std::min(m, width) * k) : 0);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t group = unit / panels, first = unit % panels * width, outputs = std::min(width, m - first);
    const char *from = static_cast<const char *>(g.weight) + (group * m + first) * k * element;
    if (g.by_tap && !g.nhwc) {
      const auto *number = reinterpret_cast<const uint16_t *>(from);
      auto *row = reinterpret_cast<uint16_t *>(dst) + (group * m + first) * 2 * odd_lines(g.steps());
      std::fill_n(row, outputs * 2 * odd_lines(g.steps()), uint16_t(0));
      for (int64_t o = 0; o < outputs; ++o, row += 2 * odd_lines(g.steps()))
        for (int64_t c = 0; c < each; ++c)
          for (int64_t t = 0; t < taps; ++t) row[t * 2 * g.depth() + c] = *number++;
      continue;
    }
    if (g.tiles || g.by_tap) {  // rows of words, as the numbers lie, and zeros
      const int64_t ld = g.nhwc ? g.steps() : odd_lines(g.steps());
      float *row = g.nhwc ? turned.data() : dst + (group * m + first) * ld;
      std::fill_n(row, outputs * ld, 0.0f);
      for (int64_t o = 0; o < outputs; ++o) std::memcpy(row + o * ld, from + o * k * element, size_t(k * element));
      if (g.nhwc) words.pack({row, 1, ld}, ld, outputs, 0, 1, dst + group * packed_floats(ld, m) + first * ld);
      continue;
    }
    float *to = dst + group * packed_floats(g.steps(), m) + first * g.steps();
    if (g.pairs) {
      pair_weights(g, outputs, reinterpret_cast<const uint16_t *>(from), reinterpret_cast<uint32_t *>(turned.data()));
      words.pack({turned.data(), 1, g.steps()}, g.steps(), outputs, 0, 1, to);
    } else if (g.nhwc) {  // [kH, kW, C] to [C, kH, kW]
      for (int64_t o = 0; o < outputs; ++o)
        kernels.widen({from + o * k * element, 1, each}, taps, 0, each, turned.data() + o * k, taps);
      words.pack({turned.data(), 1, k}, k, outputs, 0, 1, to);
    } else {
      kernels.pack({from, 1, k}, k, outputs, 0, 1, to);
    }
  }
}

void general_plan(Conv &g) { general_cut(g, {PanelWidth_simd()(), TileRows_simd()(), MaskedTiles_simd()()}); }

void general_run(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  if (g.tiles) return TileUnits_simd()(g, begin, end, scratch);
  if (g.by_tap) return PairUnits_simd()(g, begin, end, scratch);
  if (g.nhwc && g.cut.source == ConvSource::kInPlace) return PixelUnits_simd()(g, begin, end, scratch);
  GeneralUnits_simd(g.dtype)(g, begin, end, scratch);
}

void depthwise_plan(Conv &g) {
  ConvCut &c = g.cut;
  c = {};
  c.size = g.h.out;
  c.line = g.w.out + (g.w.span() - 1) / g.w.stride;
  const int64_t phases = g.row_phases() * g.phases(), more = (g.h.span() - 1) / g.h.stride;
  // Bands of at most 24 KiB: they stay in L1.
  const int64_t rows = g.nhwc ? 1 + 16384 / std::max<int64_t>(1, g.w.out * g.channels)
                              : std::max<int64_t>(1, (6 << 10) / std::max<int64_t>(1, phases * c.line) - more);
  c.bands = std::max<int64_t>(1, (c.size + rows - 1) / rows);
  const int64_t most = (c.size + c.bands - 1) / c.bands;
  c.plane = (most + more) * c.line;
  c.stride = phases * c.plane;
  c.scratch = g.nhwc ? 0 : (std::max(c.stride, g.w.in) + 3 * g.taps() + 2 + DepthwiseSlack_simd()() + 15) / 16 * 16;
}

int64_t depthwise_packed_floats(const Conv &g) { return g.nhwc ? g.channels * g.taps() : 0; }

void depthwise_pack(const Conv &g, float *dst) {
  auto turn = [&](auto zero) {
    for (int64_t t = 0; t < g.taps(); ++t)
      for (int64_t c = 0; c < g.channels; ++c)
        dst[t * g.channels + c] = float(static_cast<const decltype(zero) *>(g.weight)[c * g.taps() + t]);
  };
  if (g.dtype == OPGRAFT_FLOAT32) turn(0.0f);
  else if (g.dtype == OPGRAFT_FLOAT16) turn(float16(0.0f));
  else turn(bfloat16(0.0f));
}

void depthwise_run(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  DepthwiseUnits_simd(g.dtype)(g, begin, end, scratch);
}

bool suits_winograd(const Conv &g) {
  constexpr int64_t kLeast = 32, kLeastProduct = 2048, kFarthest = 8;
  const int64_t each = g.channels / g.groups, farthest = std::min(kFarthest, PanelWidth_simd()() / 2);
  const auto suits = [&](const Window &w) { return w.kernel == 3 && w.stride == 1 && w.dilation <= farthest; };
  return !g.pairs && !g.tiles && suits(g.h) && suits(g.w) && std::min(each, g.m()) >= kLeast &&
         each * g.m() >= kLeastProduct;
}

int64_t winograd_packed_floats(const Conv &g) {
  const int64_t rows = TileRows_simd()();
  return g.groups * 16 * ((g.m() + rows - 1) / rows * rows) * (g.channels / g.groups);
}

// By group, position and panel of a tile's rows of output channels: for every input channel one of each of these.
void winograd_pack(const Conv &g, float *dst) {
  const int64_t rows = TileRows_simd()(), m = g.m(), each = g.channels / g.groups, panels = (m + rows - 1) / rows;
  const auto widen = Widen_simd(g.dtype);
  const int64_t element = int64_t(dtype_size(g.dtype));
  std::vector<float> taps(size_t(each * 9));
  const auto turn = [](double a, double b, double c, double *to) {  // G times a column
    to[0] = a, to[1] = (a + b + c) / 2, to[2] = (a - b + c) / 2, to[3] = c;
  };
  std::fill_n(dst, winograd_packed_floats(g), 0.0f);
  for (int64_t o = 0; o < g.outputs; ++o) {
    widen({static_cast<const char *>(g.weight) + o * each * 9 * element, each * 9, 1}, each * 9, 0, 1, taps.data(), 0);
    const int64_t group = o / m, panel = o % m / rows, lane = o % m % rows;
    for (int64_t c = 0; c < each; ++c) {
      const auto w = [&](int64_t tap) { return double(taps[size_t(g.nhwc ? tap * each + c : c * 9 + tap)]); };
      double columns[3][4], row[4];
      for (int64_t l = 0; l < 3; ++l) turn(w(l), w(3 + l), w(6 + l), columns[l]);
      for (int64_t k = 0; k < 4; ++k) {
        turn(columns[0][k], columns[1][k], columns[2][k], row);
        for (int64_t l = 0; l < 4; ++l)
          dst[(((group * 16 + k * 4 + l) * panels + panel) * each + c) * rows + lane] = float(row[l]);
      }
    }
  }
}

void winograd_plan(Conv &g) {
  const int64_t panel = PanelWidth_simd()(), lanes = panel / 2, rows = TileRows_simd()();
  const auto whole = [&](int64_t n) { return (n + lanes - 1) / lanes * lanes; };
  const int64_t tall = winograd_tiles(g.h) / g.h.dilation, across = winograd_tiles(g.w), far = g.w.dilation;
  const int64_t each = g.channels / g.groups, panels = (g.m() + rows - 1) / rows;
  // Where vectors of n tiles end, which begin `step` apart (Columns).
  const int64_t step = lanes / far * far;
  const auto reach = [&](int64_t n) { return (n - 1) / step * step + lanes; };
  // Half of L2 for a unit's tiles; two vectors of them at least.
  const int64_t most = std::clamp<int64_t>(caches().l2 / 2 / (16 * 4 * each), panel, 96);
  ConvCut &c = g.cut;
  c = {};
  c.size = tall;
  c.strips = (across + most - 1) / most;
  c.columns = ((across + c.strips - 1) / c.strips + far - 1) / far * far;
  c.strips = (across + c.columns - 1) / c.columns;
  int64_t least = INT64_MAX;  // vectors of all bands
  for (int64_t r = 1; r <= std::clamp<int64_t>(most / c.columns, 1, tall); ++r)
    if (const int64_t cost = (tall + r - 1) / r * whole(r * c.columns); cost <= least) least = cost, c.grain = r;
  c.bands = (tall + c.grain - 1) / c.grain * std::min(g.h.dilation, g.h.out) * c.strips;
  c.tiles = whole(c.grain * c.columns);
  c.sums = whole((c.grain - 1) * c.columns + reach(c.columns));
  // The last channel's vectors reach behind it. One tile's positions are written together: in one set of L1, 16 of them
  // would push each other out.
  c.position = odd_lines(each * c.tiles + reach(c.columns));
  const double units = double(g.batch * g.groups * c.bands);
  const double cycles = units * double(c.tiles / lanes * 16 * g.m() * each) / 2;
  c.parts = parts_of(wanted_units(cycles), units, panels);
  const int64_t of_part = (panels + c.parts - 1) / c.parts;
  c.block = std::clamp<int64_t>((96 << 10) / (16 * 4 * rows * c.sums), 1, of_part);
  c.together = std::min<int64_t>(8, each);
  c.line = 2 * c.columns + 2 * far;
  c.stride = (2 * c.grain + 2) * c.line;
  c.wide = 2 * reach(c.columns);
  const int64_t outputs = c.block * rows;
  c.sums_position = odd_lines(outputs * c.sums);
  const int64_t padded = c.together * c.stride + 2 * panel, turned = g.nhwc ? 2 * c.columns * outputs : 0;
  c.scratch = 16 + 16 * (c.position + c.sums_position) + 2 * outputs * c.wide + std::max(padded, turned);
  c.scratch = (c.scratch + 15) / 16 * 16;
}

void winograd_run(const Conv &g, int64_t begin, int64_t end, float *scratch) {
  WinogradUnits_simd(g.dtype)(g, begin, end, scratch);
}

}  // namespace opgraft
#endif
