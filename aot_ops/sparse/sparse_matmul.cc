// SparseMatMul: a b, one of which is mostly zeros. A constant sparse operand is packed once, at plan time, in the form
// that its density and structure ask for. One that comes with every call is multiplied as a dense one: finding its
// zeros would take as long as the product.
#include "aot_ops/sparse/dense.h"
#include "aot_ops/sparse/spmm.h"

namespace opgraft {
namespace {
using namespace opgraft::sparse;

// The product as S D = Y with S sparse: of a sparse b that is b^T a^T = y^T.
struct Operands {
  bool a_sparse, ta, tb;
  int sparse, dense;  // positions of the inputs
  Product product;
  MatrixRef s;  // by rows of S and its inner dimension
};

bool a_is_sparse(const Arguments &c) { return c.attr_bool("a_is_sparse", false); }

Operands operands(const Arguments &c) {
  const bool of_a = a_is_sparse(c), ta = c.attr_bool("transpose_a", false), tb = c.attr_bool("transpose_b", false);
  const TensorView a = c.input(0), b = c.input(1);
  const int64_t k = b.dim(tb ? 1 : 0), n = b.dim(tb ? 0 : 1);
  const int64_t m = ta ? a.dim(-1) : element_count(a.shape().first(size_t(a.rank()) - 1));
  const MatrixRef by_m{a.raw(), ta ? 1 : k, ta ? m : 1}, by_n{b.raw(), tb ? k : 1, tb ? 1 : n};
  const int32_t dtype = a.dtype();
  Operands o{of_a, ta, tb, of_a ? 0 : 1, of_a ? 1 : 0, {dtype, m, k, n, {}, {}}, by_m};
  if (of_a) {
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
DenseProduct dense(const Operands &o) {
  const Product &p = o.product;
  const MatrixRef turned_d{p.d.data, p.d.column_stride, p.d.row_stride};
  const MatrixRef turned_s{o.s.data, o.s.column_stride, o.s.row_stride};
  void *y = const_cast<void *>(p.y.data);
  if (o.a_sparse) return {p.dtype, p.rows, p.columns, p.inner, o.s, p.d, y};
  return {p.dtype, p.columns, p.rows, p.inner, turned_d, turned_s, y};
}

Csr sparse_rows(const Arguments &c, const Operands &o, bool transposed = false) {
  Csr m;
  dispatch<float, float16, bfloat16>(c, o.product.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *data = static_cast<const T *>(o.s.data);
    m = transposed ? from_dense(data, o.product.inner, o.product.rows, o.s.column_stride, o.s.row_stride)
                   : from_dense(data, o.product.rows, o.product.inner, o.s.row_stride, o.s.column_stride);
  });
  return m;
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
  const Operands o = operands(c);
  const bool constant = c.input(o.sparse).known();
  const uint64_t as_dense = dense_workspace_bytes(dense(o), constant && !o.a_sparse);
  return constant ? std::max(as_dense, workspace_bytes(o.product, processors())) : as_dense;
}

// Room for the packed form, and behind it for the panels of a dense product where it comes to that.
uint64_t PackedBytes(InferContext &c, int input) {
  const Operands o = operands(c);
  if (input != o.sparse || c.input(input).size() == 0) return 0;
  Csr m = sparse_rows(c, o);
  const Packing packing(m);
  return packing.bytes() + (packing.strategy() == kDense && !o.a_sparse ? dense_packed_bytes(dense(o)) : 0);
}

void Pack(InferContext &c, int, void *to) {
  const Operands o = operands(c);
  Csr m = sparse_rows(c, o);
  const Packing packing(m);
  packing.write(to);
  if (packing.strategy() == kDense && !o.a_sparse) dense_pack(dense(o), static_cast<char *>(to) + packing.bytes());
}

void Kernel(Context &c) {
  Operands o = operands(c);
  o.product.y.data = c.output(0).raw();
  const auto *packed = static_cast<const Packed *>(c.packed(o.sparse));
  if (packed && packed->strategy == kSparse) return multiply(c, o.product, *packed);
  // 0 * inf would be NaN in the dense product.
  if (!all_finite(c, o.product.dtype, c.input(o.dense).raw(), c.input(o.dense).size()))
    return multiply(c, o.product, sparse_rows(c, o));
  DenseProduct d = dense(o);
  if (packed && !o.a_sparse) d.packed = reinterpret_cast<const char *>(packed) + packed->size;
  multiply_dense(c, d);
}

void Reference(Context &c) {
  Operands o = operands(c);
  o.product.y.data = c.output(0).raw();
  reference(c, o.product, sparse_rows(c, o));
}

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
