// Every kind of node goes to a file and back: the graph is the same, and its results are, bit by bit.
#include <fmt/format.h>

#include <cstring>

#include "engine_test_util.h"
#include "mindir_test_util.h"

namespace opgraft {
namespace {
using namespace test;

struct MindirOps : MindirTest {
  std::shared_ptr<Graph> g = std::make_shared<Graph>("net");

  ValueId input(const std::string &name, Shape dims, int32_t dtype = OPGRAFT_FLOAT32) {
    return g->add_input(name, {dtype, std::move(dims), true});
  }
  ValueId ints(std::initializer_list<int64_t> values) { return g->add_constant(Tensor::of(values)); }
  void output(const std::string &name, ValueId v) {
    g->outputs.push_back(v);
    g->output_names.push_back(name);
  }
  // Written with the weights outside and inside, read, compared, and run on the same inputs.
  std::shared_ptr<Graph> round_trip(const std::vector<Tensor> &inputs) {
    auto want = Session(std::make_shared<Model>(g)).run(inputs);
    std::shared_ptr<Graph> back;
    for (size_t external_from : {size_t(0), SIZE_MAX}) {
      written(*g, external_from);
      back = read_mindir(dir / "m.mindir", registry);
      expect_equal(*g, *back);
      auto got = Session(std::make_shared<Model>(back)).run(inputs);
      EXPECT_EQ(got.size(), want.size());
      for (size_t i = 0; i < std::min(want.size(), got.size()); ++i) {
        EXPECT_EQ(got[i].type(), want[i].type()) << g->output_names[i];
        EXPECT_EQ(std::memcmp(got[i].data(), want[i].data(), want[i].bytes()), 0) << g->output_names[i];
      }
    }
    return back;
  }
};

TEST_F(MindirOps, ShapeOpsAndSeveralOutputs) {
  int64_t n = g->symbols.fresh("n");
  ValueId x = input("x", {n, 6, 4});
  output("reshape", one(*g, "Reshape", {x, ints({-1, 24})}));
  output("expand", one(*g, "ExpandDims", {x}, {{"axis", int64_t(-1)}}));
  ValueId narrow = one(*g, "Reshape", {x, ints({1, -1, 1, 24})});
  output("squeeze_all", one(*g, "Squeeze", {narrow}));
  output("squeeze_one", one(*g, "Squeeze", {narrow}, {{"axis", std::vector<int64_t>{2}}}));
  output("transpose", one(*g, "Transpose", {x}, {{"perm", std::vector<int64_t>{2, 0, 1}}}));
  output("tile", one(*g, "Tile", {x, ints({2, 1, 3})}));
  ValueId row = g->add_constant(floats({1, 4}), "row", true);
  output("broadcast", one(*g, "BroadcastTo", {row, ints({5, -1})}));
  output("slice", one(*g, "StridedSlice", {x, ints({0, 1, 0}), ints({0, 5, 4}), ints({1, 2, 1})},
                      {{"end_mask", int64_t(1)}, {"shrink_axis_mask", int64_t(4)}}));
  Tensor rows(OPGRAFT_INT32, {2});
  rows.data<int32_t>()[0] = 3, rows.data<int32_t>()[1] = 0;
  output("gather", one(*g, "Gather", {x, g->add_constant(rows)}, {{"axis", int64_t(1)}}));
  output("cast", one(*g, "Cast", {x}, {{"dtype", std::string("float16")}}));
  output("shape", one(*g, "Shape", {x}));
  output("x", x);
  auto back = round_trip({floats({3, 6, 4}, -1)});
  EXPECT_EQ(back->output_names, g->output_names);
}

TEST_F(MindirOps, ManyInputsAndManyOutputs) {
  ValueId x = input("x", {2, 6}), y = input("y", {2, 6});
  for (int64_t axis : {0, 1}) {
    output(fmt::format("concat{}", axis), one(*g, "Concat", {x, y, x}, {{"axis", axis}}));
    output(fmt::format("alone{}", axis), one(*g, "Concat", {y}, {{"axis", axis}}));
  }
  // A pinned version is written as Custom, whose inputs stand one by one.
  output("pinned", one(*g, "Concat@1.0.0", {x, y, x}, {{"axis", int64_t(1)}}));
  NodeId split = g->add_node(registry, "Split", {x}, {{"axis", int64_t(1)}, {"output_num", int64_t(3)}}, "parts");
  for (int k : {2, 0, 1}) output(fmt::format("part{}", k), g->node(split).outputs[size_t(k)]);
  NodeId pinned = g->add_node(registry, "Split@1.0.0", {y}, {{"axis", int64_t(1)}, {"output_num", int64_t(2)}}, "own");
  output("second", g->node(pinned).outputs[1]);
  round_trip({floats({2, 6}), floats({2, 6}, 9)});
}

// Of one output MindSpore's primitives give a tuple, a Custom a tensor. A vector of int64 may be a shape, whose
// elements are numbers.
TEST_F(MindirOps, OneOutputOfWhatMayBeSeveral) {
  ValueId x = input("x", {1, 3}, OPGRAFT_INT64);
  ValueId row = one(*g, "Unstack", {x}, {{"axis", int64_t(0)}, {"num", int64_t(1)}});
  output("row", row);
  output("twice", one(*g, "Add", {row, row}));
  output("whole", one(*g, "Split", {row}, {{"output_num", int64_t(1)}}));
  output("pinned", one(*g, "Split@1.0.0", {row}, {{"output_num", int64_t(1)}}));
  Tensor t(OPGRAFT_INT64, {1, 3});
  for (int64_t i = 0; i < 3; ++i) t.data<int64_t>()[i] = 7 - i;
  auto back = round_trip({t});
  EXPECT_EQ(back->value(back->outputs[0]).type.dims, (Shape{3}));
}

TEST_F(MindirOps, ShapesThatAreComputed) {
  int64_t b = g->symbols.fresh("b"), t = g->symbols.fresh("t");
  ValueId x = input("x", {b, t, 12});
  ValueId shape = one(*g, "Shape", {x});
  auto part = [&](int64_t i) { return one(*g, "TupleGetItem", {shape}, {{"index", i}}); };
  Tensor number(OPGRAFT_INT64, {});
  *number.data<int64_t>() = 4;
  ValueId four = g->add_constant(number);
  ValueId rest = one(*g, "ScalarFloorDiv", {part(2), four});
  output("heads", one(*g, "Reshape", {x, one(*g, "MakeTuple", {part(0), part(1), rest, four})}));
  output("rows", one(*g, "Reshape", {x, one(*g, "MakeTuple", {one(*g, "ScalarMul", {part(0), part(1)}), ints({12})})}));
  ASSERT_EQ(g->symbols.text(g->value(g->outputs[1]).type.dims[0]), "b*t");
  // The same vector as a shape and as a tensor.
  ValueId both = ints({2, 3});
  output("tensor", one(*g, "Add", {both, both}));
  output("tiled", one(*g, "Tile", {g->add_constant(floats({2, 2})), both}));
  round_trip({floats({2, 5, 12})});
}

TEST_F(MindirOps, EveryTypeOfWeight) {
  ValueId x = input("x", {1});
  output("y", one(*g, "Neg", {x}));
  for (int32_t d = OPGRAFT_BOOL; d <= OPGRAFT_COMPLEX64; ++d) {
    if (!dtype_size(d)) continue;
    for (Shape dims : {Shape{}, Shape{0, 3}, Shape{3, 5}}) {
      Tensor w(d, dims);
      for (size_t i = 0; i < w.bytes(); ++i) w.data<uint8_t>()[i] = d == OPGRAFT_BOOL ? i % 2 : uint8_t(37 * i + 1);
      output(fmt::format("{}_{}", dtype_name(d), dims.size()),
             g->add_constant(w, fmt::format("w{}", g->value_count()), true));
    }
  }
  auto back = round_trip({floats({1})});
  for (size_t i = 1; i < back->outputs.size(); ++i)
    EXPECT_TRUE(back->value(back->outputs[i]).parameter) << back->output_names[i];
}

TEST_F(MindirOps, NumbersKeepAllTheirBits) {
  ValueId x = input("x", {2, 8});
  ValueId w = g->add_constant(floats({8}, 1), "gamma", true), b = g->add_constant(floats({8}), "beta", true);
  for (double epsilon : {1e-12, 1e-5, 0.1, 1e-300}) {
    NodeId node = g->add_node(registry, "LayerNorm", {x, w, b}, {{"epsilon", epsilon}});
    output(fmt::format("e{}", epsilon), g->node(node).outputs[0]);
  }
  auto back = round_trip({floats({2, 8}, -3)});
  EXPECT_EQ(std::get<double>(back->node(back->order()[3]).attrs.at("epsilon")), 1e-300);
}

TEST_F(MindirOps, DerivedDimensions) {
  int64_t n = g->symbols.fresh("n"), m = g->symbols.fresh("m");
  auto &s = g->symbols;
  // Formulas stand before the names they are made of.
  ValueId a = input("a", {s.op('+', s.op('*', n, 2), 1), 4}), b = input("b", {s.op('-', s.op('*', n, m), 3), 4}),
          c = input("c", {n, m});
  output("a", one(*g, "Neg", {a})), output("b", one(*g, "Neg", {b})), output("c", one(*g, "Neg", {c}));
  auto back = round_trip({floats({7, 4}), floats({12, 4}), floats({3, 5})});
  EXPECT_EQ(back->symbols.text(back->value(back->inputs[0]).type.dims[0]), "1+2*n");
  EXPECT_EQ(back->symbols.text(back->value(back->inputs[1]).type.dims[0]), "-3+n*m");
  EXPECT_EQ(back->symbols.free_count(), 2u);
  Session session(std::make_shared<Model>(back));
  try {
    session.run({floats({8, 4}), floats({12, 4}), floats({3, 5})});
    ADD_FAILURE() << "8 is not 1+2*3";
  } catch (const GraphError &e) {
    EXPECT_STREQ(e.what(), "model: input a.shape must be (1+2*n, 4), got (8, 4)");
  }
}

TEST_F(MindirOps, NamesThatLookAlikeStayApart) {
  int64_t first = g->symbols.fresh("n"), second = g->symbols.fresh("n"), formula = g->symbols.fresh("a*b");
  output("y", one(*g, "Neg", {input("first:x", {first, second, formula})}));
  written(*g, 0);
  auto back = read_mindir(dir / "m.mindir", registry);
  auto dims = back->value(back->inputs[0]).type.dims;
  EXPECT_NE(dims[0], dims[1]);
  for (int64_t d : dims) EXPECT_TRUE(back->symbols.is_free(d)) << back->symbols.text(d);
  EXPECT_EQ(back->value(back->inputs[0]).name, "first:x");
}

}  // namespace
}  // namespace opgraft
