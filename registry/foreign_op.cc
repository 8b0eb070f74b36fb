#include "registry/foreign_op.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "opgraft/guard.h"
#include "registry/library.h"

namespace opgraft {
namespace {

constexpr int kMostTensors = 64;
constexpr const char *kHandle = "opgraft_function";
constexpr const char *kUpdates = "side_effect_mem";  // MindSpore's mark: it may update any Parameter that it is given

// The functions by name: a descriptor's infer learns from the attribute kHandle which one is meant.
struct Table {
  std::shared_mutex mutex;
  std::map<std::string, std::shared_ptr<const ForeignOp>, std::less<>> functions;
};
Table &table() {
  static auto *t = new Table;
  return *t;
}

std::shared_ptr<const ForeignOp> function_of(const Arguments &a) {
  Table &t = table();
  std::shared_lock lock(t.mutex);
  auto it = t.functions.find(a.attr_string(kHandle, ""));
  if (it == t.functions.end()) a.fail(OPGRAFT_INTERNAL, "attribute opgraft_function names no loaded function");
  return it->second;
}

AttrValue to_value(const opgraft_attr &a) {
  auto *ints = static_cast<const int64_t *>(a.data);
  auto *floats = static_cast<const double *>(a.data);
  auto rows = [&](auto *p) {
    std::vector<std::vector<std::decay_t<decltype(*p)>>> out;
    for (int64_t r = 0; r < a.count; p += a.rows[r++]) out.emplace_back(p, p + a.rows[r]);
    return out;
  };
  switch (a.kind) {
    case OPGRAFT_ATTR_BOOL: return *ints != 0;
    case OPGRAFT_ATTR_INT: return *ints;
    case OPGRAFT_ATTR_FLOAT: return *floats;
    case OPGRAFT_ATTR_STRING: return std::string(static_cast<const char *>(a.data), size_t(a.count));
    case OPGRAFT_ATTR_INTS: return std::vector<int64_t>(ints, ints + a.count);
    case OPGRAFT_ATTR_FLOATS: return std::vector<double>(floats, floats + a.count);
    case OPGRAFT_ATTR_INTS2D: return rows(ints);
    default: return rows(floats);
  }
}

std::vector<std::pair<std::string, AttrValue>> own_attrs(const opgraft_infer_args &a) {
  std::vector<std::pair<std::string, AttrValue>> out;
  for (int32_t i = 0; i < a.n_attrs; ++i)
    if (std::string_view name = a.attrs[i].name;
        name != kHandle && name != "opgraft_outputs" && name != "out_shape" && name != "out_dtype")
      out.emplace_back(name, to_value(a.attrs[i]));
  return out;
}

// One dimension of `out_shape`, in postfix.
int64_t dimension(const InferContext &c, std::string_view text) {
  std::vector<int64_t> stack;
  auto bad = [&] { c.fail(OPGRAFT_INVALID_VALUE, "out_shape has an invalid dimension '", text, "'"); };
  auto number = [&](std::string_view s, int64_t &n) {
    auto [p, ec] = std::from_chars(s.data(), s.data() + s.size(), n);
    return ec == std::errc() && p == s.data() + s.size();
  };
  for (size_t at = 0; at < text.size();) {
    auto end = std::min(text.find(' ', at), text.size());
    auto token = text.substr(at, end - at);
    at = end + 1;
    int64_t n = 0, input = 0;
    auto dot = token.find('.');
    if (token == "?") stack.push_back(-1);
    else if (number(token, n)) stack.push_back(n);
    else if (token.starts_with('i') && dot != token.npos && number(token.substr(1, dot - 1), input) &&
             number(token.substr(dot + 1), n)) {
      if (input < 0 || input >= c.inputs() || n < 0 || n >= c.input(int(input)).rank()) bad();
      stack.push_back(c.input(int(input)).dim(int(n)));
    } else if (token.size() == 1 && std::strchr("+-*/", token[0]) && stack.size() >= 2) {
      int64_t b = stack.back();
      stack.pop_back();
      int64_t &a = stack.back();
      a = token[0] == '/' && a >= 0 && b > 0 ? a / b : c.dim_op(token[0], a, b);  // Python's //
    } else bad();
  }
  if (stack.size() != 1) bad();
  return stack[0];
}

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    auto end = std::min(text.find(by, at), text.size());
    out.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

// A function that answers for `what` when out_shape or out_dtype was not given.
[[noreturn]] void undeclared(const InferContext &c, const ForeignOp &f, const char *argument, const char *suffix) {
  c.fail(OPGRAFT_INVALID_VALUE, argument, " must be given: ", f.path().string(), " exports no ", f.function(), suffix);
}

void check_count(const InferContext &c, std::string_view what, size_t got, size_t n) {
  c.check(got == n, what, " must state ", n, n == 1 ? " output" : " outputs", ", got ", got);
}

std::vector<Shape> shapes_of(InferContext &c, const ForeignOp &f, ForeignExtra &extra, size_t n) {
  std::vector<Shape> out;
  if (c.has_attr("out_shape")) {
    auto texts = split(c.attr_string("out_shape", ""), ';');
    check_count(c, "out_shape", texts.size(), n);
    for (auto &text : texts) {
      out.emplace_back();
      if (!text.empty())
        for (auto &d : split(text, ',')) out.back().push_back(dimension(c, d));
    }
    return out;
  }
  if (!f.has_infer_shape()) undeclared(c, f, "out_shape", "InferShape");
  std::vector<Shape> in;
  for (int i = 0; i < c.inputs(); ++i) {
    in.emplace_back(c.input(i).shape().begin(), c.input(i).shape().end());
    for (auto &d : in.back()) d = d < 0 ? -1 : d;
  }
  out = f.infer_shapes(extra, in, int(n));
  check_count(c, f.function() + "InferShape", out.size(), n);
  for (auto &s : out)
    for (auto &d : s) {
      c.check(d != -2, f.function(), "InferShape knows no rank for these inputs; give out_shape");
      c.check(d >= -1, f.function(), "InferShape gave the dimension ", d);
    }
  return out;
}

std::vector<int32_t> dtypes_of(InferContext &c, const ForeignOp &f, ForeignExtra &extra, size_t n) {
  std::vector<int32_t> out;
  if (c.has_attr("out_dtype")) {
    for (auto &name : split(c.attr_string("out_dtype", ""), ';')) out.push_back(dtype_from_name(name));
    check_count(c, "out_dtype", out.size(), n);
  } else {
    if (!f.has_infer_type()) undeclared(c, f, "out_dtype", "InferType");
    std::vector<int32_t> in;
    for (int i = 0; i < c.inputs(); ++i) in.push_back(c.input(i).dtype());
    out = f.infer_types(extra, in, int(n));
    check_count(c, f.function() + "InferType", out.size(), n);
  }
  for (int32_t d : out)
    c.check(dtype_size(d) > 0, c.has_attr("out_dtype") ? "out_dtype" : f.function() + "InferType", " gave the type ", d,
            ", which is no dtype");
  return out;
}

void infer(InferContext &c) {
  auto f = function_of(c);
  auto n = c.attr_int("opgraft_outputs", 1);
  c.check(n >= 1 && n + c.inputs() <= kMostTensors, "has ", c.inputs(), " inputs and ", n, " outputs, the most is ",
          kMostTensors, " in all");
  auto extra = f->extra(own_attrs(c.args()));
  auto shapes = shapes_of(c, *f, *extra, size_t(n));
  auto dtypes = dtypes_of(c, *f, *extra, size_t(n));
  for (size_t i = 0; i < shapes.size(); ++i) c.output(dtypes[i], shapes[i]);
}

// What Init left, and the arguments of the entry, which shapes and dtypes alone decide.
struct State {
  std::shared_ptr<const ForeignOp> op;
  std::unique_ptr<ForeignExtra> extra;
  size_t tensors = 0;  // inputs and outputs
  ForeignArguments arguments;
  std::vector<std::shared_ptr<void>> scratch;  // the function's workspaces
  std::vector<void *> workspaces;
  std::atomic_flag busy = ATOMIC_FLAG_INIT;  // a call is using them

