#include "infer/session.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <thread>

#include "engine_test_util.h"
#include "infer/passes/passes.h"
#include "infer/plan.h"

// Counts this binary's allocations, to show that a steady run makes none.
static std::atomic<int64_t> allocations{0};
static void *counted(size_t n) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(n ? n : 1);
}
void *operator new(size_t n, const std::nothrow_t &) noexcept { return counted(n); }
void *operator new(size_t n) {
  if (void *p = counted(n)) return p;
  throw std::bad_alloc();
}
// Inlined, free() of what operator new gave would look like a mistake to the compiler.
[[gnu::noinline]] void operator delete(void *p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void *p, size_t) noexcept { std::free(p); }

namespace opgraft {
namespace {
using namespace test;

TEST(Session, RunsTheFormulaOnEverySize) {
  Session s(std::make_shared<Model>(gated()));
  for (int64_t rows : {1, 3, 0, 3, 7}) {
    Tensor x = floats({rows, 33}, -1), gate = floats({rows, 33}, -2, 0.3f);
    auto y = s.run({x, gate});
    ASSERT_EQ(y.size(), 1u);
    ASSERT_EQ(y[0].dims(), (Shape{rows, 33}));
    for (int64_t i = 0; i < y[0].size(); ++i) {
      double g = gate.data<float>()[i], want = x.data<float>()[i] * g / (1 + std::exp(-g));
      ASSERT_NEAR(y[0].data<float>()[i], want, 1e-5 * (1 + std::fabs(want)));
    }
  }
  EXPECT_EQ(s.model().stats().plans_made, 4u) << "a signature seen before is not planned again";
}

TEST(Session, AllocatesNothingInASteadyRun) {
  Session s(std::make_shared<Model>(gated(64)));
  std::vector<Tensor> in{floats({16, 64}), floats({16, 64})}, out;
  s.run_into(in, out);
  int64_t before = allocations.load();
  for (int i = 0; i < 100; ++i) s.run_into(in, out);
  EXPECT_EQ(allocations.load(), before);
}

// Attention of new tokens over caches of 32 rows that it keeps.
std::shared_ptr<Graph> decoding() {
  auto g = std::make_shared<Graph>("decoding");
  const int64_t rows = g->symbols.fresh("rows");
  const TensorType row{OPGRAFT_FLOAT32, {1, 2, rows, 8}, true};
  ValueId q = g->add_input("q", row), k = g->add_input("k", row), v = g->add_input("v", row);
  ValueId positions = g->add_input("position_ids", {OPGRAFT_INT32, {rows}, true});
  ValueId caches[2];
  for (int i = 0; i < 2; ++i) caches[i] = g->add_constant(floats({1, 2, 32, 8}, 0, 0), i ? "v_cache" : "k_cache", true);
  ValueId lengths = one(*g, "KVCacheAppend", {caches[0], caches[1], k, v, positions});
  g->outputs = {one(*g, "CachedAttention", {q, caches[0], caches[1], lengths})};
  return g;
}

TEST(Session, ADecodeStepAllocatesNothingAndPlansNothing) {
  auto model = std::make_shared<Model>(decoding());
  Session s(model);
  std::vector<Tensor> in{floats({1, 2, 1, 8}), floats({1, 2, 1, 8}, 1), floats({1, 2, 1, 8}, 2),
                         Tensor(OPGRAFT_INT32, {1})};
  std::vector<Tensor> out;
  in[3].data<int32_t>()[0] = 0;
  s.run_into(in, out);
  const int64_t before = allocations.load();
  for (int i = 1; i < 32; ++i) {
    in[3].data<int32_t>()[0] = i;
    s.run_into(in, out);
  }
  EXPECT_EQ(allocations.load(), before);
  EXPECT_EQ(model->stats().plans_made, 1u);
  EXPECT_EQ(s.state_bytes(), 2 * 4096u) << "all rows of both caches lie on a page each, whatever the number of steps";
}

// Positions and logits are checked one by one, layouts at each call: no message is put together for what is right.
TEST(Session, WhatIsCheckedAtEachCallAllocatesNothing) {
  constexpr int64_t kTokens = 64, kRows = 128, kDim = 16, kLogits = 1000;
  auto g = std::make_shared<Graph>("checked");
  const auto constant = [&](Shape dims, float first) { return g->add_constant(floats(std::move(dims), first)); };
  const TensorType heads{OPGRAFT_FLOAT32, {1, 4, kTokens, kDim}, true};
  const ValueId q = g->add_input("q", heads), k = g->add_input("k", heads);
  const ValueId positions = g->add_input("position_ids", {OPGRAFT_INT64, {kTokens}, true});
  const ValueId logits = g->add_input("logits", {OPGRAFT_FLOAT32, {1, kLogits}, true});
  const ValueId cos = constant({kRows, kDim}, 0), sin = constant({kRows, kDim}, 1);
  const auto turned = g->node(g->add_node(ops(), "ApplyRotaryPosEmb", {q, k, cos, sin, positions},
                                          {{"layout", std::string("BHSD")}, {"rotary_dim", kDim}}))
                          .outputs;
  const ValueId chosen = one(*g, "SampleToken", {logits, g->add_constant(floats({1}, 0))}, {{"temperature", 0.0}});
  g->outputs = {turned[0], turned[1], chosen};
  Session s(std::make_shared<Model>(g));
  std::vector<Tensor> in{floats(heads.dims, 1), floats(heads.dims, 2), Tensor(OPGRAFT_INT64, {kTokens}),
                         floats({1, kLogits}, 0)};
  std::iota(in[2].data<int64_t>(), in[2].data<int64_t>() + kTokens, 0);
  std::vector<Tensor> out;
  s.run_into(in, out);
  const int64_t before = allocations.load();
  s.run_into(in, out);
  EXPECT_EQ(allocations.load(), before);
  in[2].data<int64_t>()[kTokens / 2] = kRows;
  try {
    s.run_into(in, out);
    FAIL() << "a position outside the tables was taken";
  } catch (const Error &e) {
    EXPECT_NE(std::string(e.what()).find("position_ids must be in [0, 128), got 128"), std::string::npos) << e.what();
  }
}

TEST(Session, ArenaOfAChainIsOneBufferWhereOpsWorkInPlace) {
  Session s(std::make_shared<Model>(chain(50, {1000})));
  auto y = s.run({floats({1000})});
  EXPECT_FLOAT_EQ(y[0].data<float>()[0], 50.0f);
  EXPECT_LE(s.arena_bytes(), 2 * 4096u);
  EXPECT_GE(s.intermediate_bytes(), 40 * 4000u);
}

TEST(Session, InputsAreNeverWrittenAndOutputsNeverShared) {
  auto g = std::make_shared<Graph>();
  ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {8}, true});
  ValueId y = one(*g, "Neg", {x});
  g->outputs = {x, y, y};
  Session s(std::make_shared<Model>(g));
  Tensor in = floats({8}, 1);
  auto out = s.run({in});
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(in.data<float>()[0], 1.0f);
  EXPECT_EQ(out[0].data<float>()[0], 1.0f);
  EXPECT_EQ(out[1].data<float>()[0], -1.0f);
  EXPECT_EQ(out[2].data<float>()[0], -1.0f);
  EXPECT_NE(out[1].data(), out[2].data());
}

