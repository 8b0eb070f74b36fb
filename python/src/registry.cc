// Operators: looking them up, loading them, and running one by itself.
#include "registry/registry.h"

#include <cstring>

#include "aot_ops/common/threads.h"
#include "bindings.h"
#include "infer/native_call.h"
#include "infer/passes/passes.h"
#include "infer/session.h"
#include "registry/functions.h"
#include "registry/mindspore_host.h"

namespace opgraft::python {
namespace {

py::list tensors_of(const std::vector<ManifestTensor> &tensors) {
  py::list out;
  for (auto &t : tensors)
    out.append(py::dict(py::arg("name") = t.name, py::arg("dtype") = t.dtype, py::arg("optional") = t.optional,
                        py::arg("variadic") = t.variadic, py::arg("value") = t.value, py::arg("state") = t.state));
  return out;
}

py::dict manifest_of(const Manifest &m) {
  py::dict attrs, dtypes;
  for (auto &a : m.attrs) attrs[py::str(a.name)] = a.fallback ? from_attr(*a.fallback) : py::none();
  for (auto &[name, list] : m.dtypes) {
    py::list names;
    for (auto d : list) names.append(dtype_name(d));
    dtypes[py::str(name)] = names;
  }
  return py::dict(py::arg("name") = m.name, py::arg("version") = m.version, py::arg("doc") = m.doc,
                  py::arg("inputs") = tensors_of(m.inputs), py::arg("outputs") = tensors_of(m.outputs),
                  py::arg("attrs") = attrs, py::arg("dtypes") = dtypes, py::arg("mindir") = m.mindir,
                  py::arg("replaces") = m.replaces, py::arg("backward") = m.backward,
                  py::arg("deterministic") = m.deterministic, py::arg("custom") = m.custom);
}

// Runs kernel or reference on arrays into given outputs, which may be misaligned views' buffers.
void run_into(const OpPtr &op, const py::iterable &inputs, const py::iterable &outputs, const py::dict &attrs,
              bool reference) {
  auto in = to_tensors(inputs), out = to_tensors(outputs);
  FlatAttrs flat(complete_attrs(op->manifest, to_attrs(op->name(), attrs)));
  std::vector<opgraft_tensor> iv, ov;
  for (auto &t : in) iv.push_back(t.view());
  for (auto &t : out) ov.push_back(t.view());
  auto check = [&](int status) {
    if (status) raise_status(status, op->native->last_error());
  };
  std::vector<std::array<int64_t, OPGRAFT_MAX_RANK>> dims(64);
  std::vector<opgraft_shape> shapes(64);
  for (size_t i = 0; i < 64; ++i) shapes[i] = {dims[i].data(), nullptr, 0, 0, -1};
  opgraft_infer_args infer{sizeof infer, int32_t(iv.size()), flat.size(), 64,     iv.data(),
                           flat.data(),  shapes.data(),      nullptr,     nullptr};
  check(op->native->infer(&infer));
  if (size_t(infer.n_outputs) != out.size())
    throw py::value_error(op->name() + ": has " + std::to_string(infer.n_outputs) + " outputs, got " +
                          std::to_string(out.size()));
  for (size_t i = 0; i < out.size(); ++i)
    if (Shape(shapes[i].dims, shapes[i].dims + shapes[i].ndim) != out[i].dims() || shapes[i].dtype != out[i].dtype())
      throw py::value_error(op->name() + ": output " + std::to_string(i) + " must be " + dtype_name(shapes[i].dtype) +
                            to_string({shapes[i].dims, size_t(shapes[i].ndim)}) + ", got " + out[i].type().text());
  if (reference && !op->native->reference) throw py::value_error(op->name() + ": has no reference");
  NativeCall made(*op, iv, ov, flat);
  int status;
  {
    py::gil_scoped_release gil;
    status = (reference ? op->native->reference : op->native->kernel)(&made.call);
  }
  made.check(status);
}

}  // namespace

void bind_registry(py::module_ &m) {
  py::class_<Op, std::shared_ptr<Op>>(m, "Op", "A loaded operator")
      .def_property_readonly("name", [](const Op &o) { return o.name(); })
      .def_property_readonly("version", [](const Op &o) { return o.manifest.version; })
      .def_property_readonly("spec", &Op::spec)
      .def_readonly("path", &Op::path)
      .def_readonly("function", &Op::function)
      .def_readonly("score", &Op::score)
      .def_property_readonly("failures", [](const Op &o) { return o.failures.load(); })
      .def_property_readonly("manifest", [](const Op &o) { return manifest_of(o.manifest); })
      .def("__repr__", [](const Op &o) { return "<opgraft.Op " + o.spec() + " from " + o.path + ">"; });
  auto share = [](const OpPtr &op) { return std::const_pointer_cast<Op>(op); };
  m.def(
      "resolve", [share](const std::string &spec) { return share(Registry::global().resolve(spec)); }, py::arg("spec"));
  m.def(
      "find", [share](const std::string &spec) { return share(Registry::global().find(spec)); }, py::arg("spec"));
  m.def("list_ops", [share] {
    py::list out;
    for (auto &op : Registry::global().list()) out.append(share(op));
    return out;
  });
  m.def(
      "load",
      [share](const std::string &file) {
        py::list out;
        std::vector<OpPtr> ops;
        {
          py::gil_scoped_release gil;
          ops = Registry::global().load(file);
        }
        for (auto &op : ops) out.append(share(op));
        return out;
      },
      py::arg("file"));
  m.def(
      "examine_kind",
      [](const std::string &file) {
        auto kind = examine_kind(file);
        return std::make_pair(kind.native, kind.names);
      },
      py::arg("file"), "Whether a file holds opgraft operators, and the names of what it offers a Custom");
  m.def(
      "load_function",
      [share](const std::string &file, const std::string &function, const py::dict &attrs) {
        std::vector<ManifestAttr> declared;
        for (auto &[name, value] : to_attrs(function, attrs))
          declared.push_back({name, attr_kind(value), std::nullopt});
        py::gil_scoped_release gil;
        return share(load_function(Registry::global(), file, function, declared));
      },
      py::arg("file"), py::arg("function"), py::arg("attrs"),
      "The op for a function made for MindSpore; its nodes carry attributes of these names and kinds");
  m.def(
      "load_directory",
      [](const std::string &dir) {
        std::vector<std::string> refused;
        for (auto &e : Registry::global().load_directory(dir)) refused.push_back(e.what());
        return refused;
      },
      py::arg("directory"));
  m.def(
      "set_whitelist",
      [](const std::vector<std::string> &dirs) {
        Registry::global().set_whitelist({dirs.begin(), dirs.end()});
      },
      py::arg("directories"));
  m.def(
      "pin", [](const std::string &file, const std::string &sha256) { Registry::global().pin(file, sha256); },
      py::arg("file"), py::arg("sha256"),
      "From now on the file is loaded only if its SHA-256 is this (64 hexadecimal digits)");
  m.def(
      "examine",
      [](const std::string &file) {
        std::vector<std::tuple<std::string, bool, std::string>> out;
        auto &registry = Registry::global();
        auto checks = examine(file, registry.whitelist(), registry.pinned(file));
        if (checks.back().ok) checks.push_back(passes::examine_replaces(file, registry));
        for (auto &c : checks) out.emplace_back(c.step, c.ok, c.detail);
        return out;
      },
      py::arg("file"), "(step, ok, detail) of every loading check, up to the first refusal, and then of `replaces:`");
  m.def(
      "examine_for_mindspore",
      [](const std::string &file, bool probe) {
        auto report = examine_for_mindspore(file, probe);
        std::vector<std::tuple<std::string, bool, std::string>> out;
        for (auto &c : report.checks) out.emplace_back(c.step, c.ok, c.detail);
        return std::pair(std::string(report.word()), out);
      },
      py::arg("file"), py::arg("probe") = false,
      "What MindSpore would make of the file ('loads', 'may crash', 'crashes', 'refuses'), and (step, ok, detail) of "
      "why; probe: its functions are called, in processes of their own");
  m.def("set_threads", &opgraft_set_threads, py::arg("n"));
  m.def(
      "set_host_threads", &opgraft_set_host_threads, py::arg("n"),
      "How many threads another framework in the process gives its own operators, 0 for none; how many opgraft's take");
  m.def(
      "run_op",
      [](const std::shared_ptr<Op> &op, const py::iterable &inputs, const py::dict &attrs) {
        auto in = to_tensors(inputs);
        auto a = to_attrs(op->name(), attrs);
        std::vector<Tensor> out;
        {
          py::gil_scoped_release gil;
          out = run_op(op, in, a);
        }
        return to_numpy(out);
      },
      py::arg("op"), py::arg("inputs"), py::arg("attrs"));
  m.def(
      "infer_op",
      [](const std::shared_ptr<Op> &op, const py::iterable &inputs, const py::dict &attrs) {
        auto in = to_tensors(inputs);
        std::vector<opgraft_tensor> views;
        for (auto &t : in) views.push_back(t.view());
        py::list out;
        for (auto &t :
             infer_native(*op, views, FlatAttrs(complete_attrs(op->manifest, to_attrs(op->name(), attrs))), nullptr)
                 .types)
          out.append(py::make_tuple(py::cast(t.dims), py::module_::import("opgraft.dtype").attr("from_id")(t.dtype)));
        return out;
      },
      py::arg("op"), py::arg("inputs"), py::arg("attrs"), "[(shape, dtype)] of the outputs, without running it");
  m.def(
      "run_into",
      [](const std::shared_ptr<Op> &op, const py::iterable &inputs, const py::iterable &outputs,
         const py::dict &attrs) { run_into(op, inputs, outputs, attrs, false); },
      py::arg("op"), py::arg("inputs"), py::arg("outputs"), py::arg("attrs"));
  m.def(
      "run_reference_into",
      [](const std::shared_ptr<Op> &op, const py::iterable &inputs, const py::iterable &outputs,
         const py::dict &attrs) { run_into(op, inputs, outputs, attrs, true); },
      py::arg("op"), py::arg("inputs"), py::arg("outputs"), py::arg("attrs"));
}

}  // namespace opgraft::python
