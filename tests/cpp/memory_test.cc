#include "infer/memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "engine_test_util.h"
#include "infer/tensor.h"

namespace opgraft {
namespace {

TEST(Arena, ReusesWhatWasGivenBackAndMergesNeighbours) {
  Arena a;
  size_t x = a.take(1000), y = a.take(1000), z = a.take(1000);
  EXPECT_EQ(a.size(), 3 * 1024u);
  a.give(x, 1000);
  a.give(y, 1000);
  EXPECT_EQ(a.take(2048), x) << "two neighbours became one hole";
  a.give(z, 1000);
  EXPECT_EQ(a.take(4096), z) << "a hole at the end grows";
  EXPECT_EQ(a.size(), 2048u + 4096u);
}

TEST(Arena, TakesTheSmallestHoleThatFits) {
  Arena a;
  size_t big = a.take(4096);
  a.take(256);
  size_t small = a.take(512);
  a.take(256);
  a.give(big, 4096);
  a.give(small, 512);
  EXPECT_EQ(a.take(300), small);
}

TEST(Arena, LiveRangesNeverOverlapAndAreAligned) {
  std::mt19937 random(7);
  Arena a;
  struct Range {
    size_t offset, bytes;
  };
  std::vector<Range> live;
  for (int i = 0; i < 5000; ++i) {
    if (live.empty() || random() % 5 < 3) {
      size_t bytes = random() % 10000, offset = a.take(bytes);
      ASSERT_EQ(offset % Arena::kAlign, 0u);
      ASSERT_LE(offset + bytes, a.size());
      for (auto &r : live) ASSERT_TRUE(offset + bytes <= r.offset || r.offset + r.bytes <= offset);
      live.push_back({offset, bytes});
    } else {
      size_t k = random() % live.size();
      a.give(live[k].offset, live[k].bytes);
      live[k] = live.back();
      live.pop_back();
    }
  }
}

TEST(Memory, OfALargeTensorBeginsWithAPageAndOfAVeryLargeOneWithALargePage) {
  for (const auto &[bytes, alignment] : {std::pair<size_t, size_t>{0, 64},
                                         {1000, 64},
                                         {128 << 10, 4096},
                                         {(2 << 20) + 60, 4096},
                                         {4 << 20, kLargePage},
                                         {(9 << 20) + 4, kLargePage}}) {
    std::vector<std::shared_ptr<void>> blocks;  // several, since one may lie well by chance
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(allocate(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().get()) % alignment, 0u) << bytes;
      std::memset(blocks.back().get(), i, bytes);
    }
    Tensor t(OPGRAFT_FLOAT32, {int64_t(bytes / 4)});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data<float>()) % alignment, 0u) << bytes;
  }
  EXPECT_THROW(allocate(size_t(1) << 60), std::bad_alloc);
}

TEST(Arena, ImpossibleSizesAreRefused) {
  Arena a;
  EXPECT_THROW(a.take(SIZE_MAX), std::bad_alloc);
  a.take(size_t(1) << 47);
  EXPECT_THROW(a.take((size_t(1) << 47) + 1), std::bad_alloc);
}

TEST(ElementCount, ImpossibleShapesAreRefused) {
  const int64_t big = int64_t(1) << 40;
  EXPECT_EQ(element_count(Shape{}), 1);
  EXPECT_EQ(element_count(Shape{big, 1 << 7}), int64_t(1) << 47);
  EXPECT_EQ(element_count(Shape{big, big, 0}), 0);
  EXPECT_EQ(element_count(Shape{big, big, -1}), -1);
  for (const Shape &dims : {Shape{big, big}, Shape{big, 1 << 8}, Shape{INT64_MAX, 3}, Shape{0, big, INT64_MAX - 1}})
    try {
      EXPECT_EQ(element_count(dims), 0);
      EXPECT_EQ(dims[0], 0);
    } catch (const Error &e) {
      EXPECT_EQ(e.what(), "shape " + to_string(dims) + " has more elements than memory can hold");
    }
}

TEST(ElementCount, AnImpossibleResultNamesItsNode) {
  Graph g;
  ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {1}, true});
  ValueId shape = g.add_constant(Tensor::of({int64_t(1) << 62}));
  try {
    g.add_node(test::ops(), "BroadcastTo", {x, shape}, {}, "layer0.tile");
    ADD_FAILURE() << "2^62 elements";
  } catch (const GraphError &e) {
    EXPECT_EQ(
        std::string(e.what()).find("node layer0.tile: BroadcastTo: shape (4611686018427387904,) has more elements"), 0u)
        << e.what();
  }
}

}  // namespace
}  // namespace opgraft
