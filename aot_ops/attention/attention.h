// One call of ScaledDotProductAttention, and how its work is cut.
#pragma once

#include <cstdint>

namespace opgraft {

constexpr int64_t kQueries = 24;   // two AVX-512 register tiles
constexpr int64_t kDirect = 2;     // up to so many queries packing costs more than it saves
constexpr int64_t kKeys = 256;     // a tile of scores is 24 KiB: half of L1
constexpr int64_t kMostDim = 512;  // head dimension that the tiles on the stack have room for

// One call. Element (b, h, row, d) of q and out lies at b * batch + h * head + row * row + d.
struct Attention {
  struct Strides {
    int64_t batch, head, row;
  };
  int64_t batches, heads, queries, keys, dim;
  float scale;
  const void *q, *k, *v, *mask;  // mask or null
  void *out;
  Strides q_at, k_at;
  int64_t mask_at[4];  // strides of the mask over [B, H, S, T]; 0 where it repeats
  const float *packed_k, *packed_v;
  int64_t k_floats, v_floats;  // per head
};

}  // namespace opgraft
