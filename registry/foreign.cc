#include "registry/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "opgraft/op.h"
#include "registry/elf.h"
#include "registry/library.h"

namespace opgraft {

namespace {

template <class T> T value(const ForeignExtra *extra, const void *argument, const char *kind) {
  StringArgument name(argument, extra->strings());
  auto *v = extra->find(name.text);
  if (!v) throw std::runtime_error(fmt::format("attribute {} is not set", name.text));
  if (auto *exact = std::get_if<T>(v)) return *exact;
  if constexpr (std::is_same_v<T, double>)
    if (auto *i = std::get_if<int64_t>(v)) return double(*i);
  throw std::runtime_error(fmt::format("attribute {} must be {}", name.text, kind));
}

std::vector<float> narrow(const std::vector<double> &v) { return {v.begin(), v.end()}; }

using E = const ForeignExtra;
using A = const void;
void no_delete(E *) {}
bool has(E *e, A *n) { return e->find(StringArgument(n, e->strings()).text); }
bool get_bool(E *e, A *n) { return value<bool>(e, n, "a bool"); }
int64_t get_int(E *e, A *n) { return value<int64_t>(e, n, "an int"); }
float get_float(E *e, A *n) { return float(value<double>(e, n, "a float")); }
StringResult get_string(E *e, A *n) {
  return {value<std::string>(e, n, "a string"), StringArgument(n, e->strings()).new_abi};
}
std::vector<int64_t> get_ints(E *e, A *n) { return value<std::vector<int64_t>>(e, n, "a list of int"); }
std::vector<float> get_floats(E *e, A *n) { return narrow(value<std::vector<double>>(e, n, "a list of float")); }
std::vector<std::vector<int64_t>> get_ints2d(E *e, A *n) {
  return value<std::vector<std::vector<int64_t>>>(e, n, "a list of lists of int");
}
std::vector<std::vector<float>> get_floats2d(E *e, A *n) {
  std::vector<std::vector<float>> out;
  for (auto &row : value<std::vector<std::vector<double>>>(e, n, "a list of lists of float"))
    out.push_back(narrow(row));
  return out;
}

// What InferShape returns: a vector of dimensions, or one of such vectors. Nothing in the file tells which
// of them, so the memory is looked at before it is believed; what is in doubt is neither read nor freed.
struct ListResult {
  uintptr_t words[3] = {};  // begin, end, end of room
  ListResult() = default;
  ListResult(const ListResult &) = delete;
  ~ListResult() {}                                       // not trivial: returned through a pointer, as std::vector is
  static constexpr uintptr_t kLowest = 1 << 20;          // below lies no heap
  static constexpr int64_t kMostDim = int64_t(1) << 40;  // above lie addresses, no dimensions

