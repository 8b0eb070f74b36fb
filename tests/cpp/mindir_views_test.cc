// mint's views in a file are nodes of the operators that patterns are made of; what cannot be one is refused.
#include <cstring>

#include "engine_test_util.h"
#include "infer/mindir_encode.h"
#include "mindir_file_util.h"

namespace opgraft {
namespace {
using namespace test;

struct MindirViews : MindirMindSpore {
  void number(const std::string &name, int64_t value) { f.constant(name, attr("value", kAttrInt64, value)); }
  void view(const std::string &op, Shape dims, const std::vector<std::string> &rest) {
    f.input("x", dims);
    for (int64_t n : {-4, -1, 0, 1, 2, 3, 5}) number("n" + std::to_string(n), n);
    f.constant("sizes", tuple_attr("value", {1, 3}));
    f.constant("u", attr("value", kAttrUmonad));
    std::vector<std::string> operands{"x"};
    operands.insert(operands.end(), rest.begin(), rest.end());
    operands.push_back("u");
    f.node("y", op, operands);
    f.output("y");
  }
  void expect_open_error(int64_t rows, const std::string &message) {
    try {
      run({floats({rows, 2})});
      ADD_FAILURE() << "ran";
    } catch (const std::exception &e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  }
};

TEST_F(MindirViews, Transpose) {
  view("TransposeExtView", {2, 3, 4}, {"n-1", "n0"});
  EXPECT_EQ(ops(), Ops{"Transpose"});
  EXPECT_EQ(run({floats({2, 3, 4})}).at(0).dims(), (Shape{4, 3, 2}));
}

TEST_F(MindirViews, EqualPartsAreSplit) {
  view("SplitTensorView", {3, 4}, {"n2", "n1"});
  EXPECT_EQ(ops(), Ops{"Split"});
  EXPECT_EQ(run({floats({3, 4})}).size(), 2u);
}

TEST_F(MindirViews, OnePartIsATupleToo) {
  view("SplitTensorView", {4}, {"n5", "n0"});
  f.node("first", "TupleGetItem", {"y", "n0"});
  EXPECT_EQ(run({floats({4})}).size(), 1u);
}

TEST_F(MindirViews, OtherPartsAreSlices) {
  view("SplitTensorView", {3, 4}, {"n3", "n-1"});
  EXPECT_EQ(ops(), (Ops{"Slice", "Slice"}));
  Tensor x = floats({3, 4});
  auto y = run({x});
  ASSERT_EQ(y.size(), 2u);
  EXPECT_EQ(y[1].dims(), (Shape{3, 1}));
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(y[1].data<float>()[i], x.data<float>()[i * 4 + 3]);
}

TEST_F(MindirViews, SizesOfAnOpenDimension) {
  view("SplitWithSizeView", {-1, 2}, {"sizes", "n0"});
  EXPECT_EQ(ops(), Ops{"SplitWithSize"});
  auto y = run({floats({4, 2})});
  ASSERT_EQ(y.size(), 2u);
  EXPECT_EQ(y[1].dims(), (Shape{3, 2}));
  expect_open_error(5, "SplitWithSize: split_size must add up to 5, dimension 0 of x, got (1, 3)");
}

TEST_F(MindirViews, MoreSizesOfAnOpenDimensionThanANodeGives) {
  f.input("x", {-1, 2});
  std::string many;
  pbf_writer w(many);
  w.add_string(1, "value");
  for (int64_t i = 0; i < 70; ++i) w.add_message(17, attr("", kAttrInt64, 2));
  w.add_int32(16, kAttrTuple);
  f.constant("sizes", many);
  f.constant("n0", attr("value", kAttrInt64, 0));
  f.node("y", "SplitWithSizeView", {"x", "sizes", "n0"});
  f.output("y");
  const Tensor x = floats({140, 2});
  auto y = run({x});
  ASSERT_EQ(y.size(), 70u);
  EXPECT_EQ(y[69].data<float>()[3], x.data<float>()[279]);
  expect_open_error(141, "SplitWithSize: split_size must add up to 141, dimension 0 of x, got (140,)");
}

TEST_F(MindirViews, Narrow) {
  view("NarrowView", {-1, 4}, {"n1", "n1", "n2"});
  EXPECT_EQ(run({floats({3, 4})}).at(0).dims(), (Shape{3, 2}));
}

// mint.tril, for which MindSpore's CPU has no kernel.
TEST_F(MindirViews, Tril) {
  view("TrilExt", {2, 3}, {"n-1"});
  EXPECT_EQ(ops(), Ops{"Tril"});
  const Tensor y = run({floats({2, 3}, 1)}).at(0);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y.data<float>()[i] != 0, i == 3);
}

TEST_F(MindirViews, AnAxisOutsideIsRefused) {
  view("TransposeExtView", {2, 3}, {"n0", "n2"});
  expect_error({"'Default/y' (TransposeExtView)", "axis 2 is outside the 2 dimensions of x"});
}

TEST_F(MindirViews, AnOpenNumberOfPartsIsRefused) {
  view("SplitTensorView", {-1}, {"n2", "n0"});
  expect_error({"(SplitTensorView)", "dimension 0 of x is open, so the number of parts is not known"});
}

TEST_F(MindirViews, PartsOfNoSizeAreRefused) {
  view("SplitTensorView", {4}, {"n0", "n0"});
  expect_error({"(SplitTensorView)", "parts must have a size of at least 1, got 0"});
}

TEST_F(MindirViews, PartsThatDoNotAddUpAreRefused) {
  view("SplitWithSizeView", {5}, {"sizes", "n0"});
  expect_error({"(SplitWithSizeView)", "the parts must add up to 5, dimension 0 of x"});
}

TEST_F(MindirViews, MorePartsThanATupleHoldsAreRefused) {
  view("SplitTensorView", {int64_t(1) << 40}, {"n1", "n0"});
  expect_error({"(SplitTensorView)", "1099511627776 parts are too many"});
}

// A few bytes a view, each as many nodes as it has parts.
TEST_F(MindirViews, ManyViewsOfManyPartsAreRefused) {
  view("SplitTensorView", {10000}, {"n1", "n0"});
  f.node("again", "SplitTensorView", {"x", "n1", "n0", "u"});
  expect_error({"'Default/again' (SplitTensorView)", "10000 parts are too many"});
}

TEST_F(MindirViews, ALengthBelowZeroIsRefused) {
  view("NarrowView", {4}, {"n0", "n1", "n-1"});
  expect_error({"(NarrowView)", "length must be at least 0, got -1"});
}

TEST_F(MindirViews, PartsBelowZeroAreRefused) {
  f.constant("odd", tuple_attr("value", {-1, 5}));
  view("SplitWithSizeView", {4}, {"odd", "n0"});
  expect_error({"(SplitWithSizeView)", "sizes of parts must be at least 0, and at most 2^40"});
}

TEST_F(MindirViews, AnOperandTooFewIsRefused) {
  view("NarrowView", {4}, {"n0", "n1"});
  expect_error({"(NarrowView)", "takes 4 operands, got 3"});
}

TEST_F(MindirViews, AComputedArgumentIsRefused) {
  view("SplitTensorView", {4}, {"x", "n0"});
  expect_error({"(SplitTensorView)", "operand 1 must be a constant int"});
}

// Before it wrote a tuple of one, opgraft wrote the tensor itself.
TEST_F(MindirViews, OneOutputThatIsATensorByItsAbstract) {
  const std::string axis = attr("axis", kAttrInt64, 0), parts = attr("output_num", kAttrInt64, 1);
  f.input("x", {4});
  f.raw_node("y", "Split", {"x"}, {axis, parts, mindir::encode_abstract({{OPGRAFT_FLOAT32, {4}, true}})});
  f.node("z", "Neg", {"y"});
  f.output("z");
  EXPECT_EQ(run({floats({4})}).at(0).dims(), (Shape{4}));
}

TEST_F(MindirViews, OneOutputThatIsATupleByItsAbstract) {
  const std::string axis = attr("axis", kAttrInt64, 0), parts = attr("output_num", kAttrInt64, 1);
  f.input("x", {4});
  number("zero", 0);
  number("one", 1);
  f.raw_node("y", "Split", {"x"}, {axis, parts, mindir::encode_tuple({{OPGRAFT_FLOAT32, {4}, true}})});
  f.node("z", "TupleGetItem", {"y", "zero"});
  f.output("z");
  EXPECT_EQ(run({floats({4})}).at(0).dims(), (Shape{4}));
  f.node("more", "TupleGetItem", {"y", "one"});
  expect_error({"'Default/more' (TupleGetItem)", "element 1 of a tuple of 1"});
}

}  // namespace
}  // namespace opgraft
