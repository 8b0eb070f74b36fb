// One tensor that rotary embedding turns, and where its tables lie.
#pragma once

#include <cstdint>

namespace opgraft {

constexpr int kMostOuter = 7;

// The head rows of a tensor: outer dimensions, then `heads` rows that share a row of the tables, and `rows` that have
// one each. Steps count elements.
struct Sheet {
  const void *x;
  void *y;
  int64_t heads = 1, head_step = 0, rows = 1, row_step = 0;
  int outers = 0;
  int64_t outer[kMostOuter], outer_step[kMostOuter];
  // Row `row` at outer index i lies in the tables at sum(i * outer_table) + row * row_table; or, where positions are
  // given, at row_table * position: of element sum(i * outer_table) + row * position_step, plus `row` where one
  // position stands for all rows that follow it.
  int64_t outer_table[kMostOuter], row_table = 0;
  const void *positions = nullptr;
  bool wide_positions = false;
  int64_t position_step = 0;

  int64_t outer_count() const {
    int64_t n = 1;
    for (int k = 0; k < outers; ++k) n *= outer[k];
    return n;
  }
  // Where outer index `at` begins, in x and in the tables (or positions).
  void locate(int64_t at, int64_t &element, int64_t &table) const {
    element = table = 0;
    for (int k = outers - 1; k >= 0; --k) {
      const int64_t i = at % outer[k];
      at /= outer[k];
      element += i * outer_step[k], table += i * outer_table[k];
    }
  }
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
constexpr int64_t kRows = 16;     // rows that are turned head by head

inline int64_t block_of(const Rotation &r) {
  const int64_t fit = kTable / (r.pairs < 1 ? 1 : r.pairs);
  return fit < 1 ? 1 : fit < kRows ? fit : kRows;
}
constexpr int64_t kHeads = 256;  // at most so many rows share a unit of work and a row of the tables
inline int64_t head_blocks(const Sheet &s) { return (s.heads + kHeads - 1) / kHeads; }
inline int64_t units_of(const Rotation &r, const Sheet &s) {
  return s.outer_count() * ((s.rows + block_of(r) - 1) / block_of(r)) * head_blocks(s);
}

}  // namespace opgraft
