// Parameters that an operator updates in place: a session's own, or the Parameters themselves.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "engine_test_util.h"
#include "infer/passes/passes.h"

namespace opgraft {
namespace {
using namespace test;

constexpr int64_t kRow = 1024;  // floats of a page
constexpr size_t kPage = kRow * sizeof(float);

class SessionState : public ::testing::Test {
 protected:
  void SetUp() override { registry_.load(std::filesystem::path(OPGRAFT_BAD_OPS_DIR) / "accumulator.so"); }

  // y = total += x, on as many rows as x has, of a Parameter of `rows` rows.
  std::shared_ptr<Graph> sums(int64_t rows, float first = 0) {
    auto g = std::make_shared<Graph>("sums");
    ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {g->symbols.fresh("rows"), kRow}, true});
    total_ = Tensor(OPGRAFT_FLOAT32, {rows, kRow});
    std::fill_n(total_.data<float>(), total_.size(), first);
    ValueId total = g->add_constant(total_, "total", true);
    g->outputs = {g->node(g->add_node(registry_, "Accumulator", {x, total}, {})).outputs[0]};
    return g;
  }
  static Tensor rows(int64_t n, float value) {
    Tensor t(OPGRAFT_FLOAT32, {n, kRow});
    std::fill_n(t.data<float>(), t.size(), value);
    return t;
  }
  static float run(Session &s, int64_t n, float value) { return *s.run({rows(n, value)})[0].data<float>(); }

  Registry registry_;
  Tensor total_;
};

TEST_F(SessionState, EverySessionHasItsOwn) {
  auto model = std::make_shared<Model>(sums(4, 10));
  Session a(model), b(model);
  EXPECT_EQ(run(a, 1, 1), 11);
  EXPECT_EQ(run(a, 2, 1), 12) << "another size, the same state";
  EXPECT_EQ(run(b, 1, 5), 15);
  EXPECT_EQ(run(a, 1, 1), 13);
  EXPECT_EQ(*total_.data<float>(), 10) << "the Parameter keeps what the sessions begin with";
}

TEST_F(SessionState, OrIsTheParametersOwnMemory) {
  auto model = std::make_shared<Model>(sums(4, 10));
  Session a(model, States::kParameters), b(model, States::kParameters);
  EXPECT_EQ(run(a, 1, 1), 11);
  EXPECT_EQ(run(b, 1, 1), 12);
  EXPECT_EQ(*total_.data<float>(), 12);
  EXPECT_EQ(a.state_bytes(), 0u);
  EXPECT_THROW(a.reset(), Error);
  EXPECT_THROW(a.fork(), Error);
}

TEST_F(SessionState, IsNoConstantToThePasses) {
  auto g = sums(2, 1);
  ValueId total = g->states().at(0);
  ValueId before = g->node(g->add_node(registry_, "Accumulator", {g->inputs[0], total}, {})).outputs[0];
  g->outputs.push_back(before);
  passes::fold_constants(*g, registry_);
  passes::merge_common(*g, registry_);
  passes::remove_dead_code(*g, registry_);
  EXPECT_EQ(g->order().size(), 2u) << "two updates, one after the other";
  Session s(std::make_shared<Model>(g));
  auto y = s.run({rows(1, 1)});
  EXPECT_EQ(*y[0].data<float>(), 2);
  EXPECT_EQ(*y[1].data<float>(), 3);
}

TEST_F(SessionState, CountsThePagesThatAreWritten) {
  auto model = std::make_shared<Model>(sums(1 << 16));  // 256 MiB of address space
  Session s(model);
  EXPECT_EQ(s.state_bytes(), 0u) << "zeros need no page";
  run(s, 3, 1);
  EXPECT_EQ(s.state_bytes(), 3 * kPage);
  run(s, 2, 1);
  EXPECT_EQ(s.state_bytes(), 3 * kPage) << "pages that are written again";
  Session other(model);
  run(other, 1, 1);
  EXPECT_EQ(model->state_bytes(), 4 * kPage);
}

