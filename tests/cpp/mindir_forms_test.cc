// Primitives in a file that become nodes of other operators: variances, mint's log_softmax and topk, pools with places.
#include <cmath>

#include "engine_test_util.h"
#include "mindir_file_util.h"

namespace opgraft {
namespace {
using namespace test;

struct MindirForms : MindirMindSpore {
  void form(const std::string &op, Shape dims, const std::vector<std::string> &rest,
            const std::vector<std::string> &attributes = {}) {
    f.input("x", dims);
    for (int64_t n : {-1, 0, 1, 2, 3, 5, 43}) f.constant("n" + std::to_string(n), attr("value", kAttrInt64, n));
    f.constant("yes", attr("value", kAttrBool, 1));
    f.constant("no", attr("value", kAttrBool, 0));
    f.constant("none", attr("value", kAttrNone));
    f.constant("last", tuple_attr("value", {-1}));
    std::vector<std::string> operands{"x"};
    operands.insert(operands.end(), rest.begin(), rest.end());
    f.node("y", op, operands, attributes);
    f.output("y");
  }
  static constexpr int kAttrNone = 25;
};

TEST_F(MindirForms, Variance) {
  form("Var", {2, 4}, {"last", "n0", "yes"});
  EXPECT_EQ(ops(), (Ops{"ReduceStd", "Square"}));
  const auto y = run({floats({2, 4})});
  ASSERT_EQ(y.size(), 1u);
  EXPECT_EQ(y[0].dims(), (Shape{2, 1}));
  EXPECT_NEAR(y[0].data<float>()[0], 0.078125f, 1e-6f);  // of 0, 0.25, 0.5, 0.75
}

TEST_F(MindirForms, AVarianceOfAllHasOneElementLess) {
  form("Var", {4}, {"none"});
  EXPECT_NEAR(run({floats({4})}).at(0).data<float>()[0], 0.078125f * 4 / 3, 1e-6f);
}

TEST_F(MindirForms, DeviationAndMean) {
  form("StdMean", {2, 4}, {"last", "n1", "no"});
  const auto y = run({floats({2, 4})});
  ASSERT_EQ(y.size(), 2u);
  EXPECT_NEAR(y[0].data<float>()[1], std::sqrt(0.078125f * 4 / 3), 1e-6f);
  EXPECT_FLOAT_EQ(y[1].data<float>()[1], 1.375f);
}

TEST_F(MindirForms, AnotherCorrectionIsRefused) {
  form("Std", {4}, {"last", "n2", "no"});
  expect_error({"'Default/y' (Std)", "correction must be 0 or 1, got 2"});
}

TEST_F(MindirForms, AComputedAxisIsRefused) {
  form("Std", {4}, {"x"});
  expect_error({"(Std)", "operand 1 must be a constant tuple of int"});
}

TEST_F(MindirForms, LogSoftmax) {
  form("LogSoftmaxExt", {2, 4}, {"n-1", "none"});
  EXPECT_EQ(ops(), Ops{"LogSoftmax"});
}

TEST_F(MindirForms, LogSoftmaxOfAnotherDtype) {
  form("LogSoftmaxExt", {2, 4}, {"n0", "n43"});
  EXPECT_EQ(ops(), (Ops{"Cast", "LogSoftmax"}));
}

// MindSpore has a rule for it.
TEST_F(MindirForms, LogSoftmaxOfTheDimensionThatTheRankDecides) {
  form("LogSoftmaxExt", {2, 1, 3}, {"none"});
  f.node("z", "LogSoftmaxExt", {"x"});
  f.output("z");
  for (const Tensor &y : run({floats({2, 1, 3})}))
    EXPECT_NEAR(std::exp(*y.data<float>()), 1 / (1 + std::exp(0.75)), 1e-6);
}

TEST_F(MindirForms, TheSmallestOfAnotherDimension) {
  form("TopkExt", {3, 2}, {"n2", "n0", "no", "yes"});
  EXPECT_EQ(ops(), (Ops{"Transpose", "Neg", "TopK", "Neg", "Cast", "Transpose", "Transpose"}));
  const auto y = run({floats({3, 2})});
  ASSERT_EQ(y.size(), 2u);
  EXPECT_EQ(y[0].dims(), (Shape{2, 2}));
  EXPECT_EQ(y[1].dtype(), OPGRAFT_INT64);
  EXPECT_EQ(y[0].data<float>()[2], 0.5f);
  EXPECT_EQ(y[1].data<int64_t>()[2], 1);
}

TEST_F(MindirForms, TheLargestOfTheLastDimension) {
  form("TopkExt", {3, 4}, {"n2"});
  EXPECT_EQ(ops(), (Ops{"TopK", "Cast"}));
}

TEST_F(MindirForms, TheLargestOfANumberAreRefused) {
  form("TopkExt", {}, {"n1"});
  expect_error({"(TopkExt)", "x must have at least 1 dimension"});
}

TEST_F(MindirForms, PoolWithPlaces) {
  const auto four = [](const char *name, int64_t v) { return tuple_attr(name, {1, 1, v, v}); };
  form("MaxPoolWithArgmaxV2", {1, 1, 4, 4}, {},
       {four("kernel_size", 2), four("strides", 2), four("pads", 0), four("dilation", 1),
        attr("argmax_type", kAttrInt64, 3)});
  const auto y = run({floats({1, 1, 4, 4})});
  ASSERT_EQ(y.size(), 2u);
  EXPECT_EQ(y[0].dims(), (Shape{1, 1, 2, 2}));
  EXPECT_EQ(y[1].dtype(), OPGRAFT_INT32);
  EXPECT_EQ(y[1].data<int32_t>()[1], 7);
}

TEST_F(MindirForms, WhatNobodyReadsIsLeftOut) {
  const auto four = [](const char *name, int64_t v) { return tuple_attr(name, {1, 1, v, v}); };
  f.input("x", {1, 1, 4, 4});
  f.constant("zero", attr("value", kAttrInt64, 0));
  f.node("pool", "MaxPoolWithArgmaxV2", {"x"},
         {four("kernel_size", 2), four("strides", 2), four("pads", 0), four("dilation", 1),
          attr("argmax_type", kAttrInt64, 3)});
  f.node("y", "TupleGetItem", {"pool", "zero"});
  f.output("y");
  EXPECT_EQ(ops(), (Ops{"ExpandDims", "MaxPool3DWithArgmax", "Squeeze"}));
  EXPECT_EQ(run({floats({1, 1, 4, 4})}).size(), 1u);
}

TEST_F(MindirForms, APoolWithoutSizesIsRefused) {
  form("MaxPoolWithArgmaxV2", {1, 1, 4, 4}, {});
  expect_error({"(MaxPoolWithArgmaxV2)", "attribute kernel_size must be a tuple of int"});
}

TEST_F(MindirForms, APoolOfThreeNumbersIsRefused) {
  form("MaxPoolWithArgmaxV2", {1, 1, 4, 4}, {}, {tuple_attr("kernel_size", {1, 2, 3})});
  expect_error({"(MaxPoolWithArgmaxV2)", "attribute kernel_size must be 1, 2 or 4 numbers, got 3"});
}

TEST_F(MindirForms, APoolOfPlacesOfAnotherDtypeIsRefused) {
  form("MaxPoolWithArgmaxV2", {1, 1, 4, 4}, {}, {attr("argmax_type", kAttrInt64, 5)});
  expect_error({"(MaxPoolWithArgmaxV2)", "argmax_type must be 3 or 4, int32 or int64, got 5"});
}

TEST_F(MindirForms, OperandsTooManyAreRefused) {
  form("LogSoftmaxExt", {4}, {"n0", "none", "n0"});
  expect_error({"(LogSoftmaxExt)", "takes 1 to 3 operands, got 4"});
}

}  // namespace
}  // namespace opgraft
