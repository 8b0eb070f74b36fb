// NumPy arrays and the engine's tensors: the same bytes under two names.
#define NPY_IMPORT
#include "numpy_api.h"

#include <fmt/format.h>

#include <array>

#include "bindings.h"

namespace opgraft::python {
namespace {

struct TypeNumbers {
  std::array<int, 64> numbers;
  TypeNumbers() {
    numbers.fill(-1);
    numbers[OPGRAFT_BOOL] = NPY_BOOL;
    numbers[OPGRAFT_INT8] = NPY_INT8;
    numbers[OPGRAFT_INT16] = NPY_INT16;
    numbers[OPGRAFT_INT32] = NPY_INT32;
    numbers[OPGRAFT_INT64] = NPY_INT64;
    numbers[OPGRAFT_UINT8] = NPY_UINT8;
    numbers[OPGRAFT_UINT16] = NPY_UINT16;
    numbers[OPGRAFT_UINT32] = NPY_UINT32;
    numbers[OPGRAFT_UINT64] = NPY_UINT64;
    numbers[OPGRAFT_FLOAT16] = NPY_FLOAT16;
    numbers[OPGRAFT_FLOAT32] = NPY_FLOAT32;
    numbers[OPGRAFT_FLOAT64] = NPY_FLOAT64;
    numbers[OPGRAFT_COMPLEX64] = NPY_COMPLEX64;
    py::object bf16 = py::module_::import("numpy").attr("dtype")(py::module_::import("ml_dtypes").attr("bfloat16"));
    numbers[OPGRAFT_BFLOAT16] = bf16.attr("num").cast<int>();
  }
};
const std::array<int, 64> &numbers() {
  static const auto *table = new TypeNumbers;
  return table->numbers;
}

}  // namespace

int type_number(int32_t dtype) { return dtype < 0 || dtype >= 64 ? -1 : numbers()[size_t(dtype)]; }
int32_t dtype_of_number(int n) {
  // NPY_LONGLONG and NPY_ULONGLONG are int64 under another number.
  if (n == NPY_LONGLONG) return OPGRAFT_INT64;
  if (n == NPY_ULONGLONG) return OPGRAFT_UINT64;
  for (int32_t d = OPGRAFT_BOOL; d <= OPGRAFT_COMPLEX64; ++d)
    if (numbers()[size_t(d)] == n) return d;
  return OPGRAFT_UNKNOWN;
}

// Whether a kernel can read the array where it lies.
static bool ready(PyArrayObject *a) {
  return PyArray_IS_C_CONTIGUOUS(a) && PyArray_ISALIGNED(a) && PyArray_ISNOTSWAPPED(a);
}

Tensor to_tensor(py::handle h) {
  if (!PyArray_Check(h.ptr()))
    throw py::type_error("expected a NumPy array, got " + std::string(Py_TYPE(h.ptr())->tp_name));
  auto *a = reinterpret_cast<PyArrayObject *>(h.ptr());
  int32_t dtype = dtype_of_number(PyArray_TYPE(a));
  if (dtype == OPGRAFT_UNKNOWN)
    throw py::type_error("dtype " + std::string(py::str(h.attr("dtype"))) + " is not one opgraft knows");
  if (PyArray_NDIM(a) > OPGRAFT_MAX_RANK)
    throw py::value_error("a tensor has at most 8 dimensions, got " + std::to_string(PyArray_NDIM(a)));
  PyObject *kept = reinterpret_cast<PyObject *>(a);
  const bool fixed = !ready(a) || !PyArray_ISWRITEABLE(a);
  if (ready(a)) {
    Py_INCREF(kept);
  } else {
    kept = PyArray_FromArray(a, PyArray_DescrFromType(PyArray_TYPE(a)), NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED);
    if (!kept) throw py::error_already_set();
  }
  a = reinterpret_cast<PyArrayObject *>(kept);
  std::shared_ptr<void> owner(kept, [](void *p) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    Py_DECREF(static_cast<PyObject *>(p));
  });
  Tensor t(dtype, Shape(PyArray_DIMS(a), PyArray_DIMS(a) + PyArray_NDIM(a)), PyArray_DATA(a), std::move(owner));
  return fixed ? t.fixed() : t;
}
std::vector<Tensor> to_tensors(const py::iterable &arrays) {
  std::vector<Tensor> out;
  for (auto a : arrays) out.push_back(to_tensor(a));
  return out;
}
std::vector<Tensor> to_places(const py::iterable &arrays) {
  std::vector<Tensor> out;
  for (auto h : arrays) {
    if (auto *a = reinterpret_cast<PyArrayObject *>(h.ptr());
        PyArray_Check(h.ptr()) && !(ready(a) && PyArray_ISWRITEABLE(a)))
      throw py::value_error("output " + std::to_string(out.size()) +
                            " must be writable, contiguous, aligned and of native byte order, got an array that is " +
                            (ready(a) ? "read-only" : "not"));
    out.push_back(to_tensor(h));
  }
  return out;
}

