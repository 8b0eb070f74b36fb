#include "infer/memory.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

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

}  // namespace
}  // namespace opgraft
