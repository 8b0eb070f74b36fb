// What the gradients of normalisations share outside their kernels: blocks of rows, sums of parameters, scalar twin.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "aot_ops/common/norm.h"

namespace opgraft {

// Of given mean and variance; of given mean and rstd; of x alone; of a sum, whose own gradient is added.
enum Form { kGiven, kExt, kFused, kAdd };

// The gradient of a parameter is a sum over all rows. It is taken over at most 32 blocks, of at least 8 rows, and then
// over these: the same sums whatever the number of threads.
constexpr int64_t kGradBlocks = 32;
inline int64_t grad_block(int64_t rows) { return std::max<int64_t>(8, (rows + kGradBlocks - 1) / kGradBlocks); }
inline int64_t grad_blocks(int64_t rows) { return (rows + grad_block(rows) - 1) / grad_block(rows); }

// Rows of n elements; gamma has `params` elements and repeats along the row.
struct NormGradRows {
  const void *dy, *x, *gamma, *more;    // gamma, more: or null; more is added to dx
  const float *mean, *variance, *rstd;  // of each row, or null: computed from x
  void *dx;
  float *dgamma, *dbeta;             // `params` partial sums for every block of `block` rows
  std::unique_ptr<double[]> *apart;  // and, where a block has such rows, both sums of those in double
  int64_t rows, block, n, params;
  double epsilon;
  bool wide;  // gamma is float32, else x's type
};

// Inputs dy, x and, with `add`, the gradient of the sum that x is; gamma where it is given; rows of n elements.
inline NormGradRows norm_grad_rows_of(const Context &c, bool add, int gamma, int64_t n, double epsilon) {
  NormGradRows a{};
  a.dy = c.input(0).raw(), a.x = c.input(1).raw();
  if (c.inputs() > gamma) a.gamma = c.input(gamma).raw();
  if (add) a.more = c.input(2).raw();
  a.dx = c.output(0).raw();
  a.n = n, a.params = c.output(1).size(), a.rows = row_count(c, n);
  a.epsilon = epsilon;
  a.wide = wide_params(c, gamma);
  return a;
}

inline void check_dsum(InferContext &c) {
  c.check_same_dtype(2, "dsum", 0, "dy");
  c.check_same_shape(2, "dsum", 0, "dy");
}

// A float32 sum as an element of an output.
inline void put(const TensorView &out, int64_t i, float v) {
  if (out.dtype() == OPGRAFT_FLOAT32) out.data<float>()[i] = v;
  else if (out.dtype() == OPGRAFT_FLOAT16) out.data<float16>()[i] = float16(v);
  else out.data<bfloat16>()[i] = bfloat16(v);
}

// The sums over `count` blocks, of which some have rows apart.
inline void add_apart(const Context &c, const NormGradRows &a, int64_t count) {
  for (int which = 0; which < c.outputs() - 1; ++which)
    for (int64_t i = 0; i < a.params; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < count; ++k) {
        sum += double((which ? a.dbeta : a.dgamma)[k * a.params + i]);
        if (a.apart[k]) sum += a.apart[k][size_t(which * a.params + i)];
      }
      put(c.output(1 + which), i, float(sum));
    }
}

// Calls blocks(a, begin, end) over all blocks, then adds the partial sums up: outputs 1, dgamma, and, of what has a
// beta, 2.
template <class Blocks> void norm_grad(const Context &c, NormGradRows a, const Blocks &blocks) {
  const int64_t count = grad_blocks(a.rows);
  const int sums = c.outputs() - 1;
  const uint64_t need = uint64_t(count * sums * a.params) * sizeof(float);
  std::vector<float> own;
  auto *partial = static_cast<float *>(c.workspace());
  if (c.workspace_bytes() < need) own.resize(size_t(count * sums * a.params)), partial = own.data();
  a.block = grad_block(a.rows);
  a.dgamma = partial;
  a.dbeta = partial + count * a.params;
  std::array<std::unique_ptr<double[]>, size_t(kGradBlocks)> apart;
  a.apart = apart.data();
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, a.n * a.block));
  c.parallel_for(count, grain, [&](int64_t begin, int64_t end) { blocks(a, begin, end); });
  if (std::any_of(apart.begin(), apart.end(), [](auto &sums) { return bool(sums); })) return add_apart(c, a, count);
  c.parallel_for(a.params, std::max<int64_t>(64, 32768 / std::max<int64_t>(1, count * sums)),
                 [&](int64_t begin, int64_t end) {
                   constexpr int64_t kWidth = 64;
                   for (int which = 0; which < sums; ++which)
                     for (int64_t from = begin; from < end; from += kWidth) {
                       const int64_t n = std::min(kWidth, end - from);
                       float sum[kWidth] = {};
                       for (int64_t k = 0; k < count; ++k) {
                         const float *p = (which ? a.dbeta : a.dgamma) + k * a.params + from;
                         for (int64_t i = 0; i < n; ++i) sum[i] += p[i];
                       }
                       for (int64_t i = 0; i < n; ++i) put(c.output(1 + which), from + i, sum[i]);
                     }
                 });
}

