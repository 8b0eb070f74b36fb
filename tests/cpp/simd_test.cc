// What simd.h adds to Highway, on every target of this machine: narrowing of floats against the table of
// all values of the format, and integer dot products against a scalar loop. And stores past the caches.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <ostream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd_test.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/stream-inl.h"
// clang-format on

#ifndef OPGRAFT_SIMD_TEST_ONCE_
#define OPGRAFT_SIMD_TEST_ONCE_
namespace opgraft {
// The functions of one target that are tested.
struct SimdFunctions {
  const char *name;
  void (*widen_f16)(const float16 *, float *, size_t);
  void (*widen_bf16)(const bfloat16 *, float *, size_t);
  void (*narrow_f16)(const float *, float16 *, size_t);
  void (*narrow_bf16)(const float *, bfloat16 *, size_t);
  int32_t (*dot_u8)(bool vnni, const uint8_t *, const int8_t *, size_t);
  int32_t (*dot_i8)(bool vnni, const int8_t *, const int8_t *, size_t);
  // One vector: acc[i] += a[4i..4i+3] b[4i..4i+3]; returns its number of 32-bit lanes.
  size_t (*add_u8)(bool vnni, const uint8_t *, const int8_t *, int32_t *acc);
  size_t (*add_i8)(bool vnni, const int8_t *, const int8_t *, int32_t *acc);
  void (*stream)(const float *, float *, int64_t);
};
inline void PrintTo(const SimdFunctions &f, std::ostream *out) { *out << f.name; }
}  // namespace opgraft
#endif

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class From, class To> void Convert(const From *x, To *y, size_t n) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreF32(LoadF32(d, x + i), d, y + i);
  if (n > i) StoreF32N(LoadF32N(d, x + i, n - i), d, y + i, n - i);
}
template <class A> int32_t DotOf(bool vnni, const A *a, const int8_t *b, size_t n) {
#if HWY_TARGET == HWY_AVX3
  if (vnni) return DotRow<true>(a, b, n);
#endif
  return vnni ? Dot(a, b, n) : DotRow<false>(a, b, n);
}
template <class A> size_t AddOf(bool vnni, const A *a, const int8_t *b, int32_t *acc) {
  const hn::ScalableTag<int32_t> d;
  const auto va = hn::LoadU(hn::Repartition<A, decltype(d)>(), a);
  const auto vb = hn::LoadU(hn::Repartition<int8_t, decltype(d)>(), b);
  const auto old = hn::LoadU(d, acc);
  auto sum = DotAdd(d, va, vb, old);
#if HWY_TARGET == HWY_AVX3
  if (vnni) sum = DotAdd<true>(d, va, vb, old);
#else
  (void)vnni;
#endif
  hn::StoreU(sum, d, acc);
  return hn::Lanes(d);
}

void StreamCopy(const float *x, float *y, int64_t n) {
  const hn::ScalableTag<float> d;
  StreamAll(
      d, y, n, [&](int64_t i) HWY_ATTR { return LoadF32(d, x + i); },
      [&](int64_t i, size_t k) HWY_ATTR { return LoadF32N(d, x + i, k); });
}

