// Graphs: built by the tracer node by node, and read back for reports.
#include "infer/graph.h"

#include "bindings.h"
#include "infer/passes/subgraph.h"

namespace opgraft::python {
namespace {

// Whether `other` takes inputs of these shapes: the check of a plan, in symbols. An open dimension that several inputs
// share must be one and the same here; sizes that cannot be told apart yet are refused.
void check_shapes(const Graph &g, const Graph &other, const std::vector<ValueId> &inputs) {
  auto text = [](const Shape &dims, const Symbols &symbols) {
    std::string s;
    for (int64_t d : dims) s += (s.empty() ? "" : ", ") + symbols.text(d);
    return "(" + s + (dims.size() == 1 ? ",)" : ")");
  };
  std::map<int64_t, int64_t> bound;
  std::vector<int64_t> numbers(other.symbols.free_count(), -1);
  auto bad = [&](size_t i) {
    const Value &want = other.value(other.inputs[i]);
    throw py::value_error("model: input " + want.name + ".shape must be " + text(want.type.dims, other.symbols) +
                          ", got " + text(g.value(inputs[i]).type.dims, g.symbols));
  };
  auto each = [&](auto &&check) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const TensorType &want = other.value(other.inputs[i]).type, &got = g.value(inputs[i]).type;
      if (!want.ranked || !got.ranked) continue;
      if (want.dims.size() != got.dims.size()) bad(i);
      for (size_t k = 0; k < want.dims.size(); ++k)
        if (!check(want.dims[k], got.dims[k])) bad(i);
    }
  };
  each([&](int64_t want, int64_t got) {
    if (want == -1) return true;
    if (want >= 0) return want == got;
    auto [slot, first] = bound.emplace(want, got);
    if (!first) return slot->second == got && got != -1;
    if (int f = other.symbols.free_index(want); f >= 0 && got >= 0) numbers[size_t(f)] = got;
    return true;
  });
  each([&](int64_t want, int64_t got) {  // formulas of symbols, where all of those are numbers here
    int64_t size = want == -1 ? -1 : other.symbols.evaluate(want, numbers);
    return size < 0 || size == got;
  });
}

std::vector<ValueId> splice(Graph &g, const Graph &other, const std::vector<ValueId> &inputs,
                            const std::string &prefix) {
  if (inputs.size() != other.inputs.size())
    throw py::value_error(other.name + ": takes " + std::to_string(other.inputs.size()) + " inputs, got " +
                          std::to_string(inputs.size()));
  std::map<ValueId, ValueId> to;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value &want = other.value(other.inputs[i]), &got = g.value(inputs[i]);
    if (want.type.dtype != got.type.dtype)
      throw py::type_error(other.name + ": " + want.name + ".dtype must be " + dtype_name(want.type.dtype) + ", got " +
                           dtype_name(got.type.dtype));
    to[other.inputs[i]] = inputs[i];
  }
  check_shapes(g, other, inputs);
  auto value = [&](ValueId v) {
    const Value &x = other.value(v);
    if (!to.count(v)) to[v] = g.add_constant(x.constant, x.name, x.parameter, x.state);
    return to[v];
  };
  for (NodeId id : other.order()) {
    const Node &n = other.node(id);
    std::vector<ValueId> in;
    for (ValueId v : n.inputs) in.push_back(value(v));
    std::vector<ValueId> made;
    try {
      NodeId copy = g.add_node(Registry::global(), n.spec.empty() ? n.op : n.spec, in, n.attrs, prefix + n.name);
      g.node(copy).fallback = n.fallback;
      made = g.node(copy).outputs;
    } catch (const GraphError &) {  // it refuses the sizes that stand here for open ones
      if (!n.fallback) throw;
      made = passes::expand(*n.fallback, in, g, Registry::global());
    }
    for (size_t i = 0; i < n.outputs.size() && i < made.size(); ++i) to[n.outputs[i]] = made[i];
  }
  std::vector<ValueId> out;
  for (ValueId v : other.outputs) out.push_back(value(v));
  return out;
}

}  // namespace

