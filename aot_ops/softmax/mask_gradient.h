// The gradient of the mask that was added to Softmax's scores: the sum of y (dy - sum of dy y) over all that an element
// was broadcast to, in double. Shared among threads; what is added up in one go depends on the sizes alone, so that the
// bits do not depend on the number of threads.
#pragma once

#include <vector>

#include "softmax.h"

namespace opgraft {

// Bools have no gradient; without a mask, what it would be of the scores of a row adds up to nothing.
inline bool mask_is_added(const Arguments &c) { return c.inputs() == 3 && c.input(2).dtype() != OPGRAFT_BOOL; }

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

// Dimensions and x's strides over them, the last first.
struct Walk {
  std::vector<int64_t> dims, stride;
  void add(int64_t dim, int64_t step) { dims.push_back(dim), stride.push_back(step); }
  // Where the i-th element lies.
  int64_t operator[](int64_t i) const {
    int64_t at = 0;
    for (size_t k = 0; k < dims.size(); i /= dims[k++]) at += i % dims[k] * stride[k];
    return at;
  }
};

template <class T> void mask_gradient(const Context &c, const SoftmaxAxis &a) {
  T *out = c.output(1).data<T>();
  const int64_t size = c.output(1).size();
  if (!mask_is_added(c) || c.input(0).size() == 0) return void(std::fill_n(out, size, T(0.0f)));
  const T *dy = c.input(0).data<T>(), *y = c.input(1).data<T>();
  const auto x = c.input(0).shape();
  int64_t stride[OPGRAFT_MAX_RANK];
  mask_strides(x, c.output(1).shape(), stride);

  // x in lines along its last dimension. Either they lie along the mask too, and pieces of at most kWidth elements are
  // added to as many of the mask, or a whole one goes to one element of it. `summed`: the other dimensions in which the
  // mask is broadcast.
  constexpr int64_t kWidth = 64, kElements = 8192;
  const bool along = stride[x.size() - 1] != 0;
  const int64_t line = x.back(), width = along ? std::min(kWidth, line) : line;
  Walk of_mask, summed;
  int64_t step = 1;
  for (size_t k = x.size(); k-- > 0; step *= x[k]) {
    if (stride[k]) of_mask.add(x[k], step);
    else if (k + 1 < x.size()) summed.add(x[k], step);
  }
  const int64_t pieces = along ? (line + width - 1) / width : 1, tiles = along ? size / line * pieces : size;
  const int64_t sums = c.input(0).size() / size / (along ? 1 : line);
  // Long sums are cut into blocks.
  const int64_t block = std::max<int64_t>(1, kElements / width),
                blocks = std::min<int64_t>(32, (sums + block - 1) / block);

  const std::vector<double> products = row_products<T>(c, a);
  std::vector<double> partial(size_t(blocks * size));
  const int64_t each = std::max<int64_t>(1, sums / blocks * width), next = a.inner == 1 ? 0 : 1;
  c.parallel_for(tiles * blocks, std::max<int64_t>(1, kElements / each), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t k = task / tiles, t = task % tiles, skip = t % pieces * width;
      const int64_t from = along ? t / pieces * line + skip : t, n = std::min(width, line - skip), base = of_mask[from];
      double *to = partial.data() + k * size + from;
      for (int64_t s = sums * k / blocks; s < sums * (k + 1) / blocks; ++s) {
        const int64_t at = base + summed[s];
        const double *product = products.data() + at / (a.n * a.inner) * a.inner + at % a.inner;
        auto score = [&](int64_t i) {
          return double(float(y[at + i])) * (double(float(dy[at + i])) - product[i * next]);
        };
        if (along) {
          for (int64_t i = 0; i < n; ++i) to[i] += score(i);
        } else {
          double sum = 0;
          for (int64_t i = 0; i < n; ++i) sum += score(i);
          *to += sum;
        }
      }
    }
  });
  const double factor = float(c.attr_float("mask_scale", 1.0));
  c.parallel_for(size, kElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < blocks; ++k) sum += partial[size_t(k * size + i)];
      out[i] = T(float(sum * factor));
    }
  });
}

}  // namespace opgraft
