// Rows of A that a product does not read where they lie: copied, by all threads or by each its own. For product-host.h.
#pragma once

#include <algorithm>
#include <cstring>
#include <thread>

#include "aot_ops/common/gemm-host.h"

namespace opgraft {

// Rows [row, row + rows) of a matrix A as float32, or pairs, where they are not read in place.
inline void copy_rows(const GemmProblem &p, int64_t matrix, int64_t row, int64_t rows, float *to) {
  const int64_t element = int64_t(dtype_size(p.dtype));
  MatrixRef from = p.a;
  from.data = static_cast<const char *>(p.a.data) + (matrix * p.m * p.k + row * p.a.row_stride) * element;
  if (p.pairs) PairRows_simd()(from, p.k, rows, to, p.lda());
  else Widen_simd(p.dtype)(from, p.k, 0, rows, to, p.lda());
}

inline void copy_all_rows(Context &c, const GemmProblem &p, float *to) {
  c.parallel_for(p.a_count * p.m, std::max<int64_t>(1, 65536 / std::max<int64_t>(p.k, 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end;) {
                     const int64_t matrix = i / p.m, row = i % p.m, rows = std::min(end - i, p.m - row);
                     copy_rows(p, matrix, row, rows, to + (matrix * p.m + row) * p.lda());
                     i += rows;
                   }
                 });
}

// A as float32 or pairs: where it lies, or in `to`.
inline const float *float_rows(Context &c, const GemmProblem &p, void *to) {
  if (!p.copies_a()) return static_cast<const float *>(p.a.data);
  copy_all_rows(c, p, static_cast<float *>(to));
  return static_cast<const float *>(to);
}

// Columns of a thread from which on it pays to copy A for it alone: more where a row is one tile of AMX's, padded, so
// that copying takes as long as multiplying (700x1 by 1x300 0.75 of the time; from 64 steps on 1.0 to 1.5).
inline int64_t own_columns(const GemmProblem &p) {
  const bool one_tile = p.pairs && simd::by_amx(p.m) && p.steps() == simd::kAmxWords;
  return 64 * (one_tile ? kAmxGain : 1);
}

// Where rows of A are copied. Each thread copies the block that it is at: all of A passes through each, and what
// another has written comes more slowly than it is copied anew, from another L3 above all. Where so many threads would
// need much more memory than one copy, and where products share A, there is one that all make together.
struct OwnRows {
  bool own;
  int64_t each;     // floats of a thread's block
  uint64_t floats;  // of all

  // rows: of a block. threads: 0 while they are not known; more than there were processors at first share one copy.
  OwnRows(const GemmProblem &p, int64_t rows, int64_t threads)
      : own(false), each(rows * p.lda()), floats(p.a_floats()) {
    static const int64_t processors = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
    if (!p.copies_a() || p.has_offset || p.a_count != p.batch || threads > processors) return;
    const uint64_t all = uint64_t(each * (threads ? threads : processors)),
                   most = std::max<uint64_t>(4 * floats, 1 << 20);
    own = all <= most && p.n >= own_columns(p) * threads;
    if (own || !threads) floats = std::max(floats, std::min(all, most));
  }
};

}  // namespace opgraft
