// CustomBase: the type under ops.Custom. Its call is C from argument to kernel: one look at dtype and
// shape of every input finds what was inferred for them the first time.
#include "numpy_api.h"

#include <fmt/format.h>
#include <structmember.h>

#include <algorithm>

#include "aot_ops/common/threads.h"
#include "bindings.h"
#include "registry/choice.h"
#include "tensor_base.h"

namespace opgraft::python {
namespace {

constexpr int kMaxInputs = 32;
constexpr int kMaxOutputs = 64;            // as in the engine (infer/graph.cc)
constexpr size_t kSignatures = 64;         // per Custom; the least recently used goes first
constexpr int64_t kReleaseFrom = 1 << 14;  // bytes in and out: below, giving up the GIL costs more than it frees

PyTypeObject *tensor_base = nullptr;

// What was inferred for one list of input dtypes and shapes.
struct Signature {
  std::vector<int> types;  // NumPy's type numbers
  std::vector<Shape> shapes;
  std::vector<std::pair<int, Shape>> outputs;  // type number, shape
  std::vector<opgraft_tensor> in, out;         // all but data
  std::vector<Tensor> dummy;
  uint64_t workspace_bytes = 0;
  int64_t bytes = 0;
  std::shared_ptr<void> workspace;
  void *state = nullptr;
  const opgraft_op *op = nullptr;
  std::unique_ptr<FlatAttrs> own_attrs;  // where they depend on the inputs
  const FlatAttrs *attrs = nullptr;
  bool tuple = false;  // a single output comes as a tuple of one
  bool busy = false;   // a call is using workspace
  ~Signature() {
    if (state && op->release) op->release(state);
  }
};

struct Cache {
  OpPtr op;
  FlatAttrs attrs;
  std::vector<std::shared_ptr<Signature>> signatures;
  bool value_inputs = false;  // an input's values decide the shape: nothing to remember
  bool ask;                   // `_declare` of the Python object has a word on every new signature
  Cache(OpPtr o, const Attrs &a, bool ask) : op(std::move(o)), attrs(complete_attrs(op->manifest, a)), ask(ask) {
    for (auto &i : op->manifest.inputs) value_inputs |= i.value;
  }
};

struct CustomObject {
  PyObject_HEAD PyObject *dict, *weak;
  Cache *cache;
};

// _declare(arrays) -> (attributes or None for those bound, whether a single output comes as a tuple).
void declare(CustomObject *self, Signature &s, PyArrayObject **arrays, int n) {
  py::tuple given(n);
  for (int i = 0; i < n; ++i)
    given[size_t(i)] = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject *>(arrays[i]));
  py::tuple answer = py::handle(reinterpret_cast<PyObject *>(self)).attr("_declare")(given);
  if (!answer[0].is_none()) {
    s.own_attrs = std::make_unique<FlatAttrs>(
        complete_attrs(self->cache->op->manifest, to_attrs(self->cache->op->name(), py::dict(answer[0]))));
    s.attrs = s.own_attrs.get();
  }
  s.tuple = answer[1].cast<bool>();
}

std::shared_ptr<Signature> infer(CustomObject *self, PyArrayObject **arrays, int n) {
  Cache &c = *self->cache;
  auto s = std::make_shared<Signature>();
  s->op = c.op->native;
  s->attrs = &c.attrs;
  if (c.ask) declare(self, *s, arrays, n);
  for (int i = 0; i < n; ++i) {
    s->types.push_back(PyArray_TYPE(arrays[i]));
    s->shapes.emplace_back(PyArray_DIMS(arrays[i]), PyArray_DIMS(arrays[i]) + PyArray_NDIM(arrays[i]));
    s->bytes += int64_t(PyArray_NBYTES(arrays[i]));
  }
  for (int i = 0; i < n; ++i) {
    int32_t dtype = dtype_of_number(s->types[size_t(i)]);
    if (dtype == OPGRAFT_UNKNOWN) {
      const ManifestTensor *declared = c.op->manifest.input(size_t(i));
      raise_status(
          OPGRAFT_INVALID_TYPE,
          fmt::format("{}: {} has the dtype {}, which opgraft does not know", c.op->name(),
                      declared ? declared->name : fmt::format("input {}", i),
                      std::string(py::str(py::handle(reinterpret_cast<PyObject *>(arrays[i])).attr("dtype")))));
    }
    auto &shape = s->shapes[size_t(i)];
    s->in.push_back({c.value_inputs ? PyArray_DATA(arrays[i]) : nullptr, shape.data(), int32_t(shape.size()), dtype,
                     element_count(shape)});
  }
  int64_t dims[kMaxOutputs][OPGRAFT_MAX_RANK];
  opgraft_shape shapes[kMaxOutputs];
  for (int i = 0; i < kMaxOutputs; ++i) shapes[i] = {dims[i], nullptr, 0, 0, -1};
  opgraft_infer_args args{sizeof args,      n,      s->attrs->size(), kMaxOutputs, s->in.data(),
                          s->attrs->data(), shapes, nullptr,          nullptr};
  auto check = [&](int status) {
    if (status) raise_status(status, c.op->native->last_error());
  };
  check(c.op->native->infer(&args));
  for (int i = 0; i < args.n_outputs; ++i)
    s->outputs.emplace_back(type_number(shapes[i].dtype), Shape(dims[i], dims[i] + shapes[i].ndim));
  for (int i = 0; i < args.n_outputs; ++i) {
    auto &shape = s->outputs[size_t(i)].second;
    int64_t count = element_count(shape);
    if (count < 0)
      raise_status(OPGRAFT_INVALID_VALUE,
                   c.op->name() + ": the shape of output " + std::to_string(i) + " cannot be told from the inputs");
    s->out.push_back({nullptr, shape.data(), int32_t(shape.size()), shapes[i].dtype, count});
    s->bytes += count * int64_t(dtype_size(shapes[i].dtype));
  }
  args.outputs = nullptr;
  if (c.op->native->workspace) check(c.op->native->workspace(&args, &s->workspace_bytes));
  if (s->workspace_bytes) s->workspace = allocate(size_t(s->workspace_bytes));
  if (c.op->native->init) check(c.op->native->init(&args, &s->state));
  return s;
}

Signature *find(Cache &c, PyArrayObject **arrays, int n) {
  for (size_t k = 0; k < c.signatures.size(); ++k) {
    Signature &s = *c.signatures[k];
    if (s.types.size() != size_t(n)) continue;
    bool same = true;
    for (int i = 0; same && i < n; ++i) {
      const Shape &shape = s.shapes[size_t(i)];
      const size_t rank = size_t(PyArray_NDIM(arrays[i]));
      const npy_intp *dims = PyArray_DIMS(arrays[i]);
      same = s.types[size_t(i)] == PyArray_TYPE(arrays[i]) && shape.size() == rank;
      for (size_t d = 0; same && d < rank; ++d) same = shape[d] == dims[d];
    }
    if (!same) continue;
    if (k > 0)
      std::rotate(c.signatures.begin(), c.signatures.begin() + ptrdiff_t(k), c.signatures.begin() + ptrdiff_t(k) + 1);
    return c.signatures[0].get();
  }
  return nullptr;
}

// Runs the kernel; a failure that wrote nothing hands over to another implementation, then the reference.
int run(Cache &c, opgraft_call &call, bool release) {
  auto go = [&](auto &&f) {
    if (!release) return f();
    py::gil_scoped_release gil;
    return f();
  };
  const int status = go([&] { return c.op->native->kernel(&call); });
  if (status == OPGRAFT_OK) return 0;
  std::vector<std::string> notes;
  const Recovery r =
      go([&] { return recover(*c.op, call, status, [&](const std::string &note) { notes.push_back(note); }); });
  for (auto &note : notes)
    if (PyErr_WarnEx(PyExc_RuntimeWarning, note.c_str(), 1) < 0) return -1;
  if (r.status) set_status_error(r.status, r.cause.c_str());
  return r.status ? -1 : 0;
}

PyObject *slow(PyObject *self, PyObject *args, PyObject *kwargs) {
  static PyObject *name = PyUnicode_InternFromString("_call_slow");
  PyObject *method = PyObject_GetAttr(self, name);
  if (!method) return nullptr;
  PyObject *result = PyObject_Call(method, args, kwargs);
  Py_DECREF(method);
  return result;
}

// The inputs of a call, kept alive while Python code runs or the GIL is free: another thread may then put other data in
// a Parameter. A small call whose shapes are known does neither, and holds nothing.
class Held {
 public:
  Held() = default;
  Held(const Held &) = delete;
  Held &operator=(const Held &) = delete;
  ~Held() {
    for (int i = 0; i < n_; ++i) Py_DECREF(arrays_[i]);
  }
  void take(PyArrayObject **arrays, int n) {
    if (n_) return;
    for (int i = 0; i < n; ++i) Py_INCREF(arrays[i]);
    arrays_ = arrays;
    n_ = n;
  }

