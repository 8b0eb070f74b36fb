// The author's side of opgraft: views of tensors and attributes, checks, dtype dispatch, and the
// export line. An operator is one infer function, one kernel, its scalar twin and
//
//   OPGRAFT_OP(SwiGLU, .inputs = 2, .infer = Infer, .kernel = Kernel, .reference = Reference)
//
// which emits the native descriptor (abi.h) and MindSpore's entry, Init, InferShape and InferType
// (mindspore.h). Errors are C++ exceptions here; none crosses the native ABI.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "opgraft/abi.h"
#include "opgraft/dtype.h"

namespace opgraft {

// An error with the status that crosses the boundary.
struct Error : std::runtime_error {
  int status;
  Error(int status, const std::string &what) : std::runtime_error(what), status(status) {}
};

using Shape = std::vector<int64_t>;

// Whether a dimension or a known value is the id of a symbol.
inline bool is_symbol(int64_t dim) { return dim <= OPGRAFT_FIRST_SYMBOL; }

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

inline std::string to_string(std::span<const int64_t> dims) {
  std::string s = "(";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i) s += ", ";
    if (is_symbol(dims[i])) {
      s += 's';
      s += std::to_string(OPGRAFT_FIRST_SYMBOL - dims[i]);
    } else {
      s += dims[i] == -1 ? "?" : std::to_string(dims[i]);
    }
  }
  return s + (dims.size() == 1 ? ",)" : ")");
}

// The product of dims; -1 where one is negative. Throws Error beyond 2^47, which no memory holds: sizes in bytes
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
  if (!fits) throw Error(OPGRAFT_INVALID_VALUE, "shape " + to_string(dims) + " has more elements than memory can hold");
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
    if (i < 0 || i >= n_inputs_)
      fail(OPGRAFT_INVALID_VALUE,
           "takes at least " + std::to_string(i + 1) + " inputs, got " + std::to_string(n_inputs_));
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
      if (!has_attr(name))
        fail(OPGRAFT_INVALID_VALUE, std::string(name) + " must be given as an input or an attribute");
      out = attr_ints(name);
      return true;
    }
    TensorView t = input(i);
    if (t.dtype() != OPGRAFT_INT64 && t.dtype() != OPGRAFT_INT32)
      fail(OPGRAFT_INVALID_TYPE, std::string(name) + " must be int64 or int32, got " + dtype_name(t.dtype()));
    if (t.rank() > 1)
      fail(OPGRAFT_INVALID_VALUE,
           std::string(name) + " must have at most 1 dimension, got shape " + to_string(t.shape()));
    if (!t.known() || t.size() < 0) return t.size() == 0;
    for (int64_t k = 0; k < t.size(); ++k)
      out.push_back(t.dtype() == OPGRAFT_INT64 ? t.data<int64_t>()[k] : t.data<int32_t>()[k]);
    return true;
  }

  [[noreturn]] void fail(int status, const std::string &what) const {
    throw Error(status, std::string(op_) + ": " + what);
  }
  void check(bool ok, const std::string &what, int status = OPGRAFT_INVALID_VALUE) const {
    if (!ok) fail(status, what);
  }
  void check_inputs(int least, int most) const {
    if (n_inputs_ < least || n_inputs_ > most)
      fail(OPGRAFT_INVALID_VALUE,
           "takes " + (least == most ? std::to_string(least) : std::to_string(least) + " to " + std::to_string(most)) +
               " inputs, got " + std::to_string(n_inputs_));
  }
  void check_dtype(int i, const char *argument, std::initializer_list<int32_t> allowed) const {
    int32_t d = input(i).dtype();
    std::string names;
    for (int32_t a : allowed) {
      if (a == d) return;
      names += (names.empty() ? "" : ", ") + std::string(dtype_name(a));
    }
    fail(OPGRAFT_INVALID_TYPE, std::string(argument) + ".dtype must be one of " + names + ", got " + dtype_name(d));
  }
  void check_same_dtype(int i, const char *a, int j, const char *b) const {
    if (input(i).dtype() != input(j).dtype())
      fail(OPGRAFT_INVALID_TYPE, std::string(a) + ".dtype must equal " + b + ".dtype " + dtype_name(input(j).dtype()) +
                                     ", got " + dtype_name(input(i).dtype()));
  }
  // Equal where both are known; symbols with different ids are left for the concrete check.
  void check_same_shape(int i, const char *a, int j, const char *b) const {
    auto s = input(i).shape(), t = input(j).shape();
    if (!may_equal(s, t))
      fail(OPGRAFT_INVALID_VALUE,
           std::string(a) + ".shape must equal " + b + ".shape " + to_string(t) + ", got " + to_string(s));
  }
  void check_shape(int i, const char *argument, std::span<const int64_t> want) const {
    if (!may_equal(input(i).shape(), want))
      fail(OPGRAFT_INVALID_VALUE,
           std::string(argument) + ".shape must be " + to_string(want) + ", got " + to_string(input(i).shape()));
  }
  int axis(int64_t value, int rank, const char *argument = "axis") const {
    if (value < -rank || value >= rank)
      fail(OPGRAFT_INVALID_VALUE, std::string(argument) + " must be in [" + std::to_string(-rank) + ", " +
                                      std::to_string(rank) + "), got " + std::to_string(value));
    return int(value < 0 ? value + rank : value);
  }

 protected:
  const opgraft_attr *find(std::string_view name) const {
    for (int32_t i = 0; i < n_attrs_; ++i)
      if (name == attrs_[i].name) return &attrs_[i];
    return nullptr;
  }
  const opgraft_attr *find(std::string_view name, int kind, int also, const char *expected) const {
    auto *a = find(name);
    if (a && a->kind != kind && a->kind != also)
      fail(OPGRAFT_INVALID_TYPE, "attribute " + std::string(name) + " must be " + expected);
    return a;
  }
  const char *op_;
  const opgraft_tensor *inputs_;
  const opgraft_attr *attrs_;
  int32_t n_inputs_, n_attrs_;
};

