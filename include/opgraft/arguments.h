// What infer functions and kernels are called with: views of tensors, attributes by name, and the checks whose errors
// name op and argument. Included by op.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "opgraft/abi.h"
#include "opgraft/dtype.h"
#include "opgraft/message.h"

namespace opgraft {

// An error with the status that crosses the boundary.
struct Error : std::runtime_error {
  int status;
  Error(int status, const std::string &what) : std::runtime_error(what), status(status) {}
};

// A shape that no memory holds; what knows the operator says its name.
struct SizeError : Error {
  using Error::Error;
};

using Shape = std::vector<int64_t>;

// Whether two dimensions can be the same: known ones are; a symbol stands for any size, but an operand that is 1 where
// the other is open would be one to broadcast.
inline bool may_equal(int64_t a, int64_t b) {
  if (a == b) return true;
  if (is_symbol(a) || is_symbol(b)) return a != 1 && b != 1;
  return a < 0 || b < 0;
}

inline bool may_equal(std::span<const int64_t> a, std::span<const int64_t> b) {
  return std::ranges::equal(a, b, [](int64_t m, int64_t n) { return may_equal(m, n); });
}

// The product of dims; -1 where one is negative. Throws SizeError beyond 2^47, which no memory holds: sizes in bytes
// that are made of it do not overflow.
inline int64_t element_count(std::span<const int64_t> dims) {
  int64_t n = 1;
  bool fits = true, empty = false;
  for (int64_t d : dims) {
    if (d < 0) return -1;
    empty = empty || d == 0;
    fits = fits && !__builtin_mul_overflow(n, d, &n) && n <= int64_t(1) << 47;
  }
  if (empty) return 0;
  if (!fits)
    throw SizeError(OPGRAFT_INVALID_VALUE, "shape " + to_string(dims) + " has more elements than memory can hold");
  return n;
}

// A view of one tensor: `shape()`, `dtype()`, and its elements by type.
class TensorView {
 public:
  explicit TensorView(const opgraft_tensor &t) : t_(&t) {}
  int32_t dtype() const { return t_->dtype; }
  int rank() const { return t_->ndim; }
  int64_t dim(int i) const { return t_->shape[i < 0 ? i + t_->ndim : i]; }
  std::span<const int64_t> shape() const { return {t_->shape, size_t(t_->ndim)}; }
  int64_t size() const { return t_->elements; }
  bool known() const { return t_->data != nullptr; }
  template <class T> T *data() const { return static_cast<T *>(t_->data); }
  void *raw() const { return t_->data; }

 private:
  const opgraft_tensor *t_;
};

// Inputs and attributes by position and name, with the checks that name op and argument.
class Arguments {
 public:
  Arguments(const char *op, int32_t n_inputs, const opgraft_tensor *inputs, int32_t n_attrs, const opgraft_attr *attrs)
      : op_(op), inputs_(inputs), attrs_(attrs), n_inputs_(n_inputs), n_attrs_(n_attrs) {}

  const char *op() const { return op_; }
  int inputs() const { return n_inputs_; }
  TensorView input(int i) const {
    if (i < 0 || i >= n_inputs_) fail(OPGRAFT_INVALID_VALUE, "takes at least ", i + 1, " inputs, got ", n_inputs_);
    return TensorView(inputs_[i]);
  }

  bool has_attr(std::string_view name) const { return find(name) != nullptr; }
  bool attr_bool(std::string_view name, bool fallback) const {
    auto *a = find(name, OPGRAFT_ATTR_BOOL, OPGRAFT_ATTR_INT, "bool");
    return a ? *static_cast<const int64_t *>(a->data) != 0 : fallback;
  }
  int64_t attr_int(std::string_view name, int64_t fallback) const {
    auto *a = find(name, OPGRAFT_ATTR_INT, OPGRAFT_ATTR_BOOL, "int");
    return a ? *static_cast<const int64_t *>(a->data) : fallback;
  }
  double attr_float(std::string_view name, double fallback) const {
    auto *a = find(name, OPGRAFT_ATTR_FLOAT, OPGRAFT_ATTR_INT, "float");
    if (!a) return fallback;
    return a->kind == OPGRAFT_ATTR_FLOAT ? *static_cast<const double *>(a->data)
                                         : double(*static_cast<const int64_t *>(a->data));
  }
  std::string attr_string(std::string_view name, std::string_view fallback) const {
    auto *a = find(name, OPGRAFT_ATTR_STRING, OPGRAFT_ATTR_STRING, "str");
    return a ? std::string(static_cast<const char *>(a->data), size_t(a->count)) : std::string(fallback);
  }
  // A list of int; a single int counts as a list of one.
  std::vector<int64_t> attr_ints(std::string_view name, std::vector<int64_t> fallback = {}) const {
    auto *a = find(name, OPGRAFT_ATTR_INTS, OPGRAFT_ATTR_INT, "list of int");
    if (!a) return fallback;
    auto *p = static_cast<const int64_t *>(a->data);
    return {p, p + (a->kind == OPGRAFT_ATTR_INT ? 1 : a->count)};
  }
  std::vector<double> attr_floats(std::string_view name, std::vector<double> fallback = {}) const {
    auto *a = find(name, OPGRAFT_ATTR_FLOATS, OPGRAFT_ATTR_FLOATS, "list of float");
    if (!a) return fallback;
    auto *p = static_cast<const double *>(a->data);
    return {p, p + a->count};
  }

