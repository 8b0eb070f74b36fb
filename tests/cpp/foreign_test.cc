#include "registry/foreign.h"

#include <gtest/gtest.h>

#include "registry/registry.h"

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
TEST_P(Foreign, APinnedFileIsTheOneThatWasPinned) {
  try {
    ForeignOp::load(file(), "Scale", {}, std::string(64, '0'));
    FAIL();
  } catch (const LoadError &e) {
    EXPECT_EQ(e.step, "digest");
  }
}
INSTANTIATE_TEST_SUITE_P(StringAbi, Foreign, testing::Values("foreign_abi0.so", "foreign_abi1.so"));

}  // namespace
}  // namespace opgraft
