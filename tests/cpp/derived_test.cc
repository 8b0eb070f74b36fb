// What follows from constants and Parameters alone is computed once a model.
#include "infer/derived.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "engine_test_util.h"
#include "infer/plan.h"

namespace opgraft {
namespace {
using namespace test;

const Attrs kTurned{{"perm", std::vector<int64_t>{1, 0}}};

class DerivedValues : public ::testing::Test {
 protected:
  DerivedValues() {
    x_ = g_->add_input("x", {OPGRAFT_FLOAT32, {g_->symbols.fresh("rows"), 16}, true});
    w_ = g_->add_constant(weight_, "w", true);
  }
  NodeId producer(ValueId v) const { return g_->value(v).producer; }
  ValueId sizes(std::initializer_list<int64_t> values) { return g_->add_constant(Tensor::of(values)); }
  ValueId product(ValueId b) { return one(*g_, "MatMul", {x_, b}, {{"transpose_b", true}}); }

  std::shared_ptr<Graph> g_ = std::make_shared<Graph>("derived");
  Tensor weight_ = floats({48, 16}, -2);
  ValueId x_, w_;
};

TEST_F(DerivedValues, PartsOfAParameterStayWhereTheyAreAndArePacked) {
  const auto parts = g_->node(g_->add_node(ops(), "Split", {w_}, {{"axis", int64_t(0)}, {"output_num", int64_t(3)}}));
  for (ValueId part : parts.outputs) g_->outputs.push_back(product(part));
  const Derived derived(*g_);
  for (int i = 0; i < 3; ++i) {
    const Tensor *part = derived.find(parts.outputs[size_t(i)]);
    ASSERT_TRUE(part);
    EXPECT_EQ(part->data<float>(), weight_.data<float>() + i * 16 * 16);
    EXPECT_EQ(part->dims(), (Shape{16, 16}));
  }
  EXPECT_EQ(derived.bytes(), 0u);

  auto model = std::make_shared<Model>(g_);
  EXPECT_EQ(model->plan({{40, 16}})->instructions.size(), 3u) << "no Split";
  EXPECT_GT(model->stats().packed_bytes, 0u);
  const Tensor x = floats({40, 16}, 1);
  const auto y = Session(model).run({x});
  for (int64_t part = 0; part < 3; ++part)
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t j = 0; j < 16; ++j) {
        double want = 0, size = 0;
        for (int64_t k = 0; k < 16; ++k) {
          const double term = double(x.data<float>()[i * 16 + k]) * weight_.data<float>()[(part * 16 + j) * 16 + k];
          want += term, size += std::fabs(term);
        }
        ASSERT_NEAR(y[size_t(part)].data<float>()[i * 16 + j], want, 16 * 0x1p-24 * size);
      }
}

TEST_F(DerivedValues, OtherFormsAreKeptAndWhatOnlyTheyNeedIsNot) {
  const ValueId half = one(*g_, "Cast", {w_}, {{"dtype", std::string("float16")}});
  const ValueId turned = one(*g_, "Transpose", {half}, kTurned);
  const ValueId flat = one(*g_, "Reshape", {turned, sizes({-1})});
  g_->outputs = {one(*g_, "ReLU", {x_}), flat};
  const Derived derived(*g_);
  EXPECT_TRUE(derived.has(producer(half)) && derived.has(producer(turned)) && derived.has(producer(flat)));
  EXPECT_FALSE(derived.find(half) || derived.find(turned));
  ASSERT_TRUE(derived.find(flat));
  EXPECT_EQ(derived.bytes(), size_t(48 * 16 * 2));
  EXPECT_FALSE(derived.has(producer(g_->outputs[0])));
}

TEST_F(DerivedValues, WhatIsLargerThanWhatItIsMadeOfIsComputedAtTheCall) {
  const ValueId large = one(*g_, "BroadcastTo", {w_, sizes({2048, 48, 16})});
  const ValueId wide = one(*g_, "Cast", {g_->add_constant(Tensor(OPGRAFT_INT8, {48, 16}), "q", true)});
  g_->outputs = {large, wide};
  const Derived derived(*g_);
  EXPECT_FALSE(derived.has(producer(large)) || derived.has(producer(wide)));
}

TEST_F(DerivedValues, InAllTheyAreNoMoreThanTheConstants) {
  for (int i = 0; i < 5; ++i) g_->outputs.push_back(one(*g_, "Transpose", {w_}, kTurned));
  const Derived derived(*g_);
  EXPECT_TRUE(derived.has(producer(g_->outputs[0])));
  EXPECT_FALSE(derived.has(producer(g_->outputs[1])));
  EXPECT_EQ(derived.bytes(), weight_.bytes());
}

TEST_F(DerivedValues, MemoryThatSeveralShareCountsOnce) {
  const ValueId turned = one(*g_, "Transpose", {w_}, kTurned);
  g_->outputs = {turned, one(*g_, "Reshape", {turned, sizes({-1})})};
  const Derived derived(*g_);
  ASSERT_TRUE(derived.find(g_->outputs[1]));
  EXPECT_EQ(derived.find(g_->outputs[1])->data(), derived.find(turned)->data());
  EXPECT_EQ(derived.bytes(), weight_.bytes());
}

TEST_F(DerivedValues, OfAnUpdatedParameterThereIsNone) {
  Registry registry;
  registry.load(std::filesystem::path(OPGRAFT_BAD_OPS_DIR) / "accumulator.so");
  const ValueId read = one(*g_, "Transpose", {w_}, kTurned);
  g_->outputs = {read};
  EXPECT_TRUE(Derived(*g_).has(producer(read)));
  g_->outputs.push_back(g_->node(g_->add_node(registry, "Accumulator", {x_, w_}, {})).outputs[0]);
  EXPECT_FALSE(Derived(*g_).has(producer(read)));
}

TEST_F(DerivedValues, OfAParameterThatAnotherGraphUpdatesNothingIsReadBeforeTheRun) {
  const Tensor live = floats({16, 16}, 1);
  const ValueId p = g_->add_constant(live, "p", true, true);
  const ValueId turned = one(*g_, "Transpose", {p}, kTurned);
  g_->outputs = {product(turned), product(p)};
  EXPECT_FALSE(Derived(*g_).has(producer(turned)));
  auto model = std::make_shared<Model>(g_);
  Session s(model);
  const Tensor x = floats({3, 16}, 1);
  for (const float scale : {1.0f, 2.0f, 4.0f}) {  // each run sees what is there by then
    for (int64_t i = 0; i < live.size(); ++i) live.data<float>()[i] = scale * float(i % 7);
    const auto y = s.run({x});
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 16; ++j) {
        double want[2] = {0, 0};
        for (int64_t k = 0; k < 16; ++k) {
          want[0] += double(x.data<float>()[i * 16 + k]) * live.data<float>()[k * 16 + j];
          want[1] += double(x.data<float>()[i * 16 + k]) * live.data<float>()[j * 16 + k];
        }
        for (size_t k : {0, 1}) ASSERT_NEAR(y[k].data<float>()[i * 16 + j], want[k], 16 * 0x1p-24 * want[k]);
      }
  }
  EXPECT_EQ(model->stats().packed_bytes, 0u);
}

TEST_F(DerivedValues, AnOperatorThatFailsDoesSoAtTheCall) {
  const ValueId row = one(*g_, "Gather", {w_, sizes({48})});
  g_->outputs = {one(*g_, "Add", {x_, row})};
  EXPECT_FALSE(Derived(*g_).has(producer(row)));
  auto model = std::make_shared<Model>(g_);
  Session s(model);
  try {
    s.run({floats({2, 16})});
    FAIL();
  } catch (const Error &e) {
    EXPECT_NE(std::string(e.what()).find(g_->node(producer(row)).name), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace opgraft
