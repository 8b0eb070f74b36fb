// The gradient of the mask that was added to Softmax's scores: the sum of y (dy - sum of dy y) over all that an element
// was broadcast to, in double. Shared among threads; what is added up in one go depends on the sizes alone, so that the
// bits do not depend on the number of threads.
#pragma once

#include <vector>

#include "softmax.h"

namespace opgraft {

// The sum of dy y of every row.
template <class T> std::vector<double> row_products(const Context &c, const SoftmaxAxis &a) {
  const T *dy = c.input(0).data<T>(), *y = c.input(1).data<T>();
  std::vector<double> found(size_t(a.rows));
  c.parallel_for(a.rows, a.grain(16384), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin, run; r < end; r += run) {
      run = std::min(a.inner - r % a.inner, end - r);
      double *to = found.data() + r;
      for (int64_t k = 0, at = a.begin(r); k < a.n; ++k, at += a.inner)
        for (int64_t i = 0; i < run; ++i) to[i] += double(float(dy[at + i])) * double(float(y[at + i]));
    }
  });
  return found;
}

// x's elements as (element of the mask, those that it was added to): the dimensions of each, x's strides over them.
struct Broadcast {
  std::vector<int64_t> kept, kept_stride, summed, summed_stride;

  Broadcast(std::span<const int64_t> x, const int64_t *mask_stride) {
    int64_t step = 1;
    for (size_t k = x.size(); k-- > 0; step *= x[k]) {
      (mask_stride[k] ? kept : summed).push_back(x[k]);
      (mask_stride[k] ? kept_stride : summed_stride).push_back(step);
    }
  }
  static int64_t place(int64_t i, const std::vector<int64_t> &dims, const std::vector<int64_t> &stride) {
    int64_t at = 0;
    for (size_t k = 0; k < dims.size(); i /= dims[k++]) at += i % dims[k] * stride[k];
    return at;
  }
};

template <class T> void mask_gradient(const Context &c, const SoftmaxAxis &a) {
  T *out = c.output(1).data<T>();
  const int64_t size = c.output(1).size();
  if (c.inputs() < 3) return void(*out = T(0.0f));  // those of a row add up to nothing
  if (c.input(0).size() == 0) return void(std::fill_n(out, size, T(0.0f)));
  const T *dy = c.input(0).data<T>(), *y = c.input(1).data<T>();
  const auto x = c.input(0).shape();
  int64_t stride[OPGRAFT_MAX_RANK];
  mask_strides(x, c.output(1).shape(), stride);
  const Broadcast b(x, stride);
  const std::vector<double> products = row_products<T>(c, a);

  // Neighbours in memory are neighbours in the mask, kWidth at a time, or all of them go to one element of it.
  constexpr int64_t kWidth = 64, kElements = 8192;
  const bool along = stride[x.size() - 1] != 0;
  const int64_t line = x.back(), width = along ? std::min(kWidth, line) : 1, per_line = (line + width - 1) / width;
  const int64_t tiles = along ? size / line * per_line : size, sums = c.input(0).size() / size;
  // Of a small mask the sums are cut, too.
  const int64_t block = std::max<int64_t>(1, kElements / width),
                blocks = std::min<int64_t>(32, (sums + block - 1) / block);
  std::vector<double> partial(size_t(blocks * size));
  const int64_t each = std::max<int64_t>(1, sums / blocks * width);
  c.parallel_for(tiles * blocks, std::max<int64_t>(1, kElements / each), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t t = task % tiles, k = task / tiles, from = along ? t / per_line * line + t % per_line * width : t;
      const int64_t n = along ? std::min(width, line - t % per_line * width) : 1;
      const int64_t base = Broadcast::place(from, b.kept, b.kept_stride);
      double *to = partial.data() + k * size + from;
      for (int64_t s = sums * k / blocks; s < sums * (k + 1) / blocks; ++s) {
        const int64_t at = base + Broadcast::place(s, b.summed, b.summed_stride);
        const double *product = products.data() + at / (a.n * a.inner) * a.inner + at % a.inner;
        const int64_t next = a.inner == 1 ? 0 : 1;
        for (int64_t i = 0; i < n; ++i)
          to[i] += double(float(y[at + i])) * (double(float(dy[at + i])) - product[i * next]);
      }
    }
  });
  c.parallel_for(size, kElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < blocks; ++k) sum += partial[size_t(k * size + i)];
      out[i] = T(float(sum));
    }
  });
}

}  // namespace opgraft
