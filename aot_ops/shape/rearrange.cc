// Transpose, Tile and BroadcastTo: the output walks the input with other strides.
#include <algorithm>

#include "aot_ops/shape/move.h"

namespace opgraft {
namespace {

std::vector<int> permutation(const Arguments &a) {
  const int rank = a.input(0).rank();
  const auto perm = a.attr_ints("perm");
  std::vector<int> p;
  for (int64_t v : perm) p.push_back(a.axis(v, rank, "perm"));
  std::vector<int> sorted = p;
  std::sort(sorted.begin(), sorted.end());
  bool ok = int(p.size()) == rank;
  for (int i = 0; ok && i < rank; ++i) ok = sorted[size_t(i)] == i;
  a.check(ok, "perm must be a permutation of x's " + std::to_string(rank) + " dimensions, got " + to_string(perm));
  return p;
}

void InferTranspose(InferContext &c) {
  check_any_dtype(c, 0, "x");
  Shape out;
  for (int i : permutation(c)) out.push_back(c.input(0).dim(i));
  c.output(c.input(0).dtype(), out);
}

// y[j][i] = x[i][j] for one matrix of an output of `rows` by `columns`, in tiles that stay in cache.
template <class U> void transpose_matrix(const U *x, U *y, int64_t begin, int64_t end, int64_t columns,
                                         int64_t row_step, int64_t column_step) {
  constexpr int64_t kTile = 16;
  for (int64_t j0 = begin; j0 < end; j0 += kTile)
    for (int64_t i0 = 0; i0 < columns; i0 += kTile)
      for (int64_t j = j0; j < std::min(j0 + kTile, end); ++j)
        for (int64_t i = i0; i < std::min(i0 + kTile, columns); ++i)
          y[j * columns + i] = x[j * row_step + i * column_step];
}

template <class U> void transpose_tiled(Context &c, const Strided<1> &walk) {
  const U *x = c.input(0).data<U>();
  U *y = c.output(0).data<U>();
  // The last outer dimension and the row form matrices; the dimensions before count them.
  const int last = walk.dims - 1;
  const int64_t rows = walk.extent[last], columns = walk.row, matrix = rows * columns;
  c.parallel_for(walk.total / columns, std::max<int64_t>(16, 16384 / columns), [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t m = begin / rows, first = begin % rows, n = std::min(end - begin, rows - first);
      int64_t offset = 0, rest = m;
      for (int i = last - 1; i >= 0; rest /= walk.extent[i--]) offset += rest % walk.extent[i] * walk.stride[0][i];
      transpose_matrix(x + offset, y + m * matrix, first, first + n, columns, walk.stride[0][last], walk.step[0]);
      begin += n;
    }
  });
}

void KernelTranspose(Context &c) {
  const TensorView x = c.input(0);
  const auto strides = strides_of(x.shape());
  Strided<1> walk;
  for (int i : permutation(c)) walk.push(x.dim(i), {strides[size_t(i)]});
  walk.finish();
  if (walk.total == 0) return;
  if (walk.step[0] == 1 || walk.dims == 0) return copy_strided(c, walk);  // rows stay whole
  switch (element_bytes(x)) {
    case 1: return transpose_tiled<uint8_t>(c, walk);
    case 2: return transpose_tiled<uint16_t>(c, walk);
    case 4: return transpose_tiled<uint32_t>(c, walk);
    default: return transpose_tiled<uint64_t>(c, walk);
  }
}

void ReferenceTranspose(Context &c) {
  const auto perm = permutation(c);
  const auto strides = strides_of(c.input(0).shape());
  move_one_by_one(c, [&](const Shape &index) {
    int64_t at = 0;
    for (size_t i = 0; i < perm.size(); ++i) at += index[i] * strides[size_t(perm[i])];
    return at;
  });
}

// The dims of x with 1s in front, up to `rank` of them.
Shape padded(std::span<const int64_t> dims, size_t rank) {
  Shape out(rank - dims.size(), 1);
  out.insert(out.end(), dims.begin(), dims.end());
  return out;
}

// Known values of a shape-like second input; else states unknown dimensions and returns false.
bool target_values(InferContext &c, const char *name, Shape &values) {
  check_any_dtype(c, 0, "x");
  if (!c.values(1, name, values)) {
    const int64_t rank = c.input(1).rank() == 1 ? c.input(1).dim(0) : 1;
    c.check(rank >= 0, std::string("the length of ") + name + " is not known, so the output has no known rank",
            OPGRAFT_UNSUPPORTED);
    c.output(c.input(0).dtype(), Shape(size_t(rank), -1));
    return false;
  }
  c.check(int(values.size()) >= c.input(0).rank(), std::string(name) + " must have at least x's " +
                                                       std::to_string(c.input(0).rank()) + " entries, got " +
                                                       std::to_string(values.size()));
  return true;
}

void InferTile(InferContext &c) {
  Shape multiples;
  if (!target_values(c, "multiples", multiples)) return;
  Shape out = padded(c.input(0).shape(), multiples.size());
  for (size_t i = 0; i < out.size(); ++i) {
    c.check(multiples[i] != -1, "multiples must not be negative, got " + to_string(multiples));
    out[i] = c.dim_op('*', out[i], multiples[i]);
  }
  c.output(c.input(0).dtype(), out);
}

void KernelTile(Context &c) {
  Shape multiples;
  c.values(1, "multiples", multiples);
  const Shape dims = padded(c.input(0).shape(), multiples.size()), strides = strides_of(dims);
  Strided<1> walk;
  for (size_t i = 0; i < dims.size(); ++i) {
    walk.push(multiples[i], {0});
    walk.push(dims[i], {strides[i]});
  }
  walk.finish();
  copy_strided(c, walk);
}

void ReferenceTile(Context &c) {
  const Shape dims = padded(c.input(0).shape(), size_t(c.output(0).rank())), strides = strides_of(dims);
  move_one_by_one(c, [&](const Shape &index) {
    int64_t at = 0;
    for (size_t i = 0; i < dims.size(); ++i) at += index[i] % dims[i] * strides[i];
    return at;
  });
}

void InferBroadcastTo(InferContext &c) {
  Shape target;
  if (!target_values(c, "shape", target)) return;
  const Shape dims = padded(c.input(0).shape(), target.size());
  Shape out = target;
  for (size_t i = 0; i < out.size(); ++i) {
    const bool added = i + size_t(c.input(0).rank()) < out.size();
    if (out[i] == -1 && !added) out[i] = dims[i];
    c.check(target[i] != -1 || !added, "shape may hold -1 only where x has a dimension, got " + to_string(target));
    c.check(dims[i] < 0 || out[i] < 0 || dims[i] == 1 || dims[i] == out[i],
            "x.shape " + to_string(c.input(0).shape()) + " does not broadcast to " + to_string(target));
  }
  c.output(c.input(0).dtype(), out);
}

void KernelBroadcastTo(Context &c) {
  const auto rows = broadcast_rows<1>(c.output(0).shape(), {c.input(0).shape()});
  copy_strided(c, rows);
}

void ReferenceBroadcastTo(Context &c) {
  const Shape dims = padded(c.input(0).shape(), size_t(c.output(0).rank())), strides = strides_of(dims);
  move_one_by_one(c, [&](const Shape &index) {
    int64_t at = 0;
    for (size_t i = 0; i < dims.size(); ++i) at += dims[i] == 1 ? 0 : index[i] * strides[i];
    return at;
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Transpose, .inputs = 1, .infer = InferTranspose, .kernel = KernelTranspose, .reference = ReferenceTranspose)
OPGRAFT_OP(Tile, .inputs = 2, .infer = InferTile, .kernel = KernelTile, .reference = ReferenceTile)
OPGRAFT_OP(BroadcastTo, .inputs = 2, .infer = InferBroadcastTo, .kernel = KernelBroadcastTo,
           .reference = ReferenceBroadcastTo)
