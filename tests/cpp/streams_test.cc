// Results that no operator reads may go past the caches (aot_ops/common/streams.h): the same bits, and no others.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "aot_ops/common/threads.h"
#include "engine_test_util.h"
#include "infer/native_call.h"
#include "infer/session.h"

namespace opgraft {
namespace {
using namespace test;

// Memory whose floats begin `at` elements behind a cache line, between others that nobody may write.
class Placed {
 public:
  Placed(Shape dims, int64_t at)
      : dims_(std::move(dims)), at_(kLine + at), all_(OPGRAFT_FLOAT32, {at_ + size() + kLine}) {
    std::minstd_rand random{unsigned(size())};
    for (int64_t i = 0; i < all_.size(); ++i) all_.data<float>()[i] = float(random() % 2001) / 500 - 2;
  }
  int64_t size() const { return element_count(dims_); }
  float *data() { return all_.data<float>() + at_; }
  opgraft_tensor tensor() { return {data(), dims_.data(), int32_t(dims_.size()), OPGRAFT_FLOAT32, size()}; }
  // What lies before and behind.
  std::string others() {
    const auto *p = reinterpret_cast<const char *>(all_.data<float>());
    return std::string(p, size_t(at_) * 4) + std::string(reinterpret_cast<const char *>(data() + size()), kLine * 4);
  }

 private:
  static constexpr int64_t kLine = 16;
  Shape dims_;
  int64_t at_;
  Tensor all_;
};

void expect_same_bits(const std::string &op, const std::vector<Shape> &inputs, const std::vector<Shape> &outputs,
                      Attrs attrs = {}) {
  const auto found = ops().resolve(op);
  const FlatAttrs flat(complete_attrs(found->manifest, attrs));
  for (int64_t at : {0, 5}) {
    std::vector<Placed> in, usual, past;
    for (auto &dims : inputs) in.emplace_back(dims, at ? 3 + int64_t(in.size()) : 0);
    for (auto &dims : outputs) usual.emplace_back(dims, at), past.emplace_back(dims, at);
    std::vector<opgraft_tensor> x, y;
    for (auto &p : in) x.push_back(p.tensor());
    for (auto *made : {&usual, &past}) {
      y.clear();
      std::string before;
      for (auto &p : *made) y.push_back(p.tensor()), before += p.others();
      NativeCall call(*found, x, y, flat);
      if (made == &past) call.call.unread = (uint64_t(1) << outputs.size()) - 1;
      call.check(found->native->kernel(&call.call));
      std::string after;
      for (auto &p : *made) after += p.others();
      EXPECT_EQ(before, after) << op << " at " << at;
    }
    for (size_t i = 0; i < outputs.size(); ++i)
      EXPECT_EQ(std::memcmp(usual[i].data(), past[i].data(), size_t(usual[i].size()) * 4), 0) << op << " at " << at;
  }
}

// 8 MB of two of Intel's cores, twice.
constexpr int64_t kMany = 2'200'007;
class Streams : public testing::Test {
  void SetUp() override { opgraft_set_threads(2); }
  void TearDown() override { opgraft_set_threads(0); }
};

TEST_F(Streams, ElementsThatNoOperatorReadsAreTheSameBits) {
  const int64_t n = kMany;
  for (auto op : {"Add", "Sub", "Mul", "Div", "Maximum", "Minimum"}) expect_same_bits(op, {{n}, {n}}, {{n}});
  expect_same_bits("Add", {{2 * n}, {1}}, {{2 * n}});
  expect_same_bits("Sub", {{700, 1}, {700, 6001}}, {{700, 6001}});
  expect_same_bits("Mul", {{700, 6001}, {6001}}, {{700, 6001}});
}

TEST_F(Streams, ActivationsThatNoOperatorReadsAreTheSameBits) {
  const int64_t n = kMany;
  for (auto op : {"ReLU", "ReLU6", "SiLU", "Exp", "Neg", "FusedGeLU"}) expect_same_bits(op, {{2 * n}}, {{2 * n}});
  expect_same_bits("FusedGeLU", {{2 * n}}, {{2 * n}}, {{"approximate", std::string("tanh")}});
  expect_same_bits("SwiGLU", {{n}, {n}}, {{n}});
  expect_same_bits("SwiGLUInterleaved", {{4 * n}}, {{2 * n}});
  expect_same_bits("Swiglu", {{500, 8004}}, {{500, 4002}}, {{"dim", int64_t(-1)}});
}

TEST_F(Streams, MovedElementsThatNoOperatorReadsAreTheSameBits) {
  const auto transpose = [](Shape x, std::vector<int64_t> perm) {
    Shape y;
    for (int64_t i : perm) y.push_back(x[size_t(i)]);
    expect_same_bits("Transpose", {x}, {y}, {{"perm", perm}});
  };
  transpose({512, 40, 128}, {1, 0, 2});  // rows stay whole
  transpose({512, 40, 131}, {1, 0, 2});
  transpose({5, 512, 1001}, {0, 2, 1});  // y's rows begin at lines
  transpose({5, 528, 1001}, {2, 0, 1});
  transpose({5, 515, 1001}, {0, 2, 1});  // and do not
}

TEST_F(Streams, RowsThatNoOperatorReadsAreTheSameBits) {
  for (int64_t columns : {4096, 4099}) {
    expect_same_bits("FusedRmsNorm", {{600, columns}, {columns}}, {{600, columns}});
    expect_same_bits("FusedLayerNorm", {{600, columns}, {columns}, {columns}}, {{600, columns}});
  }
  expect_same_bits("RotaryPositionEmbedding", {{1, 8, 600, 512}, {600, 512}, {600, 512}}, {{1, 8, 600, 512}});
  for (auto size : {56, 31})
    expect_same_bits("Conv2D", {{8, 64, size, 56}, {80, 64, 1, 1}}, {{8, 80, size, 56}},
                     {{"out_channel", int64_t(80)}, {"kernel_size", std::vector<int64_t>{1, 1}}});
}

// y = -x leaves the graph, which reads it, too; |exp(y)| is read by nobody.
TEST_F(Streams, KernelsAreToldWhichResultsLeaveTheGraph) {
  auto g = std::make_shared<Graph>("two");
  const ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {5}, true});
  const ValueId y = one(*g, "Neg", {x}), t = one(*g, "Exp", {y});
  g->outputs = {y, one(*g, "Abs", {t})};
  Session s(std::make_shared<Model>(g));
  std::vector<std::pair<std::string, uint64_t>> told;
  s.set_observer(
      [&](NodeId node, const opgraft_call &call, int64_t) { told.emplace_back(g->node(node).op, call.unread); });
  s.run({floats({5})});
  const std::vector<std::pair<std::string, uint64_t>> want = {{"Neg", 0}, {"Exp", 0}, {"Abs", 1}};
  EXPECT_EQ(told, want);
}

}  // namespace
}  // namespace opgraft
