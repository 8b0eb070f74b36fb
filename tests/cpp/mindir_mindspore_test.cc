// Graphs in the words that MindSpore's exporter uses: parameters through Load, monads, tuples, layouts as enums.
#include <cstring>

#include "engine_test_util.h"
#include "infer/mindir_encode.h"
#include "mindir_file_util.h"

namespace opgraft {
namespace {
using namespace test;

// nn.Dense: parameters are loaded under a monad, and the result depends on the state after them.
TEST_F(MindirMindSpore, ADenseLayer) {
  Tensor w = floats({3, 4}, -1, 0.5f), b = floats({3}, 0.25f), x = floats({2, 4}, 1);
  f.input("x", {-1, 4});
  f.parameter("12_construct:weight", w);
  f.parameter("12_construct:bias", b);
  f.constant("u", attr("value", kAttrUmonad));
  f.constant("false", attr("value", kAttrBool, 0));
  f.constant("true", attr("value", kAttrBool, 1));
  f.constant("nchw", attr("value", kAttrInt64, 0));
  f.node("load_w", "Load", {"12_construct:weight", "u"});
  f.node("load_b", "Load", {"12_construct:bias", "u"});
  f.node("loads", "MakeTuple", {"load_w", "load_b"});
  f.node("state", "UpdateState", {"u", "loads"});
  f.node("mm", "MatMul", {"x", "load_w", "false", "true"});
  f.node("add", "BiasAdd", {"mm", "load_b", "nchw"});
  f.node("out", "Depend", {"add", "state"});
  f.output("out");
  auto graph = parse_mindir(f.bytes(), registry, "test");
  EXPECT_EQ(graph->order().size(), 2u);
  EXPECT_EQ(graph->node(graph->order()[0]).name, "Default/mm");
  auto y = run({x});
  ASSERT_EQ(y.at(0).dims(), (Shape{2, 3}));
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 3; ++j) {
      float want = b.data<float>()[j];
      for (int64_t k = 0; k < 4; ++k) want += x.data<float>()[i * 4 + k] * w.data<float>()[j * 4 + k];
      EXPECT_FLOAT_EQ(y[0].data<float>()[i * 3 + j], want);
    }
}

// x[:, 1:3] beside Concat((x, x), -1)'s halves, and all of it returned as one nested tuple.
TEST_F(MindirMindSpore, TuplesInAndOut) {
  f.input("x", {2, 4});
  f.constant("begin", tuple_attr("value", {0, 1}));
  f.constant("end", tuple_attr("value", {2, 3}));
  f.constant("strides", tuple_attr("value", {1, 1}));
  f.constant("zero", attr("value", kAttrInt64, 0));
  f.constant("one", attr("value", kAttrInt64, 1));
  f.constant("two", attr("value", kAttrInt64, 2));
  f.constant("last", attr("value", kAttrInt64, -1));
  f.node("cut", "StridedSlice", {"x", "begin", "end", "strides", "zero", "zero", "zero", "zero", "zero"});
  f.node("twice", "MakeTuple", {"x", "x"});
  f.node("joined", "Concat", {"twice", "last"});
  f.node("halves", "Split", {"joined", "one", "two"});
  f.node("half", "TupleGetItem", {"halves", "one"});
  f.node("inner", "MakeTuple", {"half", "cut"});
  f.node("all", "MakeTuple", {"inner", "joined"});
  f.output("all");
  Tensor x = floats({2, 4});
  auto y = run({x});
  ASSERT_EQ(y.size(), 3u);
  EXPECT_EQ(std::memcmp(y[0].data(), x.data(), x.bytes()), 0);
  ASSERT_EQ(y[1].dims(), (Shape{2, 2}));
  for (int64_t i : {0, 1})
    for (int64_t j : {0, 1}) EXPECT_EQ(y[1].data<float>()[i * 2 + j], x.data<float>()[i * 4 + 1 + j]);
  EXPECT_EQ(y[2].dims(), (Shape{2, 8}));
  auto graph = parse_mindir(f.bytes(), registry, "test");
  EXPECT_EQ(graph->output_names, (std::vector<std::string>{"all_0", "all_1", "all_2"}));
}

// MindSpore before 2.3 keeps these in the primitive.
TEST_F(MindirMindSpore, AttributesOfThePrimitive) {
  f.input("x", {2, 1, 4});
  f.node("pair", "MakeTuple", {"x", "x"});
  f.node("joined", "Concat", {"pair"}, {attr("axis", kAttrInt64, 2), attr("shape", kAttrTensors)});
  f.node("flat", "Squeeze", {"joined"}, {tuple_attr("axis", {1})});
  f.node("parts", "Split", {"flat"}, {attr("axis", kAttrInt64, 1), attr("output_num", kAttrInt64, 4)});
  f.output("parts");
  auto y = run({floats({2, 1, 4})});
  ASSERT_EQ(y.size(), 4u);
  EXPECT_EQ(y[3].dims(), (Shape{2, 2}));
}

// Custom(x, 0) whose reg_info has axis without a value.
TEST_F(MindirMindSpore, TrailingArgumentsOfACustomAreItsAttributes) {
  auto custom = [&](const std::string &name, const std::string &axis) {
    f.node(name, "Custom", {"x", axis},
           {mindir::encode_attribute("func_name", AttrValue(std::string("/moved/softmax.so:Softmax"))),
            mindir::encode_attribute("func_type", AttrValue(std::string("aot"))),
            mindir::encode_attribute("input_names", std::vector<std::string>{"x", "axis"}),
            mindir::encode_attribute("attr_names", std::vector<std::string>{"axis"})});
  };
  f.input("x", {2, 3});
  f.constant("zero", attr("value", kAttrInt64, 0));
  custom("y", "zero");
  f.output("y");
  auto graph = parse_mindir(f.bytes(), registry, "test");
  auto &node = graph->node(graph->order().at(0));
  EXPECT_EQ(node.inputs.size(), 1u);
  EXPECT_EQ(node.attrs.at("axis"), AttrValue(int64_t(0)));
  auto y = run({floats({2, 3}, 0, 1)});
  EXPECT_FLOAT_EQ(y.at(0).data<float>()[0] + y[0].data<float>()[3], 1);  // along the first axis
  custom("wrong", "y");
  expect_error({"Default/wrong", "operand 1 (attribute axis) must be a constant"});
}

TEST_F(MindirMindSpore, AWrongModelNamesNodeOpAndShapes) {
  f.input("x", {-1, 4});
  f.parameter("w", floats({5, 3}));
  f.node("mm", "MatMul", {"x", "w"});
  f.output("mm");
  expect_error({"graph.node[0] 'Default/mm' (MatMul)", "MatMul:", "(x_0, 4)", "(5, 3)"});
}

TEST_F(MindirMindSpore, CallsOfOtherGraphsAreRefused) {
  f.input("x", {4});
  std::string branch;
  pbf_writer(branch).add_string(2, "3_true_branch");
  pbf_writer(f.model).add_message(8, branch);
  f.raw_node("call", "REF::3_true_branch", {"x"});
  f.output("call");
  expect_error({"'Default/call'", "calls the file's function '3_true_branch'"});
}

TEST_F(MindirMindSpore, AFunctionAsAConstantIsRefused) {
  f.input("x", {4});
  f.constant("branch", attr("value", kAttrFunctor));
  f.node("call", "Partial", {"branch", "x"});
  f.output("call");
  expect_error({"graph.node[0] 'Default/branch'", "the constant is a function"});
}

TEST_F(MindirMindSpore, ControlFlowIsRefusedByName) {
  f.input("x", {4});
  f.node("choice", "Switch", {"x", "x", "x"});
  f.output("choice");
  expect_error({"'Default/choice' (Switch)", "no registered operator answers to 'Switch'"});
}

TEST_F(MindirMindSpore, AnElementThatIsNotThereIsRefused) {
  f.input("x", {4});
  f.constant("two", attr("value", kAttrInt64, 2));
  f.node("pair", "MakeTuple", {"x", "x"});
  f.node("third", "TupleGetItem", {"pair", "two"});
  f.output("third");
  expect_error({"'Default/third' (TupleGetItem)", "element 2 of a tuple of 2"});
}

// Tuples of tuples that hold nothing: 100^15 of them must not be walked.
TEST_F(MindirMindSpore, EmptyTuplesInTuplesAreRefused) {
  f.input("x", {4});
  f.node("t0", "MakeTuple", {});
  for (int i = 1; i <= 15; ++i)
    f.node("t" + std::to_string(i), "MakeTuple", std::vector<std::string>(100, "t" + std::to_string(i - 1)));
  f.output("t15");
  expect_error({"a tuple of too many elements"});
}

}  // namespace
}  // namespace opgraft
