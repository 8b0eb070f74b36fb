// Pinned digests, the choice among implementations of one version, and who takes over from one that fails.
#include "registry/choice.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "engine_test_util.h"
#include "infer/plan.h"
#include "registry/digest.h"
#include "registry/functions.h"

namespace opgraft {
namespace {

namespace fs = std::filesystem;
const fs::path kBadOps = OPGRAFT_BAD_OPS_DIR;

std::string bytes_of(const fs::path &file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Digest, IsSha256) {
  // The examples of FIPS 180 and NIST: nothing, one block, two blocks, a million letters.
  EXPECT_EQ(sha256(std::string()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256(std::string("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(std::string("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

class Pin : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv("OPGRAFT_PROBE_RAN");
    std::string name = (fs::temp_directory_path() / "opgraft_pin_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = fs::canonical(name);
    file_ = dir_ / "probe.so";
    fs::copy_file(kBadOps / "probe_1_0.so", file_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  void refused(const fs::path &file) {
    try {
      registry_.load(file);
      FAIL() << file << " was loaded";
    } catch (const LoadError &e) {
      EXPECT_EQ(e.step, "digest");
      EXPECT_NE(std::string(e.what()).find("sha256 must be " + right_ + " as pinned, got "), std::string::npos)
          << e.what();
    }
    EXPECT_EQ(std::getenv("OPGRAFT_PROBE_RAN"), nullptr) << "its constructor ran";
  }
  Registry registry_;
  fs::path dir_, file_;
  std::string right_ = sha256(bytes_of(kBadOps / "probe_1_0.so"));
};
TEST_F(Pin, TheFileThatWasPinnedIsLoaded) {
  registry_.pin(file_, right_);
  EXPECT_EQ(registry_.load(file_).size(), 1u);
}
TEST_F(Pin, AnotherFileInItsPlaceIsRefused) {
  registry_.pin(file_, right_);
  fs::copy_file(kBadOps / "probe_1_2.so", file_, fs::copy_options::overwrite_existing);
  refused(file_);
  auto report = examine(file_, {}, right_);
  EXPECT_EQ(report.back().step, "digest");
  EXPECT_FALSE(report.back().ok);
}
TEST_F(Pin, ALinkDoesNotGetAroundIt) {
  fs::create_symlink(file_, dir_ / "link.so");
  registry_.pin(dir_ / "link.so", right_);
  fs::remove(dir_ / "link.so");
  fs::create_symlink(kBadOps / "probe_1_2.so", dir_ / "link.so");
  refused(dir_ / "link.so");
  fs::copy_file(kBadOps / "probe_1_2.so", file_, fs::copy_options::overwrite_existing);
  refused(file_);
}
TEST_F(Pin, HoldsForFunctionsMadeForMindSpore) {
  fs::path foreign = kBadOps / "foreign_abi1.so";
  registry_.pin(foreign, sha256(bytes_of(foreign)));
  EXPECT_NE(load_function(registry_, foreign, "Scale", {}), nullptr);
  registry_.pin(foreign, right_);
  EXPECT_THROW(load_function(registry_, foreign, "Scale", {}), LoadError);
}
TEST_F(Pin, WhatIsNoDigestIsRefused) {
  for (auto bad : {"", "12", "zz7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"})
    EXPECT_THROW(registry_.pin(file_, bad), std::invalid_argument) << bad;
  std::string upper = right_;
  for (char &c : upper) c = char(std::toupper(c));
  registry_.pin(file_, upper);
  EXPECT_EQ(registry_.load(file_).size(), 1u);
}

class Choice : public testing::Test {
 protected:
  OpPtr load(const char *name) { return registry_.load(kBadOps / (std::string(name) + ".so")).at(0); }
  // One call with x = 41; the reference of Probe is null.
  Recovery call(const Op &op) {
    int64_t shape[] = {1};
    opgraft_tensor in{&x_, shape, 1, OPGRAFT_FLOAT32, 1}, out{&y_, shape, 1, OPGRAFT_FLOAT32, 1};
    opgraft_call c{};
    c.struct_size = sizeof c;
    c.n_inputs = c.n_outputs = 1;
    c.inputs = &in;
    c.outputs = &out;
    y_ = 0;
    int status = op.native->kernel(&c);
    if (!status) return {};
    return recover(op, c, status, [&](const std::string &line) { log_.push_back(line); });
  }
  Registry registry_;
  std::vector<std::string> log_;
  float x_ = 41, y_ = 0;
};
TEST_F(Choice, ImplementationsOfOneVersionLieSideBySide) {
  auto plain = load("probe_1_0"), slow = load("probe_slow");
  EXPECT_EQ(slow->title(), "Probe@1.0.0 (slow)");
  EXPECT_EQ(registry_.resolve("Probe"), slow) << "the higher score";
  EXPECT_EQ(implementations(plain), (std::vector<OpPtr>{slow, plain}));
  EXPECT_EQ(registry_.list().size(), 2u);
  // Another version is no implementation of this one; the same one twice is a duplicate.
  load("probe_1_2");
  EXPECT_EQ(implementations(plain).size(), 2u);
  EXPECT_THROW(registry_.load(kBadOps / "duplicate.so"), LoadError);
}
TEST_F(Choice, IsMeasuredOncePerDtypesAndBucket) {
  auto plain = load("probe_1_0"), slow = load("probe_slow");
  int measured = 0;
  auto seconds = [&](const OpPtr &op) {
    ++measured;
    return op == slow ? 2.0 : 1.0;
  };
  auto &family = *plain->family;
  EXPECT_EQ(family.choose({{OPGRAFT_FLOAT32}, {{5, 100}}}, seconds), plain);
  EXPECT_EQ(measured, 2);
  EXPECT_EQ(family.choose({{OPGRAFT_FLOAT32}, {{8, 128}}}, seconds), plain);
  EXPECT_EQ(measured, 2) << "the same bucket";
  family.choose({{OPGRAFT_FLOAT16}, {{5, 100}}}, seconds);
  family.choose({{OPGRAFT_FLOAT32}, {{9, 100}}}, seconds);
  EXPECT_EQ(measured, 6) << "another dtype, another bucket";
  load("probe_failing");
  family.choose({{OPGRAFT_FLOAT32}, {{5, 100}}}, seconds);
  EXPECT_EQ(measured, 9) << "one more implementation: all are measured again";
}
TEST_F(Choice, OneThatCannotRunIsNotChosen) {
  auto plain = load("probe_1_0"), slow = load("probe_slow");
  auto only_slow = [&](const OpPtr &op) -> double {
    if (op == plain) throw std::runtime_error("not these arguments");
    return 1;
  };
  EXPECT_EQ(plain->family->choose({{OPGRAFT_FLOAT32}, {{1}}}, only_slow), slow);
  auto none = [](const OpPtr &) -> double { throw std::runtime_error("not these arguments"); };
  EXPECT_EQ(plain->family->choose({{OPGRAFT_FLOAT32}, {{2}}}, none), nullptr);
}
TEST_F(Choice, ManyThreadsMeasureOnce) {
  auto plain = load("probe_1_0");
  load("probe_slow");
  std::atomic<int> measured{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int64_t n = 1; n <= 64; n *= 2) {
        auto op = plain->family->choose({{OPGRAFT_FLOAT32}, {{n}}}, [&](const OpPtr &op) {
          ++measured;
          return op == plain ? 1.0 : 2.0;
        });
        if (op != plain) ++wrong;
      }
    });
  for (auto &t : threads) t.join();
  EXPECT_EQ(measured, 2 * 7);
  EXPECT_EQ(wrong, 0);
}
TEST_F(Choice, APlanCallsTheFastest) {
  auto plain = load("probe_1_0"), slow = load("probe_slow");
  auto g = std::make_shared<Graph>("probe");
  ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {4}, true});
  auto node = g->add_node(registry_, "Probe", {x}, {});
  g->outputs = {g->node(node).outputs[0]};
  EXPECT_EQ(g->node(node).impl, slow) << "by score";
  auto model = std::make_shared<Model>(g);
  EXPECT_EQ(model->plan({{4}})->instructions.at(0).op, plain.get());
  EXPECT_EQ(Session(model).run({test::floats({4}, 1)})[0].data<float>()[0], 2);
}

TEST_F(Choice, AnotherImplementationTakesOver) {
  auto failing = load("probe_failing"), slow = load("probe_slow"), plain = load("probe_1_0");
  auto r = call(*failing);
  EXPECT_EQ(r.status, OPGRAFT_OK);
  EXPECT_EQ(r.by, "Probe@1.0.0 (slow)") << "the next by score";
  EXPECT_EQ(y_, 42);
  EXPECT_EQ(failing->failures, 1);
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_EQ(log_[0], "Probe@1.0.0 (failing): probe; Probe@1.0.0 (slow) takes over");
  call(*failing);
  EXPECT_EQ(failing->failures, 2);
  EXPECT_EQ(slow->failures, 0);
}
TEST_F(Choice, WhoMayHaveWrittenIsNotTakenOverFrom) {
  auto broken = load("probe_broken");
  load("probe_1_0");
  auto r = call(*broken);
  EXPECT_EQ(r.status, OPGRAFT_INTERNAL);
  EXPECT_EQ(r.cause, "probe");
  EXPECT_EQ(y_, 0);
  EXPECT_EQ(broken->failures, 0);
  EXPECT_TRUE(log_.empty());
}
TEST_F(Choice, WithoutAnotherAndWithoutReferenceTheFailureStands) {
  auto failing = load("probe_failing");
  EXPECT_EQ(call(*failing).status & 0xff, OPGRAFT_UNSUPPORTED);
  EXPECT_TRUE(log_.empty());
}
TEST_F(Choice, TheReferenceIsTheLast) {
  auto op = load("thrower");
  const Attrs fails{{"where", std::string("kernel")}, {"what", std::string("nothing_written")}};
  auto y = run_op(op, {test::floats({4}, 1)}, fails);
  EXPECT_EQ(op->failures, 1);
  EXPECT_EQ(y[0].data<float>()[0], 2);
}

// Turned in a graph, between nodes whose buffers it may write into: 2 (x + 1), from the last to the first.
class Turned : public Choice {
 protected:
  std::vector<float> run(Session &session, std::vector<float> x) {
    Tensor in(OPGRAFT_FLOAT32, {int64_t(x.size())});
    std::copy(x.begin(), x.end(), in.data<float>());
    Tensor out = session.run({in})[0];
    return {out.data<float>(), out.data<float>() + out.size()};
  }
  void SetUp() override {
    for (auto name : {"turned", "turned_in_place"}) loaded_.push_back(load(name));
  }
  Session session() {
    auto g = std::make_shared<Graph>("g");
    ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {g->symbols.fresh("n")}, true});
    ValueId plus = test::one(*g, "Add", {x, g->add_constant(Tensor::scalar(1.0f))});
    ValueId turned = g->node(g->add_node(registry_, "Turned", {plus}, {})).outputs[0];
    g->outputs = {test::one(*g, "Mul", {turned, g->add_constant(Tensor::scalar(2.0f))})};
    return Session(std::make_shared<Model>(g));
  }
  std::vector<OpPtr> loaded_;
};
TEST_F(Turned, WhoTakesOverSeesTheInputAsItWas) {
  Session s = session();
  EXPECT_EQ(run(s, {0, 1, 2, 3}), (std::vector<float>{8, 6, 4, 2}));
  // If "in place" serves, it fails here, and "plain" may not write into its own input.
  EXPECT_EQ(run(s, {41, 1, 2, 3}), (std::vector<float>{8, 6, 4, 84}));
}
TEST_F(Turned, OneThatRefusesThisSizeLeavesItToTheNext) {
  for (auto sizes : {std::pair(8, 7), std::pair(7, 8)}) {  // one bucket, in both orders
    Session s = session();
    for (int n : {sizes.first, sizes.second}) {
      auto y = run(s, std::vector<float>(size_t(n), 1));
      EXPECT_EQ(y, std::vector<float>(size_t(n), 4));
    }
  }
}

}  // namespace
}  // namespace opgraft
