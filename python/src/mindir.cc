// MindIR files.
#include "infer/mindir.h"

#include "bindings.h"

namespace opgraft::python {

void bind_mindir(py::module_ &m) {
  m.def(
      "read_mindir", [](const std::string &file) { return read_mindir(file, Registry::global()); }, py::arg("file"),
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "write_mindir",
      [](const Graph &g, const std::string &file, size_t external_from) { write_mindir(g, file, {external_from}); },
      py::arg("graph"), py::arg("file"), py::arg("external_from") = 0, py::call_guard<py::gil_scoped_release>());
}

}  // namespace opgraft::python
