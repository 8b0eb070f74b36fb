// BatchNorm in inference: y = (x - mean) / sqrt(variance + epsilon) * scale + bias by channel, axis 1 or the last
// (Ioffe and Szegedy 2015). The other four outputs are mean and variance, twice, as MindSpore documents them.
// FusedBatchNormInference gives y alone; its parameters broadcast to x along any one dimension.
#include "opgraft/op.h"

#include <algorithm>

#include "aot_ops/common/scratch.h"
#include "aot_ops/common/spread.h"
#include "aot_ops/common/window.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "batch_norm.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/map-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// y = (x - mean) * scale + bias over n elements of one channel: subtracted first, so that a mean far above the
// deviation costs no accuracy.
template <class T> void Normalise(const void *x, float mean, float scale, float bias, void *y, int64_t n) {
  const hn::ScalableTag<float> d;
  const auto m = hn::Set(d, mean), s = hn::Set(d, scale), b = hn::Set(d, bias);
  Map([&](auto, auto v) HWY_ATTR { return hn::MulAdd(hn::Sub(v, m), s, b); }, static_cast<T *>(y), n,
      static_cast<const T *>(x));
}

// The same for n channels of one pixel.
template <class T>
void NormalisePixel(const void *x, const float *mean, const float *scale, const float *bias, void *y, int64_t n) {
  Map([&](auto, auto v, auto m, auto s, auto b) HWY_ATTR { return hn::MulAdd(hn::Sub(v, m), s, b); },
      static_cast<T *>(y), n, static_cast<const T *>(x), mean, scale, bias);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(Normalise)
OPGRAFT_SIMD_FLOATS(NormalisePixel)

namespace {

const char *const kNames[] = {"x", "scale", "bias", "mean", "variance"};

// The dimension of x that has a number each; FusedBatchNormInference's is mean's one that is not 1.
template <bool fused> size_t channel_axis(const Arguments &c) {
  auto x = c.input(0).shape();
  if (!fused) return channels_last(c) ? x.size() - 1 : 1;
  auto mean = c.input(3).shape();
  const size_t lead = x.size() - mean.size();
  for (size_t i = 0; i < mean.size(); ++i)
    if (mean[i] != 1) return lead + i;
  return lead + size_t(std::find(x.begin() + long(lead), x.end() - 1, 1) - (x.begin() + long(lead)));
}

void check_dtypes(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_dtype(1, "scale", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  for (int i = 2; i < 5; ++i) c.check_same_dtype(i, kNames[i], 1, "scale");
}

void Infer(InferContext &c) {
  check_dtypes(c);
  auto x = c.input(0).shape();
  c.check(x.size() >= 2, "x must have at least 2 dimensions, got shape ", x);
  const size_t axis = channel_axis<false>(c);
  for (int i = 1; i < 5; ++i) {
    auto s = c.input(i).shape();
    c.check(s.size() == 1 && may_equal(s[0], x[axis]), kNames[i], ".shape must be ", x.subspan(axis, 1), ", got ", s);
  }
  if (c.attr_bool("is_training", false))
    c.fail(OPGRAFT_UNSUPPORTED, "is_training must be false: opgraft runs inference");
  c.output(c.input(0).dtype(), x);
  for (int i = 0; i < 4; ++i) c.output(c.input(1).dtype(), c.input(1).shape());
}

void InferFused(InferContext &c) {
  check_dtypes(c);
  spread(c);
  auto x = c.input(0).shape();
  const size_t rank = c.input(3).shape().size();
  c.check(rank >= 1 && rank <= x.size(), "mean must have 1 to ", x.size(), " dimensions, got shape ",
          c.input(3).shape());
  const size_t axis = channel_axis<true>(c);
  for (int i : {3, 4, 1, 2}) {
    auto s = c.input(i).shape();
    if (i < 3 && s.size() == 1 && s[0] == 0) continue;  // none
    const size_t lead = x.size() - s.size();
    bool ok = s.size() <= x.size() && lead <= axis;
    for (size_t k = 0; ok && k < s.size(); ++k) ok = k + lead == axis ? may_equal(s[k], x[axis]) : s[k] == 1;
    c.check(ok, kNames[i], ".shape must be 1 but for dimension ", axis, " of x ", x, ", got ", s);
  }
  c.output(c.input(0).dtype(), x);
}

// body(channel, mean, scale, bias) of each channel, in double. FusedBatchNormInference's scale and bias may have no
// elements.
template <class Body> void by_channel(const Context &c, int64_t channels, const Body &body) {
  const Spread form = spread(c);
  const double epsilon = c.attr_float("epsilon", 1e-5);
  dispatch<float, float16, bfloat16>(c, c.input(1).dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto from = [&](int i) { return c.input(i).size() ? c.input(i).data<T>() : nullptr; };
    const T *scale = from(1), *bias = from(2), *mean = from(3), *variance = from(4);
    for (int64_t i = 0; i < channels; ++i) {
      const double gamma = scale ? double(float(scale[i])) : 1.0;
      body(i, double(float(mean[i])), normalised_scale(gamma, double(float(variance[i])), form, epsilon),
           bias ? double(float(bias[i])) : 0.0);
    }
  });
}

void copy_statistics(const Context &c) {
  const size_t bytes = size_t(c.input(1).size()) * dtype_size(c.input(1).dtype());
  for (int i = 1; bytes && i < 5; ++i) std::memcpy(c.output(i).raw(), c.input(i % 2 ? 3 : 4).raw(), bytes);
}

// Elements of x from one channel to the next.
template <bool fused> int64_t inner(const Context &c) {
  return element_count(c.input(0).shape().subspan(channel_axis<fused>(c) + 1));
}

uint64_t Workspace(InferContext &c) { return 3 * sizeof(float) * uint64_t(std::max<int64_t>(0, c.input(3).size())); }

template <bool fused> void Kernel(Context &c) {
  if (!fused) copy_statistics(c);
  const int64_t channels = c.input(3).size(), size = c.input(0).size();
  if (size == 0) return;
  const int64_t each = inner<fused>(c);
  Scratch<float> scratch(c, size_t(3 * channels));
  float *means = scratch.get(), *scales = means + channels, *biases = scales + channels;
  by_channel(c, channels, [&](int64_t i, double mean, double scale, double bias) {
    means[i] = float(mean), scales[i] = float(scale), biases[i] = float(bias);
  });
  const int64_t bytes = int64_t(dtype_size(c.input(0).dtype()));
  const char *x = c.input(0).data<char>();
  char *y = c.output(0).data<char>();
  if (each == 1) {
    const auto normalise = NormalisePixel_simd(c.input(0).dtype());
    const int64_t row = channels * bytes;
    c.parallel_for(size / channels, std::max<int64_t>(1, 8192 / channels), [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) normalise(x + u * row, means, scales, biases, y + u * row, channels);
    });
    return;
  }
  const auto normalise = Normalise_simd(c.input(0).dtype());
  const int64_t plane = each * bytes;
  c.parallel_for(size / each, std::max<int64_t>(1, 8192 / each), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t i = u % channels;
      normalise(x + u * plane, means[i], scales[i], biases[i], y + u * plane, each);
    }
  });
}

template <bool fused> void Reference(Context &c) {
  if (!fused) copy_statistics(c);
  if (c.input(0).size() == 0) return;
  const int64_t channels = c.input(3).size(), each = inner<fused>(c), size = c.input(0).size();
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(0).data<T>();
    T *y = c.output(0).data<T>();
    by_channel(c, channels, [&](int64_t channel, double mean, double scale, double bias) {
      for (int64_t row = channel * each; row < size; row += channels * each)
        for (int64_t i = row; i < row + each; ++i) y[i] = T(float((double(float(x[i])) - mean) * scale + bias));
    });
  });
}

}  // namespace
}  // namespace opgraft

#define OPGRAFT_BATCH_NORM(Name, results, shapes, fused)                                                            \
  OPGRAFT_OP(Name, .inputs = 5, .outputs = results, .infer = ::opgraft::shapes, .kernel = ::opgraft::Kernel<fused>, \
             .reference = ::opgraft::Reference<fused>, .workspace = ::opgraft::Workspace)
OPGRAFT_BATCH_NORM(BatchNorm, 5, Infer, false)
OPGRAFT_BATCH_NORM(FusedBatchNormInference, 1, InferFused, true)
#endif
