// What a transpose consists of that moves the last dimension, shared by the operator (transpose.cc) and its kernel.
#pragma once

#include "aot_ops/common/strided.h"

namespace opgraft {

// Of every matrix y[j, i] = x[i, j] for j < down, i < across; j is contiguous in x, i in y. Steps count elements.
struct Turning {
  int64_t bytes;  // of an element: 1, 2, 4 or 8
  int64_t down, across, x_step, y_step;
  Strided<2> matrices;  // where each begins in x and in y
  int64_t tiles_down, tiles_across;
  bool by_lines;  // a tile's columns are turned a line of x at a time, not a row of blocks at a time
  bool past;      // y goes past the caches: its rows begin at lines
};

constexpr int64_t kTileDown = 64, kTileBytes = 256;  // rows of a tile of y, and bytes of a row

}  // namespace opgraft