TEST(Session, AViewOfAnInputIsCopiedToTheOutput) {
  auto g = std::make_shared<Graph>();
  int64_t n = g->symbols.fresh("n");
  ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {n, 4}, true});
  g->outputs = {one(*g, "Reshape", {x, g->add_constant(Tensor::of({-1}))})};
  EXPECT_EQ(g->symbols.text(g->value(g->outputs[0]).type.dims[0]), "4*n");
  Session s(std::make_shared<Model>(g));
  Tensor in = floats({3, 4});
  auto out = s.run({in});
  EXPECT_EQ(out[0].dims(), (Shape{12}));
  EXPECT_EQ(std::memcmp(out[0].data(), in.data(), in.bytes()), 0);
}

TEST(Session, ShapeValuesFoldAtPlanTime) {
  auto g = std::make_shared<Graph>();
  int64_t b = g->symbols.fresh("b"), t = g->symbols.fresh("t");
  ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {b, t, 12}, true});
  ValueId shape = one(*g, "Shape", {x});
  ValueId db = one(*g, "TupleGetItem", {shape}, {{"index", int64_t(0)}});
  ValueId dt = one(*g, "TupleGetItem", {shape}, {{"index", int64_t(1)}});
  ValueId target = one(*g, "MakeTuple",
                       {db, dt, g->add_constant([] {
                          Tensor c(OPGRAFT_INT64, {});
                          *c.data<int64_t>() = 3;
                          return c;
                        }()),
                        g->add_constant([] {
                          Tensor c(OPGRAFT_INT64, {});
                          *c.data<int64_t>() = 4;
                          return c;
                        }())});
  ValueId y = one(*g, "Neg", {one(*g, "Reshape", {x, target})});
  g->outputs = {y};
  EXPECT_EQ(g->value(y).type.dims, (Shape{b, t, 3, 4}));
  auto model = std::make_shared<Model>(g);
  EXPECT_EQ(model->plan({{2, 5, 12}})->instructions.size(), 1u) << "only Neg runs";
  Session s(model);
  EXPECT_EQ(s.run({floats({2, 5, 12})})[0].dims(), (Shape{2, 5, 3, 4}));
}

