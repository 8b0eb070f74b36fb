// Conv2D: y[n, o] = sum over c, k, l of weight[o, c, k, l] x[n, c, i * stride + k * dilation - pad, j * ...], NCHW, in
// groups. FusedConv2D adds a bias, FusedConv2DBatchNorm normalises by given statistics; both then add a residual, if
// there is one, and apply ReLU or ReLU6 while a tile of y is in L1.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>
#include <thread>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "conv.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "conv-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/gemm-host.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(ConvUnits)
OPGRAFT_SIMD_FLOATS(DepthwiseUnits)
OPGRAFT_SIMD(DepthwiseFloats)

namespace {

enum Form { kPlain, kBias, kBatchNorm };  // x, weight; and bias; and gamma, beta, mean, variance; then the residual
constexpr int kResidual[] = {2, 3, 6};

struct Attributes {
  std::string mode;
  std::array<int64_t, 2> stride, dilation;
  std::vector<int64_t> pad;  // top, bottom, left, right
  int64_t group;
};

Attributes attributes(const Arguments &c) {
  Attributes a{window_mode(c, {"valid", "same", "pad"}), window_pair(c, "stride", {1}), window_pair(c, "dilation", {1}),
               c.attr_ints("pad", {0}), c.attr_int("group", 1)};
  if (a.pad.size() == 1) a.pad.resize(4, a.pad[0]);
  bool ok = a.pad.size() == 4;
  for (int64_t p : a.pad) ok = ok && p >= 0 && p < int64_t(1) << 31;
  c.check(ok, "pad must be 1 or 4 numbers that are not negative, got " + to_string(c.attr_ints("pad", {0})));
  c.check(a.mode == "pad" || a.pad == std::vector<int64_t>(4, 0),
          "pad must be 0 where pad_mode is not 'pad', got " + to_string(a.pad) + " with '" + a.mode + "'");
  c.check(a.group > 0, "group must be positive, got " + std::to_string(a.group));
  return a;
}

ConvActivation activation(const Arguments &c) {
  const std::string name = c.attr_string("activation", "none");
  static constexpr const char *kNames[] = {"none", "relu", "relu6"};
  for (int i = 0; i < 3; ++i)
    if (name == kNames[i]) return ConvActivation(i);
  c.fail(OPGRAFT_INVALID_VALUE, "activation must be one of none, relu, relu6, got '" + name + "'");
}

void check_channels(InferContext &c, int i, const char *name, int64_t n) {
  auto s = c.input(i).shape();
  c.check(s.size() == 1 && (s[0] < 0 || n < 0 || s[0] == n),
          std::string(name) + ".shape must be (" + std::to_string(n) + ",), got " + to_string(s));
}

template <Form form> void Infer(InferContext &c) {
  c.check_inputs(kResidual[form], form == kPlain ? 2 : kResidual[form] + 1);
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "weight", 0, "x");
  check_nchw(c);
  auto x = c.input(0).shape(), w = c.input(1).shape();
  c.check(w.size() == 4, "weight must have 4 dimensions (O, I/group, kH, kW), got shape " + to_string(w));
  c.check(w[2] != 0 && w[3] != 0, "weight's kernel must have a size of at least 1, got shape " + to_string(w));
  c.check(c.attr_int("mode", 1) == 1, "mode must be 1, got " + std::to_string(c.attr_int("mode", 1)),
          OPGRAFT_UNSUPPORTED);
  const Attributes a = attributes(c);
  const auto kernel = window_pair(c, "kernel_size", {std::max<int64_t>(w[2], 1), std::max<int64_t>(w[3], 1)});
  c.check((w[2] < 0 || kernel[0] == w[2]) && (w[3] < 0 || kernel[1] == w[3]),
          "kernel_size must be weight's " + to_string(w.subspan(2)) + ", got " +
              to_string(std::span<const int64_t>(kernel)));
  const int64_t out = c.attr_int("out_channel", w[0]);
  c.check(w[0] < 0 || out == w[0],
          "out_channel must be weight's " + std::to_string(w[0]) + ", got " + std::to_string(out));
  c.check(w[0] < 0 || (w[0] > 0 && w[0] % a.group == 0), "weight's output channels must be a multiple of group " +
                                                             std::to_string(a.group) + ", got " + std::to_string(w[0]));
  c.check(w[1] != 0 && x[1] != 0, "x must have at least 1 channel, got shape " + to_string(x));
  if (x[1] > 0 && w[1] > 0)
    c.check(x[1] % a.group == 0 && x[1] / a.group == w[1], "x must have weight's " + std::to_string(w[1]) +
                                                               " channels times group " + std::to_string(a.group) +
                                                               ", got shape " + to_string(x));
  Shape y{x[0], w[0],
          window_dim(c, {x[2], 0, kernel[0], a.stride[0], a.dilation[0], 0}, a.mode, a.pad[0], a.pad[1], "height"),
          window_dim(c, {x[3], 0, kernel[1], a.stride[1], a.dilation[1], 0}, a.mode, a.pad[2], a.pad[3], "width")};
  if constexpr (form != kPlain) activation(c);
  if constexpr (form == kBias) {
    c.check_same_dtype(2, "bias", 0, "x");
    check_channels(c, 2, "bias", w[0]);
  }
  if constexpr (form == kBatchNorm) {
    c.check_dtype(2, "gamma", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
    const char *names[] = {"gamma", "beta", "mean", "variance"};
    for (int i = 0; i < 4; ++i) {
      if (i) c.check_same_dtype(2 + i, names[i], 2, "gamma");
      check_channels(c, 2 + i, names[i], w[0]);
    }
  }
  if (c.inputs() > kResidual[form]) {
    c.check_same_dtype(kResidual[form], "residual", 0, "x");
    auto r = c.input(kResidual[form]).shape();
    bool ok = r.size() == 4;
    for (size_t i = 0; ok && i < 4; ++i) {
      ok = may_equal(r[i], y[i]) && (r[i] == -1) == (y[i] == -1);  // else one of them might be broadcast
    }
    c.check(ok, "residual.shape must equal the convolution's " + to_string(y) + ", got " + to_string(r));
  }
  c.output(c.input(0).dtype(), y);
}

GemmProblem weights(const Conv &g) {
  return {g.dtype, g.outputs, 0, g.k(), {g.weight, g.k(), 1}, {nullptr, 0, 0}, nullptr};
}

int64_t units(const Conv &g) {
  const int64_t across = g.panels * PanelWidth_simd()();
  return g.depthwise() ? g.batch * g.outputs * ((g.h.out + g.rows - 1) / g.rows)
                       : g.batch * g.groups * ((g.m() + g.block - 1) / g.block) * ((g.pixels() + across - 1) / across);
}
// Floats that one thread needs, a multiple of a cache line.
int64_t scratch_floats(const Conv &g) {
  const int64_t n = g.depthwise() ? DepthwiseFloats_simd()(g) : g.panels * PanelWidth_simd()() * g.k();
  return (n + 15) / 16 * 16;
}
int64_t constant_floats(const Conv &g) { return (2 * g.outputs + 15) / 16 * 16; }  // scale and shift

// The problem and how it is cut, which must not depend on threads: the same bits whatever their number.
Conv problem(const Arguments &c) {
  const Attributes a = attributes(c);
  TensorView x = c.input(0), w = c.input(1);
  Conv g{x.dtype(), x.raw(), w.raw(), nullptr, nullptr, x.dim(0), x.dim(1), w.dim(0), a.group, {}, {}};
  g.h = {x.dim(2), 0, w.dim(2), a.stride[0], a.dilation[0], 0};
  g.w = {x.dim(3), 0, w.dim(3), a.stride[1], a.dilation[1], 0};
  fit_window(g.h, a.mode, a.pad[0], a.pad[1]);
  fit_window(g.w, a.mode, a.pad[2], a.pad[3]);
  auto same = [](const Window &v) { return v.kernel == 1 && v.stride == 1 && v.out == v.in && v.before == 0; };
  if (same(g.h) && same(g.w)) {  // 1 x 1: one long row
    g.w.in = g.w.out = g.pixels();
    g.h.in = g.h.out = 1;
  }
  if (g.depthwise()) {
    g.rows = 1;
    const int64_t all = DepthwiseFloats_simd()(g), row = std::max<int64_t>(1, all / g.h.span() * g.h.stride);
    g.rows = std::clamp<int64_t>((32 << 10) / row, 1, std::max<int64_t>(g.h.out, 1));  // 128 KiB
    return g;
  }
  const int64_t panel = PanelWidth_simd()(), tile = TileRows_simd()();
  const int64_t panels = (g.pixels() + panel - 1) / panel;
  g.panels = std::clamp<int64_t>((64 << 10) / (panel * g.k()), 1, 8);  // 256 KiB: the columns stay in L2
  g.panels = std::clamp<int64_t>(panels, 1, g.panels);
  const int64_t there = std::max<int64_t>(1, g.batch * g.groups * ((panels + g.panels - 1) / g.panels));
  // Few pixels: the output channels are cut, too, though each part makes the columns again.
  const int64_t parts = std::clamp<int64_t>(16 / there, 1, std::max<int64_t>(1, g.m() / (4 * tile)));
  g.block = ((g.m() + parts - 1) / parts + tile - 1) / tile * tile;
  return g;
}

template <Form form> Conv problem(const Context &c, float *constants) {
  Conv g = problem(c);
  g.y = c.output(0).raw();
  if constexpr (form == kPlain) return g;
  g.activation = activation(c);
  if (c.inputs() > kResidual[form]) g.residual = c.input(kResidual[form]).raw();
  float *shift = constants + g.outputs;
  dispatch<float, float16, bfloat16>(c, c.input(2).dtype(), [&](auto zero) {
    using T = decltype(zero);
    auto at = [&](int input, int64_t i) { return double(float(c.input(input).data<T>()[i])); };
    for (int64_t i = 0; i < g.outputs; ++i) {
      if constexpr (form == kBias) {
        shift[i] = float(at(2, i));
      } else {
        const double scale = at(2, i) / std::sqrt(at(5, i) + c.attr_float("epsilon", 1e-5));
        constants[i] = float(scale);
        shift[i] = float(at(3, i) - at(4, i) * scale);
      }
    }
  });
  if (form == kBatchNorm) g.scale = constants;
  g.shift = shift;
  return g;
}

// Widened weights, where they do not come packed, then scale and shift, then scratch by thread: of few units, too, any
// thread may take one.
uint64_t total_floats(const Conv &g, bool packed, int64_t threads) {
  const uint64_t a = g.depthwise() || packed ? 0 : (weights(g).a_floats() + 15) / 16 * 16;
  return a + uint64_t(constant_floats(g) + (units(g) > 1 ? threads : 1) * scratch_floats(g));
}

uint64_t Workspace(InferContext &c) {
  for (int i = 0; i < 2; ++i)
    if (c.input(i).size() < 0) return 0;
  const int64_t threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return 4 * total_floats(problem(c), c.input(1).known(), threads) + 64;
}

uint64_t PackedBytes(InferContext &c, int input) {
  if (input != 1) return 0;
  Conv g{};
  auto w = c.input(1).shape();
  g.dtype = c.input(1).dtype(), g.weight = c.input(1).raw(), g.outputs = w[0], g.groups = c.attr_int("group", 1);
  g.channels = w[1] * g.groups, g.h.kernel = w[2], g.w.kernel = w[3];
  g.w.stride = 1;
  return g.depthwise() ? 0 : 4 * weights(g).a_floats();
}

void PackWeight(InferContext &c, int, void *dst) {
  auto w = c.input(1).shape();
  const int64_t k = w[1] * w[2] * w[3];
  const GemmProblem p{c.input(1).dtype(), w[0], 0, k, {c.input(1).raw(), k, 1}, {nullptr, 0, 0}, nullptr};
  gemm_kernels(p.dtype).widen(p.a, k, 0, p.m, static_cast<float *>(dst), p.lda());
}

template <Form form> void Kernel(Context &c) {
  if (c.output(0).size() == 0) return;
  const Conv shape = problem(c);
  const auto *packed = static_cast<const float *>(c.packed(1));
  const uint64_t need = 4 * total_floats(shape, packed, c.threads());
  std::unique_ptr<float, void (*)(void *)> own(nullptr, std::free);
  auto *scratch = reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(c.workspace()) + 63) / 64 * 64);
  if (!c.workspace() || c.workspace_bytes() < need + 64) {
    own.reset(static_cast<float *>(std::aligned_alloc(64, (need + 63) / 64 * 64)));
    if (!own) throw std::bad_alloc();
    scratch = own.get();
  }
  Conv g = problem<form>(c, scratch);
  scratch += constant_floats(g);
  const int64_t each = scratch_floats(g), count = units(g);
  if (g.depthwise()) {
    const auto run = DepthwiseUnits_simd(g.dtype);
    const int64_t grain = 100000 / std::max<int64_t>(1, g.rows * g.w.out * g.taps());
    return c.parallel_for(count, std::max<int64_t>(1, grain),
                          [&](int64_t begin, int64_t end, int worker) { run(g, begin, end, scratch + worker * each); });
  }
  const GemmProblem w = weights(g);
  g.a = packed ? packed : static_cast<const float *>(g.weight);
  g.lda = w.lda();
  if (!packed && w.copies_a()) {
    const auto widen = gemm_kernels(g.dtype).widen;
    c.parallel_for(w.m, std::max<int64_t>(1, 16384 / w.k),
                   [&](int64_t begin, int64_t end) { widen(w.a, w.k, begin, end, scratch, g.lda); });
    g.a = scratch;
    scratch += (w.a_floats() + 15) / 16 * 16;
  }
  const auto run = ConvUnits_simd(g.dtype);
  c.parallel_for(count, 1,
                 [&](int64_t begin, int64_t end, int worker) { run(g, begin, end, scratch + worker * each); });
}

