// SparseTensorDenseMatmul(indices, values, sparse_shape, dense), MindSpore's product of a sparse matrix by coordinates
// and a dense one, and its gradient. What is constant is checked and packed once, at plan time; else it is checked and
// sorted into rows at every call.
#include "aot_ops/sparse/held.h"

namespace opgraft {
namespace {
using namespace opgraft::sparse;

bool adjoint_st(const Arguments &c) { return c.attr_bool("adjoint_st", false); }
bool adjoint_dt(const Arguments &c) { return c.attr_bool("adjoint_dt", false); }

void check_types(const Arguments &c) {
  c.check_dtype(0, "indices", {OPGRAFT_INT32, OPGRAFT_INT64});
  check_rank(c, 0, "indices", 2);
  const auto s = c.input(0).shape();
  const int64_t n = c.input(1).dim(0);
  c.check(may_equal(s[0], n) && may_equal(s[1], 2), "indices.shape must be (", n, ", 2) as there are values, got ", s);
}

// Every coordinate lies in the matrix: for the kernel, its twin and the packing.
void check_coordinates(const Arguments &c, int64_t rows, int64_t columns) {
  by_types(c, c.input(1).dtype(), c.input(0).dtype(), [&](auto, auto index) {
    const auto *at = c.input(0).data<decltype(index)>();
    for (int64_t i = 0; i < c.input(1).dim(0); ++i)
      if (at[2 * i] < 0 || int64_t(at[2 * i]) >= rows || at[2 * i + 1] < 0 || int64_t(at[2 * i + 1]) >= columns)
        c.fail(OPGRAFT_INVALID_VALUE, "indices must lie in the matrix of shape (", rows, ", ", columns, "), got (",
               at[2 * i], ", ", at[2 * i + 1], ") at ", i);
  });
}

// S, or S^T, from checked coordinates.
Csr from_coordinates(const Arguments &c, int64_t rows, int64_t columns, bool transposed) {
  check_columns(c, "sparse_shape", std::max(rows, columns));
  const int64_t n = c.input(1).dim(0);
  Csr m;
  by_types(c, c.input(1).dtype(), c.input(0).dtype(), [&](auto zero, auto index) {
    const auto *at = c.input(0).data<decltype(index)>();
    const auto *values = c.input(1).data<decltype(zero)>();
    auto first = [&](int64_t i) { return int64_t(at[2 * i]); };
    auto second = [&](int64_t i) { return int64_t(at[2 * i + 1]); };
    m = transposed ? from_entries(columns, rows, n, second, first, values)
                   : from_entries(rows, columns, n, first, second, values);
  });
  return m;
}

std::array<int64_t, 2> shape_of(const Arguments &c) { return stated_shape(c, 2, "sparse_shape", 4); }

// The product of S or S^T, which has these rows and columns, and the dense operand or its transpose.
Product product(const TensorView &dense, bool turned, int64_t rows, int64_t columns, void *y) {
  const int64_t n = dense.dim(turned ? 0 : 1);
  return {dense.dtype(), rows, columns, n, {dense.raw(), turned ? 1 : n, turned ? columns : 1}, {y, n, 1}};
}
Product product(const Arguments &c, void *y) {
  auto [rows, columns] = shape_of(c);
  if (adjoint_st(c)) std::swap(rows, columns);
  return product(c.input(c.inputs() - 1), adjoint_dt(c), rows, columns, y);
}

Csr rows_of(const Arguments &c) {
  const auto [rows, columns] = shape_of(c);
  check_coordinates(c, rows, columns);
  return from_coordinates(c, rows, columns, adjoint_st(c));
}

void Infer(InferContext &c) {
  c.check_inputs(3, 4);
  const int at = c.inputs() - 1;
  check_floats(c, 1, {{at, "dense"}});
  check_types(c);
  auto [rows, columns] = shape_of(c);
  if (adjoint_st(c)) std::swap(rows, columns);
  const auto d = c.input(at).shape();
  const bool turned = adjoint_dt(c);
  c.check(columns == -1 || may_equal(d[turned ? 1 : 0], columns), "dense must have ", columns,
          turned ? " columns" : " rows", ", got shape ", d);
  c.output(c.input(1).dtype(), Shape{rows, d[turned ? 0 : 1]});
}

// Nothing to compute: the stated shape may be larger than any memory.
bool empty(const Context &c) {
  const auto [rows, columns] = shape_of(c);
  if (c.output(0).size() == 0) check_coordinates(c, rows, columns);
  return c.output(0).size() == 0;
}

void Kernel(Context &c) {
  if (empty(c)) return;
  const Product p = product(c, c.output(0).raw());
  if (const Held *held = held_of(c, 1, p.rows, p.inner, {0})) multiply(c, p, *held);
  else multiply(c, p, rows_of(c));
}
void Reference(Context &c) {
  if (!empty(c)) reference(c, product(c, c.output(0).raw()), rows_of(c));
}

Holder holder(const Arguments &c) { return {rows_of(c), c.input(1).dtype(), false}; }
uint64_t PackedBytes(InferContext &c, int input) {
  const auto [rows, columns] = shape_of(c);
  return input == 1 && all_known(c, {0, 1}) && holdable(rows, columns, c.input(1).size()) ? holder(c).bytes() : 0;
}
void Pack(InferContext &c, int, void *to) { holder(c).write(c, {0}, to); }
uint64_t Workspace(InferContext &c) {
  if (!all_known(c, {0, 1})) return 0;
  const Product p = product(c, nullptr);
  return p.columns >= 0 && worth_packing(p.rows, p.inner, c.input(1).size()) ? workspace_bytes(p, processors()) : 0;
}

// (indices, values, dense, dout) -> d values[i] = dout[row] . dense[column], d dense = S^T dout, S what was multiplied.
void InferGrad(InferContext &c) {
  c.check_inputs(4, 4);
  check_floats(c, 1, {{2, "dense"}, {3, "dout"}});
  check_types(c);
  const int64_t n = c.input(2).dim(adjoint_dt(c) ? 0 : 1);
  c.check(may_equal(c.input(3).dim(1), n), "dout must have ", n, " columns, got shape ", c.input(3).shape());
  for (int i = 0; i < 3; ++i) c.output(c.input(i).dtype(), c.input(i).shape());
}

// Of what was multiplied.
std::array<int64_t, 2> shape_of_grad(const Arguments &c) {
  return {c.input(3).dim(0), c.input(2).dim(adjoint_dt(c) ? 1 : 0)};
}
void check_grad(const Arguments &c, int64_t rows, int64_t columns) {
  if (adjoint_st(c)) std::swap(rows, columns);
  check_coordinates(c, rows, columns);
}
Csr transposed(const Arguments &c, int64_t rows, int64_t columns) {
  return adjoint_st(c) ? from_coordinates(c, columns, rows, false) : from_coordinates(c, rows, columns, true);
}
Positions positions(const Arguments &c) {
  const int64_t entries = c.input(1).dim(0);
  const bool st = adjoint_st(c);
  Positions at{std::vector<int32_t>(size_t(entries)), std::vector<int32_t>(size_t(entries))};
  by_types(c, c.input(1).dtype(), c.input(0).dtype(), [&](auto, auto index) {
    const auto *of = c.input(0).data<decltype(index)>();
    for (int64_t i = 0; i < entries; ++i) {
      at.rows[size_t(i)] = int32_t(of[2 * i + st]);
      at.columns[size_t(i)] = int32_t(of[2 * i + !st]);
    }
  });
  return at;
}

template <bool kReference> void RunGrad(Context &c) {
  const bool dt = adjoint_dt(c);
  const TensorView dense = c.input(2), dout = c.input(3);
  const auto [rows, columns] = shape_of_grad(c);
  const int64_t n = dout.dim(1), entries = c.input(1).dim(0);
  const Held *held = kReference ? nullptr : held_of(c, 1, columns, rows, {0});
  if (!held) check_grad(c, rows, columns);
  if (n == 0 || entries == 0) return no_gradient(c, 3);
  no_gradient(c, 1);
  const Product forward = product(dense, dt, rows, columns, nullptr);
  const Product of_dense{
      dense.dtype(), columns, rows, n, {dout.raw(), n, 1}, {c.output(2).raw(), dt ? 1 : n, dt ? columns : 1}};
  if (held) {
    sampled_entries(c, forward, of_dense.d, held->at<int32_t>(held->rows_of), held->at<int32_t>(held->columns_of),
                    entries, c.output(1).raw());
    return multiply(c, of_dense, *held);
  }
  const Csr turned = transposed(c, rows, columns);
  const Positions at = positions(c);
  if (kReference) {
    reference_entries(c, forward, of_dense.d, at, c.output(1).raw());
    return reference(c, of_dense, turned);
  }
  sampled_entries(c, forward, of_dense.d, at.rows.data(), at.columns.data(), entries, c.output(1).raw());
  multiply(c, of_dense, turned);
}

Holder holder_of_grad(const Arguments &c) {
  const auto [rows, columns] = shape_of_grad(c);
  check_grad(c, rows, columns);
  Csr turned = transposed(c, rows, columns);
  return {std::move(turned), c.input(1).dtype(), false, positions(c)};
}
uint64_t PackedBytesGrad(InferContext &c, int input) {
  const auto [rows, columns] = shape_of_grad(c);
  return input == 1 && all_known(c, {0, 1}) && holdable(rows, columns, c.input(1).size()) ? holder_of_grad(c).bytes()
                                                                                          : 0;
}
void PackGrad(InferContext &c, int, void *to) { holder_of_grad(c).write(c, {0}, to); }
uint64_t WorkspaceGrad(InferContext &c) {
  const auto [rows, columns] = shape_of_grad(c);
  if (!all_known(c, {0, 1}) || !worth_packing(columns, rows, c.input(1).size()) || c.input(3).dim(1) < 0) return 0;
  return workspace_bytes({c.input(1).dtype(), columns, rows, c.input(3).dim(1), {}, {}}, processors());
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(SparseTensorDenseMatmul, .inputs = -1, .infer = Infer, .kernel = Kernel, .reference = Reference,
           .workspace = Workspace, .packed_bytes = PackedBytes, .pack = Pack, .backward = "SparseTensorDenseMatmulGrad")
OPGRAFT_OP(SparseTensorDenseMatmulGrad, .inputs = 4, .outputs = 3, .infer = InferGrad, .kernel = RunGrad<false>,
           .reference = RunGrad<true>, .workspace = WorkspaceGrad, .packed_bytes = PackedBytesGrad, .pack = PackGrad)