TEST(Session, WrongInputsAreRefusedByName) {
  Session s(std::make_shared<Model>(gated()));
  auto message = [&](std::vector<Tensor> in) -> std::string {
    try {
      s.run(in);
    } catch (const std::exception &e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message({floats({2, 33})}), "model: takes 2 inputs, got 1");
  EXPECT_EQ(message({floats({2, 33}), floats({2, 32})}), "model: input gate.shape must be (rows, 33), got (2, 32)");
  EXPECT_EQ(message({floats({2, 33}), floats({3, 33})}), "model: input gate.shape must be (rows, 33), got (3, 33)");
  EXPECT_EQ(message({floats({2, 33}), Tensor(OPGRAFT_INT32, {2, 33})}),
            "model: input gate.dtype must be float32, got int32");
}

// Sizes that are told apart only at run time: the refusal is as clear as one of a graph.
TEST(Session, ShapesThatDoNotFitAtRunTimeNameNodeOpAndShapes) {
  auto g = std::make_shared<Graph>();
  ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {g->symbols.fresh("a"), 4}, true});
  ValueId y = g->add_input("y", {OPGRAFT_FLOAT32, {g->symbols.fresh("b"), 4}, true});
  g->outputs = {g->node(g->add_node(ops(), "Add", {x, y}, {}, "layer0.sum")).outputs[0]};
  Session s(std::make_shared<Model>(g));
  EXPECT_EQ(s.run({floats({3, 4}), floats({1, 4})})[0].dims(), (Shape{3, 4}));
  try {
    s.run({floats({3, 4}), floats({2, 4})});
    ADD_FAILURE() << "3 and 2 rows were added";
  } catch (const GraphError &e) {
    std::string m = e.what();
    EXPECT_EQ(m.find("node layer0.sum: Add: "), 0u) << m;
    EXPECT_NE(m.find("[inputs: float32(3, 4), float32(2, 4)]"), std::string::npos) << m;
  }
}