// The formula, in double; padding is 0.
template <Form form> void Reference(Context &c) {
  std::vector<float> constants(size_t(2 * c.input(1).dim(0)));
  const Conv g = problem<form>(c, constants.data());
  const int64_t each = g.channels / g.groups;
  dispatch<float, float16, bfloat16>(c, g.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *x = static_cast<const T *>(g.x), *weight = static_cast<const T *>(g.weight);
    for (int64_t at = 0; at < c.output(0).size(); ++at) {
      const int64_t j = at % g.w.out, i = at / g.w.out % g.h.out, o = at / g.pixels() % g.outputs;
      const int64_t image = at / g.pixels() / g.outputs, from = image * g.channels + o / g.m() * each;
      const T *tap = weight + o * g.k();
      double sum = 0;
      for (int64_t channel = from; channel < from + each; ++channel)
        for (int64_t k = 0; k < g.h.kernel; ++k)
          for (int64_t l = 0; l < g.w.kernel; ++l, ++tap) {
            const int64_t row = g.h.at(i, k), column = g.w.at(j, l);
            const bool inside = row >= 0 && row < g.h.in && column >= 0 && column < g.w.in;
            const T value = inside ? x[(channel * g.h.in + row) * g.w.in + column] : T(0.0f);
            sum += double(float(*tap)) * double(float(value));
          }
      if (g.scale) sum *= double(g.scale[o]);
      if (g.shift) sum += double(g.shift[o]);
      if (g.residual) sum += double(float(static_cast<const T *>(g.residual)[at]));
      if (g.activation != ConvActivation::kNone && sum < 0) sum = 0;
      if (g.activation == ConvActivation::kRelu6 && sum > 6) sum = 6;
      static_cast<T *>(g.y)[at] = T(float(sum));
    }
  });
}

}  // namespace
}  // namespace opgraft

#define OPGRAFT_CONV(Name, form, number)                                                                       \
  OPGRAFT_OP(Name, .inputs = number, .infer = ::opgraft::Infer<::opgraft::form>,                               \
             .kernel = ::opgraft::Kernel<::opgraft::form>, .reference = ::opgraft::Reference<::opgraft::form>, \
             .workspace = ::opgraft::Workspace, .packed_bytes = ::opgraft::PackedBytes, .pack = ::opgraft::PackWeight)
OPGRAFT_CONV(Conv2D, kPlain, 2)
OPGRAFT_CONV(FusedConv2D, kBias, -1)
OPGRAFT_CONV(FusedConv2DBatchNorm, kBatchNorm, -1)
#endif