  static std::shared_ptr<void> allocate(size_t bytes) {
    std::shared_ptr<void> p(std::aligned_alloc(64, (bytes + 64) / 64 * 64), std::free);
    if (!p) throw std::bad_alloc();
    return p;
  }
  void allocate(std::vector<std::shared_ptr<void>> &own, std::vector<void *> &pointers) const {
    for (size_t bytes : extra->workspace()) pointers.push_back(own.emplace_back(allocate(bytes)).get());
  }
};

void *init(InferContext &c) {
  opgraft_infer_args a = c.args();
  int64_t dims[kMostTensors][OPGRAFT_MAX_RANK];
  opgraft_shape room[kMostTensors];
  for (int i = 0; i < kMostTensors; ++i) room[i] = {dims[i], nullptr, 0, 0, -1};
  a.outputs = room;
  a.n_outputs = kMostTensors;
  InferContext out(c.op(), a);
  infer(out);
  auto s = std::make_unique<State>();
  s->op = function_of(c);
  s->extra = s->op->extra(own_attrs(a));
  std::vector<Shape> shapes;
  std::vector<std::string> dtypes;
  auto add = [&](const int64_t *shape, int rank, int32_t dtype) {
    shapes.emplace_back(shape, shape + rank);
    dtypes.emplace_back(dtype_name(dtype));
  };
  for (int i = 0; i < a.n_inputs; ++i) add(a.inputs[i].shape, a.inputs[i].ndim, a.inputs[i].dtype);
  for (int i = 0; i < a.n_outputs; ++i) add(dims[i], room[i].ndim, room[i].dtype);
  s->tensors = shapes.size();
  s->arguments = {std::move(shapes), std::move(dtypes)};
  s->op->init(*s->extra, s->arguments);
  s->allocate(s->scratch, s->workspaces);
  return s.release();
}
void release(void *state) { delete static_cast<State *>(state); }

void kernel(const opgraft_call &call) {
  auto *s = static_cast<State *>(call.state);
  const size_t n = size_t(call.n_inputs + call.n_outputs);
  if (!s || n != s->tensors) throw Error(OPGRAFT_INTERNAL, "called without the state of its shapes");
  void *params[2 * kMostTensors];
  for (size_t i = 0; i < n; ++i)
    params[i] = i < size_t(call.n_inputs) ? call.inputs[i].data : call.outputs[i - size_t(call.n_inputs)].data;
  std::vector<std::shared_ptr<void>> own;  // another thread has the state's workspaces
  std::vector<void *> pointers;
  bool mine = s->workspaces.empty() || !s->busy.test_and_set(std::memory_order_acquire);
  if (!mine) s->allocate(own, pointers);
  auto &workspaces = mine ? s->workspaces : pointers;
  struct Done {
    std::atomic_flag *busy;
    ~Done() {
      if (busy) busy->clear(std::memory_order_release);
    }
  } done{mine && !s->workspaces.empty() ? &s->busy : nullptr};
  if (n + workspaces.size() > std::size(params))
    throw Error(OPGRAFT_INVALID_VALUE,
                fmt::format("{}: asks for {} workspaces, too many", s->op->function(), workspaces.size()));
  std::copy(workspaces.begin(), workspaces.end(), params + n);
  if (const Context c("Custom", call); c.attr_bool(kUpdates, false))  // it announces nothing itself
    for (int i = 0; i < c.inputs(); ++i)
      c.touch(c.input(i).raw(), uint64_t(c.input(i).size()) * dtype_size(c.input(i).dtype()));
  s->op->launch(*s->extra, int(n + workspaces.size()), params, s->arguments);
}

// The name for messages: the function's, not the registry's.
std::string title(const opgraft_infer_args &a) {
  Arguments args("Custom", 0, nullptr, a.n_attrs, a.attrs);
  auto name = args.attr_string(kHandle, "Custom");
  return name.substr(0, name.find('#'));
}

template <void (*f)(InferContext &)> int call_infer(opgraft_infer_args *a) {
  return detail::guarded("Custom", [&] {
    auto name = title(*a);
    InferContext c(name.c_str(), *a);
    f(c);
  });
}
int call_init(const opgraft_infer_args *a, void **state) {
  return detail::guarded("Custom", [&] {
    auto name = title(*a);
    opgraft_infer_args copy = *a;
    InferContext c(name.c_str(), copy);
    *state = init(c);
  });
}
int call_kernel(const opgraft_call *call) {
  return detail::guarded("Custom", [&] { kernel(*call); });
}

}  // namespace

OpPtr make_foreign_op(std::shared_ptr<const ForeignOp> foreign, const std::string &name,
                      const std::vector<ManifestAttr> &attrs) {
  struct Holder : Op {
    opgraft_op descriptor{};
  };
  auto op = std::make_shared<Holder>();
  op->manifest.name = name;
  op->manifest.version = "0.0.0";
  op->manifest.inputs.resize(1);
  op->manifest.inputs[0].name = "inputs";
  op->manifest.inputs[0].optional = op->manifest.inputs[0].variadic = true;
  op->manifest.inputs[0].state = std::any_of(attrs.begin(), attrs.end(), [](auto &a) { return a.name == kUpdates; });
  op->manifest.attrs = attrs;
  op->manifest.attrs.push_back({kHandle, OPGRAFT_ATTR_STRING, name});
  op->manifest.attrs.push_back({"opgraft_outputs", OPGRAFT_ATTR_INT, int64_t(1)});
  for (auto *text : {"out_shape", "out_dtype"})
    if (!op->manifest.attr(text)) op->manifest.attrs.push_back({text, OPGRAFT_ATTR_STRING, std::nullopt});
  auto &d = op->descriptor;
  d.struct_size = sizeof d;
  d.abi_version = OPGRAFT_ABI_VERSION;
  d.infer = call_infer<infer>;
  d.kernel = call_kernel;
  d.last_error = detail::last_error;
  d.init = call_init;
  d.release = release;
  op->native = &d;
  op->path = foreign->path().string();
  op->function = foreign->function();
  op->library = foreign->library();
  d.name = op->manifest.name.c_str();
  d.version = op->manifest.version.c_str();
  Table &t = table();
  std::unique_lock lock(t.mutex);
  t.functions.emplace(name, std::move(foreign));
  return op;
}

}  // namespace opgraft
