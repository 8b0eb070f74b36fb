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

}  // namespace
}  // namespace opgraft
