// Graph passes and their reports.
#include "infer/passes/passes.h"

#include "bindings.h"

namespace opgraft::python {

void bind_passes(py::module_ &m) {
  using passes::Rule;
  py::class_<Rule>(m, "Rule", "A pattern and what to put in its place")
      .def(
          py::init([](std::string name, std::string op, std::string program, std::shared_ptr<Graph> pattern,
                      std::shared_ptr<Graph> replacement) {
            return Rule{std::move(name), std::move(op), std::move(program), std::move(pattern), std::move(replacement)};
          }),
          py::arg("name"), py::arg("op") = "", py::arg("program") = "", py::arg("pattern") = nullptr,
          py::arg("replacement") = nullptr)
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
      [](Graph &g, const std::vector<Rule> &rules, py::object inputs, bool only_faster) {
        passes::ProofOptions proof;
        bool prove = !inputs.is_none();
        if (prove)
          for (auto set : inputs) proof.inputs.push_back(to_tensors(py::reinterpret_borrow<py::iterable>(set)));
        proof.only_faster = only_faster;
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
        return py::dict(py::arg("matched") = r.matched, py::arg("swapped") = swapped, py::arg("left") = left);
      },
      py::arg("graph"), py::arg("rules"), py::arg("prove") = py::none(), py::arg("only_faster") = false);
}

}  // namespace opgraft::python
