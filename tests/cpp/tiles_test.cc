// The tiles of a product follow its sizes and the caches.
#include "aot_ops/common/tiles.h"

#include <gtest/gtest.h>

namespace opgraft {
namespace {

constexpr Caches kSmall{32 << 10, 256 << 10, 4 << 20}, kLarge{48 << 10, 2 << 20, 32 << 20}, kTiny{1 << 10, 4 << 10, 1};
struct Machine {
  int64_t tile, panel;  // rows of a tile, columns of a panel
};
constexpr Machine kAvx2{6, 16}, kAvx512{12, 32}, kAmx{simd::kAmxRows, 32};

Tiles choose(const Machine &on, int64_t m, int64_t n, int64_t k, const Caches &cache, int threads = 2) {
  return choose_tiles(m, n, k, on.tile, on.panel, 4, threads, cache);
}

TEST(Tiles, OfALongSumPiecesFitTheCaches) {
  for (const Machine &on : {kAvx2, kAvx512})
    for (const Caches &cache : {kSmall, kLarge})
      for (int64_t m : {13, 96, 512, 2048})
        for (int64_t k : {600, 2048, 11008}) {
          const Tiles t = choose(on, m, 2048, k, cache);
          EXPECT_EQ(t.rows % on.tile, 0);
          EXPECT_LE(t.rows, kBlockRows);
          // Rows of A and two pieces of panels, at most half of L2; kc is rounded up to 8 steps.
          EXPECT_LE((4 * t.rows + 2 * 4 * on.panel) * (t.kc - 7), cache.l2 / 2) << m << " " << k;
          if (4 * on.panel <= 64) {
            EXPECT_LE(4 * on.panel * (t.kc - 7), cache.l1 * 2 / 3) << m << " " << k;
          }
        }
}

TEST(Tiles, ChangeWithTheCaches) {
  EXPECT_LT(choose(kAvx512, 512, 2048, 2048, kSmall).kc, choose(kAvx512, 512, 2048, 2048, kLarge).kc);
  EXPECT_LT(choose(kAvx2, 512, 2048, 2048, kSmall).kc, choose(kAvx2, 512, 2048, 2048, kLarge).kc);
  // However small they are said to be, a piece has 64 steps' worth of work.
  EXPECT_EQ(choose(kAvx512, 512, 2048, 2048, kTiny).kc, 64);
}

TEST(Tiles, ChangeWithTheSizes) {
  EXPECT_EQ(choose(kAvx512, 512, 512, 128, kLarge).kc, 128) << "a sum that fits stays whole";
  EXPECT_EQ(choose(kAvx512, 12, 512, 11008, kSmall).kc, 11008) << "one tile of rows uses every step once";
  EXPECT_EQ(choose(kAvx512, 97, 512, 128, kLarge).rows, 60) << "97 rows in two blocks of about the same size";
  EXPECT_EQ(choose(kAvx512, 96, 512, 128, kLarge).rows, 96);
  // Several panels at a time where every thread still gets several units.
  EXPECT_EQ(choose(kAvx512, 2048, 2048, 2048, kSmall, 2).panels, kBlockPanels);
  EXPECT_EQ(choose(kAvx512, 96, 128, 2048, kSmall, 2).panels, 1);
  EXPECT_EQ(choose(kAvx512, 2048, 2048, 2048, kSmall, 512).panels, 1);
}

TEST(Tiles, OfAmxAreWholeAndSetUpSeldom) {
  for (int64_t m : {1, 33, 128, 192, 193, 512, 2048})
    for (int64_t words : {16, 256, 1024, 8192}) {
      const Tiles t = choose(kAmx, m, 2048, words, kLarge);
      EXPECT_EQ(t.rows % simd::kAmxRows, 0);
      EXPECT_LE(t.rows, kAmxBlockRows);
      EXPECT_EQ(t.kc % simd::kAmxWords, 0) << m << " " << words;
      EXPECT_EQ(t.panels, kBlockPanels) << m << " " << words;
    }
  EXPECT_EQ(choose(kAmx, 193, 2048, 256, kLarge).rows, 128) << "193 rows in two blocks of about the same size";
  EXPECT_EQ(choose(kAmx, 128, 2048, 384, kLarge).rows, 128) << "B comes once";
  EXPECT_LT(choose(kAmx, 2048, 2048, 8192, kLarge).kc, 8192);
  EXPECT_EQ(choose(kAmx, 64, 64, 256, kLarge).panels, 1) << "every thread gets its part";
}

}  // namespace
}  // namespace opgraft