// What an infer function sees: the inputs' dtypes and (symbolic) shapes, and the outputs to state.
class InferContext : public Arguments {
 public:
  InferContext(const char *op, opgraft_infer_args &a)
      : Arguments(op, a.n_inputs, a.inputs, a.n_attrs, a.attrs), args_(&a), room_(a.n_outputs) {
    a.n_outputs = 0;
  }
  void output(int32_t dtype, std::span<const int64_t> dims) {
    if (args_->n_outputs >= room_)
      fail(OPGRAFT_INVALID_VALUE,
           "has more than " + std::to_string(room_) + " outputs, the most that there is room for");
    if (dims.size() > OPGRAFT_MAX_RANK)
      fail(OPGRAFT_INVALID_VALUE, "output rank must be at most 8, got " + std::to_string(dims.size()));
    opgraft_shape &o = args_->outputs[args_->n_outputs++];
    o.ndim = int32_t(dims.size());
    o.dtype = dtype;
    o.n_values = -1;
    std::copy(dims.begin(), dims.end(), o.dims);
  }
  // States the values of the output given last (int64, at most OPGRAFT_MAX_VALUES).
  void output_values(std::span<const int64_t> values) {
    opgraft_shape &o = args_->outputs[args_->n_outputs - 1];
    if (!o.values || values.size() > OPGRAFT_MAX_VALUES) return;
    std::copy(values.begin(), values.end(), o.values);
    o.n_values = int64_t(values.size());
  }
  // a op b of dimensions; '/' must leave no rest. -1: not known.
  int64_t dim_op(char op, int64_t a, int64_t b) const {
    if (a >= 0 && b >= 0) {
      int64_t r = 0;
      if (op == '/') return b != 0 && a % b == 0 ? a / b : -1;
      if (op == '-') return a - b;
      if (op == '+' ? __builtin_add_overflow(a, b, &r) : __builtin_mul_overflow(a, b, &r))
        fail(OPGRAFT_INVALID_VALUE,
             "a dimension of " + std::to_string(a) + " " + op + " " + std::to_string(b) + " is more than 64 bits hold");
      return r;
    }
    if (op == '*' && (a == 1 || b == 1)) return a == 1 ? b : a;
    if (op == '/' && b == 1) return a;
    if (a == -1 || b == -1 || !args_->dim_op) return -1;
    return args_->dim_op(args_->dim_context, op, a, b);
  }
  // NumPy's broadcasting of two shapes; a symbol against a number > 1 becomes the number.
  Shape broadcast(std::span<const int64_t> a, std::span<const int64_t> b) const {
    Shape out(std::max(a.size(), b.size()));
    for (size_t k = 0; k < out.size(); ++k) {
      int64_t x = k < a.size() ? a[a.size() - 1 - k] : 1, y = k < b.size() ? b[b.size() - 1 - k] : 1;
      int64_t &o = out[out.size() - 1 - k];
      if (x == y) o = x;
      else if (x == 1) o = y;
      else if (y == 1) o = x;
      else if (x < 0 && y < 0) o = -1;
      else if (x < 0) o = y;
      else if (y < 0) o = x;
      else fail(OPGRAFT_INVALID_VALUE, "shapes " + to_string(a) + " and " + to_string(b) + " do not broadcast");
    }
    return out;
  }
  const opgraft_infer_args &args() const { return *args_; }

 private:
  opgraft_infer_args *args_;
  int32_t room_;
};

// What a kernel sees. Outputs never alias inputs unless op.yaml's `inplace` says so.
class Context : public Arguments {
 public:
  Context(const char *op, const opgraft_call &c) : Arguments(op, c.n_inputs, c.inputs, c.n_attrs, c.attrs), call_(&c) {}
  int outputs() const { return call_->n_outputs; }
  TensorView output(int i) const { return TensorView(call_->outputs[i]); }
  void *workspace() const { return call_->workspace; }
  uint64_t workspace_bytes() const { return call_->workspace_bytes; }
  template <class State> State *state() const { return static_cast<State *>(call_->state); }
  // What `prepare` made of input i, or null (in MindSpore, or when the input is no constant).
  const void *packed(int i) const { return call_->packed ? call_->packed[i] : nullptr; }
  // Whether no operator reads the outputs, as far as the host knows: opgraft_call.unread.
  bool unread() const {
    const uint64_t all = call_->n_outputs < 64 ? (uint64_t(1) << call_->n_outputs) - 1 : ~uint64_t(0);
    return call_->struct_size >= offsetof(opgraft_call, unread) + sizeof all && (call_->unread & all) == all;
  }
  int threads() const { return call_->host ? call_->host->threads(call_->host->context) : 1; }

