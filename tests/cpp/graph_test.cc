#include "infer/graph.h"

#include <gtest/gtest.h>

#include <functional>

#include "engine_test_util.h"

namespace opgraft {
namespace {
using namespace test;

std::string message_of(const std::function<void()> &f) {
  try {
    f();
  } catch (const std::exception &e) {
    return e.what();
  }
  return "";
}

TEST(Graph, AWrongModelIsRefusedWithNodeOpAndShapes) {
  Graph g;
  ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {2, 3}, true}), y = g.add_input("y", {OPGRAFT_FLOAT32, {4}, true});
  std::string m = message_of([&] { g.add_node(ops(), "SwiGLU", {x, y}, {}, "layer0.act"); });
  EXPECT_NE(m.find("node layer0.act: SwiGLU: gate.shape must equal x.shape (2, 3), got (4,)"), std::string::npos) << m;
  EXPECT_NE(m.find("[inputs: float32(2, 3), float32(4,)]"), std::string::npos) << m;
  EXPECT_TRUE(g.order().empty()) << "a refused node leaves nothing behind";
}

TEST(Graph, UnknownOpsAttributesAndCountsAreRefused) {
  Graph g;
  ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {2}, true});
  EXPECT_THROW(g.add_node(ops(), "NoSuchOp", {x}), UnknownOp);
  EXPECT_NE(message_of([&] { g.add_node(ops(), "SwiGLU", {x}); }).find("SwiGLU: takes 2 inputs, got 1"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              g.add_node(ops(), "SwiGLU", {x, x}, {{"axis", int64_t(1)}});
            }).find("SwiGLU: unknown attribute 'axis'"),
            std::string::npos);
  ValueId h = g.add_input("h", {OPGRAFT_FLOAT16, {2}, true});
  EXPECT_NE(message_of([&] {
              g.add_node(ops(), "SwiGLU", {x, h});
            }).find("gate.dtype must equal x.dtype float32, got float16"),
            std::string::npos);
}

TEST(Graph, DumpIsReadable) {
  auto g = gated(4);
  EXPECT_EQ(g->dump(),
            "graph gated(%0 x: float32(rows, 4), %1 gate: float32(rows, 4))\n"
            "  %2: float32(rows, 4) = SiLU(%1)  # SiLU_0\n"
            "  %3: float32(rows, 4) = Mul(%2, %0)  # Mul_1\n"
            "  return %3\n");
}

TEST(Graph, SymbolicShapesFlowThroughTheGraph) {
  auto g = gated(4);
  EXPECT_EQ(g->value(g->outputs[0]).type.dims[0], g->value(g->inputs[0]).type.dims[0]);
}

// x gate, then its SwiGLU with `fallback` behind it, then the absolute of that.
Graph fused_over(std::shared_ptr<const Graph> fallback) {
  Graph g("fused");
  ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {-1, 4}, true});
  ValueId gate = g.add_input("gate", {OPGRAFT_FLOAT32, {-1, 4}, true});
  const ValueId made = one(g, "SwiGLU", {one(g, "Mul", {x, gate}), gate});
  g.node(g.value(made).producer).fallback = std::move(fallback);
  g.outputs = {one(g, "Abs", {made})};
  return g;
}

TEST(Graph, WhatANodeReplacedTakesItsPlace) {
  Graph g = fused_over(gated(4));
  ASSERT_TRUE(g.restore(g.order()[1]));
  std::vector<std::string> names;
  for (NodeId id : g.order()) names.push_back(g.node(id).op);
  EXPECT_EQ(names, (std::vector<std::string>{"Mul", "SiLU", "Mul", "Abs"}));
  const Node &product = g.node(g.order()[2]), &last = g.node(g.order()[3]);
  EXPECT_EQ(product.inputs[0], g.node(g.order()[1]).outputs[0]);
  EXPECT_EQ(product.inputs[1], g.node(g.order()[0]).outputs[0]);
  EXPECT_EQ(last.inputs[0], product.outputs[0]);
  EXPECT_EQ(g.value(product.outputs[0]).producer, g.order()[2]);
}

TEST(Graph, WhatDoesNotTakeAndGiveWhatTheNodeDoesIsNotPutInItsPlace) {
  const auto unary = [](int32_t dtype, bool as_result, int inputs) {
    auto f = std::make_shared<Graph>("fallback");
    ValueId x = f->add_input("x", {as_result ? int32_t(OPGRAFT_FLOAT32) : dtype, {-1, 4}, true});
    for (int i = 1; i < inputs; ++i) f->add_input("more", {OPGRAFT_FLOAT32, {-1, 4}, true});
    ValueId y = one(*f, "Neg", {x});
    f->outputs = {as_result ? one(*f, "Cast", {y}, {{"dtype", std::string(dtype_name(dtype))}}) : y};
    return f;
  };
  // A result that the fallback lacks, and that is used.
  Graph both("both");
  ValueId a = both.add_input("a", {OPGRAFT_FLOAT32, {-1, 4}, true}), b = both.add_input("b", both.value(a).type);
  ValueId ones = both.add_constant(floats({4}));
  const NodeId norm = both.add_node(ops(), "AddLayerNorm", {a, b, ones, ones});
  both.outputs = both.node(norm).outputs;
  both.node(norm).fallback = gated(4);
  EXPECT_FALSE(both.restore(norm));
  both.outputs.resize(1);
  EXPECT_TRUE(both.restore(norm));
  auto two = gated(4);
  two->outputs.push_back(two->outputs[0]);
  for (std::shared_ptr<const Graph> fallback : {std::shared_ptr<Graph>(), unary(OPGRAFT_FLOAT16, false, 1),
                                                unary(OPGRAFT_INT64, true, 1), unary(OPGRAFT_FLOAT32, false, 3), two}) {
    Graph g = fused_over(fallback);
    const std::string before = g.dump();
    EXPECT_FALSE(g.restore(g.order()[1]));
    EXPECT_EQ(g.dump(), before);
  }
}

}  // namespace
}  // namespace opgraft
