// Graph passes and their reports.
#include "infer/passes/passes.h"

#include "bindings.h"
#include "infer/passes/proof.h"

namespace opgraft::python {
namespace {

// A Python function that traces into a graph; its error becomes one that passes can catch without the GIL.
passes::Rule::Trace tracing(const py::object &function) {
  if (function.is_none()) return nullptr;
  auto keep = std::shared_ptr<py::object>(new py::object(function), [](py::object *f) {
    py::gil_scoped_acquire gil;
    delete f;
  });
  return [keep](const std::shared_ptr<Graph> &graph) {
    py::gil_scoped_acquire gil;
    try {
      (*keep)(graph);
    } catch (py::error_already_set &e) {
      throw Error(OPGRAFT_INVALID_VALUE, py::str(e.value()));
    }
  };
}

}  // namespace

void bind_passes(py::module_ &m) {
  using passes::Rule;
  py::class_<Rule>(m, "Rule", "A pattern and what to put in its place")
      .def(py::init([](std::string name, std::shared_ptr<Graph> pattern, const py::object &trace_pattern,
                       const py::object &trace_replacement) {
             return Rule{std::move(name),           "", "", std::move(pattern), nullptr, tracing(trace_pattern),
                         tracing(trace_replacement)};
           }),
           py::arg("name"), py::arg("pattern"), py::arg("trace_pattern"), py::arg("trace_replacement"))
      .def_readonly("name", &Rule::name)
      .def_readonly("op", &Rule::op)
      .def_readonly("program", &Rule::program);
  m.def(
      "rules", [] { return passes::rules_of(Registry::global()); }, "Rules of all registered ops' `replaces:`");
  m.def(
      "fold_constants", [](Graph &g) { return passes::fold_constants(g, Registry::global()); },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "remove_dead_code", [](Graph &g) { return passes::remove_dead_code(g, Registry::global()); },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "merge_common", [](Graph &g) { return passes::merge_common(g, Registry::global()); },
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "substitute",
      [](Graph &g, const std::vector<Rule> &rules, py::object inputs, bool only_faster, py::object progress) {
        passes::ProofOptions proof;
        bool prove = !inputs.is_none();
        if (prove)
          for (auto set : inputs) proof.inputs.push_back(to_tensors(py::reinterpret_borrow<py::iterable>(set)));
        proof.only_faster = only_faster;
        if (!progress.is_none())
          proof.progress = [&](size_t done, size_t total) {
            py::gil_scoped_acquire gil;
            progress(done, total);
          };
        passes::Report r;
        {
          py::gil_scoped_release gil;
          r = passes::substitute(g, Registry::global(), rules, prove ? &proof : nullptr);
        }
        py::list swapped, left;
        auto number = [](double v) -> py::object { return v < 0 ? py::object(py::none()) : py::object(py::float_(v)); };
        for (auto &s : r.swapped)
          swapped.append(py::dict(py::arg("op") = s.op, py::arg("node") = s.node,
                                  py::arg("max_abs") = number(s.max_abs), py::arg("mean_abs") = number(s.mean_abs),
                                  py::arg("ms_before") = number(s.ms_before),
                                  py::arg("ms_after") = number(s.ms_after)));
        for (auto &l : r.left)
          left.append(py::dict(py::arg("op") = l.op, py::arg("node") = l.node, py::arg("why") = l.why));
        return py::dict(py::arg("matched") = r.matched, py::arg("merged") = r.merged, py::arg("swapped") = swapped,
                        py::arg("left") = left, py::arg("note") = r.note);
      },
      py::arg("graph"), py::arg("rules"), py::arg("prove") = py::none(), py::arg("only_faster") = false,
      py::arg("progress") = py::none());
  m.def(
      "compare",
      [](py::handle got, py::handle want) {
        auto d = passes::compare(to_tensor(got), to_tensor(want));
        return py::make_tuple(d.agrees, d.max_abs, d.mean_abs, d.why);
      },
      py::arg("got"), py::arg("want"), "(agrees, max_abs, mean_abs, why), by the tolerance of a proof");
}

}  // namespace opgraft::python
