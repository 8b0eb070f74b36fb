// What the operators of this folder share that are given a sparse matrix by its indices: checks, gradients. held.h:
// what is made of constants.
#pragma once

#include <array>

#include "aot_ops/sparse/spmm.h"

namespace opgraft::sparse {

inline constexpr std::initializer_list<int32_t> kFloats{OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16};

// Calls f with a value of the values' type and one of the indices' type.
template <class F> void by_types(const Arguments &c, int32_t values, int32_t indices, const F &f) {
  dispatch<float, float16, bfloat16>(c, values, [&](auto zero) {
    if (indices == OPGRAFT_INT32) f(zero, int32_t{});
    else f(zero, int64_t{});
  });
}

inline void check_rank(const Arguments &c, int i, const char *name, int rank) {
  c.check(c.input(i).rank() == rank, name, " must have ", rank, rank == 1 ? " dimension" : " dimensions",
          ", got shape ", c.input(i).shape());
}

inline void check_floats(const Arguments &c, int values, std::initializer_list<std::pair<int, const char *>> matrices) {
  c.check_dtype(values, "values", kFloats);
  check_rank(c, values, "values", 1);
  for (auto [i, name] : matrices) {
    c.check_same_dtype(i, name, values, "values");
    check_rank(c, i, name, 2);
  }
}

// Rows and columns of the sparse matrix as the caller states them, by the input at `at` where all `inputs` are given,
// else by the attribute; {-1, -1}: not known yet.
inline std::array<int64_t, 2> stated_shape(const Arguments &c, int at, const char *name, int inputs) {
  std::vector<int64_t> shape;
  if (!c.values(c.inputs() == inputs ? at : inputs, name, shape)) return {-1, -1};
  c.check(shape.size() == 2, name, " must have 2 elements, got ", shape.size());
  for (int64_t d : shape) c.check(d >= 0 || d == -1 || is_symbol(d), name, " must not be negative, got ", shape);
  return {shape[0], shape[1]};
}

// Indices have no gradient: zeros.
inline void no_gradient(const Context &c, int outputs) {
  for (int i = 0; i < outputs; ++i)
    if (c.output(i).size() > 0)
      std::memset(c.output(i).raw(), 0, size_t(c.output(i).size()) * dtype_size(c.output(i).dtype()));
}

// Rows and columns of the entries, in the order of the values.
struct Positions {
  std::vector<int32_t> rows, columns;
};

// The scalar twin of sampled_entries.
inline void reference_entries(const Context &c, const Product &p, const MatrixRef &dy, const Positions &at, void *to) {
  dispatch<float, float16, bfloat16>(c, p.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *d = static_cast<const T *>(p.d.data), *g = static_cast<const T *>(dy.data);
    for (size_t i = 0; i < at.rows.size(); ++i) {
      double sum = 0;
      for (int64_t j = 0; j < p.columns; ++j)
        sum += double(float(g[at.rows[i] * dy.row_stride + j * dy.column_stride])) *
               double(float(d[at.columns[i] * p.d.row_stride + j * p.d.column_stride]));
      static_cast<T *>(to)[i] = T(float(sum));
    }
  });
}

}  // namespace opgraft::sparse
