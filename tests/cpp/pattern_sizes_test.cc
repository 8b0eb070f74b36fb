// Conditions on what a value is made of, where many elements are moved alike: a few stand for all of them.
#include <gtest/gtest.h>

#include "engine_test_util.h"
#include "infer/passes/pattern.h"

namespace opgraft {
namespace {
using namespace test;
using namespace passes;

ValueId sizes(Graph &g, std::initializer_list<int64_t> of) { return g.add_constant(Tensor::of(of)); }

ValueId gather(Graph &g, ValueId k, std::vector<int32_t> rows, int64_t axis = 1) {
  Tensor t(OPGRAFT_INT32, {int64_t(rows.size())});
  std::copy(rows.begin(), rows.end(), t.data<int32_t>());
  return one(g, "Gather", {k, g.add_constant(t)}, {{"axis", axis}});
}

ValueId turned(Graph &g, ValueId x, std::vector<int64_t> perm) { return one(g, "Transpose", {x}, {{"perm", perm}}); }

ValueId joined(Graph &g, std::vector<ValueId> parts, int64_t axis) { return one(g, "Concat", parts, {{"axis", axis}}); }

// Whether `condition` holds of r, which `make` makes of k. No element of k is there.
template <class Make> bool holds(const Shape &k_dims, Make &&make, const std::string &condition = "repeats(r, k, 1)") {
  Graph g("sizes");
  const ValueId k = g.add_input("k", {OPGRAFT_FLOAT32, k_dims, true}), r = make(g, k);
  const ValueId x = g.add_input("x", g.value(r).type);
  g.outputs = {one(g, "Sub", {x, r})};
  const Pattern p = parse_pattern("Sub(x, r) -> " + condition, "test");
  try {
    check_arranged(g, r, k, p.settings[0]);
    return true;
  } catch (const Error &) {
    return false;
  }
}

// So many that they cannot be numbered one by one.
constexpr int64_t kB = 4, kHeads = 2, kT = 1 << 20, kD = 128;
const Shape kKeys{kB, kHeads, kT, kD};
const std::vector<int32_t> kTwice{0, 0, 1, 1};

TEST(PatternSizes, AFewElementsStandForAll) {
  const auto twice = [](Graph &g, ValueId k) { return gather(g, k, kTwice); };
  EXPECT_TRUE(holds(kKeys, twice));
  EXPECT_TRUE(holds(kKeys, [](Graph &g, ValueId k) {
    const ValueId e = one(g, "ExpandDims", {k}, {{"axis", int64_t(2)}});
    const ValueId b = one(g, "BroadcastTo", {e, sizes(g, {kB, kHeads, 2, kT, kD})});
    return one(g, "Reshape", {b, sizes(g, {kB, 2 * kHeads, kT, kD})});
  }));
  EXPECT_TRUE(holds(kKeys, [](Graph &g, ValueId k) {
    const ValueId s = one(g, "Stack", {k, k}, {{"axis", int64_t(2)}});
    return one(g, "Reshape", {s, sizes(g, {kB, -1, kT, kD})});
  }));
  EXPECT_TRUE(holds(kKeys, [&](Graph &g, ValueId k) {
    return turned(g, gather(g, turned(g, k, {0, 2, 1, 3}), kTwice, 2), {0, 2, 1, 3});
  }));
  EXPECT_TRUE(holds(kKeys, [&](Graph &g, ValueId k) {
    return twice(g, one(g, "Slice", {k, sizes(g, {0, 0, 0, 0}), sizes(g, {kB, kHeads, kT, kD})}));
  }));
  EXPECT_TRUE(holds({1, kHeads, kT, kT}, twice));
  EXPECT_TRUE(holds(
      kKeys,
      [](Graph &g, ValueId k) {
        return one(g, "Slice", {k, sizes(g, {0, 0, 0, kD / 2}), sizes(g, {kB, kHeads, kT, kD / 2})});
      },
      "part(r, k, -1)=1/2"));
}

// What moves within, or to, a long dimension is no repetition of another one.
TEST(PatternSizes, WhatMovesAlongALongDimensionIsSeen) {
  const auto backwards = [](Graph &g, ValueId k, int64_t axis) {
    std::vector<int64_t> begin(4, 0), end{kB, kHeads, kT, kD}, strides(4, 1);
    begin[size_t(axis)] = -1, end[size_t(axis)] = -kT - 1, strides[size_t(axis)] = -1;
    const auto list = [&](const std::vector<int64_t> &v) { return sizes(g, {v[0], v[1], v[2], v[3]}); };
    return one(g, "StridedSlice", {k, list(begin), list(end), list(strides)});
  };
  EXPECT_FALSE(holds(kKeys, [&](Graph &g, ValueId k) { return gather(g, backwards(g, k, 2), kTwice); }));
  EXPECT_FALSE(holds(kKeys, [](Graph &g, ValueId k) { return joined(g, {k, k}, 1); }));
  EXPECT_FALSE(holds(kKeys, [](Graph &g, ValueId k) { return gather(g, k, {0, 1, 0, 1}); }));
  EXPECT_FALSE(holds({1, kHeads, kT, kT}, [](Graph &g, ValueId k) {
    return gather(g, turned(g, k, {0, 1, 3, 2}), kTwice);
  }));
  // Rows of several heads are mixed, as often as it takes to have them in order where there are 3.
  EXPECT_FALSE(holds({1, 3, kT, kD}, [](Graph &g, ValueId k) {
    for (int i = 0; i < 2; ++i) k = turned(g, one(g, "Reshape", {k, sizes(g, {1, kT, 3, kD})}), {0, 2, 1, 3});
    return gather(g, k, {0, 0, 1, 1, 2, 2});
  }));
  // Halves that are exchanged.
  const auto halves = [](Graph &g, ValueId k, int64_t axis, int64_t n) {
    std::vector<ValueId> parts;
    for (int64_t from : {n / 2, int64_t(0)}) {
      std::vector<int64_t> begin(4, 0), size = g.value(k).type.dims;
      begin[size_t(axis)] = from, size[size_t(axis)] = n / 2;
      parts.push_back(
          one(g, "Slice",
              {k, sizes(g, {begin[0], begin[1], begin[2], begin[3]}), sizes(g, {size[0], size[1], size[2], size[3]})}));
    }
    return joined(g, parts, axis);
  };
  EXPECT_FALSE(holds(kKeys, [&](Graph &g, ValueId k) { return gather(g, halves(g, k, 2, kT), kTwice); }));
  // Of not so many all are asked where a few cannot stand for them.
  const Shape keys{1, kHeads, 256, 128};
  EXPECT_FALSE(holds(keys, [&](Graph &g, ValueId k) { return gather(g, halves(g, k, 2, 256), kTwice); }));
  EXPECT_TRUE(
      holds(keys, [&](Graph &g, ValueId k) { return gather(g, halves(g, halves(g, k, 2, 256), 2, 256), kTwice); }));
}

// A number in an input that is as large as a long dimension may be a place in another one.
TEST(PatternSizes, APlaceIsNoSize) {
  const auto rows = [](int64_t from) {
    return [=](Graph &g, ValueId k) { return one(g, "Slice", {k, sizes(g, {from, 0}), sizes(g, {4, 4096})}); };
  };
  EXPECT_TRUE(holds({4100, 4096}, rows(4096), "last(r, k, 0)"));
  EXPECT_FALSE(holds({4100, 4096}, rows(4095), "last(r, k, 0)"));
  EXPECT_FALSE(holds({4110, 4096}, rows(4096), "last(r, k, 0)"));
  EXPECT_TRUE(holds({4100, 4096}, rows(0), "first(r, k, 0)"));
  EXPECT_FALSE(holds({4100, 4096}, rows(4096), "first(r, k, 0)"));
}

}  // namespace
}  // namespace opgraft
