// Conv2D: y[n, o] = sum over c, k, l of weight[o, c, k, l] x[n, c, i * stride + k * dilation - pad, j * ...], in
// groups, NCHW or NHWC. FusedConv2D adds a bias, FusedConv2DBatchNorm normalises by given statistics; both then add a
// residual, if there is one, and apply ReLU or ReLU6 while a tile of y is in registers or L1.
#include "conv.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "aot_ops/common/gemm.h"
#include "aot_ops/common/scratch.h"
#include "aot_ops/common/spread.h"
#include "aot_ops/common/streams.h"
#include "opgraft/op.h"

namespace opgraft {
namespace {

// x, weight; and what is folded into scale and shift: bias; scale, shift; gamma, beta, mean, variance; bias and these;
// then the residual.
enum Form { kPlain, kBias, kAffine, kBatchNorm, kBiasBatchNorm };
constexpr int kResidual[] = {2, 3, 4, 6, 7};
constexpr int kLeast[] = {2, 2, 3, 6, 7};
constexpr int kOptional[][2] = {{0, 0}, {2, 3}, {3, 4}, {2, 5}, {3, 6}};  // first and past the last
constexpr const char *kNames[][5] = {{},
                                     {"bias"},
                                     {"scale", "shift"},
                                     {"gamma", "beta", "mean", "variance"},
                                     {"bias", "gamma", "beta", "mean", "variance"}};

struct Attributes {
  bool nhwc;
  std::string mode;
  std::array<int64_t, 2> stride, dilation;
  std::vector<int64_t> pad;  // top, bottom, left, right
  int64_t group;
};

Attributes attributes(const Arguments &c) {
  const bool nhwc = channels_last(c);
  Attributes a{nhwc,
               window_mode(c, {"valid", "same", "pad"}),
               window_pair(c, "stride", {1}, nhwc),
               window_pair(c, "dilation", {1}, nhwc),
               c.attr_ints("pad", {0}),
               c.attr_int("group", 1)};
  bool ok = a.pad.size() == 1 || a.pad.size() == 4;
  for (int64_t p : a.pad) ok = ok && p >= 0 && p < int64_t(1) << 31;
  c.check(ok, "pad must be 1 or 4 numbers that are not negative, got ", a.pad);
  if (a.pad.size() == 1) a.pad.resize(4, a.pad[0]);
  c.check(a.mode == "pad" || a.pad == std::vector<int64_t>(4, 0), "pad must be 0 where pad_mode is not 'pad', got ",
          a.pad, " with '", a.mode, "'");
  c.check(a.group > 0, "group must be positive, got ", a.group);
  return a;
}

// The dimensions of x, y and, but for the first, of the weight.
struct Axes {
  size_t c, h, w;
};
Axes axes(bool nhwc) { return nhwc ? Axes{3, 1, 2} : Axes{1, 2, 3}; }

ConvActivation activation(const Arguments &c) {
  const std::string name = c.attr_string("activation", "none");
  static constexpr const char *kNames[] = {"none", "relu", "relu6"};
  for (int i = 0; i < 3; ++i)
    if (name == kNames[i]) return ConvActivation(i);
  c.fail(OPGRAFT_INVALID_VALUE, "activation must be one of none, relu, relu6, got '", name, "'");
}

// One number for each output channel: [O], or as it broadcasts to y, [O, 1, 1] or [1, O, 1, 1]; NHWC: [1, 1, (1,) O].
void check_channels(InferContext &c, int i, const char *name, int64_t n, bool nhwc) {
  auto s = c.input(i).shape();
  const size_t at = nhwc ? s.size() - 1 : s.size() == 4 ? 1 : 0;
  bool ok = s.size() == 1 || s.size() == 3 || s.size() == 4;
  for (size_t k = 0; ok && k < s.size(); ++k) ok = k == at ? s[k] < 0 || n < 0 || s[k] == n : s[k] == 1;
  c.check(ok, name, ".shape must be (", n, ",), got ", s);
}

// Whether an input up to the residual is left out: at the end, or as a tensor without elements.
template <Form form> bool none(const Arguments &c, int i) {
  if (i < kOptional[form][0] || i >= kOptional[form][1]) return false;
  if (form == kBias && c.inputs() == 3) return false;
  return i >= c.inputs() || c.input(i).size() == 0;
}
template <Form form> int folded(const Arguments &c) { return std::min(c.inputs(), kResidual[form]); }

template <Form form> void Infer(InferContext &c) {
  c.check_inputs(kLeast[form], form == kPlain ? 2 : kResidual[form] + 1);
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "weight", 0, "x");
  const Attributes a = attributes(c);
  const Axes at = axes(a.nhwc);
  auto x = c.input(0).shape(), w = c.input(1).shape();
  check_image(c, a.nhwc);
  c.check(w.size() == 4, "weight must have 4 dimensions ", a.nhwc ? "(O, kH, kW, I/group)" : "(O, I/group, kH, kW)",
          ", got shape ", w);
  const int64_t kh = w[at.h], kw = w[at.w], in = x[at.c], each = w[at.c];
  c.check(kh != 0 && kw != 0, "weight's kernel must have a size of at least 1, got shape ", w);
  if (c.attr_int("mode", 1) != 1) c.fail(OPGRAFT_UNSUPPORTED, "mode must be 1, got ", c.attr_int("mode", 1));
  const auto kernel = window_pair(c, "kernel_size", {std::max<int64_t>(kh, 1), std::max<int64_t>(kw, 1)});
  c.check((kh < 0 || kernel[0] == kh) && (kw < 0 || kernel[1] == kw), "kernel_size must be weight's ",
          w.subspan(at.h, 2), ", got ", kernel);
  const int64_t out = c.attr_int("out_channel", w[0]);
  c.check(w[0] < 0 || out == w[0], "out_channel must be weight's ", w[0], ", got ", out);
  c.check(w[0] < 0 || (w[0] > 0 && w[0] % a.group == 0), "weight's output channels must be a multiple of group ",
          a.group, ", got ", w[0]);
  c.check(each != 0 && in != 0, "x must have at least 1 channel, got shape ", x);
  if (in > 0 && each > 0)
    c.check(in % a.group == 0 && in / a.group == each, "x must have weight's ", each, " channels times group ", a.group,
            ", got shape ", x);
  Shape y(4);
  y[0] = x[0], y[at.c] = w[0];
  y[at.h] = window_dim(c, {x[at.h], 0, kernel[0], a.stride[0], a.dilation[0], 0}, a.mode, a.pad[0], a.pad[1], "height");
  y[at.w] = window_dim(c, {x[at.w], 0, kernel[1], a.stride[1], a.dilation[1], 0}, a.mode, a.pad[2], a.pad[3], "width");
  if constexpr (form != kPlain) activation(c);
  if constexpr (form == kBatchNorm || form == kBiasBatchNorm) spread(c);
  // Bias, scale and shift are of x's dtype, BatchNorm's parameters of one of their own.
  for (int i = 2; i < folded<form>(c); ++i) {
    const char *name = kNames[form][i - 2];
    constexpr int own = form == kBatchNorm ? 2 : form == kBiasBatchNorm ? 3 : 8;
    if (i < own) c.check_same_dtype(i, name, 0, "x");
    else if (i == own) c.check_dtype(i, name, {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
    else c.check_same_dtype(i, name, own, "gamma");
    if (!none<form>(c, i)) check_channels(c, i, name, w[0], a.nhwc);
  }
  if (c.inputs() > kResidual[form]) {
    c.check_same_dtype(kResidual[form], "residual", 0, "x");
    auto r = c.input(kResidual[form]).shape();
    bool ok = r.size() == 4;
    for (size_t i = 0; ok && i < 4; ++i) {
      ok = may_equal(r[i], y[i]) && (r[i] == -1) == (y[i] == -1);  // else one of them might be broadcast
    }
    c.check(ok, "residual.shape must equal the convolution's ", y, ", got ", r);
  }
  c.output(c.input(0).dtype(), y);
}

// Weights alone: what their packed form depends on.
Conv weights(const Arguments &c) {
  const Attributes a = attributes(c);
  const Axes at = axes(a.nhwc);
  TensorView w = c.input(1);
  Conv g{w.dtype(), nullptr, w.raw(), nullptr, nullptr, 0, w.dim(int(at.c)) * a.group, w.dim(0), a.group, {}, {}};
  g.nhwc = a.nhwc;
  g.h.kernel = w.dim(int(at.h)), g.w.kernel = w.dim(int(at.w));
  g.h.stride = a.stride[0], g.w.stride = a.stride[1];
  g.h.dilation = a.dilation[0], g.w.dilation = a.dilation[1];
  g.tiles = in_tiles(g);
  g.pairs = in_pairs(g);
  g.by_tap = in_words_by_tap(g);
  return g;
}

// The problem without addresses; packed: whether the weights come in the kernel's form.
Conv problem(const Arguments &c, bool packed) {
  const Attributes a = attributes(c);
  const Axes at = axes(a.nhwc);
  Conv g = weights(c);
  g.batch = c.input(0).dim(0), g.h.in = c.input(0).dim(int(at.h)), g.w.in = c.input(0).dim(int(at.w));
  fit_window(g.h, a.mode, a.pad[0], a.pad[1]);
  fit_window(g.w, a.mode, a.pad[2], a.pad[3]);
  g.winograd = packed && suits_winograd(g);
  return g;
}

int64_t packed_floats(const Conv &g) {
  return g.winograd ? winograd_packed_floats(g) : g.depthwise() ? depthwise_packed_floats(g) : general_packed_floats(g);
}

int64_t round_up(int64_t floats) { return (floats + 15) / 16 * 16; }
// Scale, then shift, each with a vector of zeros behind: whole ones are read.
constexpr int64_t kBehind = 64;
int64_t constant_floats(const Conv &g) { return 2 * round_up(g.outputs + kBehind); }

// What BatchNorm and the bias come to, y = act(sum * scale + shift): in double, rounded once.
template <Form form> void fold(const Arguments &c, const Conv &g, float *constants) {
  float *scale = constants, *shift = constants + constant_floats(g) / 2;
  std::fill_n(constants, constant_floats(g), 0.0f);
  std::fill_n(scale, g.outputs, 1.0f);
  auto at = [&](int input, int64_t i, double value) {
    if (none<form>(c, input)) return value;
    dispatch<float, float16, bfloat16>(
        c, c.input(input).dtype(), [&](auto zero) { value = double(float(c.input(input).data<decltype(zero)>()[i])); });
    return value;
  };
  const double epsilon = c.attr_float("epsilon", 1e-5);
  const Spread holds = spread(c);
  for (int64_t i = 0; form != kPlain && i < g.outputs; ++i) {
    double factor = 1, sum = 0;
    if constexpr (form == kBias) {
      sum = at(2, i, 0);
    } else if constexpr (form == kAffine) {
      factor = at(2, i, 1), sum = at(3, i, 0);
    } else if constexpr (form != kPlain) {
      constexpr int first = form == kBatchNorm ? 2 : 3;
      factor = normalised_scale(at(first, i, 1), at(first + 3, i, 1), holds, epsilon);
      const double mean = at(first + 2, i, 0) - (form == kBatchNorm ? 0 : at(2, i, 0));
      sum = at(first + 1, i, 0) - mean * factor;
    }
    scale[i] = float(factor), shift[i] = float(sum);
  }
}

// What is settled at plan time: the cut, and BatchNorm or the bias where they are constants.
struct State {
  Conv g;
  std::vector<float> constants;  // empty: not known
};

void plan(Conv &g) {
  if (g.winograd) winograd_plan(g);
  else if (g.depthwise()) depthwise_plan(g);
  else general_plan(g);
}

template <Form form> void *Init(InferContext &c) {
  for (int i = 0; i < c.inputs(); ++i)
    for (int64_t d : c.input(i).shape())
      if (d <= 0 && !none<form>(c, i)) return nullptr;
  auto s = std::make_unique<State>();
  s->g = problem(c, c.input(1).known());
  plan(s->g);
  bool known = true;
  for (int i = 2; i < folded<form>(c); ++i) known = known && (c.input(i).known() || none<form>(c, i));
  if (known) {
    s->constants.resize(size_t(constant_floats(s->g)));
    fold<form>(c, s->g, s->constants.data());
  }
  return s.release();
}
void Release(void *state) { delete static_cast<State *>(state); }

// Packed weights, where they do not come packed, then scale and shift, then scratch by thread.
uint64_t total_floats(const Conv &g, bool packed, int64_t threads) {
  return uint64_t((packed ? 0 : round_up(packed_floats(g))) + constant_floats(g) + threads * g.cut.scratch);
}

uint64_t Workspace(InferContext &c) {
  for (int i = 0; i < 2; ++i)
    if (c.input(i).size() <= 0) return 0;
  Conv g = problem(c, c.input(1).known());
  plan(g);
  return 4 * total_floats(g, c.input(1).known(), std::max<int64_t>(1, std::thread::hardware_concurrency()));
}

// What is packed ahead, by the weights alone.
Conv packable(const Arguments &c) {
  Conv g = weights(c);
  g.winograd = suits_winograd(g);
  return g;
}
uint64_t PackedBytes(InferContext &c, int input) { return input == 1 ? 4 * uint64_t(packed_floats(packable(c))) : 0; }

void PackWeight(InferContext &c, int, void *dst) {
  const Conv g = packable(c);
  if (g.winograd) winograd_pack(g, static_cast<float *>(dst));
  else if (g.depthwise()) depthwise_pack(g, static_cast<float *>(dst));
  else general_pack(g, 0, general_pack_units(g), static_cast<float *>(dst));
}

template <Form form> void Kernel(Context &c) {
  if (c.output(0).size() == 0) return;
  const auto *state = c.state<State>();
  const bool packed = c.packed(1);
  Conv g = state ? state->g : problem(c, packed);
  if (state && g.winograd != (packed && suits_winograd(g))) g = problem(c, packed), state = nullptr;
  if (!state) plan(g);
  g.x = c.input(0).raw(), g.weight = c.input(1).raw(), g.y = c.output(0).raw();
  if constexpr (form != kPlain) g.activation = activation(c);
  if (c.inputs() > kResidual[form]) g.residual = c.input(kResidual[form]).raw();
  g.past = goes_past_caches(c) && g.pixels() % kConvLine == 0;
  g.packed = static_cast<const float *>(c.packed(1));
  Scratch<float> memory(c, total_floats(g, g.packed, c.threads()));
  float *scratch = memory.get();
  const bool folded = state && !state->constants.empty();
  if (!folded) fold<form>(c, g, scratch);
  g.scale = folded ? state->constants.data() : scratch;
  g.shift = g.scale + constant_floats(g) / 2;
  if (!folded) scratch += constant_floats(g);
  if (!g.packed && packed_floats(g)) {
    g.packed = scratch;
    if (g.depthwise()) {
      depthwise_pack(g, scratch);
    } else {
      const int64_t units = general_pack_units(g), each = g.groups * g.m() * g.k() / units;
      c.parallel_for(units, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, each)),
                     [&](int64_t begin, int64_t end) { general_pack(g, begin, end, scratch); });
    }
    scratch += round_up(packed_floats(g));
  }
  const int64_t each = g.cut.scratch, count = conv_units(g);
  for (int64_t i = 0; each && i < c.threads(); ++i) {  // no band is held yet
    const int64_t none = -1;
    std::memcpy(scratch + i * each, &none, sizeof none);
  }
  // About 10 µs of work: a core makes some 20 products a nanosecond, depthwise and next to nothing beside, 5.
  const double products = double(g.pixels()) * double(g.outputs) * double(g.batch) * double(g.k()) / double(count);
  const double worth = g.depthwise() ? 50000 : 200000.0 * (g.tiles ? kAmxGain : 1);
  const int64_t grain = std::max<int64_t>(1, int64_t(worth / std::max(1.0, products)));
  c.parallel_for(count, grain, [&](int64_t begin, int64_t end, int worker) {
    (g.winograd ? winograd_run : g.depthwise() ? depthwise_run : general_run)(g, begin, end, scratch + worker * each);
  });
}

// Elements from one image (of weight: output channel), channel, row and column to the next, in the layout.
struct Steps {
  int64_t image, channel, row, column;
  Steps(bool nhwc, int64_t channels, int64_t height, int64_t width)
      : image(channels * height * width),
        channel(nhwc ? 1 : height * width),
        row(nhwc ? width * channels : width),
        column(nhwc ? channels : 1) {}
};

// A pixel's sum of products: x from the image's and group's first channel on, weight from the output channel's. x is 0
// outside.
template <typename T> double reference_sum(const Conv &g, const T *x, const T *weight, int64_t i, int64_t j) {
  const Window h = g.h, w = g.w;
  const int64_t each = g.channels / g.groups;
  const Steps from(g.nhwc, g.channels, h.in, w.in), by(g.nhwc, each, h.kernel, w.kernel);
  double sum = 0;
  for (int64_t channel = 0; channel < each; ++channel)
    for (int64_t k = 0; k < h.kernel; ++k)
      for (int64_t l = 0; l < w.kernel; ++l) {
        const int64_t row = h.at(i, k), column = w.at(j, l);
        const bool inside = row >= 0 && row < h.in && column >= 0 && column < w.in;
        const T value = inside ? x[channel * from.channel + row * from.row + column * from.column] : T(0.0f);
        const T factor = weight[channel * by.channel + k * by.row + l * by.column];
        sum += double(float(factor)) * double(float(value));
      }
  return sum;
}

// The formula, in double.
template <Form form> void Reference(Context &c) {
  const Conv g = problem(c, false);
  std::vector<float> constants(size_t(constant_floats(g)));
  fold<form>(c, g, constants.data());
  const ConvActivation act = form == kPlain ? ConvActivation::kNone : activation(c);
  const bool residual = c.inputs() > kResidual[form];
  const int64_t each = g.channels / g.groups;
  dispatch<float, float16, bfloat16>(c, g.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>(), *weight = c.input(1).data<T>();
    const Steps from(g.nhwc, g.channels, g.h.in, g.w.in), to(g.nhwc, g.outputs, g.h.out, g.w.out);
    for (int64_t n = 0; n < g.batch; ++n)
      for (int64_t o = 0; o < g.outputs; ++o)
        for (int64_t pixel = 0; pixel < g.pixels(); ++pixel) {
          const int64_t i = pixel / g.w.out, j = pixel % g.w.out;
          const T *first = x + n * from.image + o / g.m() * each * from.channel;
          double sum = reference_sum(g, first, weight + o * each * g.taps(), i, j);
          const int64_t at = n * to.image + o * to.channel + i * to.row + j * to.column;
          sum = sum * double(constants[size_t(o)]) + double(constants[size_t(o + constant_floats(g) / 2)]);
          if (residual) sum += double(float(c.input(kResidual[form]).data<T>()[at]));
          if (act != ConvActivation::kNone && sum < 0) sum = 0;
          if (act == ConvActivation::kRelu6 && sum > 6) sum = 6;
          c.output(0).data<T>()[at] = T(float(sum));
        }
  });
}

}  // namespace
}  // namespace opgraft

#define OPGRAFT_CONV(Name, form, number)                                                                       \
  OPGRAFT_OP(Name, .inputs = number, .infer = ::opgraft::Infer<::opgraft::form>,                               \
             .kernel = ::opgraft::Kernel<::opgraft::form>, .reference = ::opgraft::Reference<::opgraft::form>, \
             .workspace = ::opgraft::Workspace, .init = ::opgraft::Init<::opgraft::form>,                      \
             .release = ::opgraft::Release, .packed_bytes = ::opgraft::PackedBytes, .pack = ::opgraft::PackWeight)
OPGRAFT_CONV(Conv2D, kPlain, 2)
OPGRAFT_CONV(FusedConv2D, kBias, -1)
OPGRAFT_CONV(FusedConv2DScale, kAffine, -1)
OPGRAFT_CONV(FusedConv2DBatchNorm, kBatchNorm, -1)
OPGRAFT_CONV(FusedConv2DBiasBatchNorm, kBiasBatchNorm, -1)
