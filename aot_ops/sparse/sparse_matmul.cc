// SparseMatMul: a b, one of which is mostly zeros, and its gradients.
#include "aot_ops/sparse/operands.h"

namespace opgraft {
namespace {
using namespace opgraft::sparse;

bool a_is_sparse(const Arguments &c) { return c.attr_bool("a_is_sparse", false); }

Operands operands(const Arguments &c) {
  return sparse::operands(c, a_is_sparse(c), c.attr_bool("transpose_a", false), c.attr_bool("transpose_b", false));
}

void check_operands(InferContext &c) {
  c.check_dtype(0, "a", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "b", 0, "a");
  const auto a = c.input(0).shape(), b = c.input(1).shape();
  const bool ta = c.attr_bool("transpose_a", false), tb = c.attr_bool("transpose_b", false);
  c.check(b.size() == 2, "b must have 2 dimensions, got shape ", b);
  if (ta || a_is_sparse(c))
    c.check(a.size() == 2, "a must have 2 dimensions ", ta ? "with transpose_a" : "where it is the sparse one",
            ", got shape ", a);
  else c.check(a.size() >= 2, "a must have at least 2 dimensions, got shape ", a);
  const int64_t k = ta ? a[0] : a.back(), k_of_b = b[tb ? 1 : 0];
  c.check(may_equal(k, k_of_b), "a's K must equal b's K of ", k_of_b, ", got ", k, " (a ", a, ", b ", b, ")");
}

void Infer(InferContext &c) {
  c.check_inputs(2, 2);
  check_operands(c);
  const auto a = c.input(0).shape();
  Shape out(a.begin(), a.end());
  if (c.attr_bool("transpose_a", false)) out[0] = a[1];
  out.back() = c.input(1).dim(c.attr_bool("transpose_b", false) ? 0 : 1);
  c.output(c.input(0).dtype(), out);
}

uint64_t Workspace(InferContext &c) {
  if (c.input(0).size() < 0 || c.input(1).size() < 0) return 0;
  return product_workspace(c, operands(c));
}
uint64_t PackedBytes(InferContext &c, int input) { return product_packed_bytes(c, operands(c), input); }
void Pack(InferContext &c, int, void *to) { pack_product(c, operands(c), to); }
void Kernel(Context &c) { run_product(c, operands(c)); }
void Reference(Context &c) { reference_product(c, operands(c)); }

void InferGrad(InferContext &c) {
  c.check_inputs(3, 3);
  check_operands(c);
  c.check_same_dtype(2, "dout", 0, "a");
  const auto a = c.input(0).shape(), b = c.input(1).shape(), d = c.input(2).shape();
  Shape out(a.begin(), a.end());
  if (c.attr_bool("transpose_a", false)) out[0] = a[1];
  out.back() = b[c.attr_bool("transpose_b", false) ? 0 : 1];
  bool same = out.size() == d.size();
  for (size_t i = 0; same && i < out.size(); ++i) same = may_equal(out[i], d[i]);
  c.check(same, "dout.shape must equal the product's shape ", out, ", got ", d);
  c.output(c.input(0).dtype(), a);
  c.output(c.input(1).dtype(), b);
}

// dD = S^T dY, and dS = dY D^T where S is not zero: the pattern of a sparse operand stays as it is.
struct Gradients {
  Product of_dense;
  MatrixRef dy;  // by rows of Y
};
Gradients gradients(const Arguments &c, const Operands &o) {
  const Product &p = o.product;
  const MatrixRef dy{c.input(2).raw(), p.y.row_stride, p.y.column_stride};
  return {{p.dtype, p.inner, p.rows, p.columns, dy, {nullptr, p.d.row_stride, p.d.column_stride}}, dy};
}

uint64_t PackedBytesGrad(InferContext &c, int input) {
  const Operands o = operands(c);
  if (input != o.sparse || c.input(input).size() == 0) return 0;
  Csr m = sparse_rows(c, o, true);
  return Packing(m, false).bytes();
}
void PackGrad(InferContext &c, int, void *to) {
  Csr m = sparse_rows(c, operands(c), true);
  Packing(m, false).write(to);
}

void KernelGrad(Context &c) {
  const Operands o = operands(c);
  Gradients g = gradients(c, o);
  g.of_dense.y.data = c.output(o.dense).raw();
  const auto *packed = static_cast<const Packed *>(c.packed(o.sparse));
  if (packed) multiply(c, g.of_dense, *packed);
  else multiply(c, g.of_dense, sparse_rows(c, o, true));
  MatrixRef ds = o.s;
  ds.data = c.output(o.sparse).raw();
  sampled_product(c, o.product, g.dy, o.s, ds);
}

void ReferenceGrad(Context &c) {
  const Operands o = operands(c);
  Gradients g = gradients(c, o);
  g.of_dense.y.data = c.output(o.dense).raw();
  reference(c, g.of_dense, sparse_rows(c, o, true));
  const Product &p = o.product;
  dispatch<float, float16, bfloat16>(c, p.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *s = static_cast<const T *>(o.s.data), *d = static_cast<const T *>(p.d.data);
    const T *dy = static_cast<const T *>(g.dy.data);
    T *ds = c.output(o.sparse).data<T>();
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t k = 0; k < p.inner; ++k) {
        const int64_t at = r * o.s.row_stride + k * o.s.column_stride;
        double sum = 0;
        for (int64_t j = 0; float(s[at]) != 0.0f && j < p.columns; ++j)
          sum += double(float(dy[r * g.dy.row_stride + j * g.dy.column_stride])) *
                 double(float(d[k * p.d.row_stride + j * p.d.column_stride]));
        ds[at] = T(float(sum));
      }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(SparseMatMul, .inputs = 2, .infer = Infer, .kernel = Kernel, .reference = Reference, .workspace = Workspace,
           .packed_bytes = PackedBytes, .pack = Pack, .backward = "SparseMatMulGrad")
OPGRAFT_OP(SparseMatMulGrad, .inputs = 3, .outputs = 2, .infer = InferGrad, .kernel = KernelGrad,
           .reference = ReferenceGrad, .packed_bytes = PackedBytesGrad, .pack = PackGrad)