void bind_graph(py::module_ &m) {
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph", "A graph of primitives")
      .def(py::init<std::string>(), py::arg("name") = "main")
      .def(
          "add_input",
          [](Graph &g, const std::string &name, int32_t dtype, const Shape &dims, bool ranked) {
            return g.add_input(name, {dtype, dims, ranked});
          },
          py::arg("name"), py::arg("dtype"), py::arg("dims"), py::arg("ranked") = true)
      .def(
          "add_constant",
          [](Graph &g, py::handle array, const std::string &name, bool parameter, bool state) {
            return g.add_constant(to_tensor(array), name, parameter, state);
          },
          py::arg("array"), py::arg("name") = "", py::arg("parameter") = false, py::arg("state") = false)
      .def(
          "add_node",
          [](Graph &g, const std::string &op, std::vector<ValueId> inputs, const py::dict &attrs,
             const std::string &name, const std::string &spec) {
            NodeId id =
                g.add_node(Registry::global(), spec.empty() ? op : spec, std::move(inputs), to_attrs(op, attrs), name);
            return std::make_pair(id, g.node(id).outputs);
          },
          py::arg("op"), py::arg("inputs"), py::arg("attrs"), py::arg("name") = "", py::arg("spec") = "")
      .def(
          "set_outputs",
          [](Graph &g, std::vector<ValueId> outputs, std::vector<std::string> names) {
            g.outputs = std::move(outputs);
            if (names.empty())
              for (size_t i = 0; i < g.outputs.size(); ++i) names.push_back("output" + std::to_string(i));
            g.output_names = std::move(names);
          },
          py::arg("outputs"), py::arg("names") = std::vector<std::string>())
      .def(
          "symbol", [](Graph &g, const std::string &name) { return g.symbols.fresh(name); }, py::arg("name"))
      .def(
          "rename_symbol", [](Graph &g, int64_t dim, const std::string &name) { g.symbols.rename(dim, name); },
          py::arg("dim"), py::arg("name"))
      .def("dim_op", [](Graph &g, const std::string &op, int64_t a, int64_t b) { return g.symbols.op(op.at(0), a, b); })
      .def("dim_text", [](const Graph &g, int64_t d) { return g.symbols.text(d); })
      .def("dtype", [](const Graph &g, ValueId v) { return g.value(v).type.dtype; })
      .def("dims", [](const Graph &g, ValueId v) { return g.value(v).type.dims; })
      .def("ranked", [](const Graph &g, ValueId v) { return g.value(v).type.ranked; })
      .def("value_name", [](const Graph &g, ValueId v) { return g.value(v).name; })
      .def("known", [](const Graph &g, ValueId v) { return g.value(v).known; })
      .def_readonly("inputs", &Graph::inputs)
      .def_readonly("outputs", &Graph::outputs)
      .def_readonly("output_names", &Graph::output_names)
      .def_readwrite("name", &Graph::name)
      .def_property_readonly("symbols", [](const Graph &g) { return g.symbols.free_count(); })
      .def_property_readonly(
          "nodes",
          [](const Graph &g) {
            py::list out;
            for (NodeId id : g.order()) {
              auto &n = g.node(id);
              if (n.dead) continue;
              py::dict attrs;
              for (auto &[k, v] : n.attrs) attrs[py::str(k)] = from_attr(v);
              out.append(py::dict(py::arg("op") = n.op, py::arg("name") = n.name, py::arg("inputs") = n.inputs,
                                  py::arg("outputs") = n.outputs, py::arg("attrs") = attrs,
                                  py::arg("grafted") = n.fallback != nullptr, py::arg("library") = n.impl->path));
            }
            return out;
          })
      .def("constant",
           [](const Graph &g, ValueId v) -> py::object {
             if (g.value(v).kind != opgraft::Value::kConstant) return py::none();
             return to_numpy(g.value(v).constant, false);
           })
      .def(
          "like",
          [](const Graph &g, const std::string &name, const std::vector<ValueId> &values,
             const std::vector<std::string> &names) {
            auto out = std::make_shared<Graph>(name);
            out->symbols = g.symbols;
            for (size_t i = 0; i < values.size(); ++i) out->add_input(names.at(i), g.value(values[i]).type);
            return out;
          },
          py::arg("name"), py::arg("values"), py::arg("names"), "A graph with no nodes, and inputs like these values")
      .def("splice", &splice, py::arg("other"), py::arg("inputs"), py::arg("prefix") = "",
           "Copies another graph's nodes, run on `inputs`; returns the values of its outputs")
      .def_readwrite("user_info", &Graph::user_info)
      .def("dump", &Graph::dump)
      .def("clone", &Graph::clone)
      .def("__str__", &Graph::dump);
}

}  // namespace opgraft::python