  // Runs body(begin, end) or body(begin, end, worker) over [0, n) in chunks of about `grain` at least. What a
  // body throws is thrown here when all are done, the first one only.
  template <class Body> void parallel_for(int64_t n, int64_t grain, const Body &body) const {
    auto invoke = [&body](int64_t begin, int64_t end, int32_t worker) {
      if constexpr (std::is_invocable_v<const Body &, int64_t, int64_t, int>) body(begin, end, worker);
      else body(begin, end);
    };
    if (n <= 0) return;
    if (!call_->host || n <= grain) return invoke(0, n, 0);
    struct Work {
      decltype(invoke) *run;
      std::atomic_flag failed = ATOMIC_FLAG_INIT;
      std::exception_ptr error = nullptr;
    } work{&invoke};
    auto run = [](void *arg, int64_t begin, int64_t end, int32_t worker) noexcept {
      auto *w = static_cast<Work *>(arg);
      try {
        (*w->run)(begin, end, worker);
      } catch (...) {
        if (!w->failed.test_and_set()) w->error = std::current_exception();
      }
    };
    const opgraft_host &h = *call_->host;
    if (grain < 1) grain = 1;
    if (knows(offsetof(opgraft_host, parallel_for_sized)) && h.parallel_for_sized)
      h.parallel_for_sized(h.context, sizes(), n, grain, run, &work);
    else h.parallel_for(h.context, n, grain, run, &work);
    if (work.error) std::rethrow_exception(work.error);
  }
  // Before bytes of a state input are written: fails where the session's bound leaves no room for them.
  void touch(void *data, uint64_t bytes) const {
    const opgraft_host *h = call_->host;
    if (h && knows(offsetof(opgraft_host, state_context)) && h->touch && h->touch(h->state_context, data, bytes))
      fail(OPGRAFT_OUT_OF_MEMORY, "the state has reached its bound");
  }
  const opgraft_call &call() const { return *call_; }

 private:
  // Whether the host has the member, a pointer, at this offset.
  bool knows(size_t offset) const { return call_->host->struct_size >= offset + sizeof(void *); }
  // Of opgraft_host.parallel_for_sized: the first inputs' and outputs' elements, to a quarter of an octave, so that one
  // that grows a little stays the same; and the bytes.
  uint64_t sizes() const {
    constexpr int kFirst = 4;
    uint64_t h = 0, bytes = 0;
    const auto add = [&](const opgraft_tensor &t, bool counts) {
      if (counts) h = h * 1021 + opgraft_magnitude(uint64_t(t.elements));
      bytes += uint64_t(t.elements) * dtype_size(t.dtype);
    };
    for (int i = 0; i < call_->n_inputs; ++i) add(call_->inputs[i], i < kFirst);
    for (int i = 0; i < call_->n_outputs; ++i) add(call_->outputs[i], i == 0);
    return uint64_t(opgraft_magnitude(bytes)) << 56 | (h & ~uint64_t(0) >> 8);
  }

  const opgraft_call *call_;
};

// Calls f with a value of the element type that `dtype` names, one of Ts; else fails.
template <class... Ts, class F> void dispatch(const Arguments &a, int32_t dtype, F &&f) {
  bool done = ((DtypeOf<Ts>::value == dtype ? (f(Ts{}), true) : false) || ...);
  if (done) return;
  std::string names;
  ((names += (names.empty() ? "" : ", ") + std::string(dtype_name(DtypeOf<Ts>::value))), ...);
  a.fail(OPGRAFT_INVALID_TYPE, "dtype must be one of " + names + ", got " + dtype_name(dtype));
}

// The pieces of an operator, in the order of OPGRAFT_OP's designated initialisers.
struct OpSpec {
  int inputs;       // fixed number, or -1: variadic
  int outputs = 1;  // or -1: as many as infer states (MindSpore's inference then gives lists)
  void (*infer)(InferContext &) = nullptr;
  void (*kernel)(Context &) = nullptr;
  void (*reference)(Context &) = nullptr;
  int (*score)() = nullptr;
  uint64_t (*workspace)(InferContext &) = nullptr;
  void *(*init)(InferContext &) = nullptr;
  void (*release)(void *) = nullptr;
  // Bytes wanted for the packed form of input i (0: none), and the packing itself.
  uint64_t (*packed_bytes)(InferContext &, int input) = nullptr;
  void (*pack)(InferContext &, int input, void *dst) = nullptr;
  const char *backward = nullptr;
};

}  // namespace opgraft

#ifdef OPGRAFT_BUILDING_OP  // set by opgraft_add_op(), which also generates the header
#include "op_manifest.h"
#endif
