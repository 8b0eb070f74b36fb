// What a convolution consists of, shared by the kernels (kernels.cc) and the operators (conv.cc).
#pragma once

#include <algorithm>

#include "aot_ops/common/window.h"
#include "opgraft/simd_target.h"

namespace opgraft {

enum class ConvActivation : int32_t { kNone, kRelu, kRelu6 };

// Where the kernel reads x: where it lies (1 x 1, nothing between the pixels), the same with masks for what lies
// outside (stride 1, y as wide as x), from rows with their padding, or from a matrix of what each pixel of y sees
// (im2col), by element or by pixel.
enum class ConvSource : int32_t { kInPlace, kMasked, kPadded, kColumns, kRows };
constexpr int64_t kMostMasks = 64;  // taps

// How the work is cut. A unit is a band of y's rows (kPadded) or pixels of one image and group, times a part of its
// output channels. The sum of an element runs over `steps` times `taps` in the same order whoever takes the unit.
struct ConvCut {
  ConvSource source = ConvSource::kColumns;
  bool pixel_lanes = true;       // a vector holds pixels of one output channel; else output channels of one pixel
  int64_t steps = 0, taps = 1;   // channels, and elements of each that a pixel sees; kColumns: all are steps
  int64_t size = 0, grain = 1;   // rows or pixels; bands begin at multiples of grain
  int64_t bands = 1, parts = 1;  // parts: of panels of output channels
  int64_t line = 0, plane = 0;   // kPadded: floats of a row, and of a phase (every stride-th row and column)
  int64_t stride = 0;            // floats of scratch from channel to channel
  int64_t piece = 0;             // kRows, whose lines are of one pixel each: steps that are summed at a time
  int64_t together = 0;          // kRows, Winograd: channels that are there at a time as columns or padded rows
  int64_t scratch = 0;           // floats that one thread needs
  // Winograd: size and grain are in rows of tiles of 2 x 2 pixels; bands are bands of these, of every phase where there
  // is a dilation, times `strips`.
  int64_t strips = 1, columns = 0;  // of the tiles' columns, and tiles of one across
  int64_t tiles = 0;                // whole vectors of a unit's: floats from channel to channel of x
  int64_t sums = 0;                 // from output channel to output channel: tiles, and what vectors reach behind them
  int64_t position = 0, sums_position = 0;  // floats from one of the 16 positions to the next
  int64_t block = 1;                        // panels of output channels whose sums are there at a time
  int64_t wide = 0;                         // floats of a row of y's in scratch
};

// y[n, o, i, j] = act(scale[o] sum(weight[o, c, k, l] x[n, group's c, h.at(i, k), w.at(j, l)]) + shift[o] + residual).
struct Conv {
  int32_t dtype;
  const void *x, *weight, *residual;  // residual: or null; may be y
  void *y;
  int64_t batch, channels, outputs, groups;  // channels of x and of y
  Window h, w;
  bool nhwc = false;  // the layout of x, y and residual
  ConvActivation activation = ConvActivation::kNone;
  const float *scale = nullptr, *shift = nullptr;  // by output channel
  const float *packed = nullptr;                   // weights in the kernel's form
  bool winograd = false;                           // which is that of Winograd's tiles
  bool past = false;   // results of the general kernel go past the caches, where these are whole vectors of pixels
  bool pairs = false;  // bfloat16 channels 2 i and 2 i + 1 are one word of weights and scratch: see Bf16Pair
  // bfloat16 that AMX multiplies: weights are rows of steps(), by output channel; NHWC: panels of so many steps.
  bool tiles = false;
  // A word is two channels' at one tap, tap by tap: tiles of x that is read tap by tap, and pairs of NHWC, where words
  // lie so in x. Else, of tiles, two neighbours of weight's; of pairs, channel by channel.
  bool by_tap = false;
  ConvCut cut{};

