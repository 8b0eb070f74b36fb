// How the work of the general kernel is cut: where x is read, what vectors hold, bands and parts, from shapes alone.
#include <algorithm>
#include <cmath>

#include "aot_ops/common/tiles.h"
#include "conv.h"

namespace opgraft {
namespace {

constexpr double kMostScratch = 64 << 10;  // floats: stays in L2 beside the weights

// Rough cycles of one band of `rows` rows or pixels, of one group, for all its parts.
double cycles(const ConvMachine &on, const Conv &g, const ConvCut &c, double rows, double lanes) {
  const double k = double(c.steps * c.taps), m = double(g.m());
  const bool padded = c.source == ConvSource::kPadded;
  const double pixels = padded ? rows * double(g.w.out) : rows;
  const double positions = padded ? rows * double(c.line) - double(c.line - g.w.out) : rows;
  const double vectors = c.pixel_lanes ? std::ceil(positions / lanes) * m : pixels * std::ceil(m / lanes);
  // Half types do not go from registers, but pairs with pixels in lanes.
  const bool wide = g.dtype == OPGRAFT_FLOAT32, pairs = g.pairs && !g.tiles;
  const bool direct = wide || (pairs && c.pixel_lanes);
  // A vector that runs across the end of a row is packed, or stored in two parts; one of channels is turned.
  const double parts = padded && c.pixel_lanes && !g.tiles ? rows * m * (direct ? 4 : 25) : 0;
  const double turned = !wide ? 1.4 : c.source == ConvSource::kInPlace ? 0.6 : 1.0 / 3;
  const double store = c.pixel_lanes || g.nhwc ? pixels * m / lanes * (direct ? 3 : 6) + parts : pixels * m * turned;
  double fill = 0;
  const bool words = pairs && (g.nhwc ? g.by_tap : padded || g.flat());  // made of x itself
  if (padded) {
    const double held = (rows + double((g.h.span() - 1) / g.h.stride)) * double(g.row_phases() * g.phases());
    fill = held * double(c.steps) * (g.by_tap && pairs ? double(c.line) / 8 : double(c.line) / lanes * 3 + 12);
  } else if (c.source == ConvSource::kColumns) {
    fill = k * (pixels / lanes * 2 + (pixels / double(g.w.out) + 1) * 8);
  } else if (c.source == ConvSource::kMasked) {
    // Tiles that see an end of a line: their masks, and a loop of its own for every tap, whose end is guessed at.
    const double wide = lanes * (2 * m <= double(on.rows) ? 4 : 2), loop = c.steps < 12 ? 12 : 5;
    const double ends = pixels / wide * std::min(1.0, 2 * wide / double(g.w.out));
    fill = double(c.steps) * pixels / 8 + ends * (40 * wide / lanes + std::ceil(m / 12) * double(c.taps) * loop);
  } else if (c.source == ConvSource::kInPlace) {
    fill = k * pixels / 4;  // lines of 16 from L3
  }
  if (!words && (g.pairs || (g.tiles && padded))) fill *= 3;  // both channels, and the pairing
  const double weights = k * m / (k * m > 128e3 ? 4 : 16);    // read for every band, from L3 or L2
  // In place vectors of pixels are of two lines each where channels do not begin alike.
  const bool split = c.pixel_lanes && c.source == ConvSource::kInPlace && g.pixels() % kConvLine;
  // A single vector of channels is read for half as many products as two.
  const bool single = !c.pixel_lanes && m <= lanes;
  const double product = vectors * k * (g.tiles ? 0.08 : split ? 1 / 1.7 : 0.5) * (single ? 1.1 : 1);
  // In place and with channels in lanes nothing fetches ahead of the channels, which may lie pages apart.
  const bool far = double(g.batch * g.channels * g.h.in) * double(g.w.in) > 512e3;
  const double late = far && c.source == ConvSource::kInPlace && !c.pixel_lanes ? pixels * k / 4 : 0;
  return product + store + late + weights + fill * double(std::min<int64_t>(c.parts, 4));
}

// Floats of scratch of a band of `rows`.
void shape_scratch(const Conv &g, ConvCut &c, int64_t rows, int64_t panel) {
  const bool padded = c.source == ConvSource::kPadded;
  c.plane = (rows + (g.h.span() - 1) / g.h.stride) * c.line;
  c.stride = padded ? g.row_phases() * g.phases() * c.plane : rows;
  if (g.tiles && padded) c.stride += c.line + simd::kAmxRows;  // what the last tile's taps reach behind
  c.stride = (c.stride + 15) / 16 * 16;
  // Bands in place may begin later by less than a line; vectors reach behind columns of words by as much.
  if (c.source == ConvSource::kInPlace || g.tiles) c.stride += kConvLine;
  if (c.stride % 256 == 0) c.stride += 16;  // else all channels share a few sets of the L1
  int64_t more = 0;
  if (g.pairs) more = 2 * (padded ? 1 : g.taps()) * c.stride;  // channels, to be paired
  if ((g.tiles || g.by_tap) && padded) {
    c.stride = odd_lines(c.stride);
    more = g.nhwc ? c.stride * (tap_floats(g) - c.steps) : simd::kAmxRows * tap_positions(c, rows);
  } else if (g.tiles || g.by_tap) {
    more = g.nhwc ? c.stride * (odd_lines(c.steps) - c.steps) : half_floats(g, rows);
  }
  if (c.source == ConvSource::kMasked) c.stride = 0;  // nothing is held
  c.scratch = (scratch_head(c) + c.steps * c.stride + more + 2 * panel + 15) / 16 * 16;
}

// Sets bands and parts; -> rough cycles of the whole.
double cut_bands(const ConvMachine &on, const Conv &g, ConvCut &c) {
  const int64_t panel = on.panel, panels = (g.m() + panel - 1) / panel;
  const int64_t blocks = std::max<int64_t>(1, (c.size + c.grain - 1) / c.grain), each = g.batch * g.groups;
  ConvCut best = c;
  double least = HUGE_VAL;
  for (int64_t bands = 1, next; bands <= blocks; bands = next) {
    next = bands < blocks ? std::min(blocks, bands + 1 + bands / 16) : blocks + 1;  // one block each is always tried
    const int64_t rows = std::min(c.size, (blocks + bands - 1) / bands * c.grain);
    c.bands = bands;
    shape_scratch(g, c, rows, panel);
    if (double(c.scratch) > kMostScratch && bands < blocks) continue;
    c.parts = 1;
    const auto one = [&] { return cycles(on, g, c, double(rows), double(panel) / 2); };
    const double want = wanted_units(one() * double(bands * each));
    c.parts = parts_of(want, double(bands * each), panels);
    // Threads take four chunks each; of two, one waits for the other's last where the chunks are odd.
    const int64_t units = bands * each * c.parts, chunk = (units + 7) / 8, chunks = (units + chunk - 1) / chunk;
    const double cost = one() / double(c.parts) * double((chunks + 1) / 2 * 2 * chunk) / double(each) *
                        (1 + 0.1 / double(std::max<int64_t>(units, int64_t(want))));
    if (cost < least) least = cost, best = c;
  }
  c = best;
  return least;
}

// Whether rows of what a pixel sees are worth their making: for many products of each element, of sums so long that a
// panel of weights does not stay in L1 else. Windows that overlap would be written often.
bool suits_rows(const ConvMachine &on, const Conv &g) {
  if (g.pairs || g.tiles) return false;
  const int64_t panels = g.m() / on.panel;
  if (g.flat() && g.nhwc && g.dtype == OPGRAFT_FLOAT32 && g.channels % 512) return false;  // they are there
  if (g.flat()) return panels >= 4 && g.k() >= (g.nhwc ? 16 : 256);
  return panels >= 8 && g.k() >= 256 && g.h.stride > 1 && g.w.stride > 1;
}

ConvCut cut_rows(const ConvMachine &on, const Conv &g) {
  constexpr int64_t kMost = 256 << 10;  // floats of the rows
  const int64_t panel = on.panel, panels = (g.m() + panel - 1) / panel, tile = on.rows;
  const Tiles t = choose_tiles(g.pixels(), g.m(), g.k(), tile, panel, sizeof(float), 2);
  ConvCut c;
  c.source = ConvSource::kRows, c.pixel_lanes = false;
  c.steps = g.k(), c.piece = t.kc;
  c.line = (c.steps + 15) / 16 * 16 + 16;
  c.size = g.pixels(), c.grain = std::clamp(kMost / c.line / tile * tile, tile, t.rows);
  c.bands = (c.size + c.grain - 1) / c.grain;
  c.stride = c.grain;
  c.together = g.flat() ? 0 : std::clamp<int64_t>(64 / g.taps(), 1, g.channels / g.groups);
  c.scratch = (scratch_head(c) + c.grain * c.line + c.together * g.taps() * c.stride + 15) / 16 * 16;
  const double units = double(c.bands * g.batch * g.groups);
  const double cycles = double(g.batch * g.groups * c.size) * double(c.steps * panels);
  c.parts = parts_of(wanted_units(cycles), units, panels);
  return c;
}

// Whether x is read where it lies, tap by tap, with masks for what lies outside.
bool may_mask(const ConvMachine &on, const Conv &g) {
  const bool whole = g.h.stride == 1 && g.w.stride == 1 && g.w.in == g.w.out && !g.flat() && g.taps() > 1;
  const bool apart = g.h.in * g.w.in % 512 || g.channels / g.groups < 4;  // else channels share a few sets of the L1
  return whole && apart && g.dtype == OPGRAFT_FLOAT32 && on.masked && g.taps() <= kMostMasks;
}

}  // namespace

void general_cut(Conv &g, const ConvMachine &on) {
  const int64_t lanes = on.panel / 2;
  const bool flat = g.flat();
  if (flat) {  // 1 x 1: one long row
    g.w.in = g.w.out = g.pixels();
    g.h.in = g.h.out = 1;
  }
  ConvCut best;
  double least = HUGE_VAL;
  auto consider = [&](ConvSource source, bool pixel_lanes) {
    ConvCut c;
    c.source = source, c.pixel_lanes = pixel_lanes;
    const bool padded = source == ConvSource::kPadded;
    const bool by_tap = padded || source == ConvSource::kMasked;
    c.steps = by_tap ? g.depth() : g.steps();
    c.taps = by_tap ? g.taps() : 1;
    c.size = padded ? g.h.out : g.pixels();
    const int64_t vectors = pixel_lanes && 2 * g.m() > on.rows ? 2 : 4;
    c.grain = padded ? 1 : std::max(kConvLine, vectors * lanes);
    c.line = padded ? g.w.out + (g.w.span() - 1) / g.w.stride : 0;
    const double cost = cut_bands(on, g, c);
    const bool first = best.steps == 0;
    // Rows whose padding is most of them would be large, or next to empty; tiles would multiply it, too.
    const bool large = double(c.scratch) > 4 * kMostScratch, most = double(c.line) > 2.0 * double(g.w.out);
    const bool wide = g.tiles && c.line > 2 * simd::kAmxRows;
    if (padded && (g.tiles || g.by_tap ? large || (most && wide) : large && most)) return;
    if (first || cost < least) least = cost, best = c;
  };
  if (g.by_tap && !flat) consider(ConvSource::kPadded, g.tiles);
  if ((g.tiles || g.by_tap) && best.steps == 0) consider(ConvSource::kColumns, g.tiles);
  for (const bool pixel_lanes : {true, false}) {
    if (g.tiles || g.by_tap || (g.nhwc && pixel_lanes)) continue;
    // Channels, or pixels, that lie a multiple of 2 KiB apart would share a few sets of the L1.
    const bool apart = g.nhwc ? g.channels % 512 : g.w.in % 512 || g.k() < 32;
    const bool place = flat && g.dtype == OPGRAFT_FLOAT32 && apart;
    consider(place ? ConvSource::kInPlace : ConvSource::kColumns, pixel_lanes);
    if (!flat) consider(ConvSource::kPadded, pixel_lanes);
    if (pixel_lanes && may_mask(on, g)) consider(ConvSource::kMasked, true);
  }
  if (suits_rows(on, g)) best = cut_rows(on, g);
  g.cut = best;
}

}  // namespace opgraft
