#include "infer/results.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "engine_test_util.h"
#include "infer/session.h"

namespace opgraft {
namespace {
using namespace test;

constexpr int64_t kMiB = 1 << 20;
TensorType bytes(int64_t n) { return {OPGRAFT_INT8, {n}, true}; }

TEST(Results, LargeMemoryThatNobodyHoldsIsHandedOutAgain) {
  Results results;
  auto first = results.make({bytes(kMiB), bytes(2 * kMiB)});
  const std::set<void *> places{first[0].data(), first[1].data()};
  Tensor kept = first[1];
  first.clear();
  auto second = results.make({bytes(kMiB), bytes(2 * kMiB)});
  EXPECT_TRUE(places.contains(second[0].data()));
  EXPECT_FALSE(places.contains(second[1].data())) << "somebody holds it";
  EXPECT_EQ(second[1].dims(), (Shape{2 * kMiB}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second[1].data()) % 64, 0u);
}

TEST(Results, KeepsAtMostTheBytesOfOneRun) {
  Results results;
  std::vector<std::vector<Tensor>> held;
  for (int i = 0; i < 4; ++i) held.push_back(results.make({bytes(kMiB), bytes(kMiB)}));
  held.clear();
  EXPECT_EQ(results.kept_bytes(), size_t(2 * kMiB));
  results.make({bytes(kMiB + 1)});
  EXPECT_LE(results.kept_bytes(), size_t(kMiB + 1)) << "what other sizes left makes room";
  results.make({bytes(8)});
  EXPECT_EQ(results.kept_bytes(), 0u) << "small ones are the allocator's";
}

TEST(Results, TensorsMayOutliveTheirSession) {
  auto g = std::make_shared<Graph>();
  g->outputs = {one(*g, "Neg", {g->add_input("x", {OPGRAFT_FLOAT32, {kMiB}, true})})};
  auto session = std::make_unique<Session>(std::make_shared<Model>(g));
  const Tensor x = floats({kMiB}, 1);
  auto y = session->run({x});
  const auto again = session->run({x});
  EXPECT_NE(y[0].data(), again[0].data());
  void *const place = y[0].data();
  y.clear();
  y = session->run({x});
  EXPECT_EQ(y[0].data(), place);
  session.reset();
  EXPECT_EQ(y[0].data<float>()[0], -x.data<float>()[0]);
  EXPECT_EQ(std::memcmp(y[0].data(), again[0].data(), y[0].bytes()), 0);
}

TEST(Results, ASizeThatNoMemoryHasIsRefused) {
  Results results;
  EXPECT_THROW(results.make({{OPGRAFT_FLOAT32, {int64_t(1) << 62, 8}, true}}), Error);
  EXPECT_THROW(results.make({bytes(int64_t(1) << 60)}), std::bad_alloc);
  EXPECT_EQ(results.make({bytes(0)})[0].bytes(), 0u);
}

TEST(ResultsThreads, AreLetGoInAnyThread) {
  Results results;
  for (int i = 0; i < 50; ++i) {
    auto made = results.make({bytes(kMiB), bytes(kMiB)});
    for (auto &t : made) std::memset(t.data(), i, t.bytes());
    std::jthread([one = std::move(made[0])]() mutable { one = Tensor(); });
    std::jthread other([one = std::move(made[1])]() mutable { one = Tensor(); });
    made = results.make({bytes(kMiB), bytes(kMiB)});
    EXPECT_NE(made[0].data(), made[1].data());
  }
  EXPECT_LE(results.kept_bytes(), size_t(2 * kMiB));
}

}  // namespace
}  // namespace opgraft
