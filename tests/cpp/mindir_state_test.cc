// Parameters that nodes update in place: reads and updates of a file keep the order that its monads give them.
#include <cstring>

#include "engine_test_util.h"
#include "mindir_file_util.h"

namespace opgraft {
namespace {
using namespace test;

struct MindirState : MindirMindSpore {
  Tensor p = floats({2}, 10, 1);  // 10, 11
  void SetUp() override {
    MindirTest::SetUp();
    f.input("x", {2});
    f.parameter("1_construct:p", p);
    f.constant("u", attr("value", kAttrUmonad));
  }
  void load(const std::string &name, const std::string &monad) { f.node(name, "Load", {"1_construct:p", monad}); }
  void update(const std::string &name, const std::string &op, const std::string &value, const std::string &monad) {
    f.node(name, op, {"1_construct:p", value, monad}, {attr("side_effect_mem", kAttrBool, 1)});
  }
  // First elements of the outputs after each of three runs on 1, 2.
  std::vector<std::vector<float>> three_runs(const Graph &graph) {
    Session session(std::make_shared<Model>(graph.clone()));
    std::vector<std::vector<float>> all;
    for (int i = 0; i < 3; ++i) {
      all.emplace_back();
      for (auto &y : session.run({floats({2}, 1, 1)})) all.back().push_back(*y.data<float>());
    }
    return all;
  }
  std::shared_ptr<Graph> read() { return parse_mindir(f.bytes(), registry, "test"); }
  // Written and read, the graph is the same, and so are the bytes of the second file.
  void expect_round_trip(const Graph &graph) {
    const std::string first = written(graph, SIZE_MAX);
    auto back = parse_mindir(first, registry, "test");
    expect_equal(graph, *back);
    EXPECT_EQ(written(*back, SIZE_MAX), first);
    EXPECT_EQ(three_runs(graph), three_runs(*back));
  }
};

using Runs = std::vector<std::vector<float>>;

TEST_F(MindirState, AnUpdateIsSeenByWhatComesAfterIt) {
  update("add", "AssignAdd", "x", "u");
  f.node("after", "UpdateState", {"u", "add"});
  load("new", "after");
  f.node("y", "Mul", {"new", "x"});
  f.node("end", "UpdateState", {"after", "new", "y"});
  f.node("out", "Depend", {"y", "end"});
  f.output("out");
  auto graph = read();
  EXPECT_EQ(graph->states().size(), 1u);
  EXPECT_EQ(three_runs(*graph), (Runs{{11}, {12}, {13}}));
  EXPECT_EQ(*p.data<float>(), 10) << "a session's own";
  expect_round_trip(*graph);
}

TEST_F(MindirState, WhatWasReadBeforeAnUpdateKeepsItsValue) {
  load("old", "u");
  f.node("first", "UpdateState", {"u", "old"});
  update("add", "AssignAdd", "x", "first");
  f.node("second", "UpdateState", {"first", "add"});
  load("new", "second");
  f.node("y", "Sub", {"new", "old"});
  f.node("out", "Depend", {"y", "second"});
  f.output("out");
  f.output("old");
  f.output("1_construct:p");
  auto graph = read();
  ASSERT_EQ(graph->order().size(), 3u);
  EXPECT_EQ(graph->node(graph->order()[0]).op, "TensorMove");
  EXPECT_EQ(three_runs(*graph), (Runs{{1, 10, 11}, {1, 11, 12}, {1, 12, 13}}));
  expect_round_trip(*graph);
}

// A read under an older monad, which the file lists after the update.
TEST_F(MindirState, TheMonadTellsNotThePlace) {
  update("set", "Assign", "x", "u");
  load("old", "u");
  f.node("y", "Add", {"old", "x"});
  f.node("after", "UpdateState", {"u", "set"});
  f.node("out", "Depend", {"y", "after"});
  f.output("out");
  EXPECT_EQ(three_runs(*read()), (Runs{{11}, {2}, {2}}));
}

TEST_F(MindirState, WhatNothingReadsIsUpdatedAllTheSame) {
  update("add", "AssignAdd", "x", "u");
  f.node("after", "UpdateState", {"u", "add"});
  update("sub", "AssignSub", "x", "after");
  f.node("twice", "UpdateState", {"after", "sub"});
  update("again", "AssignAdd", "x", "twice");
  f.node("out", "Depend", {"x", "again"});
  f.output("out");
  f.output("1_construct:p");
  EXPECT_EQ(three_runs(*read()), (Runs{{1, 11}, {1, 12}, {1, 13}}));
  expect_round_trip(*read());
}

// MindSpore leaves updates of two Parameters in no order, and joins them.
TEST_F(MindirState, UpdatesOfTwoParametersUnderOneMonad) {
  f.parameter("1_construct:q", floats({2}, 100, 1));
  update("p1", "AssignAdd", "x", "u");
  f.node("q1", "Assign", {"1_construct:q", "x", "u"});
  f.node("both", "MakeTuple", {"p1", "q1"});
  f.node("after", "UpdateState", {"u", "both"});
  update("p2", "AssignAdd", "x", "after");
  f.node("q2", "AssignSub", {"1_construct:q", "x", "after"});
  f.node("end", "UpdateState", {"after", "p2", "q2"});
  f.node("out", "Depend", {"x", "end"});
  f.output("out");
  f.output("1_construct:p");
  f.output("1_construct:q");
  EXPECT_EQ(three_runs(*read()), (Runs{{1, 12, 0}, {1, 14, 0}, {1, 16, 0}}));
  expect_round_trip(*read());
}

TEST_F(MindirState, UpdatesOfOneParameterInNoOrderAreRefused) {
  update("first", "Assign", "x", "u");
  update("second", "AssignAdd", "x", "u");
  f.output("second");
  expect_error({"'Default/second' (AssignAdd)", "updates 'p' under a monad that does not come after the update by",
                "'Default/first'"});
}

TEST_F(MindirState, ABranchOfTheOrderIsNotAllOfIt) {
  f.parameter("1_construct:q", floats({2}, 100, 1));
  update("p1", "AssignAdd", "x", "u");
  f.node("q1", "Assign", {"1_construct:q", "x", "u"});
  f.node("after", "UpdateState", {"u", "q1"});  // p's is not in it, though it stands before
  update("p2", "AssignAdd", "x", "after");
  f.output("p2");
  expect_error({"'Default/p2'", "does not come after the update by 'Default/p1'"});
}

TEST_F(MindirState, BadMonads) {
  struct Case {
    const char *op;
    std::vector<std::string> operands;
    const char *error;
  };
  for (auto &c : std::vector<Case>{
           {"UpdateState", {"u"}, "takes at least 2 operands, got 1"},
           {"UpdateState", {}, "takes at least 2 operands, got 0"},
           {"UpdateState", {"x", "u"}, "operand 0 must be a monad"},
           {"UpdateState", {"u", "nothing"}, "'nothing' is used but not defined before"},
           {"UpdateState", {"n", "x"}, "'n' is used but not defined before"},  // by itself: a cycle
           {"Load", {"1_construct:p", "x"}, "operand 1 must be a monad"},
           {"Load", {"1_construct:p"}, "takes at least 2 operands, got 1"},
           {"Load", {"nothing", "u"}, "'nothing' is used but not defined before"},
           {"Depend", {}, "takes at least 1 operands, got 0"},
           {"Depend", {"x", "later"}, "'later' is used but not defined before"},
           {"Assign", {"u", "x"}, "takes"},
       }) {
    File keep = f;
    keep.node("n", c.op, c.operands);
    keep.output("x");
    const std::string e = error(keep.bytes());
    EXPECT_NE(e.find(c.error), std::string::npos) << c.op << ": " << c.error << " is not in: " << e;
  }
}

TEST_F(MindirState, OnlyParametersAndInputsAreUpdated) {
  f.node("twice", "Add", {"x", "x"});
  f.node("set", "Assign", {"twice", "x", "u"});
  f.output("set");
  expect_error({"'Default/set' (Assign)", "variable is updated in place and must be a Parameter or an input of the",
                "got a computed value"});
}

TEST_F(MindirState, AParameterThatIsUpdatedIsNoConstantOfTheModel) {
  Tensor axis(OPGRAFT_INT64, {});
  *axis.data<int64_t>() = 0;
  f.parameter("1_construct:axis", axis);
  f.constant("zero", attr("value", kAttrInt64, 0));
  f.constant("no", attr("value", kAttrBool, 0));
  const File begin = f;
  f.node("sum", "ReduceSum", {"x", "1_construct:axis", "no", "no"});
  f.node("set", "Assign", {"1_construct:axis", "zero", "u"});
  f.output("sum");
  expect_error({"'Default/set' (Assign)", "updates 'axis', whose value was needed before the model runs"});
  f = begin;
  f.node("set", "Assign", {"1_construct:axis", "zero", "u"});
  f.node("sum", "ReduceSum", {"x", "1_construct:axis", "no", "no"});
  f.output("sum");
  expect_error({"'Default/sum' (ReduceSum)", "operand 1 (axis) must be a constant"});
}

// The output of Assign is the variable in MindSpore: `ref_key` says so.
TEST_F(MindirState, ARefIsTheParameterItself) {
  Graph g("net");
  ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {2}, true});
  ValueId v = g.add_constant(p, "p", true);
  ValueId y = g.node(g.add_node(registry, "AssignAdd", {v, x}, {}, "add")).outputs[0];
  g.add_node(registry, "AssignAdd", {v, x}, {}, "again");
  g.outputs = {y, v};
  g.output_names = {"y", "p"};
  EXPECT_EQ(three_runs(g), (Runs{{11, 12}, {13, 14}, {15, 16}})) << "in a graph it is a value";
  auto back = parse_mindir(written(g, SIZE_MAX), registry, "test");
  EXPECT_EQ(three_runs(*back), three_runs(g));
  expect_round_trip(*back);
}

TEST_F(MindirState, ACounterIsNoConstant) {
  Graph g("net");
  Tensor n(OPGRAFT_INT64, {2}), one(OPGRAFT_INT64, {2});
  std::fill_n(n.data<int64_t>(), 2, 5), std::fill_n(one.data<int64_t>(), 2, 1);
  ValueId v = g.add_constant(n, "n", true), w = g.add_constant(one, "one");
  g.add_input("x", {OPGRAFT_FLOAT32, {2}, true});
  NodeId sum = g.add_node(registry, "Add", {v, w}, {}, "sum");
  EXPECT_TRUE(g.value(v).known);
  g.add_node(registry, "AssignAdd", {v, w}, {}, "count");
  EXPECT_FALSE(g.value(v).known) << "it changes";
  EXPECT_FALSE(g.value(g.node(sum).outputs[0]).known) << "and what was made of it";
  g.outputs = {g.node(sum).outputs[0]};
  g.output_names = {"sum"};
  for (auto &graph : {g.clone(), parse_mindir(written(g, SIZE_MAX), registry, "test")}) {
    Session session(std::make_shared<Model>(graph));
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(*session.run({floats({2}, 1)})[0].data<int64_t>(), 6 + i);
  }
}

}  // namespace
}  // namespace opgraft
