// Assign, AssignAdd, AssignSub: a variable gets a new value in place; the output is a copy of it. TensorMove: the copy
// alone.
#include "opgraft/op.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "assign.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/map-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// variable[i] += value[i], or -=, or by the one element of value.
template <class T> void Update(T *variable, const T *value, bool subtract, bool single, int64_t n) {
  const hn::ScalableTag<float> d;
  if (single) {
    const auto v = hn::Set(d, float(*value));
    if (subtract) Map([v](auto, auto a) HWY_ATTR { return hn::Sub(a, v); }, variable, n, variable);
    else Map([v](auto, auto a) HWY_ATTR { return hn::Add(a, v); }, variable, n, variable);
    return;
  }
  if (subtract) Map([](auto, auto a, auto b) HWY_ATTR { return hn::Sub(a, b); }, variable, n, variable, value);
  else Map([](auto, auto a, auto b) HWY_ATTR { return hn::Add(a, b); }, variable, n, variable, value);
}

void UpdateFloats(int dtype, void *variable, const void *value, bool subtract, bool single, int64_t begin, int64_t n) {
  auto run = [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    auto *v = static_cast<const T *>(value);
    Update(static_cast<T *>(variable) + begin, single ? v : v + begin, subtract, single, n);
  };
  if (dtype == OPGRAFT_FLOAT32) return run(0.0f);
  if (dtype == OPGRAFT_FLOAT16) return run(float16());
  return run(bfloat16());
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD(UpdateFloats)

namespace {

constexpr int64_t kChunk = 1 << 17;  // bytes, some 10 us

void InferAssign(InferContext &c) {
  auto variable = c.input(0).shape(), value = c.input(1).shape();
  c.check_same_dtype(1, "value", 0, "variable");
  bool same = variable.size() == value.size();
  for (size_t i = 0; same && i < value.size(); ++i) same = variable[i] == value[i] || variable[i] < 0 || value[i] < 0;
  c.check(same, "value.shape must equal variable.shape ", variable, ", got ", value);
  c.output(c.input(0).dtype(), variable);
}
void CheckNumbers(InferContext &c) {
  c.check_dtype(0, "variable", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT32, OPGRAFT_INT64});
}
void InferSum(InferContext &c) {
  CheckNumbers(c);
  InferAssign(c);
}
void InferScalar(InferContext &c) {
  CheckNumbers(c);
  c.check_same_dtype(1, "value", 0, "variable");
  c.check(c.input(1).rank() == 0, "value.shape must be (), got ", c.input(1).shape());
  c.output(c.input(0).dtype(), c.input(0).shape());
}
void InferMove(InferContext &c) { c.output(c.input(0).dtype(), c.input(0).shape()); }

int64_t bytes_of(const TensorView &t) { return t.size() * int64_t(dtype_size(t.dtype())); }

template <class F> void InBytes(Context &c, F &&f) {
  const int64_t bytes = bytes_of(c.output(0));
  c.parallel_for((bytes + kChunk - 1) / kChunk, 1, [&](int64_t begin, int64_t end) {
    f(begin * kChunk, size_t(std::min(bytes, end * kChunk) - begin * kChunk));
  });
}

void AssignKernel(Context &c) {
  auto *variable = static_cast<char *>(c.input(0).raw()), *y = static_cast<char *>(c.output(0).raw());
  auto *value = static_cast<const char *>(c.input(1).raw());
  c.touch(variable, uint64_t(bytes_of(c.output(0))));
  InBytes(c, [&](int64_t at, size_t n) {
    if (variable != value) std::memcpy(variable + at, value + at, n);
    std::memcpy(y + at, value + at, n);
  });
}

void Move(Context &c) {
  auto *x = static_cast<const char *>(c.input(0).raw());
  auto *y = static_cast<char *>(c.output(0).raw());
  InBytes(c, [&](int64_t at, size_t n) { std::memcpy(y + at, x + at, n); });
}

template <class T> void Scalars(T *variable, const T *value, bool subtract, bool single, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const T v = value[single ? 0 : i];
    if constexpr (std::is_integral_v<T>) {  // they wrap
      using U = std::make_unsigned_t<T>;
      variable[i] = T(subtract ? U(variable[i]) - U(v) : U(variable[i]) + U(v));
    } else {
      variable[i] = T(subtract ? float(variable[i]) - float(v) : float(variable[i]) + float(v));
    }
  }
}

template <bool kSubtract, bool kReference> void Sum(Context &c) {
  const TensorView variable = c.input(0), value = c.input(1);
  const bool single = value.rank() == 0;
  const auto floats = UpdateFloats_simd();
  const int64_t width = int64_t(dtype_size(variable.dtype()));
  c.touch(variable.raw(), uint64_t(bytes_of(variable)));
  auto rows = [&](int64_t at, size_t bytes) {
    const int64_t begin = at / width, n = int64_t(bytes) / width;
    dispatch<float, float16, bfloat16, int32_t, int64_t>(c, variable.dtype(), [&](auto zero) {
      using T = decltype(zero);
      if (!kReference && !std::is_integral_v<T>)
        return floats(variable.dtype(), variable.raw(), value.raw(), kSubtract, single, begin, n);
      const T *v = value.data<T>();
      Scalars(variable.data<T>() + begin, single ? v : v + begin, kSubtract, single, n);
    });
    std::memcpy(static_cast<char *>(c.output(0).raw()) + at, static_cast<const char *>(variable.raw()) + at, bytes);
  };
  InBytes(c, rows);
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Assign, .inputs = 2, .infer = InferAssign, .kernel = AssignKernel, .reference = AssignKernel)
OPGRAFT_OP(AssignAdd, .inputs = 2, .infer = InferSum, .kernel = Sum<false, false>, .reference = Sum<false, true>)
OPGRAFT_OP(AssignSub, .inputs = 2, .infer = InferSum, .kernel = Sum<true, false>, .reference = Sum<true, true>)
OPGRAFT_OP(AssignAddScalar, .inputs = 2, .infer = InferScalar, .kernel = Sum<false, false>,
           .reference = Sum<false, true>)
OPGRAFT_OP(AssignSubScalar, .inputs = 2, .infer = InferScalar, .kernel = Sum<true, false>, .reference = Sum<true, true>)
OPGRAFT_OP(TensorMove, .inputs = 1, .infer = InferMove, .kernel = Move, .reference = Move)
#endif
