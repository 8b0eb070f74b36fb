// OPGRAFT_OP: from an OpSpec to the exported faces of an operator. Included by op.h.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>

#include "opgraft/mindspore.h"
#include "opgraft/op.h"

// The op.yaml of this shared object, placed by the build into the ELF note (cmake/OpgraftOp.cmake).
extern "C" __attribute__((visibility("hidden"))) const char opgraft_manifest_begin[];
extern "C" __attribute__((visibility("hidden"))) const char opgraft_manifest_end[];

namespace opgraft::detail {

// One attribute as op.yaml declares it; generated into op_manifest.h at build time.
struct AttrInfo {
  const char *name;
  int32_t kind;
};
struct OpInfo {
  const char *name;
  const char *version;
  const AttrInfo *attrs;
  int n_attrs;
};

inline std::string &message() {
  thread_local std::string text;
  return text;
}
inline const char *last_error() { return message().c_str(); }

// Runs f and turns whatever it throws into status and message.
template <class F> int guarded(const char *op, F &&f) noexcept {
  try {
    f();
    return OPGRAFT_OK;
  } catch (const Error &e) {
    message() = e.what();
    return e.status;
  } catch (const std::bad_alloc &) {
    message() = std::string(op) + ": out of memory";
    return OPGRAFT_OUT_OF_MEMORY;
  } catch (const std::exception &e) {
    message() = std::string(op) + ": " + e.what();
    return OPGRAFT_INTERNAL;
  } catch (...) {
    message() = std::string(op) + ": unknown exception";
    return OPGRAFT_INTERNAL;
  }
}

// The C functions of one descriptor. kSpec and kInfo have static storage.
template <const OpSpec &kSpec, const OpInfo &kInfo> struct Faces {
  static void check_count(int n) {
    if (kSpec.inputs >= 0 && n != kSpec.inputs)
      throw Error(OPGRAFT_INVALID_VALUE, std::string(kInfo.name) + ": takes " + std::to_string(kSpec.inputs) +
                                             " inputs, got " + std::to_string(n));
  }
  static int infer(opgraft_infer_args *a) {
    return guarded(kInfo.name, [&] {
      check_count(a->n_inputs);
      InferContext c(kInfo.name, *a);
      kSpec.infer(c);
    });
  }
  static int run(void (*kernel)(Context &), const opgraft_call *call) {
    return guarded(kInfo.name, [&] {
      Context c(kInfo.name, *call);
      kernel(c);
    });
  }
  static int kernel(const opgraft_call *call) { return run(kSpec.kernel, call); }
  static int reference(const opgraft_call *call) { return run(kSpec.reference, call); }
  static int32_t score() { return kSpec.score(); }
  static int workspace(const opgraft_infer_args *a, uint64_t *bytes) {
    return guarded(kInfo.name, [&] {
      opgraft_infer_args copy = *a;
      InferContext c(kInfo.name, copy);
      *bytes = kSpec.workspace(c);
    });
  }
  static int init(const opgraft_infer_args *a, void **state) {
    return guarded(kInfo.name, [&] {
      opgraft_infer_args copy = *a;
      InferContext c(kInfo.name, copy);
      *state = kSpec.init(c);
    });
  }
  static void release(void *state) {
    guarded(kInfo.name, [&] { kSpec.release(state); });
  }
  static int prepare(const opgraft_infer_args *a, int32_t input, void *dst, uint64_t *bytes) {
    return guarded(kInfo.name, [&] {
      opgraft_infer_args copy = *a;
      InferContext c(kInfo.name, copy);
      if (dst) kSpec.pack(c, input, dst);
      else *bytes = kSpec.packed_bytes(c, input);
    });
  }
  static constexpr opgraft_op descriptor() {
    return {sizeof(opgraft_op),
            OPGRAFT_ABI_VERSION,
            kInfo.name,
            kInfo.version,
            opgraft_manifest_begin,
            opgraft_manifest_end,
            infer,
            kernel,
            last_error,
            kSpec.reference ? reference : nullptr,
            kSpec.score ? score : nullptr,
            kSpec.workspace ? workspace : nullptr,
            kSpec.init ? init : nullptr,
            kSpec.release ? release : nullptr,
            kSpec.packed_bytes ? prepare : nullptr,
            kSpec.backward};
  }

  // --- MindSpore's faces: the same infer and kernel, fed from MindSpore's arguments ---

  // Attributes read from AotExtra by the names and kinds op.yaml declares.
  struct Attributes {
    std::vector<opgraft_attr> list;
    std::vector<std::vector<int64_t>> ints;
    std::vector<std::vector<double>> floats;
    std::vector<std::string> strings;
    explicit Attributes(void *extra_pointer) {
      auto *extra = static_cast<mindspore::AotExtra *>(extra_pointer);
      ints.reserve(size_t(2 * kInfo.n_attrs));
      floats.reserve(size_t(kInfo.n_attrs));
      strings.reserve(size_t(kInfo.n_attrs));
      for (int i = 0; i < kInfo.n_attrs; ++i) {
        const AttrInfo &a = kInfo.attrs[i];
        if (!mindspore::has_attr(extra, a.name)) continue;
        opgraft_attr out{a.name, nullptr, nullptr, 1, a.kind, 0};
        using namespace mindspore;
        auto keep_ints = [&](std::vector<int64_t> v) { return (ints.push_back(std::move(v)), ints.back().data()); };
        auto keep_floats = [&](std::vector<double> v) {
          return (floats.push_back(std::move(v)), floats.back().data());
        };
        auto flat = [&](const auto &rows) {
          std::vector<int64_t> lengths;
          for (auto &r : rows) lengths.push_back(int64_t(r.size()));
          out.count = int64_t(rows.size());
          out.rows = keep_ints(std::move(lengths));
        };
        switch (a.kind) {
          case OPGRAFT_ATTR_BOOL: out.data = keep_ints({get<bool>(extra, kBool, a.name)}); break;
          case OPGRAFT_ATTR_INT: out.data = keep_ints({get<int64_t>(extra, kInt, a.name)}); break;
          case OPGRAFT_ATTR_FLOAT: out.data = keep_floats({double(get<float>(extra, kFloat, a.name))}); break;
          case OPGRAFT_ATTR_STRING:
            strings.push_back(get_string(extra, a.name));
            out.data = strings.back().c_str();
            out.count = int64_t(strings.back().size());
            break;
          case OPGRAFT_ATTR_INTS: {
            auto v = get<std::vector<int64_t>>(extra, kInts, a.name);
            out.count = int64_t(v.size());
            out.data = keep_ints(std::move(v));
            break;
          }
          case OPGRAFT_ATTR_FLOATS: {
            auto v = get<std::vector<float>>(extra, kFloats, a.name);
            out.count = int64_t(v.size());
            out.data = keep_floats({v.begin(), v.end()});
            break;
          }
          case OPGRAFT_ATTR_INTS2D: {
            auto v = get<std::vector<std::vector<int64_t>>>(extra, kInts2D, a.name);
            flat(v);
            std::vector<int64_t> all;
            for (auto &r : v) all.insert(all.end(), r.begin(), r.end());
            out.data = keep_ints(std::move(all));
            break;
          }
          default: {
            auto v = get<std::vector<std::vector<float>>>(extra, kFloats2D, a.name);
            flat(v);
            std::vector<double> all;
            for (auto &r : v) all.insert(all.end(), r.begin(), r.end());
            out.data = keep_floats(std::move(all));
          }
        }
        list.push_back(out);
      }
    }
  };

  static opgraft_tensor tensor(void *data, int ndim, const int64_t *shape, int32_t dtype) {
    return {data, shape, ndim, dtype, element_count({shape, size_t(ndim)})};
  }
  // MindSpore gives infer no input count; a variadic op reads it from the attribute n_inputs.
  static int input_count(const Attributes &attrs) {
    if (kSpec.inputs >= 0) return kSpec.inputs;
    return int(
        Arguments(kInfo.name, 0, nullptr, int32_t(attrs.list.size()), attrs.list.data()).attr_int("n_inputs", 0));
  }
  struct Inferred {
    int64_t dims[16][OPGRAFT_MAX_RANK];
    opgraft_shape outputs[16];
  };
  static opgraft_infer_args infer_args(const std::vector<opgraft_tensor> &in, const Attributes &attrs, Inferred &room) {
    for (int i = 0; i < 16; ++i) room.outputs[i] = {room.dims[i], nullptr, 0, 0, -1};
    return {sizeof(opgraft_infer_args),
            int32_t(in.size()),
            int32_t(attrs.list.size()),
            16,
            in.data(),
            attrs.list.data(),
            room.outputs,
            nullptr,
            nullptr};
  }

  static int launch(int nparam, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *stream,
                    void *extra) {
    return guarded(kInfo.name, [&] {
      Attributes attrs(extra);
      int n_in = kSpec.inputs >= 0 ? kSpec.inputs : nparam - kSpec.outputs;
      if (n_in < 0 || nparam < n_in + kSpec.outputs)
        throw Error(OPGRAFT_INVALID_VALUE, std::string(kInfo.name) + ": takes " + std::to_string(kSpec.inputs) +
                                               " inputs and " + std::to_string(kSpec.outputs) + " outputs, got " +
                                               std::to_string(nparam) + " tensors");
      std::vector<opgraft_tensor> t;
      for (int i = 0; i < n_in + kSpec.outputs; ++i)
        t.push_back(tensor(params[i], ndims[i], shapes[i], dtype_from_name(dtypes[i])));
      std::vector<opgraft_tensor> in(t.begin(), t.begin() + n_in);
      Inferred room;
      opgraft_infer_args a = infer_args(in, attrs, room);
      InferContext check(kInfo.name, a);
      kSpec.infer(check);  // MindSpore's Python inference may have promised other shapes
      for (int i = 0; i < kSpec.outputs; ++i) {
        const opgraft_tensor &o = t[size_t(n_in + i)];
        if (o.dtype != room.outputs[i].dtype ||
            element_count({room.dims[i], size_t(room.outputs[i].ndim)}) != o.elements)
          check.fail(OPGRAFT_INVALID_VALUE,
                     "output " + std::to_string(i) + " must be " + dtype_name(room.outputs[i].dtype) +
                         to_string(std::span<const int64_t>(room.dims[i], size_t(room.outputs[i].ndim))) + ", got " +
                         dtype_name(o.dtype) + to_string(std::span<const int64_t>(o.shape, size_t(o.ndim))));
      }
      auto *host = static_cast<const opgraft_host *>(stream);
      opgraft_call call{sizeof(opgraft_call),
                        n_in,
                        kSpec.outputs,
                        int32_t(attrs.list.size()),
                        t.data(),
                        t.data() + n_in,
                        attrs.list.data(),
                        nullptr,
                        nullptr,
                        0,
                        host && host->magic == OPGRAFT_HOST_MAGIC ? host : nullptr,
                        nullptr};
      struct Scratch {
        void *workspace = nullptr, *state = nullptr;
        ~Scratch() {
          std::free(workspace);
          if (state && kSpec.release) kSpec.release(state);
        }
      } scratch;
      if (kSpec.workspace) {
        call.workspace_bytes = (kSpec.workspace(check) + 63) / 64 * 64;
        if (call.workspace_bytes) {
          call.workspace = scratch.workspace = std::aligned_alloc(64, call.workspace_bytes);
          if (!call.workspace) throw std::bad_alloc();
        }
      }
      if (kSpec.init) call.state = scratch.state = kSpec.init(check);
      Context c(kInfo.name, call);
      kSpec.kernel(c);
    });
  }
  static int ms_init(int *, int64_t **, const char **, void *extra) {
    return guarded(kInfo.name, [&] { Attributes attrs(extra); });  // state is made at launch
  }
  // A result cannot carry an error: it is logged, the shape is left unknown, and the launch, which
  // infers again, fails with the same message.
  static std::vector<std::vector<int64_t>> shapes(int *ndims, int64_t **in_shapes, void *extra) {
    std::vector<std::vector<int64_t>> out;
    if (guarded(kInfo.name, [&] { out = infer_shapes(ndims, in_shapes, extra); }) == OPGRAFT_OK) return out;
    std::fprintf(stderr, "opgraft: %s\n", last_error());
    return {size_t(kSpec.outputs), std::vector<int64_t>{-2}};
  }
  static std::vector<int32_t> types(const std::vector<int32_t> &in_types, void *extra) {
    std::vector<int32_t> out;
    if (guarded(kInfo.name, [&] { out = infer_types(in_types, extra); }) == OPGRAFT_OK) return out;
    std::fprintf(stderr, "opgraft: %s\n", last_error());
    return std::vector<int32_t>(size_t(kSpec.outputs), 0);
  }
  static std::vector<std::vector<int64_t>> infer_shapes(int *ndims, int64_t **in_shapes, void *extra) {
    Attributes attrs(extra);
    std::vector<opgraft_tensor> in;
    for (int i = 0, n = input_count(attrs); i < n; ++i) {
      if (ndims[i] == 1 && in_shapes[i][0] == -2) return {size_t(kSpec.outputs), std::vector<int64_t>{-2}};
      in.push_back(tensor(nullptr, ndims[i], in_shapes[i], OPGRAFT_FLOAT32));
    }
    Inferred room;
    opgraft_infer_args a = infer_args(in, attrs, room);
    InferContext c(kInfo.name, a);
    kSpec.infer(c);
    std::vector<std::vector<int64_t>> out;
    for (int i = 0; i < a.n_outputs; ++i) {
      out.emplace_back(room.dims[i], room.dims[i] + room.outputs[i].ndim);
      for (auto &d : out.back()) d = d < 0 ? -1 : d;
    }
    return out;
  }
  static std::vector<int32_t> infer_types(const std::vector<int32_t> &in_types, void *extra) {
    Attributes attrs(extra);
    static const int64_t kUnknown[1] = {-1};
    std::vector<opgraft_tensor> in;
    for (int32_t d : in_types) in.push_back(tensor(nullptr, 1, kUnknown, d));
    Inferred room;
    opgraft_infer_args a = infer_args(in, attrs, room);
    InferContext c(kInfo.name, a);
    kSpec.infer(c);
    std::vector<int32_t> out;
    for (int i = 0; i < a.n_outputs; ++i) out.push_back(room.outputs[i].dtype);
    return out;
  }
};

template <int kOutputs> struct Results {
  using Shapes = std::vector<std::vector<int64_t>>;
  using Types = std::vector<int32_t>;
  static Shapes shapes(Shapes v) { return v; }
  static Types types(Types v) { return v; }
};
template <> struct Results<1> {
  using Shapes = std::vector<int64_t>;
  using Types = int32_t;
  static Shapes shapes(std::vector<std::vector<int64_t>> v) { return v.empty() ? Shapes{-2} : v[0]; }
  static Types types(std::vector<int32_t> v) { return v.empty() ? 0 : v[0]; }
};

}  // namespace opgraft::detail

