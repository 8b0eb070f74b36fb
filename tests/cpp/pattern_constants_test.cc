// Conditions on what a constant holds: a triangle, a table of 0 and 1, and the number beside it.
#include <gtest/gtest.h>

#include <cmath>

#include "engine_test_util.h"
#include "infer/passes/pattern.h"

namespace opgraft {
namespace {
using namespace test;
using namespace passes;

class PatternConstants : public testing::Test {
 protected:
  template <class T> Value constant(const Shape &dims, const std::vector<float> &x, bool parameter = false) {
    Tensor t(kDtype<T>, dims);
    for (size_t i = 0; i < x.size(); ++i) t.data<T>()[i] = T(x[i]);
    return g.value(g.add_constant(t, "", parameter));
  }
  Value bools_of(const Shape &dims, const std::vector<int> &x) {
    Tensor t(OPGRAFT_BOOL, dims);
    for (size_t i = 0; i < x.size(); ++i) t.data<uint8_t>()[i] = uint8_t(x[i]);
    return g.value(g.add_constant(t));
  }
  template <class T> static constexpr int32_t kDtype = std::is_same_v<T, float>     ? OPGRAFT_FLOAT32
                                                       : std::is_same_v<T, float16> ? OPGRAFT_FLOAT16
                                                                                    : OPGRAFT_BFLOAT16;
  Graph g{"constants"};
};

// Two queries of three keys: the first sees two of them.
const std::vector<float> kAdded{0, 0, -1e4f, 0, 0, 0};
const std::vector<int> kSeen{1, 1, 0, 1, 1, 1}, kHidden{0, 0, 1, 0, 0, 0};

TEST_F(PatternConstants, AMaskThatIsAdded) {
  EXPECT_TRUE(causal(constant<float>({2, 3}, kAdded)));
  EXPECT_TRUE(causal(constant<float16>({1, 1, 2, 3}, kAdded)));
  EXPECT_TRUE(causal(constant<bfloat16>({2, 3}, kAdded)));  // which holds -9984
  EXPECT_FALSE(causal(constant<float>({2, 3}, kAdded, true)));
  EXPECT_FALSE(causal(constant<float>({3, 2}, kAdded)));
  EXPECT_FALSE(causal(constant<float>({2, 3}, {0, 0, -1e3f, 0, 0, 0})));
  EXPECT_FALSE(causal(constant<float>({2, 3}, {0, -1e4f, -1e4f, 0, 0, 0})));
  EXPECT_FALSE(causal(bools_of({2, 3}, kHidden)));
}

// One row may be that of all queries: then each sees all keys.
TEST_F(PatternConstants, ARowIsNoTriangle) {
  EXPECT_FALSE(causal(constant<float>({1, 3}, {0, 0, 0})));
  EXPECT_FALSE(causal(bools_of({1, 3}, {1, 1, 1}), true, -INFINITY));
}

TEST_F(PatternConstants, AMaskOfBools) {
  for (const double fill : {double(-INFINITY), -1e9, -1e4, -9984.0}) {
    EXPECT_TRUE(causal(bools_of({2, 3}, kSeen), true, fill));
    EXPECT_TRUE(causal(bools_of({1, 2, 3}, kHidden), false, fill));
    EXPECT_FALSE(causal(bools_of({2, 3}, kSeen), false, fill));
    EXPECT_FALSE(causal(bools_of({2, 3}, kHidden), true, fill));
    EXPECT_FALSE(causal(bools_of({2, 3}, {1, 0, 0, 1, 1, 1}), true, fill));
  }
  for (const double fill : {-100.0, 0.0, 1e4, double(NAN)})
    EXPECT_FALSE(causal(bools_of({2, 3}, kSeen), true, fill)) << fill;
  EXPECT_FALSE(causal(constant<float>({2, 3}, {1, 1, 0, 1, 1, 1}), true, -INFINITY));
}

TEST_F(PatternConstants, ATableOfZeroAndOne) {
  const Tensor got = bools(constant<float16>({2, 3}, {1, 0, 0, 0, 1, 1}));
  ASSERT_EQ(got.dims(), (Shape{2, 3}));
  ASSERT_EQ(got.dtype(), OPGRAFT_BOOL);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(got.data<uint8_t>()[i], i == 0 || i > 3) << i;
  EXPECT_FALSE(bool(bools(constant<float>({2}, {1, 0.5f}))));
  EXPECT_FALSE(bool(bools(constant<float>({2}, {1, -1}))));
  EXPECT_FALSE(bool(bools(constant<float>({2}, {1, NAN}))));
  EXPECT_FALSE(bool(bools(constant<float>({2}, {1, 0}, true))));
  EXPECT_FALSE(bool(bools(g.value(g.add_input("b", {OPGRAFT_FLOAT32, {2}, true})))));
}

TEST_F(PatternConstants, TheNumberWhereATableIsZero) {
  const Value b = constant<float>({4}, {1, 0, 0, 1});
  EXPECT_EQ(off(constant<float>({4}, {0, 1e4f, 1e4f, 0}), b), 1e4);
  EXPECT_EQ(off(constant<float>({4}, {0, -7, -7, 0}), b), -7.0);
  EXPECT_EQ(off(constant<float>({2}, {0, 0}), constant<float>({2}, {1, 1})), 0.0);
  EXPECT_FALSE(off(constant<float>({4}, {0, 1e4f, 1e3f, 0}), b));
  EXPECT_FALSE(off(constant<float>({4}, {0, 1e4f, 0, 0}), b));
  EXPECT_FALSE(off(constant<float>({4}, {0, 0, 1e4f, 0}), b));
  EXPECT_FALSE(off(constant<float>({4}, {0, 1e4f, 1e4f, 1}), b));
  EXPECT_FALSE(off(constant<float>({4}, {0, INFINITY, INFINITY, 0}), b));
  EXPECT_FALSE(off(constant<float>({4}, {0, 1e4f, 1e4f, 0}, true), b));
  EXPECT_FALSE(off(constant<float>({1, 4}, {0, 1e4f, 1e4f, 0}), b));
  EXPECT_FALSE(off(b, constant<float>({4}, {1, 2, 2, 1})));
}

}  // namespace
}  // namespace opgraft
