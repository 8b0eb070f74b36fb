// MindSpore's faces of an operator: its entry, Init, InferShape and InferType, made from the same infer
// and kernel as the native descriptor. MindSpore tells InferShape no dtypes and InferType no shapes, and
// neither how many inputs there are nor their values; what is missing is looked for among what op.yaml
// declares: the first choice that the operator's infer accepts.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>

#include "opgraft/guard.h"
#include "opgraft/mindspore.h"
#include "opgraft/shared_pool.h"

namespace opgraft::detail {

// What op.yaml declares; generated into op_manifest.h at build time.
struct AttrInfo {
  const char *name;
  int32_t kind;
};
struct InputInfo {
  const char *name;
  const int32_t *dtypes;
  int n_dtypes;
  int variable;  // inputs of the same variable have the same dtype
  bool value, optional, variadic;
};
struct OpInfo {
  const char *name;
  const char *version;
  const AttrInfo *attrs;
  int n_attrs;
  const InputInfo *inputs;
  int n_inputs;
};

}  // namespace opgraft::detail

namespace opgraft::mindspore {

using detail::guarded;
using detail::InputInfo;
using detail::OpInfo;

// Attributes read from AotExtra by the names and kinds op.yaml declares. An input of values (`value:
// true`) may be an attribute instead, and `n_inputs` counts inputs where their number varies.
class Attributes {
 public:
  Attributes(const OpInfo &info, void *extra_pointer) {
    auto *extra = static_cast<AotExtra *>(extra_pointer);
    const size_t most = size_t(info.n_attrs + info.n_inputs + 1);
    ints_.reserve(2 * most);
    floats_.reserve(most);
    strings_.reserve(most);
    auto declared = [&](const char *name) {
      return std::any_of(info.attrs, info.attrs + info.n_attrs, [&](auto &a) { return !std::strcmp(a.name, name); });
    };
    for (int i = 0; i < info.n_attrs; ++i) read(extra, info.attrs[i].name, info.attrs[i].kind);
    bool varies = false;
    for (int i = 0; i < info.n_inputs; ++i) {
      const InputInfo &in = info.inputs[i];
      varies |= in.optional || in.variadic;
      if (in.value && !declared(in.name)) read(extra, in.name, OPGRAFT_ATTR_INTS);
    }
    if (varies && !declared("n_inputs")) read(extra, "n_inputs", OPGRAFT_ATTR_INT);
  }
  Attributes(const Attributes &) = delete;
  const std::vector<opgraft_attr> &list() const { return list_; }
  Arguments view(const OpInfo &info) const { return {info.name, 0, nullptr, int32_t(list_.size()), list_.data()}; }

 private:
  const int64_t *keep(std::vector<int64_t> v) { return ints_.emplace_back(std::move(v)).data(); }
  const double *keep(std::vector<double> v) { return floats_.emplace_back(std::move(v)).data(); }
  template <class T, class Row> void keep_rows(opgraft_attr &out, const std::vector<Row> &rows) {
    std::vector<int64_t> lengths;
    std::vector<T> all;
    for (auto &r : rows) {
      lengths.push_back(int64_t(r.size()));
      all.insert(all.end(), r.begin(), r.end());
    }
    out.count = int64_t(rows.size());
    out.rows = keep(std::move(lengths));
    out.data = keep(std::move(all));
  }
  void read(AotExtra *extra, const char *declared, int32_t kind) {
    // MindSpore keeps a primitive's data_format under the name format.
    const char *name = declared;
    if (!has_attr(extra, name) && !std::strcmp(declared, "data_format")) name = "format";
    if (!has_attr(extra, name)) return;
    opgraft_attr out{declared, nullptr, nullptr, 1, kind, 0};
    switch (kind) {
      case OPGRAFT_ATTR_BOOL: out.data = keep(std::vector<int64_t>{get<bool>(extra, kBool, name)}); break;
      case OPGRAFT_ATTR_INT: out.data = keep(std::vector<int64_t>{get<int64_t>(extra, kInt, name)}); break;
      case OPGRAFT_ATTR_FLOAT: out.data = keep(std::vector<double>{get<float>(extra, kFloat, name)}); break;
      case OPGRAFT_ATTR_STRING: {
        auto &s = strings_.emplace_back(get_string(extra, name));
        out.data = s.c_str();
        out.count = int64_t(s.size());
        break;
      }
      case OPGRAFT_ATTR_INTS: {
        auto v = get<std::vector<int64_t>>(extra, kInts, name);
        out.count = int64_t(v.size());
        out.data = keep(std::move(v));
        break;
      }
      case OPGRAFT_ATTR_FLOATS: {
        auto v = get<std::vector<float>>(extra, kFloats, name);
        out.count = int64_t(v.size());
        out.data = keep(std::vector<double>(v.begin(), v.end()));
        break;
      }
      case OPGRAFT_ATTR_INTS2D:
        keep_rows<int64_t>(out, get<std::vector<std::vector<int64_t>>>(extra, kInts2D, name));
        break;
      default: keep_rows<double>(out, get<std::vector<std::vector<float>>>(extra, kFloats2D, name));
    }
    list_.push_back(out);
  }
  std::vector<opgraft_attr> list_;
  std::vector<std::vector<int64_t>> ints_;
  std::vector<std::vector<double>> floats_;
  std::vector<std::string> strings_;
};

inline opgraft_tensor tensor(void *data, int ndim, const int64_t *shape, int32_t dtype) {
  return {data, shape, ndim, dtype, element_count({shape, size_t(ndim)})};
}

// What infer said; it may have said it with an exception.
class Inferred {
 public:
  static constexpr int kMost = 64;
  int n = 0;
  opgraft_shape outputs[kMost];

