// Reshape, Flatten, FlattenExt, ExpandDims and Squeeze: the elements stay, the dimensions change. A host that honours
// `view` never runs these kernels.
#include <algorithm>

#include "aot_ops/shape/move.h"

namespace opgraft {
namespace {

void copy_all(Context &c) {
  const size_t bytes = size_t(c.input(0).size() * element_bytes(c.input(0)));
  if (bytes && c.output(0).raw() != c.input(0).raw()) std::memcpy(c.output(0).raw(), c.input(0).raw(), bytes);
}

// The dimension -1 stands for: what is left of x's elements. Equal symbols cancel.
int64_t rest_of(InferContext &c, Shape from, const Shape &target) {
  int64_t divisor = 1, product = 1;
  for (int64_t t : target) {
    if (t == -1) continue;
    auto same = std::find(from.begin(), from.end(), t);
    if (t != 0 && same != from.end()) from.erase(same);
    else divisor = c.dim_op('*', divisor, t);
  }
  for (int64_t d : from) product = c.dim_op('*', product, d);
  c.check(divisor != 0, "shape ", target, " has both 0 and -1: the rest cannot be told");
  if (product >= 0 && divisor >= 0)
    c.check(product % divisor == 0, "x.shape ", c.input(0).shape(), " does not divide into shape ", target);
  return c.dim_op('/', product, divisor);
}

void InferReshape(InferContext &c) {
  check_any_dtype(c, 0, "x");
  Shape target;
  if (!c.values(1, "shape", target)) {
    int64_t rank = c.input(1).rank() == 1 ? c.input(1).dim(0) : 1;
    if (rank < 0) c.fail(OPGRAFT_UNSUPPORTED, "the length of shape is not known, so the output has no known rank");
    return c.output(c.input(0).dtype(), Shape(size_t(rank), -1));
  }
  auto from = c.input(0).shape();
  const auto rest = std::count(target.begin(), target.end(), -1);
  c.check(rest <= 1, "shape may hold -1 once, got ", target);
  for (size_t k = 0; k < target.size(); ++k)
    c.check(target[k] >= -1 || (c.args().dim_op && is_symbol(target[k])), "shape[", k,
            "] must be at least 0, or -1 for what is left, got ", target[k]);
  Shape out = target;
  if (rest) *std::find(out.begin(), out.end(), -1) = rest_of(c, Shape(from.begin(), from.end()), target);
  const int64_t a = element_count(from), b = element_count(out);
  if (a >= 0 && b >= 0)
    c.check(a == b, "shape ", target, " must hold the ", a, " elements of x.shape ", from, ", it holds ", b);
  c.output(c.input(0).dtype(), out);
}

void InferFlatten(InferContext &c) {
  check_any_dtype(c, 0, "x");
  auto from = c.input(0).shape();
  c.check(!from.empty(), "x must have at least 1 dimension, got shape ()");
  int64_t rest = 1;
  for (int64_t d : from.subspan(1)) rest = c.dim_op('*', rest, d);
  c.output(c.input(0).dtype(), Shape{from[0], rest});
}

void InferFlattenExt(InferContext &c) {
  check_any_dtype(c, 0, "x");
  auto from = c.input(0).shape();
  if (from.empty()) return c.output(c.input(0).dtype(), Shape{1});
  const int first = c.axis(c.attr_int("start_dim", 0), c.input(0).rank(), "start_dim"),
            last = c.axis(c.attr_int("end_dim", -1), c.input(0).rank(), "end_dim");
  c.check(first <= last, "start_dim must not come after end_dim, got ", first, " and ", last);
  Shape out(from.begin(), from.begin() + first + 1);
  for (int i = first + 1; i <= last; ++i) out.back() = c.dim_op('*', out.back(), from[size_t(i)]);
  out.insert(out.end(), from.begin() + last + 1, from.end());
  c.output(c.input(0).dtype(), out);
}

void InferExpandDims(InferContext &c) {
  check_any_dtype(c, 0, "x");
  auto from = c.input(0).shape();
  Shape out(from.begin(), from.end());
  c.check(c.has_attr("axis"), "attribute axis is missing");
  out.insert(out.begin() + c.axis(c.attr_int("axis", 0), c.input(0).rank() + 1), 1);
  c.output(c.input(0).dtype(), out);
}

void InferSqueeze(InferContext &c) {
  check_any_dtype(c, 0, "x");
  const auto axes = c.attr_ints("axis");
  const int rank = c.input(0).rank();
  bool drop[OPGRAFT_MAX_RANK] = {};
  for (int64_t a : axes) {
    const int i = c.axis(a, rank);
    c.check(c.input(0).dim(i) < 0 || c.input(0).dim(i) == 1, "dimension ", i, " must be 1, got ", c.input(0).dim(i));
    drop[i] = true;
  }
  Shape out;
  for (int i = 0; i < rank; ++i)
    if (axes.empty() ? c.input(0).dim(i) != 1 : !drop[i]) out.push_back(c.input(0).dim(i));
  c.output(c.input(0).dtype(), out);
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Reshape, .inputs = 2, .infer = InferReshape, .kernel = copy_all, .reference = copy_all)
OPGRAFT_OP(Flatten, .inputs = 1, .infer = InferFlatten, .kernel = copy_all, .reference = copy_all)
OPGRAFT_OP(FlattenExt, .inputs = 1, .infer = InferFlattenExt, .kernel = copy_all, .reference = copy_all)
OPGRAFT_OP(ExpandDims, .inputs = 1, .infer = InferExpandDims, .kernel = copy_all, .reference = copy_all)
OPGRAFT_OP(Squeeze, .inputs = 1, .infer = InferSqueeze, .kernel = copy_all, .reference = copy_all)
