// Models (shared) and sessions (one per thread).
#include "infer/session.h"

#include <string>
#include <vector>

#include "bindings.h"

namespace opgraft::python {
namespace {

bool overlap(const Tensor &a, const Tensor &b) {
  return a.bytes() && b.bytes() && a.data<char>() < b.data<char>() + b.bytes() &&
         b.data<char>() < a.data<char>() + a.bytes();
}

// No result lies where it would change what other results are computed of.
void refuse_shared(const Graph &g, const std::vector<Tensor> &inputs, const std::vector<Tensor> &outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto refuse = [&](const std::string &what) {
      throw py::value_error("output " + std::to_string(i) + " must have memory of its own, got that of " + what);
    };
    const auto shared = [&](const Tensor &t) { return overlap(outputs[i], t); };
    for (size_t k = 0; k < inputs.size(); ++k)
      if (shared(inputs[k])) refuse("input " + std::to_string(k));
    for (size_t k = 0; k < i; ++k)
      if (shared(outputs[k])) refuse("output " + std::to_string(k));
    for (size_t v = 0; v < g.value_count(); ++v)
      if (const Value &value = g.value(ValueId(v)); value.kind == Value::kConstant && shared(value.constant))
        refuse("Parameter " + value.name);
  }
}

}  // namespace

void bind_session(py::module_ &m) {
  py::class_<Model, std::shared_ptr<Model>>(m, "Model", "A graph, its packed weights and its plans")
      .def(py::init([](const std::shared_ptr<Graph> &g) { return std::make_shared<Model>(g); }), py::arg("graph"))
      .def("limit_state", &Model::limit_state, py::arg("bytes"))
      .def_property_readonly("state_bytes", &Model::state_bytes)
      .def_property_readonly("stats", [](const Model &model) {
        auto s = model.stats();
        return py::dict(py::arg("plans_made") = s.plans_made, py::arg("plans_cached") = s.plans_cached,
                        py::arg("packed_bytes") = s.packed_bytes);
      });
  py::class_<Session>(m, "Session", "Buffers to run a model with; one per thread")
      .def(py::init([](std::shared_ptr<Model> model, bool own_states) {
             return std::make_unique<Session>(std::move(model), own_states ? States::kOwn : States::kParameters);
           }),
           py::arg("model"), py::arg("own_states") = true)
      .def(
          "run",
          [](Session &s, const py::iterable &inputs) {
            auto in = to_tensors(inputs);
            std::vector<Tensor> out;
            {
              py::gil_scoped_release gil;
              out = s.run(in);
            }
            return to_numpy(out);
          },
          py::arg("inputs"))
      .def(
          "run_into",
          [](Session &s, const py::iterable &inputs, const py::iterable &outputs) {
            auto in = to_tensors(inputs), out = to_places(outputs);
            if (out.empty()) throw py::value_error("model: it gives results, got room for none");
            refuse_shared(s.model().graph(), in, out);
            py::gil_scoped_release gil;
            s.run_into(in, out);
          },
          py::arg("inputs"), py::arg("outputs"),
          "run() into the caller's arrays, of the results' dtypes and shapes: nothing is allocated. They must be "
          "writable and contiguous, and share no memory with inputs, Parameters or one another: ValueError else.")
      .def(
          "profile",
          [](Session &s, const py::iterable &inputs, int runs) {
            auto in = to_tensors(inputs);
            py::gil_scoped_release gil;
            return profile_json(s, in, runs);
          },
          py::arg("inputs"), py::arg("runs") = 10)
      .def("reset", &Session::reset)
      .def("fork", &Session::fork)
      .def_property_readonly("state_bytes", &Session::state_bytes)
      .def_property_readonly("arena_bytes", &Session::arena_bytes)
      .def_property_readonly("intermediate_bytes", &Session::intermediate_bytes);
}

}  // namespace opgraft::python