 private:
  PyArrayObject **arrays_ = nullptr;
  int n_ = 0;
};

PyObject *call_arrays(CustomObject *self, PyArrayObject **arrays, int n, PyTypeObject *wrap) {
  Held held;
  Cache &c = *self->cache;
  Signature *s = c.value_inputs ? nullptr : find(c, arrays, n);
  std::shared_ptr<Signature> fresh;
  if (!s) {
    held.take(arrays, n);
    fresh = infer(self, arrays, n);
    s = fresh.get();
    if (!c.value_inputs) {
      c.signatures.insert(c.signatures.begin(), fresh);
      if (c.signatures.size() > kSignatures) c.signatures.pop_back();
    }
  }
  const int n_out = int(s->out.size());
  opgraft_tensor in[kMaxInputs], out[kMaxOutputs];
  PyObject *results[kMaxOutputs];
  for (int i = 0; i < n; ++i) {
    in[i] = s->in[size_t(i)];
    in[i].data = PyArray_DATA(arrays[i]);
  }
  int made = 0;
  for (; made < n_out; ++made) {
    auto &[type, shape] = s->outputs[size_t(made)];
    results[made] =
        PyArray_Empty(int(shape.size()), const_cast<npy_intp *>(shape.data()), PyArray_DescrFromType(type), 0);
    if (!results[made]) break;
    out[made] = s->out[size_t(made)];
    out[made].data = PyArray_DATA(reinterpret_cast<PyArrayObject *>(results[made]));
  }
  auto drop = [&] {
    for (int i = 0; i < made; ++i) Py_DECREF(results[i]);
    return nullptr;
  };
  if (made < n_out) return drop();
  std::shared_ptr<Signature> hold = fresh;
  std::shared_ptr<void> scratch;
  bool release = s->bytes >= kReleaseFrom;
  if (release) held.take(arrays, n);
  if (release && !hold) hold = c.signatures[0];  // another thread may push it out meanwhile
  opgraft_call call{};
  call.struct_size = sizeof call;
  call.n_inputs = n;
  call.n_outputs = n_out;
  call.n_attrs = s->attrs->size();
  call.inputs = in;
  call.outputs = out;
  call.attrs = s->attrs->data();
  call.state = s->state;
  call.workspace_bytes = s->workspace_bytes;
  call.host = opgraft_shared_host();
  bool own = !s->busy;
  if (s->workspace_bytes) {
    if (!own) scratch = allocate(size_t(s->workspace_bytes));
    call.workspace = own ? s->workspace.get() : scratch.get();
  }
  if (own) s->busy = true;
  int status = run(c, call, release);
  if (own) s->busy = false;
  if (status) return drop();
  if (wrap) {
    for (int i = 0; i < n_out; ++i) {
      PyObject *t = wrap->tp_alloc(wrap, 0);
      if (!t) return drop();
      reinterpret_cast<TensorObject *>(t)->array = results[i];
      results[i] = t;
    }
  }
  if (n_out == 1 && !s->tuple) return results[0];
  PyObject *tuple = PyTuple_New(n_out);
  if (!tuple) return drop();
  for (int i = 0; i < n_out; ++i) PyTuple_SET_ITEM(tuple, i, results[i]);
  return tuple;
}

PyTypeObject *wrapper = nullptr;  // opgraft.Tensor

PyObject *custom_call(PyObject *object, PyObject *args, PyObject *kwargs) {
  auto *self = reinterpret_cast<CustomObject *>(object);
  const Py_ssize_t n = PyTuple_GET_SIZE(args);
  if (!self->cache || (kwargs && PyDict_GET_SIZE(kwargs)) || n > kMaxInputs) return slow(object, args, kwargs);
  PyArrayObject *arrays[kMaxInputs];
  bool tensors = false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject *a = PyTuple_GET_ITEM(args, i);
    if (!PyArray_CheckExact(a)) {
      if (!PyObject_TypeCheck(a, tensor_base)) return slow(object, args, kwargs);
      a = reinterpret_cast<TensorObject *>(a)->array;
      if (!a || !PyArray_CheckExact(a)) return slow(object, args, kwargs);
      tensors = true;
    }
    arrays[i] = reinterpret_cast<PyArrayObject *>(a);
    constexpr int kPlain = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
    if ((PyArray_FLAGS(arrays[i]) & kPlain) != kPlain || !PyArray_ISNOTSWAPPED(arrays[i]) ||
        PyArray_NDIM(arrays[i]) > OPGRAFT_MAX_RANK)
      return slow(object, args, kwargs);
  }
  try {
    return call_arrays(self, arrays, int(n), tensors ? wrapper : nullptr);
  } catch (py::error_already_set &e) {
    e.restore();
  } catch (const py::builtin_exception &e) {
    e.set_error();
  } catch (const Error &e) {
    set_status_error(e.status, e.what());
  } catch (const std::bad_alloc &e) {
    PyErr_SetString(PyExc_MemoryError, e.what());
  } catch (const std::exception &e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return nullptr;
}

// _bind(op, attrs, ask): from now on a call runs this op with these attributes; with `ask`, `_declare`
// of this object says for every new list of input dtypes and shapes which attributes they have.
PyObject *custom_bind(PyObject *object, PyObject *args) {
  auto *self = reinterpret_cast<CustomObject *>(object);
  PyObject *op, *attrs;
  int ask = 0;
  if (!PyArg_ParseTuple(args, "OO!|p", &op, &PyDict_Type, &attrs, &ask)) return nullptr;
  try {
    const auto native = py::handle(op).cast<std::shared_ptr<Op>>();
    auto *cache = new Cache(native, to_attrs(native->name(), py::reinterpret_borrow<py::dict>(attrs)), ask);
    delete self->cache;
    self->cache = cache;
    Py_RETURN_NONE;
  } catch (py::error_already_set &e) {
    e.restore();
  } catch (const py::builtin_exception &e) {
    e.set_error();
  } catch (const Error &e) {
    set_status_error(e.status, e.what());
  } catch (const std::exception &e) {
    PyErr_SetString(PyExc_TypeError, e.what());
  }
  return nullptr;
}

int custom_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(reinterpret_cast<CustomObject *>(self)->dict);
  Py_VISIT(Py_TYPE(self));
  return 0;
}
int custom_clear(PyObject *self) {
  Py_CLEAR(reinterpret_cast<CustomObject *>(self)->dict);
  return 0;
}
void custom_dealloc(PyObject *object) {
  auto *self = reinterpret_cast<CustomObject *>(object);
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  if (self->weak) PyObject_ClearWeakRefs(object);
  custom_clear(object);
  delete self->cache;
  type->tp_free(object);
  Py_DECREF(type);
}

