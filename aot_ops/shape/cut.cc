// Slice: a box of x. Triu and Tril: each matrix with 0 on one side of a diagonal.
#include <algorithm>

#include "aot_ops/shape/move.h"

namespace opgraft {
namespace {

void InferSlice(InferContext &c) {
  check_any_dtype(c, 0, "x");
  Shape begin, size;
  const bool b = c.values(1, "begin", begin), s = c.values(2, "size", size);
  auto x = c.input(0).shape();
  if (!b || !s) return c.output(c.input(0).dtype(), Shape(x.size(), -1));
  c.check(begin.size() == x.size() && size.size() == x.size(), "begin and size must have an entry for each of x's ",
          x.size(), " dimensions, got ", begin.size(), " and ", size.size());
  Shape out;
  for (size_t k = 0; k < x.size(); ++k) {
    const bool open = c.args().dim_op && (is_symbol(begin[k]) || is_symbol(size[k]));  // while shapes are symbols
    c.check(open || (begin[k] >= 0 && size[k] >= -1), "begin[", k, "] must be at least 0 and size[", k,
            "] at least -1, got ", begin[k], " and ", size[k]);
    c.check(open || x[k] < 0 || (begin[k] <= x[k] && size[k] <= x[k] - begin[k]), "begin[", k, "] + size[", k,
            "] must be within dimension ", k, " of size ", x[k], ", got ", begin[k], " and ", size[k]);
    out.push_back(size[k] != -1 ? size[k] : begin[k] == 0 ? x[k] : c.dim_op('-', x[k], begin[k]));
  }
  c.output(c.input(0).dtype(), out);
}

// The values may not be those that shapes were inferred from.
Shape begin_of(Context &c) {
  Shape begin;
  c.values(1, "begin", begin);
  const auto x = c.input(0).shape(), y = c.output(0).shape();
  c.check(begin.size() == x.size(), "begin must have an entry for each of x's ", x.size(), " dimensions, got ",
          begin.size());
  for (size_t k = 0; k < x.size(); ++k)
    c.check(begin[k] >= 0 && begin[k] <= x[k] - y[k], "begin[", k, "] must be from 0 to ", x[k] - y[k], ", got ",
            begin[k]);
  return begin;
}

void KernelSlice(Context &c) {
  const auto steps = strides_of(c.input(0).shape());
  const Shape begin = begin_of(c);
  Strided<1> walk;
  int64_t origin = 0;
  for (int i = 0; i < c.output(0).rank(); ++i) {
    origin += begin[size_t(i)] * steps[size_t(i)];
    walk.push(c.output(0).dim(i), {steps[size_t(i)]});
  }
  walk.finish();
  if (walk.total > 0) copy_strided(c, walk, origin);
}

void ReferenceSlice(Context &c) {
  const auto steps = strides_of(c.input(0).shape());
  const Shape begin = begin_of(c);
  move_one_by_one(c, [&](const Shape &index) {
    int64_t at = 0;
    for (size_t i = 0; i < steps.size(); ++i) at += (begin[i] + index[i]) * steps[i];
    return at;
  });
}

void InferTriangle(InferContext &c) {
  check_any_dtype(c, 0, "x");
  auto x = c.input(0).shape();
  c.check(x.size() >= 2, "x must have at least 2 dimensions, got shape ", x);
  c.output(c.input(0).dtype(), x);
}

// Columns of row r on the left of the diagonal; with `upto` those on it, too.
int64_t left_of(int64_t r, int64_t columns, int64_t diagonal, bool upto) {
  diagonal = std::clamp<int64_t>(diagonal, -(int64_t(1) << 60), int64_t(1) << 60);
  return std::clamp<int64_t>(r + diagonal + upto, 0, columns);
}

template <bool upper> void KernelTriangle(Context &c) {
  const TensorView x = c.input(0), y = c.output(0);
  const int64_t columns = x.dim(x.rank() - 1), rows = x.dim(x.rank() - 2), bytes = element_bytes(x),
                diagonal = c.attr_int("diagonal", 0);
  if (x.size() == 0) return;
  c.parallel_for(x.size() / columns, 16384 / columns + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t cut = left_of(i % rows, columns, diagonal, !upper) * bytes, all = columns * bytes;
      const char *from = x.data<char>() + i * all;
      char *to = y.data<char>() + i * all;
      const int64_t kept = upper ? cut : 0, n = upper ? all - cut : cut;
      if (from != to && n > 0) std::memcpy(to + kept, from + kept, size_t(n));
      if (n < all) std::memset(to + (upper ? 0 : cut), 0, size_t(all - n));
    }
  });
}

template <bool upper> void ReferenceTriangle(Context &c) {
  const TensorView x = c.input(0), y = c.output(0);
  const int64_t columns = x.dim(x.rank() - 1), rows = x.dim(x.rank() - 2), bytes = element_bytes(x),
                diagonal = c.attr_int("diagonal", 0);
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t column = i % columns, row = i / columns % rows;
    const bool kept = upper ? column - row >= diagonal : column - row <= diagonal;
    char *to = y.data<char>() + i * bytes;
    if (kept) std::memmove(to, x.data<char>() + i * bytes, size_t(bytes));
    else std::memset(to, 0, size_t(bytes));
  }
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Slice, .inputs = 3, .infer = InferSlice, .kernel = KernelSlice, .reference = ReferenceSlice)
OPGRAFT_OP(Triu, .inputs = 1, .infer = InferTriangle, .kernel = KernelTriangle<true>,
           .reference = ReferenceTriangle<true>)
OPGRAFT_OP(Tril, .inputs = 1, .infer = InferTriangle, .kernel = KernelTriangle<false>,
           .reference = ReferenceTriangle<false>)
