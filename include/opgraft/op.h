// The author's side of opgraft: what infer functions and kernels see (arguments.h has what they share), dtype dispatch,
// and the export line. An operator is one infer function, one kernel, its scalar twin and
//
//   OPGRAFT_OP(SwiGLU, .inputs = 2, .infer = Infer, .kernel = Kernel, .reference = Reference)
//
// which emits the native descriptor (abi.h) and MindSpore's entry, Init, InferShape and InferType
// (mindspore.h). Errors are C++ exceptions here; none crosses the native ABI.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <type_traits>

#include "opgraft/arguments.h"

namespace opgraft {

// What an infer function sees: the inputs' dtypes and (symbolic) shapes, and the outputs to state.
class InferContext : public Arguments {
 public:
  InferContext(const char *op, opgraft_infer_args &a)
      : Arguments(op, a.n_inputs, a.inputs, a.n_attrs, a.attrs), args_(&a), room_(a.n_outputs) {
    a.n_outputs = 0;
  }
  void output(int32_t dtype, std::span<const int64_t> dims) {
    if (args_->n_outputs >= room_)
      fail(OPGRAFT_INVALID_VALUE, "has more than ", room_, " outputs, the most that there is room for");
    if (dims.size() > OPGRAFT_MAX_RANK) fail(OPGRAFT_INVALID_VALUE, "output rank must be at most 8, got ", dims.size());
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
        fail(OPGRAFT_INVALID_VALUE, "a dimension of ", a, " ", std::string_view(&op, 1), " ", b,
             " is more than 64 bits hold");
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
      else fail(OPGRAFT_INVALID_VALUE, "shapes ", a, " and ", b, " do not broadcast");
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
  // How many threads the call has: worker numbers are below that, whatever another thread sets meanwhile. The host is
  // asked once.
  int threads() const {
    int known = threads_.load(std::memory_order_relaxed);
    if (known) return known;
    known = call_->host ? std::max(1, int(call_->host->threads(call_->host->context))) : 1;
    threads_.store(known, std::memory_order_relaxed);
    return known;
  }

  // Runs body(begin, end) or body(begin, end, worker) over [0, n) in chunks of about `grain` at least. What a
  // body throws is thrown here when all are done, the first one only. amount: of what there is to do, in any unit,
  // where the shapes of the call's tensors do not tell, as of a sparse matrix; by both the host knows the loop again.
  template <class Body> void parallel_for(int64_t n, int64_t grain, const Body &body, uint64_t amount = 0) const {
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
      h.parallel_for_sized(h.context, sizes(amount), n, grain, run, &work);
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
  // that grows a little stays the same, as the amount does; and the bytes.
  uint64_t sizes(uint64_t amount) const {
    constexpr int kFirst = 4;
    uint64_t h = opgraft_magnitude(amount), bytes = 0;
    const auto add = [&](const opgraft_tensor &t, bool counts) {
      if (counts) h = h * 1021 + opgraft_magnitude(uint64_t(t.elements));
      bytes += uint64_t(t.elements) * dtype_size(t.dtype);
    };
    for (int i = 0; i < call_->n_inputs; ++i) add(call_->inputs[i], i < kFirst);
    for (int i = 0; i < call_->n_outputs; ++i) add(call_->outputs[i], i == 0);
    return uint64_t(opgraft_magnitude(bytes)) << 56 | (h & ~uint64_t(0) >> 8);
  }

  const opgraft_call *call_;
  mutable std::atomic<int> threads_{0};
};

// Calls f with a value of the element type that `dtype` names, one of Ts; else fails.
template <class... Ts, class F> void dispatch(const Arguments &a, int32_t dtype, F &&f) {
  bool done = ((DtypeOf<Ts>::value == dtype ? (f(Ts{}), true) : false) || ...);
  if (done) return;
  std::string names;
  ((names += (names.empty() ? "" : ", ") + std::string(dtype_name(DtypeOf<Ts>::value))), ...);
  a.fail(OPGRAFT_INVALID_TYPE, "dtype must be one of ", names, ", got ", dtype_name(dtype));
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
