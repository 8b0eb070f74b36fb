// What the gradients of normalisations share outside their kernels: blocks of rows, sums of parameters, scalar twin.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "aot_ops/common/norm.h"

namespace opgraft {

// The gradient of a parameter is a sum over all rows. It is taken over at most 32 blocks, of at least 8 rows, and then
// over these: the same sums whatever the number of threads.
inline int64_t grad_block(int64_t rows) { return std::max<int64_t>(8, (rows + 31) / 32); }
inline int64_t grad_blocks(int64_t rows) { return (rows + grad_block(rows) - 1) / grad_block(rows); }

// Calls blocks(a, begin, end) over all blocks, then adds the partial sums up: each(which, i, sum) for dgamma (0) and,
// where it is wanted, dbeta (1).
template <class Rows, class Blocks, class Each>
void norm_grad(const Context &c, Rows a, bool center, const Blocks &blocks, const Each &each) {
  const int64_t count = grad_blocks(a.rows), sums = center ? 2 : 1;
  const uint64_t need = uint64_t(count * sums * a.params) * sizeof(float);
  std::vector<float> own;
  auto *partial = static_cast<float *>(c.workspace());
  if (c.workspace_bytes() < need) own.resize(size_t(count * sums * a.params)), partial = own.data();
  a.block = grad_block(a.rows);
  a.dgamma = partial;
  a.dbeta = partial + count * a.params;
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, a.n * a.block));
  c.parallel_for(count, grain, [&](int64_t begin, int64_t end) { blocks(a, begin, end); });
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
                       for (int64_t i = 0; i < n; ++i) each(which, from + i, sum[i]);
                     }
                 });
}

inline uint64_t norm_grad_workspace(int64_t elements, int64_t n, int64_t params, bool center) {
  if (elements <= 0 || n <= 0) return 0;
  return uint64_t(grad_blocks(elements / n) * (center ? 2 : 1) * params) * sizeof(float);
}

// The scalar twin. param(i) is gamma's element; each(which, i, sum) as above.
template <class T, class Rows, class Param, class Each>
void norm_grad_reference(const Rows &a, bool center, const Param &param, const Each &each) {
  std::vector<double> dgamma(size_t(a.params)), dbeta(size_t(a.params));
  for (int64_t r = 0; r < a.rows; ++r) {
    const T *x = static_cast<const T *>(a.x) + r * a.n, *dy = static_cast<const T *>(a.dy) + r * a.n;
    auto wide = [](T v) { return double(float(v)); };
    const double n = double(a.n);
    double mean = 0, rstd = 0, c = 0, s = 0;
    if (center) {
      double variance = 0;
      for (int64_t i = 0; i < a.n; ++i) mean += wide(x[i]) / n;
      for (int64_t i = 0; i < a.n; ++i) variance += (wide(x[i]) - mean) * (wide(x[i]) - mean) / n;
      if (a.mean) mean = double(a.mean[r]), variance = double(a.variance[r]);
      rstd = 1 / std::sqrt(variance + a.epsilon);
    } else {
      double square = 0;
      for (int64_t i = 0; i < a.n; ++i) square += wide(x[i]) * wide(x[i]) / n;
      rstd = a.rstd ? double(a.rstd[r]) : 1 / std::sqrt(square + a.epsilon);
    }
    auto unit = [&](int64_t i) { return (wide(x[i]) - mean) * rstd; };
    auto grad = [&](int64_t i) { return wide(dy[i]) * param(i % a.params); };
    for (int64_t i = 0; i < a.n; ++i) {
      if (center) c += grad(i) / n;
      s += grad(i) * unit(i) / n;
    }
    for (int64_t i = 0; i < a.n; ++i) {
      const double more = a.more ? wide(static_cast<const T *>(a.more)[r * a.n + i]) : 0;
      dgamma[size_t(i % a.params)] += wide(dy[i]) * unit(i);
      dbeta[size_t(i % a.params)] += wide(dy[i]);
      static_cast<T *>(a.dx)[r * a.n + i] = T(float((grad(i) - c - unit(i) * s) * rstd + more));
    }
  }
  for (int64_t i = 0; i < a.params; ++i) {
    each(0, i, float(dgamma[size_t(i)]));
    if (center) each(1, i, float(dbeta[size_t(i)]));
  }
}

// A float32 sum as an element of an output.
inline void put(const TensorView &out, int64_t i, float v) {
  if (out.dtype() == OPGRAFT_FLOAT32) out.data<float>()[i] = v;
  else if (out.dtype() == OPGRAFT_FLOAT16) out.data<float16>()[i] = float16(v);
  else out.data<bfloat16>()[i] = bfloat16(v);
}

}  // namespace opgraft
