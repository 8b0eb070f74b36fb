// CSRMM(indptr, indices, values, dense_shape, dense), MindSpore's product of a sparse matrix by CSR arrays and a dense
// one, and its gradient. Arrays that are constant are checked and packed once, at plan time; else they are checked at
// every call and read as they are.
#include "aot_ops/sparse/held.h"

namespace opgraft {
namespace {
using namespace opgraft::sparse;

struct Arrays {
  int64_t rows, columns, entries;
  const void *indptr, *indices, *values;
  int32_t dtype, index;
};

void check_indptr(const Arguments &c, int64_t rows) {
  const int64_t n = c.input(0).dim(0);
  c.check(rows < 0 || n < 0 || n - 1 == rows, "indptr must have one element more than the ", rows, " rows, got shape ",
          c.input(0).shape());
}

void check_types(const Arguments &c) {
  c.check_dtype(0, "indptr", {OPGRAFT_INT32, OPGRAFT_INT64});
  c.check_same_dtype(1, "indices", 0, "indptr");
  check_rank(c, 0, "indptr", 1);
  check_rank(c, 1, "indices", 1);
  c.check(may_equal(c.input(1).dim(0), c.input(2).dim(0)), "indices.shape must equal values.shape ", c.input(2).shape(),
          ", got ", c.input(1).shape());
}

Arrays unchecked(const Arguments &c, int64_t rows, int64_t columns) {
  return {rows,
          columns,
          c.input(2).dim(0),
          c.input(0).raw(),
          c.input(1).raw(),
          c.input(2).raw(),
          c.input(2).dtype(),
          c.input(0).dtype()};
}

// Checks every index: for the kernel, its twin and what is held.
Arrays arrays(const Arguments &c, int64_t rows, int64_t columns) {
  const Arrays a = unchecked(c, rows, columns);
  check_indptr(c, rows);
  check_columns(c, "dense_shape", columns);
  by_types(c, a.dtype, a.index, [&](auto, auto index) {
    using I = decltype(index);
    check_csr(c, static_cast<const I *>(a.indptr), static_cast<const I *>(a.indices), rows, columns, a.entries);
  });
  return a;
}

Csr rows_of(const Arguments &c, const Arrays &a) {
  Csr m;
  by_types(c, a.dtype, a.index, [&](auto zero, auto index) {
    using T = decltype(zero);
    using I = decltype(index);
    m = from_csr(static_cast<const I *>(a.indptr), static_cast<const I *>(a.indices), static_cast<const T *>(a.values),
                 a.rows, a.columns);
  });
  return m;
}

std::array<int64_t, 2> shape_of(const Arguments &c) { return stated_shape(c, 3, "dense_shape", 5); }

void Infer(InferContext &c) {
  c.check_inputs(4, 5);
  const int at = c.inputs() - 1;
  check_floats(c, 2, {{at, "dense"}});
  check_types(c);
  const auto [rows, columns] = shape_of(c);
  check_indptr(c, rows);
  const TensorView dense = c.input(at);
  c.check(columns == -1 || may_equal(dense.dim(0), columns),
          "dense must have as many rows as the sparse matrix has columns, ", columns, ", got shape ", dense.shape());
  c.output(dense.dtype(), Shape{rows != -1 ? rows : c.dim_op('-', c.input(0).dim(0), 1), dense.dim(1)});
}

Product product(const Context &c, int64_t rows, int64_t columns) {
  const TensorView dense = c.input(c.inputs() - 1);
  const int64_t n = dense.dim(1);
  return {dense.dtype(), rows, columns, n, {dense.raw(), n, 1}, {c.output(0).raw(), n, 1}};
}

void Kernel(Context &c) {
  const auto [rows, columns] = shape_of(c);
  const Product p = product(c, rows, columns);
  const Held *held = held_of(c, 2, rows, columns, {0, 1});
  if (held && held->form != Held::kAsGiven) return multiply(c, p, *held);
  const Arrays a = held ? unchecked(c, rows, columns) : arrays(c, rows, columns);
  by_types(c, a.dtype, a.index, [&](auto, auto index) {
    using I = decltype(index);
    multiply(c, p, CsrView<I>{static_cast<const I *>(a.indptr), static_cast<const I *>(a.indices), a.values});
  });
}

void Reference(Context &c) {
  const auto [rows, columns] = shape_of(c);
  reference(c, product(c, rows, columns), rows_of(c, arrays(c, rows, columns)));
}

Holder holder(const Arguments &c) {
  const auto [rows, columns] = shape_of(c);
  return {rows_of(c, arrays(c, rows, columns)), c.input(2).dtype(), true};
}
uint64_t PackedBytes(InferContext &c, int input) {
  const auto [rows, columns] = shape_of(c);
  return input == 2 && all_known(c, {0, 1, 2}) && holdable(rows, columns, c.input(2).size()) ? holder(c).bytes() : 0;
}
void Pack(InferContext &c, int, void *to) { holder(c).write(c, {0, 1}, to); }
uint64_t Workspace(InferContext &c) {
  if (!all_known(c, {0, 1, 2})) return 0;
  const auto [rows, columns] = shape_of(c);
  const int64_t n = c.input(c.inputs() - 1).dim(1);
  if (n < 0 || !worth_packing(rows, columns, c.input(2).size())) return 0;
  return workspace_bytes({c.input(2).dtype(), rows, columns, n, {}, {}}, processors());
}

// (indptr, indices, values, dense, dout) -> d values[i] = dout[row] . dense[column], d dense = S^T dout.
void InferGrad(InferContext &c) {
  c.check_inputs(5, 5);
  check_floats(c, 2, {{3, "dense"}, {4, "dout"}});
  check_types(c);
  c.check(may_equal(c.input(3).dim(1), c.input(4).dim(1)), "dout must have dense's ", c.input(3).dim(1),
          " columns, got shape ", c.input(4).shape());
  check_indptr(c, c.input(4).dim(0));
  for (int i = 0; i < 4; ++i) c.output(c.input(i).dtype(), c.input(i).shape());
}

Positions positions(const Csr &m) {
  Positions p{{}, m.columns};
  for (int64_t r = 0; r < m.rows; ++r)
    p.rows.insert(p.rows.end(), size_t(m.begin[size_t(r) + 1] - m.begin[size_t(r)]), int32_t(r));
  return p;
}

template <bool kReference> void RunGrad(Context &c) {
  const int64_t n = c.input(3).dim(1), rows = c.input(4).dim(0), columns = c.input(3).dim(0);
  const Held *held = kReference ? nullptr : held_of(c, 2, columns, rows, {0, 1});
  const Arrays a = held ? unchecked(c, rows, columns) : arrays(c, rows, columns);
  if (n == 0 || a.entries == 0) return no_gradient(c, 4);
  no_gradient(c, 2);
  const Product forward{a.dtype, a.rows, a.columns, n, {c.input(3).raw(), n, 1}, {}};
  const Product of_dense{a.dtype, a.columns, a.rows, n, {c.input(4).raw(), n, 1}, {c.output(3).raw(), n, 1}};
  if (held) {
    sampled_entries(c, forward, of_dense.d, held->at<int32_t>(held->rows_of), held->at<int32_t>(held->columns_of),
                    a.entries, c.output(2).raw());
    return multiply(c, of_dense, *held);
  }
  const Csr m = rows_of(c, a);
  const Positions at = positions(m);
  if (kReference) {
    reference_entries(c, forward, of_dense.d, at, c.output(2).raw());
    return reference(c, of_dense, transpose(m));
  }
  sampled_entries(c, forward, of_dense.d, at.rows.data(), at.columns.data(), a.entries, c.output(2).raw());
  multiply(c, of_dense, transpose(m));
}

Holder holder_of_grad(const Arguments &c) {
  const Csr m = rows_of(c, arrays(c, c.input(4).dim(0), c.input(3).dim(0)));
  return {transpose(m), c.input(2).dtype(), false, positions(m)};
}
uint64_t PackedBytesGrad(InferContext &c, int input) {
  const bool held =
      input == 2 && all_known(c, {0, 1, 2}) && holdable(c.input(4).dim(0), c.input(3).dim(0), c.input(2).size());
  return held ? holder_of_grad(c).bytes() : 0;
}
void PackGrad(InferContext &c, int, void *to) { holder_of_grad(c).write(c, {0, 1}, to); }
uint64_t WorkspaceGrad(InferContext &c) {
  const int64_t rows = c.input(3).dim(0), inner = c.input(4).dim(0), n = c.input(4).dim(1);
  if (!all_known(c, {0, 1, 2}) || !worth_packing(rows, inner, c.input(2).size()) || n < 0) return 0;
  return workspace_bytes({c.input(2).dtype(), rows, inner, n, {}, {}}, processors());
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(CSRMM, .inputs = -1, .infer = Infer, .kernel = Kernel, .reference = Reference, .workspace = Workspace,
           .packed_bytes = PackedBytes, .pack = Pack, .backward = "CSRMMGrad")
OPGRAFT_OP(CSRMMGrad, .inputs = 5, .outputs = 4, .infer = InferGrad, .kernel = RunGrad<false>,
           .reference = RunGrad<true>, .workspace = WorkspaceGrad, .packed_bytes = PackedBytesGrad, .pack = PackGrad)