TEST(Session, SlicesOfSymbolicSizesAreInferred) {
  auto g = std::make_shared<Graph>();
  int64_t n = g->symbols.fresh("n");
  ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {n, 4}, true});
  ValueId table = g->add_constant(floats({9, 4}), "table", true);
  auto vector = [&](std::initializer_list<int64_t> v) { return g->add_constant(Tensor::of(v)); };
  auto slice = [&](ValueId of, ValueId begin, ValueId end, int64_t open_end = 0) {
    ValueId y = one(*g, "StridedSlice", {of, begin, end, vector({1})}, {{"end_mask", open_end}});
    g->outputs.push_back(y);
    return g->symbols.text(g->value(y).type.dims[0]);
  };
  ValueId rows = one(*g, "TupleGetItem", {one(*g, "Shape", {x})}, {{"index", int64_t(0)}});
  ValueId length = one(*g, "MakeTuple", {rows});
  EXPECT_EQ(slice(table, vector({0}), length), "n");
  EXPECT_EQ(slice(table, length, vector({0}), 1), "9-n");
  EXPECT_EQ(slice(x, vector({1}), vector({0}), 1), "-1+n");
  EXPECT_EQ(slice(x, vector({1}), vector({-1})), "-2+n");
  EXPECT_EQ(slice(x, vector({0}), vector({5})), "?") << "five rows only where there are as many";
  EXPECT_EQ(slice(x, vector({-2}), vector({0}), 1), "?");
  EXPECT_EQ(g->value(g->outputs[0]).type.dims[0], n);
  Session s(std::make_shared<Model>(g));
  for (auto [size, want] : std::vector<std::pair<int64_t, Shape>>{
           {7, {7, 2, 6, 5, 5, 2}}, {1, {1, 8, 0, 0, 1, 1}}, {12, {9, 0, 11, 10, 5, 2}}}) {
    auto y = s.run({floats({size, 4})});
    for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i].dims()[0], want[i]) << "slice " << i << " of " << size;
  }
}

TEST(SessionThreads, ManySessionsOnOneModelAgreeWithOne) {
  auto model = std::make_shared<Model>(gated(257));
  std::vector<Tensor> in{floats({64, 257}, -3), floats({64, 257}, -2, 0.17f)};
  Tensor want = Session(model).run(in)[0];
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Session s(model);
      for (int i = 0; i < 20; ++i) {
        Tensor got = s.run(in)[0];
        if (std::memcmp(got.data(), want.data(), want.bytes()) != 0) ++wrong;
        s.run({floats({t + 1, 257}), floats({t + 1, 257})});
      }
    });
  for (auto &t : threads) t.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Plan, TheCacheOfPlansIsBounded) {
  auto model = std::make_shared<Model>(gated());
  for (int64_t rows = 0; rows < 100; ++rows) model->plan({{rows, 33}, {rows, 33}});
  EXPECT_EQ(model->stats().plans_made, 100u);
  EXPECT_LE(model->stats().plans_cached, 16u);
}

TEST(Session, WeightsThatShareBytesArePackedEach) {
  Tensor all = floats({8, 4}, -1, 0.5f);
  Tensor square(OPGRAFT_FLOAT32, {4, 8}, all.data(), std::make_shared<Tensor>(all)),
      part(OPGRAFT_FLOAT32, {2, 4}, all.data(), std::make_shared<Tensor>(all));
  auto g = std::make_shared<Graph>("shared");
  ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {3, 4}, true});
  for (const Tensor &w : {all, part})
    g->outputs.push_back(one(*g, "MatMul", {x, g->add_constant(w, "w", true)}, {{"transpose_b", true}}));
  g->outputs.push_back(one(*g, "MatMul", {x, g->add_constant(square, "w", true)}));
  Tensor in = floats({3, 4}, 1);
  auto y = Session(std::make_shared<Model>(g)).run({in});
  const float *w = all.data<float>();
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 8; ++c) {
      float rows = 0, columns = 0;  // small multiples of 1/8: exact in any order
      for (int64_t k = 0; k < 4; ++k) {
        rows += in.data<float>()[r * 4 + k] * w[c * 4 + k];
        columns += in.data<float>()[r * 4 + k] * w[k * 8 + c];
      }
      EXPECT_EQ(y[0].data<float>()[r * 8 + c], rows);
      if (c < 2) {
        EXPECT_EQ(y[1].data<float>()[r * 2 + c], rows);
      }
      EXPECT_EQ(y[2].data<float>()[r * 8 + c], columns);
    }
}

