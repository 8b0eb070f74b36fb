// A sparse matrix by rows, made from what callers bring: CSR arrays, coordinates, a dense matrix with zeros. Indices
// are checked before any of them is followed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "opgraft/op.h"

namespace opgraft::sparse {

// Entries of row r: columns[begin[r]] … and values[begin[r]] …; begin has rows + 1 elements.
struct Csr {
  int64_t rows = 0, columns_count = 0;
  std::vector<int64_t> begin;
  std::vector<int32_t> columns;
  std::vector<float> values;
  int64_t nonzeros() const { return int64_t(columns.size()); }
};

// Columns are held in 32 bits.
inline void check_columns(const Arguments &c, const char *argument, int64_t columns) {
  if (columns > INT32_MAX)
    c.fail(OPGRAFT_UNSUPPORTED, argument, " must have at most 2147483647 columns, got ", columns);
}

// indptr ascends from 0 to the number of entries, and every column lies inside the matrix.
template <class I>
void check_csr(const Arguments &c, const I *indptr, const I *indices, int64_t rows, int64_t columns, int64_t nnz) {
  c.check(indptr[0] == 0, "indptr[0] must be 0, got ", indptr[0]);
  for (int64_t r = 0; r < rows; ++r)
    if (indptr[r + 1] < indptr[r])
      c.fail(OPGRAFT_INVALID_VALUE, "indptr must not descend, got ", indptr[r], " before ", indptr[r + 1], " at row ",
             r);
  c.check(int64_t(indptr[rows]) == nnz, "indptr's last element must be the number of values, ", nnz, ", got ",
          indptr[rows]);
  // As unsigned a negative index is a large one; one comparison an entry, which the compiler makes SIMD of.
  using U = std::make_unsigned_t<I>;
  U largest = 0;
  for (int64_t i = 0; i < nnz; ++i) largest = std::max(largest, U(indices[i]));
  if (nnz == 0 || uint64_t(largest) < uint64_t(columns)) return;
  for (int64_t i = 0; i < nnz; ++i)
    if (indices[i] < 0 || int64_t(indices[i]) >= columns)
      c.fail(OPGRAFT_INVALID_VALUE, "indices must be in [0, ", columns, "), got ", indices[i], " at ", i);
}

template <class T, class I>
Csr from_csr(const I *indptr, const I *indices, const T *values, int64_t rows, int64_t columns) {
  Csr m{rows, columns, {indptr, indptr + rows + 1}, {}, {}};
  const int64_t nnz = int64_t(indptr[rows]);
  m.columns.assign(indices, indices + nnz);
  m.values.resize(size_t(nnz));
  std::transform(values, values + nnz, m.values.begin(), [](T v) { return float(v); });
  return m;
}

// Entry i lies at (row(i), column(i)); in a row they stay in their order.
template <class T, class Row, class Column>
Csr from_entries(int64_t rows, int64_t columns, int64_t nnz, const Row &row, const Column &column, const T *values) {
  Csr m{rows, columns, std::vector<int64_t>(size_t(rows) + 1), std::vector<int32_t>(size_t(nnz)),
        std::vector<float>(size_t(nnz))};
  for (int64_t i = 0; i < nnz; ++i) ++m.begin[size_t(row(i)) + 1];
  for (int64_t r = 0; r < rows; ++r) m.begin[size_t(r) + 1] += m.begin[size_t(r)];
  std::vector<int64_t> at(m.begin.begin(), m.begin.end() - 1);
  for (int64_t i = 0; i < nnz; ++i) {
    const int64_t to = at[size_t(row(i))]++;
    m.columns[size_t(to)] = int32_t(column(i));
    m.values[size_t(to)] = float(values[i]);
  }
  return m;
}

inline Csr transpose(const Csr &m) {
  std::vector<int32_t> rows(m.columns.size());
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t i = m.begin[size_t(r)]; i < m.begin[size_t(r) + 1]; ++i) rows[size_t(i)] = int32_t(r);
  return from_entries(
      m.columns_count, m.rows, m.nonzeros(), [&](int64_t i) { return m.columns[size_t(i)]; },
      [&](int64_t i) { return rows[size_t(i)]; }, m.values.data());
}

// The nonzeros of a dense matrix whose element (r, k) lies at r * row_stride + k * column_stride, one of them 1.
template <class T>
Csr from_dense(const T *data, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  if (column_stride != 1) return transpose(from_dense(data, columns, rows, column_stride, row_stride));
  Csr m{rows, columns, std::vector<int64_t>(size_t(rows) + 1), {}, {}};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < columns; ++k)
      if (const float v = float(data[r * row_stride + k]); v != 0.0f) {
        m.columns.push_back(int32_t(k));
        m.values.push_back(v);
      }
    m.begin[size_t(r) + 1] = m.nonzeros();
  }
  return m;
}

// Columns ascend in every row and none is twice; what is zero is left out.
inline void tidy(Csr &m) {
  std::vector<std::pair<int32_t, float>> row;
  int64_t to = 0;
  for (int64_t r = 0, from = 0; r < m.rows; ++r) {
    const int64_t end = m.begin[size_t(r) + 1];
    row.clear();
    for (; from < end; ++from) row.emplace_back(m.columns[size_t(from)], m.values[size_t(from)]);
    auto before = [](auto &a, auto &b) { return a.first < b.first; };
    if (!std::is_sorted(row.begin(), row.end(), before)) std::stable_sort(row.begin(), row.end(), before);
    for (size_t i = 0; i < row.size();) {
      const int32_t column = row[i].first;
      float sum = 0;
      for (; i < row.size() && row[i].first == column; ++i) sum += row[i].second;
      if (sum == 0.0f) continue;
      m.columns[size_t(to)] = column;
      m.values[size_t(to++)] = sum;
    }
    m.begin[size_t(r) + 1] = to;
  }
  m.columns.resize(size_t(to));
  m.values.resize(size_t(to));
}

}  // namespace opgraft::sparse
