// What MatMul, BatchMatMul, MatMulExt and their gradients know of their operands. Include it in the HWY_ONCE part.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "opgraft/op.h"

namespace opgraft {

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

// Checks a and b, the first inputs; -> the product's shape.
template <Product kind> Shape check_product(const InferContext &c) {
  constexpr int least = kind == kExt ? 1 : 2;
  c.check_dtype(0, "a", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "b", 0, "a");
  const auto shape_a = c.input(0).shape(), shape_b = c.input(1).shape();
  const std::string dimensions = least == 1 ? " dimension" : " dimensions";
  for (auto [name, shape] : {std::pair{"a", shape_a}, std::pair{"b", shape_b}})
    c.check(shape.size() >= size_t(least), name, " must have at least ", least, dimensions, ", got shape ", shape);
  const Dims d = dims<kind>(c);
  c.check(d.k < 0 || d.k_of_b < 0 || d.k == d.k_of_b, "a's K must equal b's K of ", d.k_of_b, ", got ", d.k, " (a ",
          shape_a, ", b ", shape_b, ")");
  const Matrices a = matrices<kind>(c, 0), b = matrices<kind>(c, 1);
  Shape out;
  if constexpr (kind == kMatMul) {
    c.check(shape_b.size() == 2, "b must have 2 dimensions, got shape ", shape_b);
    c.check(shape_a.size() == 2 || !d.ta, "a must have 2 dimensions with transpose_a, got shape ", shape_a);
    out.assign(a.batch().begin(), a.batch().end());
  } else {
    out = c.broadcast(a.batch(), b.batch());
  }
  if (shape_a.size() > 1) out.push_back(d.m);
  if (shape_b.size() > 1) out.push_back(d.n);
  return out;
}

// Which matrix of an operand with batch dimensions `of` product i of batch `out` takes.
inline int64_t operand(int64_t i, std::span<const int64_t> out, std::span<const int64_t> of) {
  int64_t at = 0, stride = 1;
  for (size_t r = 1; r <= of.size(); ++r) {
    const int64_t coordinate = i % out[out.size() - r];
    i /= out[out.size() - r];
    if (of[of.size() - r] != 1) at += coordinate * stride;
    stride *= of[of.size() - r];
  }
  return at;
}

}  // namespace opgraft