  static bool is_list(const uintptr_t *w, size_t element) {
    if (w[0] == 0) return w[1] == 0 && w[2] == 0;
    return w[0] >= kLowest && w[0] % 8 == 0 && w[0] <= w[1] && w[1] <= w[2] && (w[1] - w[0]) % element == 0;
  }
  // A list of shapes holds addresses, which are small where a program lies low in memory; no tensor has as many
  // elements as three of them multiplied.
  bool is_shape() const {
    if (!is_list(words, 8)) return false;
    auto *begin = reinterpret_cast<const int64_t *>(words[0]), *end = reinterpret_cast<const int64_t *>(words[1]);
    int64_t elements = 1;
    return std::all_of(begin, end, [&](int64_t d) {
      return d >= -2 && d < kMostDim && !__builtin_mul_overflow(elements, std::max<int64_t>(d, 1), &elements);
    });
  }
  bool is_shapes(int n) const {
    if (!is_list(words, 24) || words[1] - words[0] != size_t(n) * 24) return false;
    for (int i = 0; i < n; ++i)
      if (!is_list(reinterpret_cast<const uintptr_t *>(words[0]) + 3 * i, 8)) return false;
    return true;
  }
  bool is_types(int n) const {
    auto *begin = reinterpret_cast<const int32_t *>(words[0]), *end = reinterpret_cast<const int32_t *>(words[1]);
    return words[0] && is_list(words, 4) && end - begin == n &&
           std::all_of(begin, end, [](int32_t d) { return dtype_size(d) > 0; });
  }
  template <class T> std::vector<T> take() {
    std::vector<T> out;
    static_assert(sizeof out == sizeof words);
    std::memcpy(static_cast<void *>(&out), words, sizeof words);
    return out;
  }
};

template <class F> void *slot(F *f) { return reinterpret_cast<void *>(f); }
void *const kVtable[] = {nullptr,          nullptr,  // offset to top, type information
                         slot(no_delete),  slot(no_delete),  slot(has),         slot(get_bool),
                         slot(get_int),    slot(get_float),  slot(get_string),  slot(get_ints),
                         slot(get_floats), slot(get_ints2d), slot(get_floats2d)};

}  // namespace

ForeignExtra::ForeignExtra(std::vector<std::pair<std::string, AttrValue>> attrs, std::shared_ptr<const Library> library,
                           StringAbi strings)
    : vtable_(const_cast<void **>(kVtable + 2)),
      attrs_(std::move(attrs)),
      library_(std::move(library)),
      strings_(strings) {
  static_assert(sizeof(std::vector<size_t>) == 24);  // workspace at 8, kernel data at 32
}
ForeignExtra::~ForeignExtra() {
  // AotKernelData has only a virtual destructor; slot 1 destroys and frees.
  if (kernel_data_) (*static_cast<void (***)(void *)>(kernel_data_))[1](kernel_data_);
}
const AttrValue *ForeignExtra::find(std::string_view name) const {
  for (auto &[n, v] : attrs_)
    if (n == name) return &v;
  return nullptr;
}

ForeignArguments::ForeignArguments(std::vector<std::vector<int64_t>> shapes, std::vector<std::string> dtypes)
    : shapes_(std::move(shapes)), names_(std::move(dtypes)) {
  for (auto &s : shapes_) {
    ndims_.push_back(int(s.size()));
    pointers_.push_back(s.data());
  }
  for (auto &n : names_) dtypes_.push_back(n.c_str());
}

std::shared_ptr<ForeignOp> ForeignOp::load(const std::filesystem::path &file, const std::string &function,
                                           const Directories &whitelist, const std::string &sha256) {
  auto op = std::make_shared<ForeignOp>();
  op->library_ = Library::open_foreign(file, whitelist, function, sha256);
  op->function_ = function;
  op->launch_ = op->library_->symbol(function);
  if (!op->launch_) throw LoadError(file.string(), "symbols", fmt::format("symbol {} cannot be found", function));
  op->init_ = op->library_->symbol(function + "Init");
  op->infer_shape_ = op->library_->symbol(function + "InferShape");
  op->infer_type_ = op->library_->symbol(function + "InferType");
  op->strings_ = string_symbols(*ElfFile(op->library_->path())).abi;
  return op;
}

const std::filesystem::path &ForeignOp::path() const { return library_->path(); }
const FileId &ForeignOp::id() const { return library_->id(); }

std::unique_ptr<ForeignExtra> ForeignOp::extra(std::vector<std::pair<std::string, AttrValue>> attrs) const {
  return std::make_unique<ForeignExtra>(std::move(attrs), library_, strings_);
}

// Runs f; what the operator throws becomes an Error.
template <class F> auto ForeignOp::contained(const char *what, F &&f) const {
  auto name = [&] { return fmt::format("{}: {}{} of {}", function_, function_, what, library_->path().string()); };
  try {
    return f();
  } catch (const Error &) {
    throw;
  } catch (const std::bad_alloc &) {
    throw Error(OPGRAFT_OUT_OF_MEMORY, name() + " ran out of memory");
  } catch (const std::exception &e) {
    throw Error(OPGRAFT_INTERNAL, fmt::format("{} failed: {}", name(), e.what()));
  } catch (...) {
    throw Error(OPGRAFT_INTERNAL, name() + " failed with an exception that is no std::exception");
  }
}
void ForeignOp::check(int code, const char *what) const {
  if (code)
    throw Error(OPGRAFT_INTERNAL, fmt::format("{}: {}{} of {} returned {}, expected 0", function_, function_, what,
                                              library_->path().string(), code));
}

std::vector<std::vector<int64_t>> ForeignOp::infer_shapes(ForeignExtra &extra, std::vector<std::vector<int64_t>> inputs,
                                                          int n_outputs) const {
  if (!infer_shape_) throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: exports no InferShape", function_));
  ForeignArguments a(std::move(inputs));
  return contained("InferShape", [&]() -> std::vector<std::vector<int64_t>> {
    auto r = reinterpret_cast<ListResult (*)(int *, int64_t **, void *)>(infer_shape_)(a.ndims(), a.shapes(), &extra);
    if (n_outputs == 1 && r.is_shape()) return {r.take<int64_t>()};
    if (n_outputs != 1 && r.is_shapes(n_outputs)) return r.take<std::vector<int64_t>>();
    throw std::runtime_error(
        fmt::format("its result is not {}; the number of outputs, by which the type of the result "
                    "goes, comes from out_shape, out_dtype or reg_info",
                    n_outputs == 1 ? "one shape" : fmt::format("a list of {} shapes", n_outputs)));
  });
}

std::vector<int32_t> ForeignOp::infer_types(ForeignExtra &extra, std::vector<int32_t> inputs, int n_outputs) const {
  if (!infer_type_) throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: exports no InferType", function_));
  using Types = std::vector<int32_t>;
  return contained("InferType", [&]() -> Types {
    if (n_outputs == 1) return {reinterpret_cast<int32_t (*)(Types, void *)>(infer_type_)(std::move(inputs), &extra)};
    auto r = reinterpret_cast<ListResult (*)(Types, void *)>(infer_type_)(std::move(inputs), &extra);
    if (r.is_types(n_outputs)) return r.take<int32_t>();
    throw std::runtime_error(fmt::format("its result is not a list of {} types", n_outputs));
  });
}

void ForeignOp::init(ForeignExtra &extra, const ForeignArguments &a) const {
  if (!init_) return;
  using Init = int (*)(int *, int64_t **, const char **, void *);
  check(contained("Init", [&] { return reinterpret_cast<Init>(init_)(a.ndims(), a.shapes(), a.dtypes(), &extra); }),
        "Init");
}

void ForeignOp::launch(ForeignExtra &extra, int nparam, void **params, const ForeignArguments &a) const {
  using Entry = int (*)(int, void **, int *, int64_t **, const char **, void *, void *);
  check(contained("",
                  [&] {
                    return reinterpret_cast<Entry>(launch_)(nparam, params, a.ndims(), a.shapes(), a.dtypes(), nullptr,
                                                            &extra);
                  }),
        "");
}

}  // namespace opgraft
