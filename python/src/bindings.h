// What the files of the module share: conversions between Python objects and the engine's types.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "infer/graph.h"
#include "infer/tensor.h"

namespace opgraft::python {
namespace py = pybind11;

// NumPy's type number of an element type, and back; OPGRAFT_UNKNOWN or -1 where there is none.
// bfloat16 is ml_dtypes' dtype, known by its type number.
int type_number(int32_t dtype);
int32_t dtype_of_number(int type_number);

// Shares a NumPy array's memory (kept alive), or a contiguous copy where its layout needs one.
Tensor to_tensor(py::handle array);
std::vector<Tensor> to_tensors(const py::iterable &arrays);
// Arrays that results are written to: never copies. ValueError where one would have to be, or is read-only.
std::vector<Tensor> to_places(const py::iterable &arrays);
// A NumPy array over the tensor's memory, which it keeps alive.
py::object to_numpy(const Tensor &tensor, bool writable = true);
py::list to_numpy(const std::vector<Tensor> &tensors);

AttrValue to_attr(std::string_view name, py::handle value);
// op: named in the errors.
Attrs to_attrs(const std::string &op, const py::dict &attrs);
py::object from_attr(const AttrValue &value);

// Raises the Python kind that belongs to an op's status; a GIL holder's.
[[noreturn]] void raise_status(int status, const std::string &message);
void set_status_error(int status, const char *message);

void bind_tensor(py::module_ &m);
void bind_registry(py::module_ &m);
void bind_graph(py::module_ &m);
void bind_passes(py::module_ &m);
void bind_session(py::module_ &m);
void bind_mindir(py::module_ &m);
void bind_custom(py::module_ &m);
void bind_dlpack(py::module_ &m);

}  // namespace opgraft::python