py::object to_numpy(const Tensor &t, bool writable) {
  int number = type_number(t.dtype());
  if (number < 0) throw py::type_error("no NumPy dtype for " + std::string(dtype_name(t.dtype())));
  auto *keep = new std::shared_ptr<void>(t.owner());
  py::capsule base(keep, [](void *p) { delete static_cast<std::shared_ptr<void> *>(p); });
  static char empty[8];
  PyObject *array =
      PyArray_New(&PyArray_Type, int(t.dims().size()), const_cast<npy_intp *>(t.dims().data()), number, nullptr,
                  t.data() ? t.data() : empty, 0,
                  NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (writable ? NPY_ARRAY_WRITEABLE : 0), nullptr);
  if (!array) throw py::error_already_set();
  PyArray_SetBaseObject(reinterpret_cast<PyArrayObject *>(array), base.release().ptr());
  return py::reinterpret_steal<py::object>(array);
}
py::list to_numpy(const std::vector<Tensor> &tensors) {
  py::list out;
  for (auto &t : tensors) out.append(to_numpy(t));
  return out;
}

// An int, or what stands for one.
static int64_t whole(std::string_view name, py::handle v) {
  const auto n = py::reinterpret_steal<py::object>(PyNumber_Index(v.ptr()));
  if (!n) throw py::error_already_set();
  int overflow;
  const int64_t i = PyLong_AsLongLongAndOverflow(n.ptr(), &overflow);
  if (overflow)
    throw py::value_error(fmt::format("attribute {} must fit 64 bits, got {}", name, std::string(py::str(n))));
  return i;
}

AttrValue to_attr(std::string_view name, py::handle v) {
  auto refuse = [&](const std::string &got) -> AttrValue {
    throw py::type_error("attribute " + std::string(name) +
                         " must be bool, int, float, str, or a list of int or float (or of such lists), got " + got);
  };
  if (PyBool_Check(v.ptr())) return v.ptr() == Py_True;
  if (PyUnicode_Check(v.ptr())) return v.cast<std::string>();
  if (PyFloat_Check(v.ptr())) return v.cast<double>();
  if (PyArray_Check(v.ptr())) return to_attr(name, v.attr("tolist")());
  if (py::hasattr(v, "item") && py::hasattr(v, "dtype")) return to_attr(name, v.attr("item")());
  if (PyIndex_Check(v.ptr())) return whole(name, v);
  if (!py::isinstance<py::sequence>(v)) return refuse(Py_TYPE(v.ptr())->tp_name);
  bool floats = false, rows = false;
  for (auto e : py::reinterpret_borrow<py::sequence>(v)) {
    if (py::isinstance<py::sequence>(e)) {
      rows = true;
      for (auto x : py::reinterpret_borrow<py::sequence>(e)) floats |= PyFloat_Check(x.ptr());
    } else {
      floats |= PyFloat_Check(e.ptr());
    }
  }
  try {
    if (rows && floats) return v.cast<std::vector<std::vector<double>>>();
    if (rows) return v.cast<std::vector<std::vector<int64_t>>>();
    if (floats) return v.cast<std::vector<double>>();
    return v.cast<std::vector<int64_t>>();
  } catch (const py::cast_error &) {
    for (auto e : py::reinterpret_borrow<py::sequence>(v))
      if (PyIndex_Check(e.ptr())) whole(name, e);
    return refuse(std::string(py::repr(v)));
  }
}
Attrs to_attrs(const std::string &op, const py::dict &attrs) {
  Attrs out;
  for (auto [k, v] : attrs) {
    auto name = k.cast<std::string>();
    try {
      out[name] = to_attr(name, v);
    } catch (const py::type_error &e) {
      throw py::type_error(op + ": " + e.what());
    } catch (const py::value_error &e) {
      throw py::value_error(op + ": " + e.what());
    }
  }
  return out;
}
py::object from_attr(const AttrValue &value) {
  return std::visit([](const auto &v) -> py::object { return py::cast(v); }, value);
}

void bind_tensor(py::module_ &m) {
  if (_import_array() < 0) throw py::error_already_set();
  numbers();
  m.def(
      "dtype_number", [](int32_t dtype) { return type_number(dtype); }, "NumPy's type number of a TypeId, or -1");
  m.def(
      "dtype_id", [](int number) { return dtype_of_number(number); }, "TypeId of a NumPy type number, 0 if unknown");
  m.def("dtype_name", [](int32_t dtype) { return std::string(dtype_name(dtype)); });
}

}  // namespace opgraft::python