  int64_t pixels() const { return h.out * w.out; }
  int64_t taps() const { return h.kernel * w.kernel; }
  int64_t k() const { return channels / groups * taps(); }
  int64_t m() const { return outputs / groups; }
  // Channels of a group, or pairs of them (tiles by tap: in whole ones), and what a pixel of y sees of these.
  int64_t depth() const {
    const int64_t each = channels / groups;
    return tiles && by_tap ? whole_words(each) : pairs ? (each + 1) / 2 : each;
  }
  int64_t steps() const { return tiles && !by_tap ? whole_words(k()) : depth() * taps(); }
  // Pairs of so many numbers, in whole tiles.
  static int64_t whole_words(int64_t numbers) {
    return (numbers + 2 * simd::kAmxWords - 1) / (2 * simd::kAmxWords) * simd::kAmxWords;
  }
  // A row of x with its padding is held as one vector for every phase: columns that lie a stride apart.
  int64_t row_phases() const { return std::min(h.stride, h.span()); }
  int64_t phases() const { return std::min(w.stride, w.span()); }
  int64_t phase_length(int64_t panel) const { return w.out + (w.span() - 1) / w.stride + 2 * panel; }
  // Whether a pixel of y sees one of x, its own.
  bool flat() const {
    const auto same = [](const Window &v) { return v.kernel == 1 && v.stride == 1 && v.out == v.in && v.before == 0; };
    return same(h) && same(w);
  }
  // One input channel for few outputs: a product of matrices would have next to no rows. In double: no overflow.
  bool depthwise() const {
    constexpr double kMost = 1 << 24;
    return channels == groups && m() < (nhwc ? 2 : 4) &&
           double(h.span()) * double(phases()) * double(phase_length(64)) < kMost;
  }
};

// Whether this machine multiplies the weights' channels in pairs; and by AMX.
bool in_pairs(const Conv &g);
bool in_tiles(const Conv &g);
bool in_words_by_tap(const Conv &g);
// What a cut depends on beside the sizes: columns of a panel, rows of a tile, and whether tiles of x's pixels may be
// read with masks.
struct ConvMachine {
  int64_t panel, rows;
  bool masked;
};
void general_cut(Conv &g, const ConvMachine &on);
// Few units: the output channels are cut, too, though whoever takes a part may have to fill the band again. Up to
// eight units, of some 40,000 cycles each.
inline double wanted_units(double cycles) { return std::min(8.0, cycles / 40000); }
inline int64_t parts_of(double wanted, double units, int64_t panels) {
  return std::clamp<int64_t>(int64_t(wanted / units + 0.99), 1, panels);
}

// The kernels. plan: sets how the work is cut, from shapes alone. run: units [begin, end); `scratch` is one
// thread's, which its first unit finds with an int64 of -1 in front. packed_floats, pack: of the weights in their form;
// pack works on units [begin, end), a panel of a group's outputs each.
int64_t general_packed_floats(const Conv &g);
int64_t general_pack_units(const Conv &g);
void general_pack(const Conv &g, int64_t begin, int64_t end, float *dst);
void general_plan(Conv &g);
void general_run(const Conv &g, int64_t begin, int64_t end, float *scratch);

int64_t depthwise_packed_floats(const Conv &g);
void depthwise_pack(const Conv &g, float *dst);
void depthwise_plan(Conv &g);
void depthwise_run(const Conv &g, int64_t begin, int64_t end, float *scratch);

// Whether constant weights are held for Winograd's tiles: with few channels, turning x and y costs what it saves.
bool suits_winograd(const Conv &g);
int64_t winograd_packed_floats(const Conv &g);
void winograd_pack(const Conv &g, float *dst);
void winograd_plan(Conv &g);
void winograd_run(const Conv &g, int64_t begin, int64_t end, float *scratch);

// Tiles of one row or column: of two pixels, a dilation apart.
inline int64_t winograd_tiles(const Window &w) { return (w.out + 2 * w.dilation - 1) / (2 * w.dilation) * w.dilation; }

inline int64_t conv_units(const Conv &g) {
  return g.batch * (!g.depthwise() ? g.groups : g.nhwc ? 1 : g.outputs) * g.cut.bands * g.cut.parts;
}
constexpr int64_t kConvLine = 16;  // floats of a cache line
// `floats` or up to two lines more, an odd number of lines: what lies so far apart does not meet in one set of L1.
inline int64_t odd_lines(int64_t floats) { return ((floats + kConvLine - 1) / kConvLine | 1) * kConvLine; }
// Floats in front of a thread's scratch, whole cache lines: which band it holds, where the taps are, and one more.
inline int64_t scratch_head(const ConvCut &c) { return (2 * (c.taps + 2) + kConvLine - 1) / kConvLine * kConvLine; }
// Of tiles: numbers of a line that n pixels of a row of y see of x, every stride-th, with room for whole vectors, and
// rows of x that `rows` of y see.
inline int64_t half_line(const Conv &g, int64_t n) { return (n + (g.w.span() - 1) / g.w.stride + 31) / 16 * 16; }
inline int64_t half_rows(const Conv &g, int64_t rows) { return (rows - 1) * g.h.stride + g.h.span(); }
// Floats of a thread's scratch for these, for `pixels` of a band.
inline int64_t half_floats(const Conv &g, int64_t pixels) {
  const int64_t line = half_line(g, std::min(pixels, g.w.out)) * g.phases();
  return g.channels / g.groups * line * half_rows(g, std::max<int64_t>(1, pixels / g.w.out)) / 2 + kConvLine;
}
// Of tiles by tap: positions of `rows` of y, whose rows of x with their padding lie one after another, and floats from
// one output channel's sums to the next one's.
inline int64_t tap_positions(const ConvCut &c, int64_t rows) {
  return odd_lines((rows * c.line + simd::kAmxRows - 1) / simd::kAmxRows * simd::kAmxRows);
}
// NHWC by tap: floats from one position's words to the next one's. Where 32 of them would meet in few sets of L1, more.
inline int64_t tap_floats(const Conv &g) { return g.depth() <= 128 ? g.depth() : odd_lines(g.depth()); }
// Rows or pixels of band b: [first, last).
inline void band_of(const ConvCut &c, int64_t b, int64_t *first, int64_t *last) {
  const int64_t blocks = (c.size + c.grain - 1) / c.grain;
  *first = std::min(c.size, b * blocks / c.bands * c.grain);
  *last = std::min(c.size, (b + 1) * blocks / c.bands * c.grain);
}

// Which part of which band a unit is: `band` counts those of all images and groups.
struct ConvUnit {
  int64_t part, band, group, image;
  ConvUnit(const Conv &g, int64_t unit)
      : part(unit % g.cut.parts),
        band(unit / g.cut.parts),
        group(band / g.cut.bands % g.groups),
        image(band / g.cut.bands / g.groups) {}
  // The part's panels of output channels of the group's `panels`: [first, last).
  int64_t first_panel(const ConvCut &c, int64_t panels) const { return part * panels / c.parts; }
  int64_t last_panel(const ConvCut &c, int64_t panels) const { return (part + 1) * panels / c.parts; }
};

}  // namespace opgraft
