// One tensor that rotary embedding turns, and where its tables lie.
#pragma once

#include <cstdint>

namespace opgraft {

// Dimensions that are walked together, from the outermost: their steps in a tensor and in the tables.
struct Walk {
  static constexpr int kMost = 7;
  int count = 0;
  int64_t n[kMost], step[kMost], table[kMost];

  void add(int64_t size, int64_t of_tensor, int64_t of_table) {
    if (size == 1) return;
    n[count] = size, step[count] = of_tensor, table[count] = of_table;
    ++count;
  }
  int64_t size() const {
    int64_t all = 1;
    for (int k = 0; k < count; ++k) all *= n[k];
    return all;
  }
  // Where index `at` begins, in the tensor and in the tables (or positions).
  void locate(int64_t at, int64_t &element, int64_t &row) const {
    element = row = 0;
    for (int k = count - 1; k >= 0; --k) {
      const int64_t i = at % n[k];
      at /= n[k];
      element += i * step[k], row += i * table[k];
    }
  }
};

// The head rows of a tensor: outer dimensions, then `heads` rows that share a row of the tables, and `rows` that have
// one each. Steps count elements.
struct Sheet {
  const void *x;
  void *y;
  int64_t heads = 1, head_step = 0, rows = 1, row_step = 0;
  Walk outer;
  // Row `row` where outer dimensions are at `table` of the tables lies there, at table + row * row_table; or, where
  // positions are given, at row_table * position: of element table + row * position_step, plus `row` where one
  // position stands for all rows that follow it.
  int64_t row_table = 0;
  const void *positions = nullptr;
  bool wide_positions = false;
  int64_t position_step = 0;

  int64_t table_at(int64_t table, int64_t row) const {
    if (!positions) return table + row * row_table;
    const int64_t at = table + row * position_step;
    const int64_t p =
        wide_positions ? static_cast<const int64_t *>(positions)[at] : static_cast<const int32_t *>(positions)[at];
    return (p + (position_step == 0 ? row : 0)) * row_table;
  }
};

// What is the same for all rows of a call. Tables are float32 (`wide`) or of x's type; a row of them has an entry for
// each rotated element (`full`) or for each pair.
struct Rotation {
  const void *cos, *sin;
  int64_t dim, pairs;
  bool interleaved, back, full, wide;
  bool stream = false;  // results go past the caches, to memory that begins at whole vectors
  // The pair p of a row is its elements first(p) and second(p).
  int64_t first(int64_t p) const { return interleaved ? 2 * p : p; }
  int64_t second(int64_t p) const { return interleaved ? 2 * p + 1 : p + pairs; }
};

constexpr int64_t kTable = 1024;  // pairs whose factors a thread keeps: 16 KiB
// Rows that are turned head by head; past the caches fewer, as each fetches the next head's (Emerald Rapids, 32 heads
// of 128: 0.96 to 0.98 of the time; 32 rows 1.04 to 1.2).
constexpr int64_t kRows = 16, kRowsPast = 4;

inline int64_t block_of(const Rotation &r) {
  const int64_t fit = kTable / (r.pairs < 1 ? 1 : r.pairs), most = r.stream ? kRowsPast : kRows;
  return fit < 1 ? 1 : fit < most ? fit : most;
}
constexpr int64_t kHeads = 256;  // at most so many rows share a unit of work and a row of the tables
inline int64_t head_blocks(const Sheet &s) { return (s.heads + kHeads - 1) / kHeads; }
inline int64_t units_of(const Rotation &r, const Sheet &s) {
  return s.outer.size() * ((s.rows + block_of(r) - 1) / block_of(r)) * head_blocks(s);
}

// The gradients of cos and sin: `own` leads to every row of the tables, `shared` to all rows of the tensors that read
// it.
struct TableGradient {
  const void *dy, *x;
  void *dcos, *dsin;
  Walk own, shared;
  int64_t pairs;  // of a unit of work

  int64_t pieces(const Rotation &r) const { return (r.pairs + pairs - 1) / pairs; }
  int64_t units(const Rotation &r) const { return own.size() * pieces(r); }
};
constexpr int64_t kPiece = 128;  // pairs at most

}  // namespace opgraft