inline uint64_t norm_grad_workspace(int64_t elements, int64_t n, int64_t params, int sums) {
  if (elements <= 0 || n <= 0) return 0;
  return uint64_t(grad_blocks(elements / n) * sums * params) * sizeof(float);
}

// Row r in double, of LayerNorm's gradient, or without `center` of RMSNorm's: the scalar twin, and the kernels where
// float32 does not hold what comes of the row. Adds to `params` sums each of dgamma and, with `center`, dbeta. An
// infinite variance or rstd is one that float32 did not hold: it is computed from x.
template <class T> void norm_grad_row(const NormGradRows &a, int64_t r, bool center, double *dgamma, double *dbeta) {
  const T *x = static_cast<const T *>(a.x) + r * a.n, *dy = static_cast<const T *>(a.dy) + r * a.n;
  auto wide = [](T v) { return double(float(v)); };
  const double n = double(a.n);
  double mean = 0, square = 0, gradient = 0, s = 0;
  if (center) {
    for (int64_t i = 0; i < a.n; ++i) mean += wide(x[i]);
    mean /= n;
  }
  for (int64_t i = 0; i < a.n; ++i) square += (wide(x[i]) - mean) * (wide(x[i]) - mean) / n;
  if (a.mean) mean = double(a.mean[r]);
  if (a.variance && !std::isinf(a.variance[r])) square = double(a.variance[r]);
  const bool given = a.rstd && !std::isinf(a.rstd[r]);
  const double rstd = given ? double(a.rstd[r]) : 1 / std::sqrt(square + (a.rstd ? 0 : a.epsilon));
  auto unit = [&](int64_t i) { return (wide(x[i]) - mean) * rstd; };
  auto grad = [&](int64_t i) { return wide(dy[i]) * param<T>(a.gamma, a.wide, i % a.params, 1); };
  for (int64_t i = 0; i < a.n; ++i) {
    if (center) gradient += grad(i) / n;
    s += grad(i) * unit(i) / n;
  }
  for (int64_t i = 0; i < a.n; ++i) {
    const double more = a.more ? wide(static_cast<const T *>(a.more)[r * a.n + i]) : 0;
    const int64_t k = i % a.params;
    dgamma[k] += wide(dy[i]) * unit(i);
    if (center) dbeta[k] += wide(dy[i]);
    static_cast<T *>(a.dx)[r * a.n + i] = T(float((grad(i) - gradient - unit(i) * s) * rstd + more));
  }
}

// Row r of block k, beside those that float32 holds.
template <class T>
[[gnu::noinline]] void norm_grad_row_apart(const NormGradRows &a, int64_t r, int64_t k, bool center) {
  auto &sums = a.apart[k];
  if (!sums) sums = std::make_unique<double[]>(size_t(2 * a.params));
  norm_grad_row<T>(a, r, center, sums.get(), sums.get() + a.params);
}

// The scalar twin.
template <class T> void norm_grad_rows(const Context &c, const NormGradRows &a, bool center) {
  std::vector<double> dgamma(size_t(a.params)), dbeta(size_t(a.params));
  for (int64_t r = 0; r < a.rows; ++r) norm_grad_row<T>(a, r, center, dgamma.data(), dbeta.data());
  for (int64_t i = 0; i < a.params; ++i) {
    put(c.output(1), i, float(dgamma[size_t(i)]));
    if (center) put(c.output(2), i, float(dbeta[size_t(i)]));
  }
}
inline void norm_grad_reference(const Context &c, const NormGradRows &a, bool center) {
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(),
                                     [&](auto zero) { norm_grad_rows<decltype(zero)>(c, a, center); });
}

}  // namespace opgraft

// Of a file with Kernel, Reference and Workspace for each form.
#define OPGRAFT_NORM_GRAD(Name, in, out, Infer, form)                                                                  \
  OPGRAFT_OP(Name, .inputs = in, .outputs = out, .infer = Infer, .kernel = Kernel<form>, .reference = Reference<form>, \
             .workspace = Workspace<form>)