TEST(Session, APassOverTheGraphDoesNotReachAModelMadeBefore) {
  auto g = gated();
  Session s(std::make_shared<Model>(g));
  Tensor x = floats({2, 33}), gate = floats({2, 33}, -2);
  auto before = s.run({x, gate})[0];
  passes::substitute(*g, ops(), passes::rules_of(ops()));
  ASSERT_EQ(g->order().size(), 1u);
  EXPECT_EQ(s.model().graph().order().size(), 2u);
  EXPECT_EQ(std::memcmp(s.run({x, gate})[0].data(), before.data(), before.bytes()), 0);
  EXPECT_EQ(s.run({floats({5, 33}), floats({5, 33})})[0].dims(), (Shape{5, 33})) << "a plan made after it";
}

class State : public testing::Test {
 protected:
  void SetUp() override { op_ = registry_.load(std::filesystem::path(OPGRAFT_BAD_OPS_DIR) / "accumulator.so").at(0); }
  int live() const {
    void *file = dlopen(op_->path.c_str(), RTLD_NOLOAD | RTLD_NOW);
    int n = *static_cast<int *>(dlsym(file, "opgraft_live_accumulators"));
    dlclose(file);
    return n;
  }
  Registry registry_;
  OpPtr op_;
};
TEST_F(State, AConstantIsNotUpdatedInPlaceNorFolded) {
  Graph g("g");
  ValueId x = g.add_constant(floats({4}, 1)), total = g.add_constant(floats({4}, 0, 0));
  g.outputs = {g.node(g.add_node(registry_, "Accumulator", {x, total}, {})).outputs[0]};
  EXPECT_FALSE(passes::fold_constants(g, registry_));
  try {
    Session(std::make_shared<Model>(std::make_shared<Graph>(g))).run({});
    FAIL();
  } catch (const std::exception &e) {
    EXPECT_NE(std::string(e.what()).find("Accumulator: total is updated in place and must be a Parameter or an "
                                         "input of the model, got a constant"),
              std::string::npos)
        << e.what();
  }
}
TEST_F(State, InitSeesNoValuesAndEveryStateIsReleased) {
  auto g = std::make_shared<Graph>("g");
  TensorType type{OPGRAFT_FLOAT32, {4}, true};
  ValueId x = g->add_input("x", type), total = g->add_input("total", type);
  ValueId twice = one(*g, "Add", {x, x});  // in the arena
  g->outputs = {g->node(g->add_node(registry_, "Accumulator", {twice, total}, {})).outputs[0]};
  // Another one that cannot be made: the state of the first must not be lost.
  auto bad = std::make_shared<Graph>(*g);
  ValueId constant = bad->add_constant(floats({4}));
  bad->outputs.push_back(bad->node(bad->add_node(registry_, "Accumulator", {constant, bad->inputs[1]}, {})).outputs[0]);
  {
    Session s(std::make_shared<Model>(g));
    Tensor sum = floats({4}, 0, 0);
    for (float want : {2.0f, 4.0f}) EXPECT_EQ(s.run({floats({4}, 1, 0), sum})[0].data<float>()[3], want);
    EXPECT_EQ(live(), 1);
    EXPECT_THROW(Session(std::make_shared<Model>(bad)).run({floats({4}), sum}), std::exception);
    EXPECT_EQ(live(), 1);
  }
  EXPECT_EQ(live(), 0);
}

}  // namespace
}  // namespace opgraft