  // Values of a shape-like input (int64 or int32), or of the attribute of that name when the op has
  // fewer inputs (MindSpore's C++ inference sees no values). Empty optional: not known yet.
  bool values(int i, std::string_view name, std::vector<int64_t> &out) const {
    out.clear();
    if (i >= n_inputs_) {
      if (!has_attr(name)) fail(OPGRAFT_INVALID_VALUE, name, " must be given as an input or an attribute");
      out = attr_ints(name);
      return true;
    }
    TensorView t = input(i);
    if (t.dtype() != OPGRAFT_INT64 && t.dtype() != OPGRAFT_INT32)
      fail(OPGRAFT_INVALID_TYPE, name, " must be int64 or int32, got ", dtype_name(t.dtype()));
    if (t.rank() > 1) fail(OPGRAFT_INVALID_VALUE, name, " must have at most 1 dimension, got shape ", t.shape());
    if (!t.known() || t.size() < 0) return t.size() == 0;
    for (int64_t k = 0; k < t.size(); ++k)
      out.push_back(t.dtype() == OPGRAFT_INT64 ? t.data<int64_t>()[k] : t.data<int32_t>()[k]);
    return true;
  }

  // What is wrong, in parts: texts, numbers and shapes, joined here.
  template <class... Parts> [[noreturn]] void fail(int status, const Parts &...parts) const {
    raise(status, {MessagePart(parts)...});
  }
  template <class... Parts> void check(bool ok, const Parts &...parts) const {
    if (!ok) fail(OPGRAFT_INVALID_VALUE, parts...);
  }
  void check_inputs(int least, int most) const {
    if (n_inputs_ < least || n_inputs_ > most)
      fail(OPGRAFT_INVALID_VALUE, "takes ",
           least == most ? std::to_string(least) : std::to_string(least) + " to " + std::to_string(most),
           " inputs, got ", n_inputs_);
  }
  void check_dtype(int i, const char *argument, std::initializer_list<int32_t> allowed) const {
    int32_t d = input(i).dtype();
    std::string names;
    for (int32_t a : allowed) {
      if (a == d) return;
      names += (names.empty() ? "" : ", ") + std::string(dtype_name(a));
    }
    fail(OPGRAFT_INVALID_TYPE, argument, ".dtype must be one of ", names, ", got ", dtype_name(d));
  }
  void check_same_dtype(int i, const char *a, int j, const char *b) const {
    if (input(i).dtype() != input(j).dtype())
      fail(OPGRAFT_INVALID_TYPE, a, ".dtype must equal ", b, ".dtype ", dtype_name(input(j).dtype()), ", got ",
           dtype_name(input(i).dtype()));
  }
  // Equal where both are known; symbols with different ids are left for the concrete check.
  void check_same_shape(int i, const char *a, int j, const char *b) const {
    auto s = input(i).shape(), t = input(j).shape();
    if (!may_equal(s, t)) fail(OPGRAFT_INVALID_VALUE, a, ".shape must equal ", b, ".shape ", t, ", got ", s);
  }
  void check_shape(int i, const char *argument, std::span<const int64_t> want) const {
    if (!may_equal(input(i).shape(), want))
      fail(OPGRAFT_INVALID_VALUE, argument, ".shape must be ", want, ", got ", input(i).shape());
  }
  int axis(int64_t value, int rank, const char *argument = "axis") const {
    if (value < -rank || value >= rank)
      fail(OPGRAFT_INVALID_VALUE, argument, " must be in [", -rank, ", ", rank, "), got ", value);
    return int(value < 0 ? value + rank : value);
  }

 protected:
  [[noreturn, gnu::cold, gnu::noinline]] void raise(int status, std::initializer_list<MessagePart> parts) const {
    throw Error(status, std::string(op_) + ": " + joined(parts));
  }
  const opgraft_attr *find(std::string_view name) const {
    for (int32_t i = 0; i < n_attrs_; ++i)
      if (name == attrs_[i].name) return &attrs_[i];
    return nullptr;
  }
  const opgraft_attr *find(std::string_view name, int kind, int also, const char *expected) const {
    auto *a = find(name);
    if (a && a->kind != kind && a->kind != also) fail(OPGRAFT_INVALID_TYPE, "attribute ", name, " must be ", expected);
    return a;
  }
  const char *op_;
  const opgraft_tensor *inputs_;
  const opgraft_attr *attrs_;
  int32_t n_inputs_, n_attrs_;
};

}  // namespace opgraft
