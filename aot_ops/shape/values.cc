// Arithmetic on shapes: Shape, TupleGetItem, MakeTuple and ScalarAdd, ScalarSub, ScalarMul,
// ScalarFloorDiv. A tuple of numbers is an int64 tensor of rank 1, a number one of rank 0. Infer
// states the values wherever it knows them, symbols included, so that shapes stay known through them.
#include <algorithm>

#include "opgraft/op.h"

namespace opgraft {
namespace {

const int64_t *numbers(const TensorView &t) { return t.data<int64_t>(); }

void InferShape(InferContext &c) {
  auto dims = c.input(0).shape();
  const int64_t rank = int64_t(dims.size());
  c.output(OPGRAFT_INT64, {&rank, 1});
  // -1 is an unknown dimension, which a value cannot express: -1 there is a number.
  if (std::find(dims.begin(), dims.end(), -1) == dims.end()) c.output_values(dims);
}

void KernelShape(Context &c) { std::copy_n(c.input(0).shape().data(), c.input(0).rank(), c.output(0).data<int64_t>()); }

int64_t item(const Arguments &a) {
  const TensorView t = a.input(0);
  a.check(t.rank() == 1, "x must have 1 dimension, got shape ", t.shape());
  const int64_t index = a.attr_int("index", 0), n = t.dim(0);
  if (n < 0) return index;
  a.check(index >= -n && index < n, "index must be in [", -n, ", ", n, "), got ", index);
  return index < 0 ? index + n : index;
}

void InferTupleGetItem(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_INT64});
  const int64_t i = item(c);
  c.output(OPGRAFT_INT64, {});
  if (c.input(0).known()) c.output_values({numbers(c.input(0)) + i, 1});
}

void KernelTupleGetItem(Context &c) { c.output(0).data<int64_t>()[0] = numbers(c.input(0))[item(c)]; }

void InferMakeTuple(InferContext &c) {
  const int64_t n = c.inputs();
  Shape values;
  for (int i = 0; i < c.inputs(); ++i) {
    const std::string name = "x" + std::to_string(i);
    c.check_dtype(i, name.c_str(), {OPGRAFT_INT64});
    auto s = c.input(i).shape();
    c.check(s.empty() || element_count(s) == 1 || element_count(s) < 0, name, " must be one number, got shape ", s);
    if (c.input(i).known()) values.push_back(numbers(c.input(i))[0]);
  }
  c.output(OPGRAFT_INT64, {&n, 1});
  if (int64_t(values.size()) == n) c.output_values(values);
}

void KernelMakeTuple(Context &c) {
  for (int i = 0; i < c.inputs(); ++i) c.output(0).data<int64_t>()[i] = numbers(c.input(i))[0];
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

template <char op> int64_t compute(const Arguments &c, int64_t a, int64_t b) {
  if constexpr (op == '+') return int64_t(uint64_t(a) + uint64_t(b));
  if constexpr (op == '-') return int64_t(uint64_t(a) - uint64_t(b));
  if constexpr (op == '*') return int64_t(uint64_t(a) * uint64_t(b));
  c.check(b != 0, "y must not be 0");
  return b == -1 ? int64_t(0 - uint64_t(a)) : floor_div(a, b);
}

template <char op> void InferScalar(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_INT64});
  c.check_dtype(1, "y", {OPGRAFT_INT64});
  for (int i = 0; i < 2; ++i) {
    auto s = c.input(i).shape();
    c.check(s.empty() || element_count(s) == 1 || element_count(s) < 0, i ? "y" : "x",
            " must be one number, got shape ", s);
  }
  c.output(OPGRAFT_INT64, {});
  if (!c.input(0).known() || !c.input(1).known()) return;
  const int64_t a = numbers(c.input(0))[0], b = numbers(c.input(1))[0];
  if (!c.args().dim_op) {  // no symbols: all are numbers
    const int64_t v = compute<op>(c, a, b);
    return c.output_values({&v, 1});
  }
  if (a == -1 || b == -1) return;  // a number below zero, not a symbol
  const bool plain = a >= 0 && b >= 0;
  const int64_t v = plain ? compute<op>(c, a, b) : c.dim_op(op, a, b);
  // A negative result of numbers would read as a symbol; -1 of symbols means that nobody can tell.
  if (plain ? v >= -1 : v != -1) c.output_values({&v, 1});
}

template <char op> void KernelScalar(Context &c) {
  c.output(0).data<int64_t>()[0] = compute<op>(c, numbers(c.input(0))[0], numbers(c.input(1))[0]);
}

}  // namespace
}  // namespace opgraft

// Not `using namespace opgraft`: the operator Shape shares its name with the type opgraft::Shape.
OPGRAFT_OP(Shape, .inputs = 1, .infer = ::opgraft::InferShape, .kernel = ::opgraft::KernelShape,
           .reference = ::opgraft::KernelShape)
OPGRAFT_OP(TupleGetItem, .inputs = 1, .infer = ::opgraft::InferTupleGetItem, .kernel = ::opgraft::KernelTupleGetItem,
           .reference = ::opgraft::KernelTupleGetItem)
OPGRAFT_OP(MakeTuple, .inputs = -1, .infer = ::opgraft::InferMakeTuple, .kernel = ::opgraft::KernelMakeTuple,
           .reference = ::opgraft::KernelMakeTuple)
#define OPGRAFT_SCALAR(Name, op)                                                                            \
  OPGRAFT_OP(Name, .inputs = 2, .infer = ::opgraft::InferScalar<op>, .kernel = ::opgraft::KernelScalar<op>, \
             .reference = ::opgraft::KernelScalar<op>)
OPGRAFT_SCALAR(ScalarAdd, '+')
OPGRAFT_SCALAR(ScalarSub, '-')
OPGRAFT_SCALAR(ScalarMul, '*')
OPGRAFT_SCALAR(ScalarFloorDiv, '/')
