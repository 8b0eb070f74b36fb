// One call of ScaledDotProductAttention or CachedAttention, and how its work is cut.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "opgraft/simd_target.h"

namespace opgraft {

constexpr int64_t kQueries = 24;      // two AVX-512 register tiles
constexpr int64_t kKeys = 256;        // a tile of scores is 24 KiB: half of L1
constexpr int64_t kAmxKeys = 512;     // by AMX, whose 32 rows are 64 KiB: 0.9 of the time of 256 keys (Emerald Rapids)
constexpr int64_t kShort = 16 << 20;  // multiplications and additions: a fifth of a millisecond of one core
constexpr int64_t kMostDim = 1024;    // head dimension that rows on the stack have room for; wider ones: own_rows

// Few queries read keys and values where they lie (AttendDirect): packing would cost more than it saves.
constexpr int64_t kDirectQueries = 2, kDirectRows = 8;
constexpr int64_t kRows = 16;        // that read one tile together
constexpr int64_t kTile = 64;        // keys: 32 KiB of keys at D = 128
constexpr int64_t kUnits = 64;       // heads are split until there are so many units of work,
constexpr int64_t kLeastKeys = 128;  // of at least so many keys

// What is done to the scores [B, H, S, T]: an addition, or with bools a choice.
struct Mask {
  const void *data;
  int64_t at[4];    // strides over the scores; 0 where it repeats; of heads: those that share one of keys
  int64_t shared;   // from one head of keys to the next
  int64_t batches;  // batch b takes that of b % batches
  bool chosen;      // of bools
  bool wide;        // of float32 where q is of a half type
  float factor;     // of what is added
};
constexpr int kMostMasks = 2;

// How packed keys and values are multiplied: as float32; as pairs of bfloat16; as these by AMX.
enum Multiplied { kByFloats, kByPairs, kByTiles };

// Element (b, h, s, d) of q lies at b * batch + h * head + s * row + d, those of keys, values and out by strides of
// their own; one of keys lies k_step * d behind its row's begin. The query heads [i * group, (i + 1) * group) read head
// i of keys and values; their queries are the `rows()` of that head, head by head.
struct Attention {
  struct Strides {
    int64_t batch, head, row;
  };
  int64_t batches, heads, kv_heads, group, queries, keys, dim, value_dim;
  float scale;
  float softcap = NAN;  // or scores are softcap tanh(s / softcap) before the masks
  bool capped() const { return softcap == softcap; }
  const void *q, *k, *v;
  void *out;
  Strides q_at, k_at, v_at, out_at;
  int64_t k_step;          // 1; or the number of keys, which lie one after another then
  Mask masks[kMostMasks];  // one after another
  int mask_count;
  bool wide_masks;  // whether one is wide
  bool hides;       // bools are true where a score becomes `fill`, else where it stays
  float fill;
  bool causal, wide_lengths;
  bool nan_to_zero;     // a row that would be NaN
  const void *lengths;  // of each batch, int32 or int64; or null: all keys
  const float *packed_k, *packed_v;
  Multiplied keys_by;          // by q's rows: in pairs of their elements (PackKeyPairs)
  Multiplied values_by;        // by weights, which round to bfloat16 then: in pairs of their rows (PackValuePairs)
  int64_t first_packed;        // whose head of keys lies there, of all batches'
  bool next;                   // another head is worked on when this one is done
  int64_t k_floats, v_floats;  // per head of keys
  // AttendDirect: heads are cut into chunks of rows, and their keys into splits. With several splits each leaves for
  // every row its sum of values, its maximum and its sum of weights here, for Join.
  int64_t chunks, splits;
  float *partial;
  float *own_rows;  // of wide heads: this thread's rows of q, and the sums behind them

  int64_t rows() const { return group * queries; }
  int64_t partial_row() const { return (value_dim + 31) / 16 * 16; }
  int64_t head_of(int64_t kv_head, int64_t row) const { return kv_head * group + row / queries; }
  int64_t row_at(const Strides &at, int64_t batch, int64_t kv_head, int64_t row) const {
    return batch * at.batch + head_of(kv_head, row) * at.head + row % queries * at.row;
  }
  int64_t query_at(int64_t batch, int64_t kv_head, int64_t row) const { return row_at(q_at, batch, kv_head, row); }
  int64_t result_at(int64_t batch, int64_t kv_head, int64_t row) const { return row_at(out_at, batch, kv_head, row); }
  // The masks' elements of a row's first key.
  struct MaskRow {
    int64_t at[kMostMasks];
  };
  MaskRow mask_row(int64_t batch, int64_t kv_head, int64_t row) const {
    MaskRow r{};
    for (int i = 0; i < mask_count; ++i) {
      const Mask &m = masks[i];
      r.at[i] = batch % m.batches * m.at[0] + kv_head * m.shared + row / queries * m.at[1] + row % queries * m.at[2];
    }
    return r;
  }
  int64_t length(int64_t batch) const {
    if (!lengths) return keys;
    return wide_lengths ? static_cast<const int64_t *>(lengths)[batch] : static_cast<const int32_t *>(lengths)[batch];
  }
  // The keys that a row sees, the first ones; `length` of its batch. The last query sees all.
  int64_t seen(int64_t length, int64_t row) const {
    return causal ? std::clamp<int64_t>(length - queries + 1 + row % queries, 0, length) : length;
  }
  // Whether a row has a result, by the sum of its weights, which is 0 or NaN where the result would be NaN; else it is
  // 0.
  bool counts(int64_t seen, float sum) const { return seen > 0 && (!nan_to_zero || sum > 0.0f); }
  // Of wide heads: rows at once of q and of sums, at most wide_row floats apart, however long vectors are.
  bool wide() const { return std::max(dim, value_dim) > kMostDim; }
  static int64_t wide_row(int64_t dim) { return (dim + 63) / 64 * 64; }
  // Rows and keys of a tile of scores.
  int64_t tile_rows() const { return values_by == kByTiles ? simd::kAmxRows : kQueries; }
  int64_t tile_keys() const { return values_by == kByTiles ? kAmxKeys : kKeys; }
  // From one row of scores to the next: of a power of two more than L1 has ways would fall into the same set.
  int64_t scores_apart() const { return tile_keys() + 16; }
  int64_t rows_at_once() const { return std::min(rows(), direct() ? kRows : tile_rows()); }
  float *own_sums() const { return own_rows + rows_at_once() * wide_row(dim); }
  int64_t own_floats() const { return wide() ? rows_at_once() * (wide_row(dim) + wide_row(value_dim)) : 0; }
  // Calls f with this, as a thread gets it; `all` is where the threads' rows lie.
  template <class F> void by(int worker, float *all, const F &f) const {
    if (!wide()) return f(*this);
    Attention own = *this;
    own.own_rows = all + worker * own_floats();
    f(own);
  }
  int64_t key_steps() const { return steps(keys_by, dim); }                   // of a product with packed keys
  int64_t value_steps(int64_t keys) const { return steps(values_by, keys); }  // with packed values
  static int64_t steps(Multiplied by, int64_t k) { return by == kByFloats ? k : simd::pair_words(k); }
  bool direct() const { return queries <= kDirectQueries || rows() <= kDirectRows; }
};

}  // namespace opgraft
