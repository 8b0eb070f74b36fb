// The gradients of the products: da = dy b^T and db = a^T dy, transposed where the operand is, and summed over the
// batches that share an operand.
#include "opgraft/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "matmul_grad.cc"
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

template <Product kind> void Infer(InferContext &c) {
  const Shape out = check_product<kind>(c);
  c.check_same_dtype(2, "dy", 0, "a");
  const auto dy = c.input(2).shape();
  bool same = dy.size() == out.size();
  for (size_t i = 0; same && i < out.size(); ++i) same = may_equal(dy[i], out[i]);
  c.check(same, "dy.shape must equal the product's shape ", out, ", got ", dy);
  c.output(c.input(0).dtype(), c.input(0).shape());
  c.output(c.input(0).dtype(), c.input(1).shape());
}

// One gradient: `batch` products, each added to one of `count` matrices. The left and the right factor of a product
// are a, b or dy (input's number), whose matrices `of` numbers.
struct Gradient {
  GemmProblem p;
  int left, right, of;
  std::span<const int64_t> out, a, b;  // batch dimensions

  int64_t at(int input, int64_t product) const {
    return input == 2 ? product : operand(product, out, input == 0 ? a : b);
  }
  bool shared() const { return p.batch != element_count(of == 0 ? a : b); }
};

struct Operands {
  Matrices a, b;
  std::span<const int64_t> out;
};
template <Product kind> Operands operands(const Arguments &c) {
  Operands o{matrices<kind>(c, 0), matrices<kind>(c, 1), {}};
  if (kind == kBatch || (kind == kExt && o.b.rank > 2))
    o.out = c.input(2).shape().first(std::max(o.a.rank, o.b.rank) - 2);
  return o;
}

template <Product kind> Gradient gradient(const Arguments &c, const Operands &o, int of) {
  const Dims d = dims<kind>(c);
  const bool batched = kind == kBatch || (kind == kExt && o.b.rank > 2);
  const int64_t lead = element_count(o.a.batch()), m = batched ? d.m : lead < 0 || d.m < 0 ? -1 : lead * d.m;
  // The operands of the product itself, [M, K] and [K, N], and dy [M, N].
  const MatrixRef a{c.input(0).raw(), d.ta ? 1 : d.k, d.ta ? m : 1};
  const MatrixRef b{c.input(1).raw(), d.tb ? 1 : d.n, d.tb ? d.k : 1}, dy{c.input(2).raw(), d.n, 1};
  const auto turned = [](const MatrixRef &r) { return MatrixRef{r.data, r.column_stride, r.row_stride}; };
  const auto counts = [&](int input) {
    return !batched ? int64_t(1) : element_count(input == 0 ? o.a.batch() : input == 1 ? o.b.batch() : o.out);
  };
  Gradient g{};
  g.of = of;
  if (batched) g.out = o.out, g.a = o.a.batch(), g.b = o.b.batch();
  const int32_t t = c.input(0).dtype();
  if (of == 0 && !d.ta) g.p = {t, m, d.k, d.n, dy, turned(b), nullptr}, g.left = 2, g.right = 1;
  else if (of == 0) g.p = {t, d.k, m, d.n, b, turned(dy), nullptr}, g.left = 1, g.right = 2;
  else if (!d.tb) g.p = {t, d.k, d.n, m, turned(a), dy, nullptr}, g.left = 0, g.right = 2;
  else g.p = {t, d.n, d.k, m, turned(dy), a, nullptr}, g.left = 2, g.right = 0;
  g.p.a_count = counts(g.left), g.p.b_count = counts(g.right), g.p.batch = counts(2);
  return g;
}

template <Product kind> uint64_t Workspace(InferContext &c) {
  const Operands o = operands<kind>(c);
  uint64_t most = 0;
  for (int of : {0, 1}) {
    const GemmProblem p = gradient<kind>(c, o, of).p;
    most = std::max(most, product_workspace(p, product_kernels(p.dtype), false));
  }
  return most;
}

