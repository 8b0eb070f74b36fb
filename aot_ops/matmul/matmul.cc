// MatMul: a[..., M, K] b[K, N]; BatchMatMul: the same over batch dimensions that broadcast as NumPy's; MatMulExt: as
// NumPy's matmul, with vectors.
#include "opgraft/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "matmul.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/product-inl.h"
#include "aot_ops/common/skinny-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/product-host.h"
#include "aot_ops/matmul/matmul.h"

namespace opgraft {
namespace {

// The batch dimensions of the product.
template <Product kind> std::span<const int64_t> batch_of(const Context &c) {
  const size_t rank = std::max(matrices<kind>(c, 0).rank, matrices<kind>(c, 1).rank);
  return c.output(0).shape().first(rank - 2);
}

template <Product kind> void Infer(InferContext &c) { c.output(c.input(0).dtype(), check_product<kind>(c)); }

template <Product kind> GemmProblem problem(const Arguments &c) {
  const Dims d = dims<kind>(c);
  const Matrices a = matrices<kind>(c, 0), b = matrices<kind>(c, 1);
  GemmProblem p{c.input(0).dtype(),
                d.m,
                d.n,
                d.k,
                {c.input(0).raw(), d.ta ? 1 : d.k, d.ta ? d.m : 1},
                {c.input(1).raw(), d.tb ? 1 : d.n, d.tb ? d.k : 1},
                nullptr};
  const int64_t lead = element_count(a.batch());
  if (kind == kBatch || (kind == kExt && b.rank > 2)) {
    p.a_count = lead;
    p.b_count = element_count(b.batch());
  } else {
    p.m = lead < 0 || d.m < 0 ? -1 : lead * d.m;  // leading dimensions are rows
  }
  return p;
}

template <Product kind> GemmProblem problem(const Context &c) {
  GemmProblem p = problem<kind>(static_cast<const Arguments &>(c));
  p.c = c.output(0).raw();
  p.packed = c.packed(1);
  if (kind == kBatch || (kind == kExt && matrices<kind>(c, 1).rank > 2)) p.batch = element_count(batch_of<kind>(c));
  return p;
}

template <Product kind> uint64_t Workspace(InferContext &c) {
  const GemmProblem p = problem<kind>(static_cast<const Arguments &>(c));
  return product_workspace(p, product_kernels(p.dtype), c.input(1).known());
}

template <Product kind> uint64_t PackedBytes(InferContext &c, int input) {
  const GemmProblem p = problem<kind>(static_cast<const Arguments &>(c));
  return input == 1 ? packed_bytes(p, product_kernels(p.dtype)) : 0;
}

template <Product kind> void PackB(InferContext &c, int, void *dst) {
  const GemmProblem p = problem<kind>(static_cast<const Arguments &>(c));
  pack_b(p, product_kernels(p.dtype), dst);
}

template <Product kind> void Kernel(Context &c) {
  const GemmProblem p = problem<kind>(c);
  const Matrices a = matrices<kind>(c, 0), b = matrices<kind>(c, 1);
  if (kind == kMatMul || (kind == kExt && b.rank == 2)) return run_product(c, p, product_kernels(p.dtype));
  const auto out = batch_of<kind>(c);
  run_product(
      c, p, product_kernels(p.dtype), [&](int64_t i) { return operand(i, out, a.batch()); },
      [&](int64_t i) { return operand(i, out, b.batch()); });
}

template <Product kind> void Reference(Context &c) {
  const GemmProblem p = problem<kind>(c);
  const Matrices a = matrices<kind>(c, 0), b = matrices<kind>(c, 1);
  if (kind == kMatMul || (kind == kExt && b.rank == 2)) return reference_gemm(c, p);
  const auto out = batch_of<kind>(c);
  for (int64_t i = 0; i < p.batch; ++i) reference_gemm(c, p, operand(i, out, a.batch()), operand(i, out, b.batch()), i);
}

}  // namespace
}  // namespace opgraft

#define OPGRAFT_PRODUCT(Name, kind)                                                                              \
  OPGRAFT_OP(Name, .inputs = 2, .infer = ::opgraft::Infer<::opgraft::kind>,                                      \
             .kernel = ::opgraft::Kernel<::opgraft::kind>, .reference = ::opgraft::Reference<::opgraft::kind>,   \
             .workspace = ::opgraft::Workspace<::opgraft::kind>,                                                 \
             .packed_bytes = ::opgraft::PackedBytes<::opgraft::kind>, .pack = ::opgraft::PackB<::opgraft::kind>, \
             .backward = #Name "Grad")
OPGRAFT_PRODUCT(MatMul, kMatMul)
OPGRAFT_PRODUCT(BatchMatMul, kBatch)
OPGRAFT_PRODUCT(MatMulExt, kExt)
#endif
