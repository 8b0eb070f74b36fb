// Models (shared) and sessions (one per thread).
#include "infer/session.h"

#include "bindings.h"

namespace opgraft::python {

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
