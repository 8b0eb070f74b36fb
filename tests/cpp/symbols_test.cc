#include "infer/symbols.h"

#include "opgraft/abi.h"

#include <gtest/gtest.h>

namespace opgraft {
namespace {

TEST(Symbols, EqualExpressionsHaveEqualIds) {
  Symbols s;
  int64_t b = s.fresh("b"), t = s.fresh("t");
  EXPECT_LE(b, OPGRAFT_FIRST_SYMBOL);
  EXPECT_NE(b, t);
  EXPECT_EQ(s.op('*', b, t), s.op('*', t, b));
  EXPECT_EQ(s.op('*', s.op('+', b, 1), 2), s.op('+', s.op('*', 2, b), 2));
  EXPECT_EQ(s.op('-', s.op('+', b, t), t), b);
}

TEST(Symbols, DivisionIsExactOrUnknown) {
  Symbols s;
  int64_t b = s.fresh("b"), t = s.fresh("t");
  EXPECT_EQ(s.op('/', s.op('*', b, t), t), b);
  EXPECT_EQ(s.op('/', s.op('*', b, 384), 12), s.op('*', b, 32));
  EXPECT_EQ(s.op('/', b, 2), -1);
  EXPECT_EQ(s.op('/', b, b), 1);
  EXPECT_EQ(s.op('/', b, 0), -1);
}

TEST(Symbols, UnknownIsContagiousAndForeignIdsAreUnknown) {
  Symbols s;
  int64_t b = s.fresh("b");
  EXPECT_EQ(s.op('+', -1, b), -1);
  EXPECT_EQ(s.op('+', b, OPGRAFT_FIRST_SYMBOL - 1000), -1);
  EXPECT_EQ(s.text(OPGRAFT_FIRST_SYMBOL - 1000), "?");
}

TEST(Symbols, EvaluatesAndPrints) {
  Symbols s;
  int64_t b = s.fresh("b"), t = s.fresh("t");
  int64_t e = s.op('+', s.op('*', s.op('*', b, t), 3), 2);
  const int64_t bound[] = {2, 5};
  EXPECT_EQ(s.evaluate(e, bound), 32);
  EXPECT_EQ(s.evaluate(7, bound), 7);
  EXPECT_EQ(s.text(e), "2+3*b*t");
  EXPECT_EQ(s.op('*', INT64_MAX, 2), -1) << "overflow is unknown, not wrong";
}

}  // namespace
}  // namespace opgraft
