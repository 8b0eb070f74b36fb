// BatchNorm in inference: y = (x - mean) / sqrt(variance + epsilon) * scale + bias by channel, axis 1 or the last
// (Ioffe and Szegedy 2015). The other four outputs are mean and variance, twice, as MindSpore documents them.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#include "aot_ops/common/scratch.h"
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

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_dtype(1, "scale", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  auto x = c.input(0).shape();
  c.check(x.size() >= 2, "x must have at least 2 dimensions, got shape ", x);
  const size_t axis = channels_last(c) ? x.size() - 1 : 1;
  const char *names[] = {"x", "scale", "bias", "mean", "variance"};
  for (int i = 1; i < 5; ++i) {
    if (i > 1) c.check_same_dtype(i, names[i], 1, "scale");
    auto s = c.input(i).shape();
    c.check(s.size() == 1 && may_equal(s[0], x[axis]), names[i], ".shape must be ", x.subspan(axis, 1), ", got ", s);
  }
  if (c.attr_bool("is_training", false))
    c.fail(OPGRAFT_UNSUPPORTED, "is_training must be false: opgraft runs inference");
  c.output(c.input(0).dtype(), x);
  for (int i = 0; i < 4; ++i) c.output(c.input(1).dtype(), c.input(1).shape());
}

// body(mean, scale, bias) of a channel, in double.
template <class Body> void by_channel(const Context &c, int64_t channel, const Body &body) {
  dispatch<float, float16, bfloat16>(c, c.input(1).dtype(), [&](auto zero) {
    using T = decltype(zero);
    auto at = [&](int i) { return double(float(c.input(i).data<T>()[channel])); };
    body(at(3), at(1) / std::sqrt(at(4) + c.attr_float("epsilon", 1e-5)), at(2));
  });
}

void copy_statistics(const Context &c) {
  const size_t bytes = size_t(c.input(1).size()) * dtype_size(c.input(1).dtype());
  for (int i = 1; bytes && i < 5; ++i) std::memcpy(c.output(i).raw(), c.input(i % 2 ? 3 : 4).raw(), bytes);
}

// Elements of x from one channel to the next.
int64_t inner(const Context &c) { return channels_last(c) ? 1 : element_count(c.input(0).shape().subspan(2)); }

uint64_t Workspace(InferContext &c) { return 3 * sizeof(float) * uint64_t(std::max<int64_t>(0, c.input(1).size())); }

void Kernel(Context &c) {
  copy_statistics(c);
  const int64_t channels = c.input(1).dim(0), each = inner(c), size = c.input(0).size();
  if (size == 0) return;
  Scratch<float> scratch(c, size_t(3 * channels));
  float *means = scratch.get(), *scales = means + channels, *biases = scales + channels;
  for (int64_t i = 0; i < channels; ++i)
    by_channel(c, i, [&](double mean, double scale, double bias) {
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

void Reference(Context &c) {
  copy_statistics(c);
  const int64_t channels = c.input(1).dim(0), each = inner(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < c.input(0).size(); ++i)
      by_channel(c, i / each % channels, [&](double mean, double scale, double bias) {
        c.output(0).data<T>()[i] = T(float((double(float(c.input(0).data<T>()[i])) - mean) * scale + bias));
      });
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(BatchNorm, .inputs = 5, .outputs = 5, .infer = Infer, .kernel = Kernel, .reference = Reference,
           .workspace = Workspace)
#endif