  void run(const OpSpec &spec, const OpInfo &info, const std::vector<opgraft_tensor> &in, const Attributes &attrs) {
    for (int i = 0; i < kMost; ++i) outputs[i] = {dims_[i], nullptr, 0, 0, -1};
    opgraft_infer_args a = args(in, attrs);
    InferContext c(info.name, a);
    spec.infer(c);
    n = a.n_outputs;
  }
  opgraft_infer_args args(const std::vector<opgraft_tensor> &in, const Attributes &attrs) {
    auto &list = attrs.list();
    return {sizeof(opgraft_infer_args),
            int32_t(in.size()),
            int32_t(list.size()),
            kMost,
            in.data(),
            list.data(),
            outputs,
            nullptr,
            nullptr};
  }
  std::span<const int64_t> shape(int i) const { return {outputs[i].dims, size_t(outputs[i].ndim)}; }

 private:
  int64_t dims_[kMost][OPGRAFT_MAX_RANK];
};

// What op.yaml says of the inputs of a call: those of values that are attributes are not among them, wherever they
// stand. The last is that of all further ones.
inline std::vector<const InputInfo *> given_inputs(const OpInfo &info, const Attributes &attrs) {
  Arguments a = attrs.view(info);
  std::vector<const InputInfo *> given;
  for (int i = 0; i < info.n_inputs; ++i)
    if (!(info.inputs[i].value && a.has_attr(info.inputs[i].name))) given.push_back(&info.inputs[i]);
  if (given.empty() && info.n_inputs > 0) given.push_back(&info.inputs[info.n_inputs - 1]);
  return given;
}
inline const InputInfo &input_info(const std::vector<const InputInfo *> &given, size_t i) {
  return *given[std::min(i, given.size() - 1)];
}

// Inputs where nothing tells their number: the attribute n_inputs, else those that must be there, less
// the inputs of values that are attributes.
inline int input_count(const OpInfo &info, const Attributes &attrs) {
  Arguments a = attrs.view(info);
  if (int64_t n = a.attr_int("n_inputs", 0)) return int(n);
  int n = 0;
  for (int i = 0; i < info.n_inputs; ++i) {
    if (info.inputs[i].variadic)
      a.fail(OPGRAFT_INVALID_VALUE, "attribute n_inputs must be given: MindSpore does not tell how many there are");
    n += !info.inputs[i].optional && !(info.inputs[i].value && a.has_attr(info.inputs[i].name));
  }
  return n;
}

// Tries infer on candidates until one is accepted: `next` changes the inputs, and says whether there was
// another. An error that does not stem from what was guessed (of kind `real`) is the one to report.
template <class Next> void infer_first(const OpSpec &spec, const OpInfo &info, const std::vector<opgraft_tensor> &in,
                                       const Attributes &attrs, Inferred &room, bool (*real)(const Error &),
                                       Next &&next) {
  constexpr int kMostTries = 5000;
  std::unique_ptr<Error> first, told;
  for (int tries = 0; tries < kMostTries; ++tries) {
    try {
      return room.run(spec, info, in, attrs);
    } catch (const Error &e) {
      auto &slot = real(e) ? told : first;
      if (!slot) slot = std::make_unique<Error>(e);
    }
    if (!next()) break;
  }
  throw told ? *told : *first;
}

inline std::vector<Shape> infer_shapes(const OpSpec &spec, const OpInfo &info, int *ndims, int64_t **shapes,
                                       void *extra) {
  Attributes attrs(info, extra);
  const int n = input_count(info, attrs);
  const auto given = given_inputs(info, attrs);
  std::vector<opgraft_tensor> in;
  for (int i = 0; i < n; ++i) {
    if (ndims[i] == 1 && shapes[i][0] == -2)  // unknown rank
      return std::vector<Shape>(size_t(std::max(spec.outputs, 1)), Shape{-2});
    in.push_back(tensor(nullptr, ndims[i], shapes[i], OPGRAFT_UNKNOWN));
  }
  // Which dtype each variable has now, as a number to count up.
  std::vector<int> choice(size_t(info.n_inputs), 0);
  auto put = [&] {
    for (size_t i = 0; i < in.size(); ++i) {
      auto &t = input_info(given, i);
      in[i].dtype = t.dtypes[choice[size_t(t.variable)]];
    }
  };
  put();
  Inferred room;
  infer_first(
      spec, info, in, attrs, room, [](const Error &e) { return e.status != OPGRAFT_INVALID_TYPE; },
      [&] {
        for (int v = 0; v < info.n_inputs; ++v) {
          auto one = std::find_if(info.inputs, info.inputs + info.n_inputs, [&](auto &t) { return t.variable == v; });
          if (one == info.inputs + info.n_inputs) break;
          if (++choice[size_t(v)] < one->n_dtypes) return put(), true;
          choice[size_t(v)] = 0;
        }
        return false;
      });
  std::vector<Shape> out;
  for (int i = 0; i < room.n; ++i) {
    out.emplace_back(room.shape(i).begin(), room.shape(i).end());
    for (auto &d : out.back()) d = d < 0 ? -1 : d;
  }
  return out;
}

inline std::vector<int32_t> infer_types(const OpSpec &spec, const OpInfo &info, const std::vector<int32_t> &types,
                                        void *extra) {
  Attributes attrs(info, extra);
  const auto given = given_inputs(info, attrs);
  static constexpr int64_t kUnknown[OPGRAFT_MAX_RANK] = {-1, -1, -1, -1, -1, -1, -1, -1};
  static constexpr int64_t kLengths[OPGRAFT_MAX_RANK + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<opgraft_tensor> in(types.size());
  std::vector<int> rank(types.size(), 2);
  auto put = [&] {  // values of so many entries, tensors of so many dimensions
    for (size_t i = 0; i < in.size(); ++i)
      in[i] = input_info(given, i).value ? tensor(nullptr, 1, &kLengths[rank[i]], types[i])
                                         : tensor(nullptr, rank[i], kUnknown, types[i]);
  };
  put();
  // First all inputs of one rank; then tensors of one rank with vectors beside them, where there are more inputs than
  // can be tried in every mixture; then, for the first five, every mixture of ranks up to 4.
  static constexpr int kOrder[] = {2, 3, 4, 1, 0, 5, 6, 7, 8}, kBesideVectors[] = {4, 3, 2, 5};
  static constexpr int kMostMixed = 4;
  const size_t mixed = std::min(types.size(), size_t(5)),
               most = types.size() > 5 && types.size() <= 9 ? size_t(1) << types.size() : 0;
  size_t at = 0, vectors = 0;
  bool mixing = false;
  Inferred room;
  infer_first(
      spec, info, in, attrs, room, [](const Error &e) { return e.status == OPGRAFT_INVALID_TYPE; },
      [&] {
        if (++at < std::size(kOrder)) {
          std::fill(rank.begin(), rank.end(), kOrder[at]);
          return put(), true;
        }
        if (vectors < most * std::size(kBesideVectors)) {
          for (size_t i = 0; i < rank.size(); ++i)
            rank[i] = vectors % most >> i & 1 ? 1 : kBesideVectors[vectors / most];
          ++vectors;
          return put(), true;
        }
        if (!mixing) return mixing = true, std::fill(rank.begin(), rank.end(), 0), put(), true;
        for (size_t i = mixed; i-- > 0; rank[i] = 0)
          if (++rank[i] <= kMostMixed) return put(), true;
        return false;
      });
  std::vector<int32_t> out;
  for (int i = 0; i < room.n; ++i) out.push_back(room.outputs[i].dtype);
  return out;
}

// A host that gives an AotExtra is written in C++ and, as MindSpore does, catches what its operators throw: it hands
// the text of a std::exception on to the user, and of a status only the number. To any other host the status is
// returned and the text logged; also where the file has another standard library than MindSpore, which could not
// catch its exceptions.
inline int told(int status, [[maybe_unused]] const void *extra) {
  if (!status) return status;
#ifdef __GLIBCXX__
  if (extra) throw std::runtime_error(detail::last_error());
#endif
  std::fprintf(stderr, "opgraft: %s\n", detail::last_error());
  return status;
}

inline int32_t dtype_of(const char *name) {
  std::string_view n = name;  // MindSpore's documentation has these as well
  return dtype_from_name(n == "float" ? "float32" : n == "int" ? "int32" : n == "uint" ? "uint32" : n);
}

inline int launch(const OpSpec &spec, const OpInfo &info, int nparam, void **params, int *ndims, int64_t **shapes,
                  const char **dtypes, void *stream, void *extra) {
  const int status = guarded(info.name, [&] {
    Attributes attrs(info, extra);
    const int n_in = spec.outputs > 0 ? nparam - spec.outputs : input_count(info, attrs), n_out = nparam - n_in;
    if (n_in < 0 || n_out < 1)
      attrs.view(info).fail(OPGRAFT_INVALID_VALUE,
                            "takes inputs and outputs, got " + std::to_string(nparam) + " tensors in all");
    std::vector<opgraft_tensor> t;
    for (int i = 0; i < nparam; ++i) t.push_back(tensor(params[i], ndims[i], shapes[i], dtype_of(dtypes[i])));
    const std::vector<opgraft_tensor> in(t.begin(), t.begin() + n_in);
    Inferred want;
    want.run(spec, info, in, attrs);  // MindSpore's Python inference may have promised other shapes
    opgraft_infer_args a = want.args(in, attrs);
    InferContext c(info.name, a);
    c.check(want.n == n_out, "has ", want.n, " outputs, got ", n_out);
    for (int i = 0; i < n_out; ++i) {
      const opgraft_tensor &o = t[size_t(n_in + i)];
      const std::span<const int64_t> got(o.shape, size_t(o.ndim));
      if (o.dtype != want.outputs[i].dtype || element_count(want.shape(i)) != o.elements)
        c.fail(OPGRAFT_INVALID_VALUE, "output ", i, " must be ", dtype_name(want.outputs[i].dtype), want.shape(i),
               ", got ", dtype_name(o.dtype), got);
    }
    auto *host = static_cast<const opgraft_host *>(stream);
    opgraft_call call{};
    call.struct_size = sizeof call;
    call.n_inputs = n_in;
    call.n_outputs = n_out;
    call.n_attrs = int32_t(attrs.list().size());
    call.inputs = t.data();
    call.outputs = t.data() + n_in;
    call.attrs = attrs.list().data();
    call.host = host && host->magic == OPGRAFT_HOST_MAGIC ? host : detail::shared_pool();
    std::unique_ptr<void, void (*)(void *)> workspace(nullptr, std::free), state(nullptr, [](void *) {});
    if (spec.workspace && (call.workspace_bytes = (spec.workspace(c) + 63) / 64 * 64)) {
      workspace.reset(call.workspace = std::aligned_alloc(64, call.workspace_bytes));
      if (!workspace) throw std::bad_alloc();
    }
    // Made at every launch: MindSpore calls Init once, in a dynamic graph with unknown shapes.
    if (spec.init) state = {call.state = spec.init(c), spec.release ? spec.release : [](void *) {}};
    Context context(info.name, call);
    try {
      spec.kernel(context);
    } catch (const Error &e) {  // the kernel does not serve this call: the reference does
      if (!(e.status & OPGRAFT_NOTHING_WRITTEN) || !spec.reference) throw;
      spec.reference(context);
    }
  });
  return told(status, stream ? nullptr : extra);
}

// The C++ types of the results, which MindSpore tells apart by the number of outputs. Where an error is not thrown it
// leaves them unknown; the launch, which infers again, then fails with the same message.
template <int kOutputs> struct Results {
  using Shapes = std::vector<Shape>;
  using Types = std::vector<int32_t>;
  static Shapes shapes(const OpSpec &spec, const OpInfo &info, int *ndims, int64_t **in, void *extra) {
    Shapes out;
    if (told(guarded(info.name, [&] { out = infer_shapes(spec, info, ndims, in, extra); }), extra) && spec.outputs > 0)
      guarded(info.name, [&] { out.assign(size_t(spec.outputs), Shape{-2}); });
    return out;
  }
  static Types types(const OpSpec &spec, const OpInfo &info, const std::vector<int32_t> &in, void *extra) {
    Types out;
    if (told(guarded(info.name, [&] { out = infer_types(spec, info, in, extra); }), extra) && spec.outputs > 0)
      guarded(info.name, [&] { out.assign(size_t(spec.outputs), OPGRAFT_UNKNOWN); });
    return out;
  }
};
template <> struct Results<1> {
  using Shapes = Shape;
  using Types = int32_t;
  template <class... Args> static Shapes shapes(const Args &...args) {
    auto all = Results<2>::shapes(args...);
    return all.empty() ? Shapes() : std::move(all[0]);
  }
  template <class... Args> static Types types(const Args &...args) {
    auto all = Results<2>::types(args...);
    return all.empty() ? int32_t(OPGRAFT_UNKNOWN) : all[0];
  }
};

}  // namespace opgraft::mindspore