SimdFunctions Functions() {
  return {hwy::TargetName(HWY_TARGET),
          Convert<float16, float>,
          Convert<bfloat16, float>,
          Convert<float, float16>,
          Convert<float, bfloat16>,
          DotOf<uint8_t>,
          DotOf<int8_t>,
          AddOf<uint8_t>,
          AddOf<int8_t>,
          StreamCopy};
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
namespace {

std::vector<SimdFunctions> machine_targets() {
#ifdef OPGRAFT_ONE_TARGET
  return {HWY_STATIC_DISPATCH(Functions)()};
#else
  std::vector<SimdFunctions> all = {N_SSE4::Functions()};
  if (simd::machine_target() >= simd::kAvx2) all.push_back(N_AVX2::Functions());
  if (simd::machine_target() >= simd::kAvx3) all.push_back(N_AVX3::Functions());
  return all;
#endif
}

class Simd : public testing::TestWithParam<SimdFunctions> {
 protected:
  bool avx3() const { return std::string(GetParam().name) == "AVX3"; }
  // Which ways of the dot product this target and this machine have.
  std::vector<bool> ways() const {
    if (avx3() && __builtin_cpu_supports("avx512vnni")) return {false, true};
    return {false};
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, Simd, testing::ValuesIn(machine_targets()),
                         [](auto &info) { return std::string(info.param.name); });

// A 16-bit float format as IEEE 754 defines it: its values in order, decoded without our conversions.
struct Format {
  int mantissa, bias;
  std::vector<double> values;  // of the patterns 0 .. first inf - 1, which ascend

  Format(int mantissa_bits, int exponent_bits) : mantissa(mantissa_bits), bias((1 << (exponent_bits - 1)) - 1) {
    const int one = 1 << mantissa, inf = ((1 << exponent_bits) - 1) << mantissa;
    for (int bits = 0; bits < inf; ++bits) {
      const int e = bits >> mantissa, m = bits & (one - 1);
      values.push_back(e ? std::ldexp(one + m, e - bias - mantissa) : std::ldexp(m, 1 - bias - mantissa));
    }
  }
  uint16_t inf() const { return uint16_t(values.size()); }
  double value(uint16_t bits) const {
    const uint16_t a = bits & 0x7fff;
    const double v = a < inf() ? values[a] : a == inf() ? HUGE_VAL : std::nan("");
    return bits & 0x8000 ? -v : v;
  }
  // The nearest value, on a tie the one with an even pattern; from half a step beyond the last on, inf.
  uint16_t nearest(float f) const {
    const uint16_t sign = std::signbit(f) ? 0x8000 : 0;
    const double a = std::fabs(double(f));
    const double past = values.back() + (values.back() - values[values.size() - 2]);
    const auto at = size_t(std::lower_bound(values.begin(), values.end(), a) - values.begin());  // first >= a
    const double high = at < values.size() ? values[at] : past;
    if (high == a || at == 0) return uint16_t(sign | at);
    if (a >= past) return uint16_t(sign | inf());
    const double below = a - values[at - 1], above = high - a;
    return uint16_t(sign | (below < above || (below == above && at % 2 == 1) ? at - 1 : at));
  }
};
const Format kHalf(10, 5), kBrain(7, 8);

// Every value of the format, every midpoint and its two neighbours in float32, all powers of two, and
// random bits of float32: subnormals, overflow, infinities and NaNs are among them.
std::vector<float> floats_around(const Format &format) {
  std::vector<float> all;
  for (size_t i = 0; i < format.values.size(); ++i) {
    const double next =
        i + 1 < format.values.size() ? format.values[i + 1] : 2 * format.values[i] - format.values[i - 1];
    const float middle = float((format.values[i] + next) / 2);
    for (float f : {float(format.values[i]), std::nextafter(middle, 0.0f), middle, std::nextafter(middle, HUGE_VALF)})
      all.insert(all.end(), {f, -f});
  }
  for (int e = -149; e < 128; ++e) all.insert(all.end(), {std::ldexp(1.0f, e), -std::ldexp(1.0f, e)});
  for (uint32_t bits : {0x7f800000u, 0xff800000u, 0x7f800001u, 0xffbfffffu, 0x7fc00000u, 0xffffffffu, 0x7f7fffffu})
    all.push_back(std::bit_cast<float>(bits));
  std::mt19937 random(1);
  for (int i = 0; i < 1000000; ++i) all.push_back(std::bit_cast<float>(uint32_t(random())));
  return all;
}

template <class T> void narrows(const Format &format, void (*narrow)(const float *, T *, size_t)) {
  const auto x = floats_around(format);
  std::vector<T> y(x.size());
  narrow(x.data(), y.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) ASSERT_GT(y[i].bits & 0x7fff, format.inf()) << std::bit_cast<uint32_t>(x[i]);
    else ASSERT_EQ(y[i].bits, format.nearest(x[i])) << x[i];
    ASSERT_EQ(bool(y[i].bits & 0x8000), std::signbit(x[i])) << x[i];
    const T scalar(x[i]);
    ASSERT_EQ(y[i].bits, scalar.bits) << x[i] << ": not as half.h";
  }
}
TEST_P(Simd, NarrowsToFloat16) { narrows(kHalf, GetParam().narrow_f16); }
TEST_P(Simd, NarrowsToBFloat16) { narrows(kBrain, GetParam().narrow_bf16); }

template <class T> void widens(const Format &format, void (*widen)(const T *, float *, size_t)) {
  std::vector<T> x(65536);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i].bits = uint16_t(i);
  widen(x.data(), y.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = format.value(uint16_t(i));
    if (std::isnan(want)) ASSERT_TRUE(std::isnan(y[i]) && std::isnan(float(x[i]))) << i;
    else ASSERT_TRUE(double(y[i]) == want && float(x[i]) == y[i]) << i << ": " << y[i] << " for " << want;
    ASSERT_EQ(std::signbit(y[i]), i >= 0x8000) << i;
  }
}
TEST_P(Simd, WidensEveryFloat16) { widens(kHalf, GetParam().widen_f16); }
TEST_P(Simd, WidensEveryBFloat16) { widens(kBrain, GetParam().widen_bf16); }

TEST_P(Simd, PartOfAVectorTouchesNothingElse) {
  for (size_t n = 0; n < 20; ++n) {
    std::vector<float> x(n), back(n + 17, -7.0f);  // exactly n: a sanitizer sees a read beyond
    for (size_t i = 0; i < n; ++i) x[i] = float(i) + 1.5f;
    std::vector<bfloat16> b(n + 17, bfloat16(-7.0f));
    std::vector<float16> h(n + 17, float16(-7.0f));
    GetParam().narrow_bf16(x.data(), b.data(), n);
    GetParam().narrow_f16(x.data(), h.data(), n);
    for (size_t i = 0; i < n + 17; ++i) {
      ASSERT_EQ(float(b[i]), i < n ? float(i) + 1.5f : -7.0f) << n;
      ASSERT_EQ(float(h[i]), i < n ? float(i) + 1.5f : -7.0f) << n;
    }
    b.resize(n), b.shrink_to_fit();
    h.resize(n), h.shrink_to_fit();
    const auto returns = [&](auto widen, const auto &from) {
      std::fill(back.begin(), back.end(), -7.0f);
      widen(from.data(), back.data(), n);
      for (size_t i = 0; i < n + 17; ++i) ASSERT_EQ(back[i], i < n ? x[i] : -7.0f) << n;
    };
    returns(GetParam().widen_bf16, b);
    returns(GetParam().widen_f16, h);
  }
}

template <class A> int32_t scalar_dot(const std::vector<A> &a, const std::vector<int8_t> &b) {
  int64_t sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += int64_t(a[i]) * int64_t(b[i]);
  return int32_t(uint32_t(uint64_t(sum)));
}
template <class A> void dots(int32_t (*dot)(bool, const A *, const int8_t *, size_t), bool vnni) {
  using Limits = std::numeric_limits<A>;
  // The extremes; 255 * -128 twice is what pmaddubsw saturates at, 70,000 times what wraps 32 bits.
  for (size_t n : {1, 2, 4, 31, 64, 127, 128, 200, 70000, 150001})
    for (A x : {Limits::min(), Limits::max(), A(1)})
      for (int8_t y : {-128, -1, 127}) {
        const std::vector<A> a(n, x);
        const std::vector<int8_t> b(n, y);
        ASSERT_EQ(dot(vnni, a.data(), b.data(), n), scalar_dot(a, b)) << n << " times " << int(x) << " * " << int(y);
      }
  std::mt19937 random(2);
  for (size_t n = 0; n < 300; ++n) {
    std::vector<A> a(n);
    std::vector<int8_t> b(n);
    for (auto &v : a) v = A(random());
    for (auto &v : b) v = int8_t(random());
    ASSERT_EQ(dot(vnni, a.data(), b.data(), n), scalar_dot(a, b)) << n;
  }
}
TEST_P(Simd, DotOfUnsignedAndSigned) {
  for (bool vnni : ways()) dots(GetParam().dot_u8, vnni);
}
TEST_P(Simd, DotOfSigned) {
  for (bool vnni : ways()) dots(GetParam().dot_i8, vnni);
}

template <class A> void adds(size_t (*add)(bool, const A *, const int8_t *, int32_t *), bool vnni) {
  std::mt19937 random(3);
  for (int round = 0; round < 1000; ++round) {
    A a[64];
    int8_t b[64];
    int32_t acc[16], want[16];
    for (auto &v : a) v = round ? A(random()) : std::numeric_limits<A>::min();
    for (auto &v : b) v = round ? int8_t(random()) : int8_t(-128);
    for (int i = 0; i < 16; ++i) {
      acc[i] = int32_t(random());
      uint32_t sum = uint32_t(acc[i]);
      for (int j = 4 * i; j < 4 * i + 4; ++j) sum += uint32_t(int32_t(a[j]) * int32_t(b[j]));
      want[i] = int32_t(sum);
    }
    const size_t lanes = add(vnni, a, b, acc);
    for (size_t i = 0; i < lanes; ++i) ASSERT_EQ(acc[i], want[i]) << "lane " << i;
  }
}
TEST_P(Simd, DotAddsFourProductsPerLane) {
  for (bool vnni : ways()) {
    adds(GetParam().add_u8, vnni);
    adds(GetParam().add_i8, vnni);
  }
}

TEST_P(Simd, AStreamWritesItsElementsAndNoOthers) {
  for (int64_t n = 0; n < 70; ++n)
    for (int64_t offset = 0; offset < 20; ++offset) {
      std::vector<float> x(size_t(n + 7)), y(size_t(n + 40), -1.0f);
      for (size_t i = 0; i < x.size(); ++i) x[i] = float(i);
      GetParam().stream(x.data() + 7, y.data() + offset, n);
      for (int64_t i = 0; i < int64_t(y.size()); ++i) {
        const bool inside = i >= offset && i < offset + n;
        ASSERT_EQ(y[size_t(i)], inside ? float(i - offset + 7) : -1.0f) << n << " from " << offset << ": " << i;
      }
    }
}

// The choice is made once a process, so each one is looked at in a process of its own.
TEST(SimdTargetDeathTest, TheEnvironmentLowersTheChoice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::pair<const char *, int> wanted[] = {
      {"SSE4", simd::kSse4}, {"AVX2", simd::kAvx2}, {"AVX3", simd::kAvx3}, {"AMX", simd::kAvx3}};
  for (auto [name, target] : wanted) {
    const int expected = std::min(target, simd::machine_target());
    EXPECT_EXIT((setenv("OPGRAFT_SIMD", name, 1), std::_Exit(simd::target())), testing::ExitedWithCode(expected), "");
  }
  EXPECT_EXIT((unsetenv("OPGRAFT_SIMD"), std::_Exit(simd::target())), testing::ExitedWithCode(simd::machine_target()),
              "");
}

TEST(SimdTargetDeathTest, AmxIsUsedWhereNothingHoldsToLess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char *name : {"SSE4", "AVX2", "AVX3"})
    EXPECT_EXIT((setenv("OPGRAFT_SIMD", name, 1), std::_Exit(simd::amx())), testing::ExitedWithCode(0), "") << name;
  std::string flags, line;
  for (std::ifstream cpu("/proc/cpuinfo"); std::getline(cpu, line) && flags.empty();)
    if (line.starts_with("flags")) flags = line + " ";
  const bool machine = simd::machine_target() == simd::kAvx3 && flags.find(" amx_tile ") != std::string::npos &&
                       flags.find(" amx_int8 ") != std::string::npos && flags.find(" amx_bf16 ") != std::string::npos;
  for (const char *name : {"AMX", ""})
    EXPECT_EXIT((setenv("OPGRAFT_SIMD", name, 1), std::_Exit(simd::amx())), testing::ExitedWithCode(machine), "");
}

TEST(SimdTargetDeathTest, ANameThatIsNoTargetIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ask = [] {
    setenv("OPGRAFT_SIMD", "AVX512", 1);
    try {
      simd::target();
    } catch (const std::invalid_argument &e) {
      std::fputs(e.what(), stderr);
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(ask(), testing::ExitedWithCode(3), "OPGRAFT_SIMD must be one of SSE4, AVX2, AVX3, AMX, got 'AVX512'");
}

}  // namespace
}  // namespace opgraft
#endif
