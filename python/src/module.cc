// The module _core: errors, then one binding per file.
#include <cstring>

#include "bindings.h"
#include "infer/mindir.h"

namespace opgraft::python {

// A message may hold bytes of a file, which are not always text.
static void set_error(PyObject *kind, const char *message) {
  if (PyObject *text = PyUnicode_DecodeUTF8(message, Py_ssize_t(std::strlen(message)), "backslashreplace")) {
    PyErr_SetObject(kind, text);
    Py_DECREF(text);
  }
}

void set_status_error(int status, const char *message) {
  switch (status & 0xff) {
    case OPGRAFT_INVALID_VALUE: set_error(PyExc_ValueError, message); break;
    case OPGRAFT_INVALID_TYPE: set_error(PyExc_TypeError, message); break;
    case OPGRAFT_OUT_OF_MEMORY: set_error(PyExc_MemoryError, message); break;
    default: set_error(PyExc_RuntimeError, message);
  }
}
void raise_status(int status, const std::string &message) {
  set_status_error(status, message.c_str());
  throw py::error_already_set();
}

namespace {
void translate(std::exception_ptr p) {
  try {
    if (p) std::rethrow_exception(p);
  } catch (const Error &e) {
    set_status_error(e.status, e.what());
  } catch (const GraphError &e) {
    set_status_error(e.status, e.what());
  } catch (const FileMissing &e) {
    set_error(PyExc_FileNotFoundError, e.what());
  } catch (const MindirError &e) {
    set_error(PyExc_ValueError, e.what());
  } catch (const ManifestError &e) {
    set_error(PyExc_ValueError, e.what());
  }
}
}  // namespace
}  // namespace opgraft::python

PYBIND11_MODULE(_core, m) {
  using namespace opgraft::python;
  m.doc() = "opgraft's engine, as Python sees it";
  m.attr("__version__") = OPGRAFT_VERSION;
  py::register_exception_translator(translate);
  bind_tensor(m);
  bind_registry(m);
  bind_graph(m);
  bind_passes(m);
  bind_session(m);
  bind_mindir(m);
  bind_custom(m);
  bind_dlpack(m);
}
