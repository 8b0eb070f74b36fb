// The tiles of a product, chosen for every call's sizes, threads and this machine's caches: that takes 2 to 7 ns.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aot_ops/common/caches.h"
#include "aot_ops/common/gemm.h"
#include "opgraft/simd_target.h"

namespace opgraft {

// What is worked on at a time: rows of A (a multiple of the tile's), panels of B, steps of k.
struct Tiles {
  int64_t rows, panels, kc;
};
// A block of A and two pieces of panels take half of L2; where
// a step of a panel is one line (AVX2), a piece takes two thirds of L1, as few instructions hide L2's latency there.
inline Tiles choose_tiles(int64_t m, int64_t n, int64_t k, int64_t tile, int64_t panel, int64_t element, int threads,
                          const Caches &cache = caches()) {
  const bool amx = tile == simd::kAmxRows;
  const int64_t most = amx ? kAmxBlockRows : kBlockRows / tile * tile, blocks = (m + most - 1) / most;
  Tiles t{((m + blocks - 1) / blocks + tile - 1) / tile * tile, 1, k};
  int64_t steps = std::max<int64_t>(cache.l2 / 2 / (4 * t.rows + 2 * element * panel), 64);
  if (element * panel <= 64) steps = std::min(steps, std::max<int64_t>(cache.l1 * 2 / 3 / (element * panel), 64));
  const bool whole = m <= tile || k <= steps;  // of one tile of rows every step of a panel is used once
  if (whole && !amx) return t;
  if (!whole) {
    const int64_t pieces = (k + steps - 1) / steps, least = amx ? simd::kAmxWords : 8;
    t.kc = ((k + pieces - 1) / pieces + least - 1) / least * least;
  }
  // The more panels, the less often A is read anew, and AMX's tiles set up; but every thread should get several units.
  const int64_t panels = (n + panel - 1) / panel;
  for (t.panels = kBlockPanels; t.panels > 1 && blocks * ((panels + t.panels - 1) / t.panels) < 4 * threads;)
    t.panels /= 2;
  return t;
}

}  // namespace opgraft
