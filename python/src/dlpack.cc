// DLPack capsules of bfloat16, which NumPy's own exchange refuses: they travel as uint16 under another name.
#include <cstring>

#include "bindings.h"

namespace opgraft::python {
namespace {

// The part of DLPack's ABI that is looked at; the layout is the same in all its versions.
struct DLTensor {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor tensor;
  void *manager_ctx;
  void (*deleter)(DLManagedTensor *);
};
struct DLManagedTensorVersioned {  // from 1.0 on
  uint32_t major, minor;
  void *manager_ctx;
  void (*deleter)(DLManagedTensorVersioned *);
  uint64_t flags;
  DLTensor tensor;
};
constexpr uint8_t kUInt = 1, kBfloat = 4;

DLTensor &tensor_of(const py::capsule &capsule) {
  const char *name = capsule.name();
  if (name && !std::strcmp(name, "dltensor")) return capsule.get_pointer<DLManagedTensor>()->tensor;
  if (name && !std::strcmp(name, "dltensor_versioned")) {
    auto *managed = capsule.get_pointer<DLManagedTensorVersioned>();
    if (managed->major == 1) return managed->tensor;
    throw py::buffer_error("from_dlpack: version must be 1, got " + std::to_string(managed->major));
  }
  throw py::value_error("from_dlpack: expected a fresh DLPack capsule, got " +
                        std::string(name ? name : "one without a name"));
}

}  // namespace

void bind_dlpack(py::module_ &m) {
  m.def(
      "dlpack_from_bfloat16",
      [](const py::capsule &capsule) {
        DLTensor &t = tensor_of(capsule);
        bool is = t.code == kBfloat && t.bits == 16 && t.lanes == 1;
        if (is) t.code = kUInt;
        return is;
      },
      py::arg("capsule"), "Makes a capsule of bfloat16 one of uint16; whether it was one");
  m.def(
      "dlpack_to_bfloat16", [](const py::capsule &capsule) { tensor_of(capsule).code = kBfloat; }, py::arg("capsule"),
      "Makes a capsule of uint16 one of bfloat16");
}

}  // namespace opgraft::python