PyMethodDef custom_methods[] = {{"_bind", custom_bind, METH_VARARGS, "_bind(op, attrs, ask=False)"},
                                {nullptr, nullptr, 0, nullptr}};
PyMemberDef custom_members[] = {{"__dictoffset__", T_PYSSIZET, offsetof(CustomObject, dict), READONLY, nullptr},
                                {"__weaklistoffset__", T_PYSSIZET, offsetof(CustomObject, weak), READONLY, nullptr},
                                {nullptr, 0, 0, 0, nullptr}};
PyType_Slot custom_slots[] = {{Py_tp_call, reinterpret_cast<void *>(custom_call)},
                              {Py_tp_methods, custom_methods},
                              {Py_tp_members, custom_members},
                              {Py_tp_traverse, reinterpret_cast<void *>(custom_traverse)},
                              {Py_tp_clear, reinterpret_cast<void *>(custom_clear)},
                              {Py_tp_dealloc, reinterpret_cast<void *>(custom_dealloc)},
                              {0, nullptr}};
PyType_Spec custom_spec = {"opgraft._core.CustomBase", sizeof(CustomObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, custom_slots};

}  // namespace

void bind_custom(py::module_ &m) {
  auto type = [&](PyType_Spec &spec, const char *name) {
    PyObject *t = PyType_FromSpec(&spec);
    if (!t) throw py::error_already_set();
    m.add_object(name, py::reinterpret_borrow<py::object>(t));
    return reinterpret_cast<PyTypeObject *>(t);
  };
  tensor_base = type(tensor_spec, "TensorBase");
  type(custom_spec, "CustomBase");
  m.def(
      "set_tensor_type",
      [](py::type t) {
        Py_INCREF(t.ptr());
        wrapper = reinterpret_cast<PyTypeObject *>(t.ptr());
      },
      "The subclass of TensorBase that results are wrapped in");
}

}  // namespace opgraft::python