// UBSan makes GCC treat the address of a function template as no constant expression.
#ifdef OPGRAFT_ONE_TARGET
#define OPGRAFT_CONSTINIT
#else
#define OPGRAFT_CONSTINIT constinit
#endif
#define OPGRAFT_PUBLIC extern "C" __attribute__((visibility("default")))

#define OPGRAFT_OP(Name, ...)                                                                                         \
  namespace opgraft_export_##Name {                                                                                   \
    static constexpr ::opgraft::OpSpec kSpec = {__VA_ARGS__};                                                         \
    static constexpr ::opgraft::detail::OpInfo kInfo = OPGRAFT_INFO_##Name;                                           \
    using Faces = ::opgraft::detail::Faces<kSpec, kInfo>;                                                             \
    using Results = ::opgraft::detail::Results<kSpec.outputs>;                                                        \
  }                                                                                                                   \
  OPGRAFT_PUBLIC const opgraft_op opgraft_op_##Name;                                                                  \
  OPGRAFT_CONSTINIT const opgraft_op opgraft_op_##Name = opgraft_export_##Name::Faces::descriptor();                  \
  OPGRAFT_PUBLIC int Name(int nparam, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *stream, \
                          void *extra) {                                                                              \
    return opgraft_export_##Name::Faces::launch(nparam, params, ndims, shapes, dtypes, stream, extra);                \
  }                                                                                                                   \
  OPGRAFT_PUBLIC int Name##Init(int *ndims, int64_t **shapes, const char **dtypes, void *extra) {                     \
    return opgraft_export_##Name::Faces::ms_init(ndims, shapes, dtypes, extra);                                       \
  }                                                                                                                   \
  OPGRAFT_PUBLIC opgraft_export_##Name::Results::Shapes Name##InferShape(int *ndims, int64_t **shapes, void *extra) { \
    return opgraft_export_##Name::Results::shapes(opgraft_export_##Name::Faces::shapes(ndims, shapes, extra));        \
  }                                                                                                                   \
  OPGRAFT_PUBLIC opgraft_export_##Name::Results::Types Name##InferType(std::vector<int32_t> types, void *extra) {     \
    return opgraft_export_##Name::Results::types(opgraft_export_##Name::Faces::types(types, extra));                  \
  }