// The products one after another, each added to its matrix of `to`. Half types sum in float32.
void add_products(Context &c, const Gradient &g, void *to) {
  GemmProblem p = g.p;
  const int64_t count = element_count(g.of == 0 ? g.a : g.b), each = p.m * p.n, element = int64_t(dtype_size(p.dtype));
  const auto wide = [&](const MatrixRef &r, int64_t n) {
    std::vector<float> v(static_cast<size_t>(n));
    const auto widen = Widen_simd(p.dtype);
    c.parallel_for(n, 65536, [&](int64_t begin, int64_t end) {
      widen({static_cast<const char *>(r.data) + begin * element, 0, 1}, end - begin, 0, 1, v.data() + begin, 0);
    });
    return v;
  };
  std::vector<float> left, right, sums;
  float *out = static_cast<float *>(to);
  if (p.dtype != OPGRAFT_FLOAT32) {
    left = wide(p.a, p.a_count * p.m * p.k), right = wide(p.b, p.b_count * p.k * p.n);
    sums.resize(size_t(count * each));
    p.a.data = left.data(), p.b.data = right.data(), p.dtype = OPGRAFT_FLOAT32;
    out = sums.data();
  }
  std::fill(out, out + count * each, 0.0f);
  const auto *a = static_cast<const float *>(p.a.data), *b = static_cast<const float *>(p.b.data);
  const int64_t batch = std::exchange(p.batch, 1);
  p.a_count = p.b_count = 1;
  const ProductKernels f = product_kernels(OPGRAFT_FLOAT32);
  for (int64_t i = 0; i < batch; ++i) {
    p.a.data = a + g.at(g.left, i) * p.m * p.k;
    p.b.data = b + g.at(g.right, i) * p.k * p.n;
    p.c = out + g.at(g.of, i) * each;
    p.residual = p.c;
    run_product(c, p, f);
  }
  if (g.p.dtype != OPGRAFT_FLOAT32)
    dispatch<float16, bfloat16>(c, g.p.dtype, [&](auto zero) {
      using T = decltype(zero);
      for (int64_t i = 0; i < count * each; ++i) static_cast<T *>(to)[i] = T(out[i]);
    });
}

template <Product kind> void Kernel(Context &c) {
  const Operands o = operands<kind>(c);
  for (int of : {0, 1}) {
    Gradient g = gradient<kind>(c, o, of);
    g.p.c = c.output(of).raw();
    if (c.output(of).size() == 0) continue;
    if (g.shared()) add_products(c, g, g.p.c);
    else
      run_product(
          c, g.p, product_kernels(g.p.dtype), [&](int64_t i) { return g.at(g.left, i); },
          [&](int64_t i) { return g.at(g.right, i); });
  }
}

// By the formula: every element sums its products in double.
template <Product kind> void Reference(Context &c) {
  const Operands o = operands<kind>(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int of : {0, 1}) {
      const Gradient g = gradient<kind>(c, o, of);
      const GemmProblem &p = g.p;
      std::vector<double> sums(size_t(c.output(of).size()), 0.0);
      for (int64_t i = 0; i < p.batch && !sums.empty(); ++i) {
        const T *a = static_cast<const T *>(p.a.data) + g.at(g.left, i) * p.m * p.k,
                *b = static_cast<const T *>(p.b.data) + g.at(g.right, i) * p.k * p.n;
        double *to = sums.data() + g.at(of, i) * p.m * p.n;
        for (int64_t r = 0; r < p.m; ++r)
          for (int64_t j = 0; j < p.n; ++j)
            for (int64_t l = 0; l < p.k; ++l)
              to[r * p.n + j] += double(float(a[r * p.a.row_stride + l * p.a.column_stride])) *
                                 double(float(b[l * p.b.row_stride + j * p.b.column_stride]));
      }
      for (size_t i = 0; i < sums.size(); ++i) c.output(of).data<T>()[i] = T(float(sums[i]));
    }
  });
}

}  // namespace
}  // namespace opgraft

#define OPGRAFT_GRADIENT(Name, kind)                                                                           \
  OPGRAFT_OP(Name, .inputs = 3, .outputs = 2, .infer = ::opgraft::Infer<::opgraft::kind>,                      \
             .kernel = ::opgraft::Kernel<::opgraft::kind>, .reference = ::opgraft::Reference<::opgraft::kind>, \
             .workspace = ::opgraft::Workspace<::opgraft::kind>)
OPGRAFT_GRADIENT(MatMulGrad, kMatMul)
OPGRAFT_GRADIENT(BatchMatMulGrad, kBatch)
OPGRAFT_GRADIENT(MatMulExtGrad, kExt)
#endif
