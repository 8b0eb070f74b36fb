// Tile and BroadcastTo: the output walks the input with other strides.
#include "aot_ops/shape/move.h"

namespace opgraft {
namespace {

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
    if (rank < 0) c.fail(OPGRAFT_UNSUPPORTED, "the length of ", name, " is not known, so the output has no known rank");
    c.output(c.input(0).dtype(), Shape(size_t(rank), -1));
    return false;
  }
  c.check(int(values.size()) >= c.input(0).rank(), name, " must have at least x's ", c.input(0).rank(),
          " entries, got ", values.size());
  return true;
}

void InferTile(InferContext &c) {
  Shape multiples;
  if (!target_values(c, "multiples", multiples)) return;
  Shape out = padded(c.input(0).shape(), multiples.size());
  for (size_t i = 0; i < out.size(); ++i) {
    c.check(multiples[i] != -1, "multiples must not be negative, got ", multiples);
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
    c.check(target[i] != -1 || !added, "shape may hold -1 only where x has a dimension, got ", target);
    c.check(dims[i] < 0 || out[i] < 0 || dims[i] == 1 || dims[i] == out[i], "x.shape ", c.input(0).shape(),
            " does not broadcast to ", target);
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
OPGRAFT_OP(Tile, .inputs = 2, .infer = InferTile, .kernel = KernelTile, .reference = ReferenceTile)
OPGRAFT_OP(BroadcastTo, .inputs = 2, .infer = InferBroadcastTo, .kernel = KernelBroadcastTo,
           .reference = ReferenceBroadcastTo)
