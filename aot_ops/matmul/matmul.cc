// MatMul: a[..., M, K] b[K, N]; BatchMatMul: the same over batch dimensions that broadcast as NumPy's; MatMulExt: as
// NumPy's matmul, with vectors.
#include "opgraft/op.h"

#include <algorithm>
#include <array>
#include <utility>

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

namespace opgraft {
namespace {

enum Product { kMatMul, kBatch, kExt };

// An operand as matrices; MatMulExt takes a vector `a` as a row and a vector `b` as a column.
struct Matrices {
  std::array<int64_t, OPGRAFT_MAX_RANK> dims{};
  size_t rank = 0;
  int64_t dim(int i) const { return dims[rank - size_t(-i)]; }
  std::span<const int64_t> batch() const { return {dims.data(), rank - 2}; }
};

template <Product kind> Matrices matrices(const Arguments &c, int input) {
  Matrices m;
  const auto shape = c.input(input).shape();
  const bool vector = kind == kExt && shape.size() == 1;
  if (vector && input == 0) m.dims[m.rank++] = 1;
  for (int64_t d : shape) m.dims[m.rank++] = d;
  if (vector && input == 1) m.dims[m.rank++] = 1;
  return m;
}

// The batch dimensions of the product.
template <Product kind> std::span<const int64_t> batch_of(const Context &c) {
  const size_t rank = std::max(matrices<kind>(c, 0).rank, matrices<kind>(c, 1).rank);
  return c.output(0).shape().first(rank - 2);
}

struct Dims {
  int64_t m, n, k, k_of_b;
  bool ta, tb;
};

template <Product kind> Dims dims(const Arguments &c) {
  const Matrices a = matrices<kind>(c, 0), b = matrices<kind>(c, 1);
  const bool ta = kind != kExt && c.attr_bool("transpose_a", false),
             tb = kind != kExt && c.attr_bool("transpose_b", false);
  return {a.dim(ta ? -1 : -2), b.dim(tb ? -2 : -1), a.dim(ta ? -2 : -1), b.dim(tb ? -1 : -2), ta, tb};
}

template <Product kind> void Infer(InferContext &c) {
  constexpr int least = kind == kExt ? 1 : 2;
  c.check_dtype(0, "a", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "b", 0, "a");
  const auto shape_a = c.input(0).shape(), shape_b = c.input(1).shape();
  const std::string dimensions = least == 1 ? " dimension" : " dimensions";
  for (auto [name, shape] : {std::pair{"a", shape_a}, std::pair{"b", shape_b}})
    c.check(shape.size() >= size_t(least), std::string(name) + " must have at least " + std::to_string(least) +
                                               dimensions + ", got shape " + to_string(shape));
  const Dims d = dims<kind>(c);
  c.check(d.k < 0 || d.k_of_b < 0 || d.k == d.k_of_b, "a's K must equal b's K of " + std::to_string(d.k_of_b) +
                                                          ", got " + std::to_string(d.k) + " (a " + to_string(shape_a) +
                                                          ", b " + to_string(shape_b) + ")");
  const Matrices a = matrices<kind>(c, 0), b = matrices<kind>(c, 1);
  Shape out;
  if constexpr (kind == kMatMul) {
    c.check(shape_b.size() == 2, "b must have 2 dimensions, got shape " + to_string(shape_b));
    c.check(shape_a.size() == 2 || !d.ta, "a must have 2 dimensions with transpose_a, got shape " + to_string(shape_a));
    out.assign(a.batch().begin(), a.batch().end());
  } else {
    out = c.broadcast(a.batch(), b.batch());
  }
  if (shape_a.size() > 1) out.push_back(d.m);
  if (shape_b.size() > 1) out.push_back(d.n);
  c.output(c.input(0).dtype(), out);
}

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

// Which matrix of an operand with batch dimensions `of` product i of batch `out` takes.
int64_t operand(int64_t i, std::span<const int64_t> out, std::span<const int64_t> of) {
  int64_t at = 0, stride = 1;
  for (size_t r = 1; r <= of.size(); ++r) {
    const int64_t coordinate = i % out[out.size() - r];
    i /= out[out.size() - r];
    if (of[of.size() - r] != 1) at += coordinate * stride;
    stride *= of[of.size() - r];
  }
  return at;
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

#define OPGRAFT_PRODUCT(Name, kind)                                                                            \
  OPGRAFT_OP(Name, .inputs = 2, .infer = ::opgraft::Infer<::opgraft::kind>,                                    \
             .kernel = ::opgraft::Kernel<::opgraft::kind>, .reference = ::opgraft::Reference<::opgraft::kind>, \
             .workspace = ::opgraft::Workspace<::opgraft::kind>,                                               \
             .packed_bytes = ::opgraft::PackedBytes<::opgraft::kind>, .pack = ::opgraft::PackB<::opgraft::kind>)
OPGRAFT_PRODUCT(MatMul, kMatMul)
OPGRAFT_PRODUCT(BatchMatMul, kBatch)
OPGRAFT_PRODUCT(MatMulExt, kExt)
#endif
