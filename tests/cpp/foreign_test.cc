#include "registry/foreign.h"

#include <gtest/gtest.h>

#include <array>

#include "infer/session.h"
#include "registry/functions.h"

namespace opgraft {
namespace {

class Foreign : public testing::TestWithParam<const char *> {
 protected:
  std::filesystem::path file() const { return std::filesystem::path(OPGRAFT_BAD_OPS_DIR) / GetParam(); }
};

TEST_P(Foreign, RunsWithAttributesStateAndWorkspace) {
  auto op = ForeignOp::load(file(), "Scale");
  auto extra = op->extra(
      {{"factor", 2.5},
       {"mode", std::string("fast")},
       {"a_name_longer_than_fifteen_characters", std::string("and a value that is longer than fifteen characters too")},
       {"grid", std::vector<std::vector<int64_t>>{{1, 2}, {3}}}});
  EXPECT_EQ(op->infer_shapes(*extra, {{3}}, 1), (std::vector<std::vector<int64_t>>{{3}}));
  EXPECT_EQ(op->infer_types(*extra, {43}, 1), std::vector<int32_t>{43});
  float x[] = {1, 2, -4}, y[3] = {}, scratch[8];
  ForeignArguments arguments({{3}, {3}}, {"float32", "float32"});
  op->init(*extra, arguments);
  EXPECT_EQ(extra->workspace(), (std::vector<size_t>{16, 32}));
  void *params[] = {x, y, scratch, scratch};
  for (int i = 0; i < 100; ++i) op->launch(*extra, 4, params, arguments);
  EXPECT_EQ(y[2], -10);
  EXPECT_THROW(op->launch(*extra, 2, params, arguments), std::runtime_error);
}
TEST_P(Foreign, AMissingFunctionIsToldAtLoading) {
  try {
    ForeignOp::load(file(), "Scales");
    FAIL();
  } catch (const LoadError &e) {
    EXPECT_EQ(e.step, "symbols");
  }
  EXPECT_THROW(ForeignOp::load(file(), "Scale", {"/proc"}), LoadError);
}
TEST_P(Foreign, WhatIsDeclaredWronglyIsNamed) {
  Registry registry;
  const OpPtr op = load_function(registry, file(), "Scale", {});
  const Tensor x(OPGRAFT_FLOAT32, {3});
  const auto said = [&](Attrs attrs) -> std::string {
    try {
      run_op(op, {x}, attrs);
    } catch (const Error &e) {
      return e.what();
    }
    return "nothing";
  };
  const auto text = [](const char *s) { return std::string(s); };
  for (auto [attrs, expected] : std::vector<std::pair<Attrs, std::string>>{
           {{{"out_shape", text("i0.0;2")}}, "out_shape must state 1 output, got 2"},
           {{{"opgraft_outputs", int64_t(2)}, {"out_shape", text("2")}}, "out_shape must state 2 outputs, got 1"},
           {{{"out_shape", text("i0.1")}}, "out_shape has an invalid dimension 'i0.1'"},
           {{{"out_shape", text("2 *")}}, "out_shape has an invalid dimension '2 *'"},
           {{{"out_dtype", text("float32;int8")}}, "out_dtype must state 1 output, got 2"},
           {{{"out_dtype", text("float31")}}, "out_dtype gave the type 0, which is no dtype"},
           {{{"opgraft_outputs", int64_t(0)}}, "has 1 inputs and 0 outputs, the most is "},
       })
    EXPECT_NE(said(attrs).find(": " + expected), std::string::npos) << expected << ": " << said(attrs);
}
TEST_P(Foreign, APinnedFileIsTheOneThatWasPinned) {
  try {
    ForeignOp::load(file(), "Scale", {}, std::string(64, '0'));
    FAIL();
  } catch (const LoadError &e) {
    EXPECT_EQ(e.step, "digest");
  }
}
// A std::string by its memory: this file's are new ones; an old one is {length, capacity, owners} and characters.
TEST(StringAbi, IsToldByTheArgument) {
  std::string short_name = "axis", long_name = "a name of more than fifteen characters", shrunk = long_name;
  shrunk.resize(4);
  for (auto *s : {&short_name, &long_name, &shrunk}) {
    EXPECT_EQ(string_abi(s), StringAbi::kNew) << *s;
    for (auto hint : {StringAbi::kOld, StringAbi::kNew, StringAbi::kEither}) {
      EXPECT_TRUE(StringArgument(s, hint).new_abi);
      EXPECT_EQ(StringArgument(s, hint).text, s->c_str());
    }
  }
  // Within a page: an old string whose characters begin one is not looked at any further.
  struct alignas(64) {
    uint64_t length, capacity, owners;
    char text[40];
  } rep{4, 4, 0, "axis"};
  // What follows the old string's one word is of the caller's frame: nothing, anything, the stale words of a new one.
  for (auto &frame : {std::array<uint64_t, 3>{}, {1, 2, 3}, {4, 0, 0}, {4, 3, 0}}) {
    const uint64_t words[] = {reinterpret_cast<uint64_t>(rep.text), frame[0], frame[1], frame[2]};
    EXPECT_EQ(string_abi(words), StringAbi::kOld);
    EXPECT_FALSE(StringArgument(words, StringAbi::kNew).new_abi);
    EXPECT_EQ(StringArgument(words, StringAbi::kNew).text, "axis");
  }
  const uint64_t both[] = {reinterpret_cast<uint64_t>(rep.text), 4, 16, 0};  // the file's symbols decide
  EXPECT_EQ(string_abi(both), StringAbi::kEither);
  EXPECT_TRUE(StringArgument(both, StringAbi::kNew).new_abi);
  EXPECT_FALSE(StringArgument(both, StringAbi::kOld).new_abi);
}

INSTANTIATE_TEST_SUITE_P(StringAbi, Foreign, testing::Values("foreign_abi0.so", "foreign_abi1.so"));

}  // namespace
}  // namespace opgraft
