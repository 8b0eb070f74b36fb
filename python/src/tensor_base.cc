#include "tensor_base.h"

#include <structmember.h>

#include <cstddef>

namespace opgraft::python {
namespace {

int tensor_clear(PyObject *self) {
  Py_CLEAR(reinterpret_cast<TensorObject *>(self)->array);
  return 0;
}
int tensor_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(reinterpret_cast<TensorObject *>(self)->array);
  Py_VISIT(Py_TYPE(self));
  return 0;
}
void tensor_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  tensor_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef tensor_members[] = {
    {"_array", T_OBJECT, offsetof(TensorObject, array), 0, "the NumPy array, or None for a traced value"},
    {nullptr, 0, 0, 0, nullptr}};
PyType_Slot tensor_slots[] = {{Py_tp_members, tensor_members},
                              {Py_tp_traverse, reinterpret_cast<void *>(tensor_traverse)},
                              {Py_tp_clear, reinterpret_cast<void *>(tensor_clear)},
                              {Py_tp_dealloc, reinterpret_cast<void *>(tensor_dealloc)},
                              {0, nullptr}};

}  // namespace

PyType_Spec tensor_spec = {"opgraft._core.TensorBase", sizeof(TensorObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, tensor_slots};

}  // namespace opgraft::python