TEST_F(SessionState, IsGivenBack) {
  auto model = std::make_shared<Model>(sums(64));
  {
    Session s(model);
    run(s, 5, 1);
    auto fork = s.fork();
    run(*fork, 2, 1);
    EXPECT_EQ(model->state_bytes(), 7 * kPage);
    s.reset();
    EXPECT_EQ(model->state_bytes(), 7 * kPage) << "the fork still sees what it shares";
  }
  EXPECT_EQ(model->state_bytes(), 0u);
}

TEST_F(SessionState, ResetBeginsAnew) {
  Session s(std::make_shared<Model>(sums(4, 10)));
  run(s, 1, 1);
  s.reset();
  EXPECT_EQ(run(s, 1, 1), 11);
}

TEST_F(SessionState, ForksShareWhatWasWrittenAndNothingLater) {
  auto model = std::make_shared<Model>(sums(64));
  Session s(model);
  run(s, 8, 1);
  auto a = s.fork(), b = s.fork();
  EXPECT_EQ(model->state_bytes(), 8 * kPage) << "shared";
  EXPECT_EQ(a->state_bytes(), 8 * kPage);
  EXPECT_EQ(run(*a, 1, 10), 11);
  EXPECT_EQ(run(s, 1, 100), 101);
  EXPECT_EQ(run(*b, 1, 1000), 1001);
  EXPECT_EQ(run(*a, 1, 10), 21);
  EXPECT_EQ(model->state_bytes(), 11 * kPage) << "a page of its own each";
  auto c = a->fork();  // of what it shares and what it wrote
  EXPECT_EQ(run(*c, 1, 1), 22);
  EXPECT_EQ(run(*a, 8, 1), 22);
  auto y = c->run({rows(8, 0)});
  EXPECT_EQ(y[0].data<float>()[0], 22);
  EXPECT_EQ(y[0].data<float>()[kRow], 1) << "the first session's";
}

TEST_F(SessionState, TheBoundRefusesAndLosesNothing) {
  auto model = std::make_shared<Model>(sums(64));
  model->limit_state(3 * kPage);
  Session s(model), other(model);
  run(s, 2, 1);
  run(other, 1, 7);
  try {
    run(s, 3, 1);
    FAIL() << "a fourth page was written";
  } catch (const Error &e) {
    EXPECT_EQ(e.status, OPGRAFT_OUT_OF_MEMORY);
    EXPECT_NE(std::string(e.what()).find("bound"), std::string::npos) << e.what();
  }
  EXPECT_EQ(model->state_bytes(), 3 * kPage);
  EXPECT_EQ(run(other, 1, 1), 8) << "others go on";
  EXPECT_THROW(run(s, 1, 1), Error) << "it may be half updated";
  s.reset();
  EXPECT_EQ(run(s, 2, 1), 1);
}

TEST_F(SessionState, AFailedRunIsNotGoneOnWith) {
  Session s(std::make_shared<Model>(sums(4)));
  EXPECT_THROW(run(s, 1, -1), Error);
  try {
    run(s, 1, 1);
    FAIL();
  } catch (const Error &e) {
    EXPECT_NE(std::string(e.what()).find("reset"), std::string::npos) << e.what();
  }
  EXPECT_THROW(s.fork(), Error);
  s.reset();
  EXPECT_EQ(run(s, 1, 1), 1);
  EXPECT_THROW(s.run({}), Error) << "refused before anything ran";
  EXPECT_EQ(run(s, 1, 1), 2);
}

TEST_F(SessionState, SessionsOfSeveralThreadsKeepTheBound) {
  auto model = std::make_shared<Model>(sums(64));
  model->limit_state(40 * kPage);
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      Session s(model);
      for (int64_t n = 1; n <= 16; ++n) try {
          run(s, n, 1);
          if (model->state_bytes() > 40 * kPage) refused = 1000;
        } catch (const Error &) {
          ++refused;
          s.reset();
        }
    });
  for (auto &t : threads) t.join();
  EXPECT_LT(refused, 1000);
  EXPECT_EQ(model->state_bytes(), 0u);
}

}  // namespace
}  // namespace opgraft
