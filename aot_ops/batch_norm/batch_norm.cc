// BatchNorm in inference: y = (x - mean) / sqrt(variance + epsilon) * scale + bias by channel, axis 1 (Ioffe and
// Szegedy 2015). The other four outputs are mean and variance, twice, as MindSpore documents them.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

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

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(Normalise)

namespace {

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_dtype(1, "scale", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  auto x = c.input(0).shape();
  c.check(x.size() >= 2, "x must have at least 2 dimensions, got shape " + to_string(x));
  const char *names[] = {"x", "scale", "bias", "mean", "variance"};
  for (int i = 1; i < 5; ++i) {
    if (i > 1) c.check_same_dtype(i, names[i], 1, "scale");
    auto s = c.input(i).shape();
    c.check(s.size() == 1 && may_equal(s[0], x[1]),
            std::string(names[i]) + ".shape must be " + to_string(x.subspan(1, 1)) + ", got " + to_string(s));
  }
  c.check(!c.attr_bool("is_training", false), "is_training must be false: opgraft runs inference", OPGRAFT_UNSUPPORTED);
  for (const char *name : {"data_format", "format"})
    c.check(c.attr_string(name, "NCHW") == "NCHW",
            std::string(name) + " must be NCHW, got '" + c.attr_string(name, "") + "'", OPGRAFT_UNSUPPORTED);
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

void Kernel(Context &c) {
  copy_statistics(c);
  const int64_t channels = c.input(1).dim(0), inner = element_count(c.input(0).shape().subspan(2));
  if (c.input(0).size() == 0) return;
  const int64_t bytes = inner * int64_t(dtype_size(c.input(0).dtype()));
  const auto normalise = Normalise_simd(c.input(0).dtype());
  c.parallel_for(c.input(0).dim(0) * channels, std::max<int64_t>(1, 8192 / inner), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u)
      by_channel(c, u % channels, [&](double mean, double scale, double bias) {
        normalise(c.input(0).data<char>() + u * bytes, float(mean), float(scale), float(bias),
                  c.output(0).data<char>() + u * bytes, inner);
      });
  });
}

void Reference(Context &c) {
  copy_statistics(c);
  const int64_t channels = c.input(1).dim(0), inner = element_count(c.input(0).shape().subspan(2));
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < c.input(0).size(); ++i)
      by_channel(c, i / inner % channels, [&](double mean, double scale, double bias) {
        c.output(0).data<T>()[i] = T(float((double(float(c.input(0).data<T>()[i])) - mean) * scale + bias));
      });
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(BatchNorm, .inputs = 5, .outputs = 5, .infer = Infer, .kernel = Kernel, .reference = Reference)
#endif
