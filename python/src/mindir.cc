// MindIR files and checkpoints.
#include "infer/mindir.h"

#include "bindings.h"
#include "infer/checkpoint.h"

namespace opgraft::python {

void bind_mindir(py::module_ &m) {
  m.def(
      "read_mindir", [](const std::string &file) { return read_mindir(file, Registry::global()); }, py::arg("file"),
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "write_mindir",
      [](const Graph &g, const std::string &file, size_t external_from, bool path_from_env) {
        write_mindir(g, file, {external_from, path_from_env});
      },
      py::arg("graph"), py::arg("file"), py::arg("external_from") = 0, py::arg("path_from_env") = false,
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "library_variable", [](const std::string &library) { return library_variable(library); }, py::arg("library"),
      "The environment variable that stands for a .so where paths are written by environment");
  m.def(
      "read_checkpoint",
      [](const std::string &file) {
        const Checkpoint found = [&] {
          py::gil_scoped_release release;
          return read_checkpoint(file);
        }();
        py::list out;
        for (auto &e : found.entries)
          out.append(py::make_tuple(
              py::bytes(e.name),
              e.tensor ? to_numpy(e.tensor)
                       : py::bytes(reinterpret_cast<const char *>(e.text.data()), e.text.size() * sizeof(char32_t))));
        return py::make_tuple(out, found.has_crc);
      },
      py::arg("file"), "([(name as UTF-8, array, or text as UTF-32)], whether there is a CRC-32)");
  m.def(
      "write_checkpoint",
      [](const py::dict &values, const std::string &file, bool crc, size_t slice) {
        std::vector<CheckpointEntry> entries;
        for (auto [name, value] : values) {
          CheckpointEntry e{py::cast<std::string>(name), {}, {}};
          if (py::isinstance<py::str>(value)) e.text = py::cast<std::u32string>(value);
          else e.tensor = to_tensor(value);
          entries.push_back(std::move(e));
        }
        py::gil_scoped_release release;
        write_checkpoint(entries, file, crc, slice);
      },
      py::arg("values"), py::arg("file"), py::arg("crc") = false, py::arg("slice") = size_t(512) << 20);
}

}  // namespace opgraft::python
