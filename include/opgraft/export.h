// OPGRAFT_OP: from an OpSpec to the exported faces of an operator. Included by op_manifest.h, which the
// build generates from op.yaml.
#pragma once

#include <string_view>

#include "opgraft/guard.h"
#include "opgraft/mindspore_faces.h"
#include "opgraft/op.h"

// The op.yaml of this shared object, placed by the build into the ELF note (cmake/OpgraftOp.cmake).
extern "C" __attribute__((visibility("hidden"))) const char opgraft_manifest_begin[];
extern "C" __attribute__((visibility("hidden"))) const char opgraft_manifest_end[];

namespace opgraft::detail {

template <size_t n> constexpr bool listed(const std::string_view (&names)[n], std::string_view name) {
  for (auto x : names)
    if (x == name) return true;
  return false;
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
  static int32_t score() {
    int32_t value = 0;
    guarded(kInfo.name, [&] { value = kSpec.score(); });
    return value;  // 0, not here, where it failed
  }
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
};

}  // namespace opgraft::detail

#define OPGRAFT_PUBLIC extern "C" __attribute__((visibility("default")))

#define OPGRAFT_OP(Name, ...)                                                                                         \
  namespace opgraft_export_##Name {                                                                                   \
    static constexpr ::opgraft::OpSpec kSpec = {__VA_ARGS__};                                                         \
    static_assert(::opgraft::detail::listed(::opgraft_names, #Name),                                                  \
                  "OPGRAFT_OP(" #Name ", ...): the name must be that of an operator in op.yaml");                     \
    static constexpr ::opgraft::detail::OpInfo kInfo = OPGRAFT_INFO_##Name;                                           \
    static_assert(kSpec.inputs == -1 || kSpec.inputs == kInfo.n_inputs,                                               \
                  "OPGRAFT_OP(" #Name ", ...): .inputs must be the number of inputs in op.yaml, or -1");              \
    using Faces = ::opgraft::detail::Faces<kSpec, kInfo>;                                                             \
    using Results = ::opgraft::mindspore::Results<kSpec.outputs>;                                                     \
  }                                                                                                                   \
  OPGRAFT_PUBLIC const opgraft_op opgraft_op_##Name;                                                                  \
  constinit const opgraft_op opgraft_op_##Name = opgraft_export_##Name::Faces::descriptor();                          \
  OPGRAFT_PUBLIC int Name(int nparam, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *stream, \
                          void *extra) {                                                                              \
    return ::opgraft::mindspore::launch(opgraft_export_##Name::kSpec, opgraft_export_##Name::kInfo, nparam, params,   \
                                        ndims, shapes, dtypes, stream, extra);                                        \
  }                                                                                                                   \
  /* MindSpore shows nothing of what fails in Init; the launch, which has no need of it, fails with its text. */      \
  OPGRAFT_PUBLIC int Name##Init(int *, int64_t **, const char **, void *) { return OPGRAFT_OK; }                      \
  OPGRAFT_PUBLIC opgraft_export_##Name::Results::Shapes Name##InferShape(int *ndims, int64_t **shapes, void *extra) { \
    return opgraft_export_##Name::Results::shapes(opgraft_export_##Name::kSpec, opgraft_export_##Name::kInfo, ndims,  \
                                                  shapes, extra);                                                     \
  }                                                                                                                   \
  OPGRAFT_PUBLIC opgraft_export_##Name::Results::Types Name##InferType(std::vector<int32_t> types, void *extra) {     \
    return opgraft_export_##Name::Results::types(opgraft_export_##Name::kSpec, opgraft_export_##Name::kInfo, types,   \
                                                 extra);                                                              \
  }
