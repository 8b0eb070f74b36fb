// What the operators of rotary embedding share. Tables are inputs `i` (cos) and i + 1 (sin).
#pragma once

#include "opgraft/op.h"

#include <span>
#include <string>

#include "rope.h"

namespace opgraft {

constexpr int64_t kGrain = 32768;  // elements: about 10 µs

// What x's type (input 0), cos and sin must be, for rows of `dim` elements.
void check_tables(const InferContext &c, int i, int64_t dim, bool by_token = false);
// The tables broadcast to the rows of input `of`, `name`.
void check_broadcast(const InferContext &c, int of, const std::string &name, int i);

Rotation rotation(const Arguments &c, int i, int64_t dim, bool back = false);
// Input and output i, by tables that broadcast.
Sheet rotary_sheet(const Context &c, int i = 0, int tables = 1);

// Turns all rows of all sheets, in one loop: who is through with one early goes on with the next.
void run(Context &c, Rotation r, std::span<const Sheet> sheets);
void run_reference(Context &c, const Rotation &r, const Sheet &s);

// f(offset of a row in x, offset of its factors in the tables) for every row.
template <class F> void each_row(const Sheet &s, F &&f) {
  for (int64_t i = 0, n = s.outer.size(); i < n; ++i) {
    int64_t element, table;
    s.outer.locate(i, element, table);
    for (int64_t row = 0; row < s.rows; ++row)
      for (int64_t head = 0; head < s.heads; ++head)
        f(element + head * s.head_step + row * s.row_step, s.table_at(table, row));
  }
}

// A table's entry for the first (0) or second (1) element of pair p, in the row that begins at `row`.
inline int64_t entry(const Rotation &r, int64_t row, int64_t p, int which) {
  return row + (!r.full ? p : which ? r.second(p) : r.first(p));
}

}  // namespace opgraft
