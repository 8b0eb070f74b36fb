// TensorBase, the type under Tensor: its array lies where C reads it without asking Python.
#pragma once

#include <Python.h>

namespace opgraft::python {

// `array` is Tensor._array: a NumPy array, or None for a traced value.
struct TensorObject {
  PyObject_HEAD PyObject *array;
};
extern PyType_Spec tensor_spec;

}  // namespace opgraft::python
