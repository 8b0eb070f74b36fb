// MatMul: a[..., M, K] b[K, N]; BatchMatMul: the same over batch dimensions that broadcast as NumPy's.
#include "opgraft/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "matmul.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/gemm-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/gemm-host.h"

namespace opgraft {
namespace {

struct Dims {
  int64_t m, n, k, k_of_b;
  bool ta, tb;
};

Dims dims(const Arguments &c) {
  TensorView a = c.input(0), b = c.input(1);
  const bool ta = c.attr_bool("transpose_a", false), tb = c.attr_bool("transpose_b", false);
  return {a.dim(ta ? -1 : -2), b.dim(tb ? -2 : -1), a.dim(ta ? -2 : -1), b.dim(tb ? -1 : -2), ta, tb};
}

Dims check_common(InferContext &c) {
  c.check_dtype(0, "a", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "b", 0, "a");
  c.check(c.input(0).rank() >= 2, "a must have at least 2 dimensions, got shape " + to_string(c.input(0).shape()));
  c.check(c.input(1).rank() >= 2, "b must have at least 2 dimensions, got shape " + to_string(c.input(1).shape()));
  const Dims d = dims(c);
  c.check(d.k < 0 || d.k_of_b < 0 || d.k == d.k_of_b,
          "a's K must equal b's K of " + std::to_string(d.k_of_b) + ", got " + std::to_string(d.k) + " (a " +
              to_string(c.input(0).shape()) + ", b " + to_string(c.input(1).shape()) + ")");
  return d;
}

std::span<const int64_t> batch_dims(TensorView t) { return t.shape().first(size_t(t.rank() - 2)); }

void InferMatMul(InferContext &c) {
  const Dims d = check_common(c);
  c.check(c.input(1).rank() == 2, "b must have 2 dimensions, got shape " + to_string(c.input(1).shape()));
  c.check(c.input(0).rank() == 2 || !d.ta,
          "a must have 2 dimensions with transpose_a, got shape " + to_string(c.input(0).shape()));
  auto lead = batch_dims(c.input(0));
  Shape out(lead.begin(), lead.end());
  out.push_back(d.m);
  out.push_back(d.n);
  c.output(c.input(0).dtype(), out);
}

void InferBatch(InferContext &c) {
  const Dims d = check_common(c);
  Shape out = c.broadcast(batch_dims(c.input(0)), batch_dims(c.input(1)));
  out.push_back(d.m);
  out.push_back(d.n);
  c.output(c.input(0).dtype(), out);
}

GemmProblem problem(const Arguments &c, bool batched) {
  const Dims d = dims(c);
  GemmProblem p{c.input(0).dtype(),
                d.m,
                d.n,
                d.k,
                {c.input(0).raw(), d.ta ? 1 : d.k, d.ta ? d.m : 1},
                {c.input(1).raw(), d.tb ? 1 : d.n, d.tb ? d.k : 1},
                nullptr};
  const int64_t lead = element_count(batch_dims(c.input(0)));
  if (batched) {
    p.a_count = lead;
    p.b_count = element_count(batch_dims(c.input(1)));
  } else {
    p.m = lead < 0 || d.m < 0 ? -1 : lead * d.m;  // leading dimensions are rows
  }
  return p;
}

GemmProblem problem(const Context &c, bool batched) {
  GemmProblem p = problem(static_cast<const Arguments &>(c), batched);
  p.c = c.output(0).raw();
  p.packed = static_cast<const float *>(c.packed(1));
  if (batched) p.batch = element_count(batch_dims(c.output(0)));
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

template <bool kBatched> uint64_t Workspace(InferContext &c) {
  const GemmProblem p = problem(static_cast<const Arguments &>(c), kBatched);
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.a_count < 0 || p.b_count < 0) return 0;
  return 4 * (p.a_floats() + (c.input(1).known() ? 0 : p.b_floats()));  // a constant b comes packed
}

template <bool kBatched> uint64_t PackedBytes(InferContext &c, int input) {
  return input == 1 ? 4 * problem(static_cast<const Arguments &>(c), kBatched).b_floats() : 0;
}

template <bool kBatched> void PackB(InferContext &c, int, void *dst) {
  const GemmProblem p = problem(static_cast<const Arguments &>(c), kBatched);
  for (int64_t i = 0; i < p.b_count; ++i) {
    MatrixRef b = p.b;
    b.data = static_cast<const char *>(b.data) + i * p.k * p.n * int64_t(dtype_size(p.dtype));
    gemm_kernels(p.dtype).pack(b, p.k, p.n, 0, panel_count(p.n),
                               static_cast<float *>(dst) + i * packed_floats(p.k, p.n));
  }
}

void KernelMatMul(Context &c) { run_gemm(c, problem(c, false)); }
void KernelBatch(Context &c) {
  auto out = batch_dims(c.output(0)), a = batch_dims(c.input(0)), b = batch_dims(c.input(1));
  run_gemm(
      c, problem(c, true), [&](int64_t i) { return operand(i, out, a); },
      [&](int64_t i) { return operand(i, out, b); });
}
void ReferenceMatMul(Context &c) { reference_gemm(c, problem(c, false)); }
void ReferenceBatch(Context &c) {
  const GemmProblem p = problem(c, true);
  auto out = batch_dims(c.output(0)), a = batch_dims(c.input(0)), b = batch_dims(c.input(1));
  for (int64_t i = 0; i < p.batch; ++i) reference_gemm(c, p, operand(i, out, a), operand(i, out, b), i);
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(MatMul, .inputs = 2, .infer = InferMatMul, .kernel = KernelMatMul, .reference = ReferenceMatMul,
           .workspace = Workspace<false>, .packed_bytes = PackedBytes<false>, .pack = PackB<false>)
OPGRAFT_OP(BatchMatMul, .inputs = 2, .infer = InferBatch, .kernel = KernelBatch, .reference = ReferenceBatch,
           .workspace = Workspace<true>, .packed_bytes = PackedBytes<true>, .pack = PackB<true>)
#endif
