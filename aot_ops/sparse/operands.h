// What SparseMatMul and SparseDense share: a product of two matrices, one of which is mostly zeros. A constant sparse
// operand is packed once, at plan time, in the form that its density and structure ask for. One that comes with every
// call is multiplied as a dense one: finding its zeros would take as long as the product.
#pragma once

#include "aot_ops/sparse/dense.h"
#include "aot_ops/sparse/spmm.h"

namespace opgraft::sparse {

// The product as S D = Y with S sparse: of a sparse b that is b^T a^T = y^T.
struct Operands {
  bool a_sparse;
  int sparse, dense;  // positions of the inputs
  Product product;
  MatrixRef s;  // by rows of S and its inner dimension
};

// Of inputs 0 and 1: a, or its transpose (K, M); b, or its transpose (N, K).
inline Operands operands(const Arguments &c, bool a_sparse, bool transpose_a, bool transpose_b) {
  const TensorView a = c.input(0), b = c.input(1);
  const int64_t k = b.dim(transpose_b ? 1 : 0), n = b.dim(transpose_b ? 0 : 1);
  const int64_t m = transpose_a ? a.dim(-1) : element_count(a.shape().first(size_t(a.rank()) - 1));
  const MatrixRef by_m{a.raw(), transpose_a ? 1 : k, transpose_a ? m : 1},
      by_n{b.raw(), transpose_b ? k : 1, transpose_b ? 1 : n};
  const int32_t dtype = a.dtype();
  Operands o{a_sparse, a_sparse ? 0 : 1, a_sparse ? 1 : 0, {dtype, m, k, n, {}, {}}, by_m};
  if (a_sparse) {
    o.product.d = {b.raw(), by_n.column_stride, by_n.row_stride};
    o.product.y = {nullptr, n, 1};
  } else {
    o.s = by_n;
    o.product.rows = n;
    o.product.columns = m;
    o.product.d = {a.raw(), by_m.column_stride, by_m.row_stride};
    o.product.y = {nullptr, 1, n};
  }
  return o;
}

// The same product for the library of dense ones.
inline DenseProduct as_dense(const Operands &o) {
  const Product &p = o.product;
  const MatrixRef turned_d{p.d.data, p.d.column_stride, p.d.row_stride};
  const MatrixRef turned_s{o.s.data, o.s.column_stride, o.s.row_stride};
  void *y = const_cast<void *>(p.y.data);
  if (o.a_sparse) return {p.dtype, p.rows, p.columns, p.inner, o.s, p.d, y};
  return {p.dtype, p.columns, p.rows, p.inner, turned_d, turned_s, y, nullptr, p.bias, p.activation};
}

// S, or S^T.
inline Csr sparse_rows(const Arguments &c, const Operands &o, bool transposed = false) {
  Csr m;
  dispatch<float, float16, bfloat16>(c, o.product.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *data = static_cast<const T *>(o.s.data);
    m = transposed ? from_dense(data, o.product.inner, o.product.rows, o.s.column_stride, o.s.row_stride)
                   : from_dense(data, o.product.rows, o.product.inner, o.s.row_stride, o.s.column_stride);
  });
  return m;
}

inline uint64_t product_workspace(const InferContext &c, const Operands &o) {
  const bool constant = c.input(o.sparse).known();
  const uint64_t dense = dense_workspace_bytes(as_dense(o), constant && !o.a_sparse);
  return constant ? std::max(dense, workspace_bytes(o.product, processors())) : dense;
}

// Room for the packed form, and behind it for the panels of a dense product where it comes to that.
inline uint64_t product_packed_bytes(const InferContext &c, const Operands &o, int input) {
  if (input != o.sparse || c.input(input).size() == 0) return 0;
  Csr m = sparse_rows(c, o);
  const Packing packing(m);
  return packing.bytes() + (packing.strategy() == kDense && !o.a_sparse ? dense_packed_bytes(as_dense(o)) : 0);
}

inline void pack_product(const InferContext &c, const Operands &o, void *to) {
  Csr m = sparse_rows(c, o);
  const Packing packing(m);
  packing.write(to);
  if (packing.strategy() == kDense && !o.a_sparse) dense_pack(as_dense(o), static_cast<char *>(to) + packing.bytes());
}

inline void run_product(Context &c, Operands o) {
  o.product.y.data = c.output(0).raw();
  const auto *packed = static_cast<const Packed *>(c.packed(o.sparse));
  if (packed && packed->strategy == kSparse) return multiply(c, o.product, *packed);
  // 0 * inf would be NaN in the dense product.
  if (!all_finite(c, o.product.dtype, c.input(o.dense).raw(), c.input(o.dense).size()))
    return multiply(c, o.product, sparse_rows(c, o));
  DenseProduct d = as_dense(o);
  if (packed && !o.a_sparse) d.packed = reinterpret_cast<const char *>(packed) + packed->size;
  multiply_dense(c, d);
}

inline void reference_product(Context &c, Operands o) {
  o.product.y.data = c.output(0).raw();
  reference(c, o.product, sparse_rows(c, o));
}

}  // namespace opgraft::sparse
