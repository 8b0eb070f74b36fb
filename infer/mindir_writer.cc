#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <protozero/pbf_writer.hpp>
#include <set>

#include "infer/mindir.h"
#include "infer/mindir_dims.h"
#include "infer/mindir_encode.h"
#include "infer/mindir_enums.h"
#include "infer/mindir_file.h"
#include "infer/mindir_nodes.h"

namespace opgraft {
namespace {

namespace fs = std::filesystem;
using namespace mindir;
using protozero::pbf_writer;

// Written as Custom.
bool is_custom(const Graph &graph, const Node &n) {
  const Manifest &m = n.impl->manifest;
  const bool ours = std::ranges::any_of(n.attrs, [&](auto &a) {
    const ManifestAttr *attr = m.attr(a.first);
    return attr && attr->ours && !(a.second == attr->fallback);
  });
  return ours || !n.spec.empty() || n.fallback || m.custom ||
         std::any_of(n.inputs.begin(), n.inputs.end(), [&](ValueId v) {
           return m.primitive_rank && int64_t(graph.value(v).type.dims.size()) > *m.primitive_rank;
         });
}

class Writer {
 public:
  Writer(const Graph &graph, External *external, bool path_from_env)
      : graph_(graph), external_(external), path_from_env_(path_from_env) {}

  std::string model() {
    std::string out, graph = body();
    pbf_writer m(out);
    m.add_string(1, "1.1");
    m.add_string(2, "opgraft");
    m.add_string(5, "2.10.0");  // MindSpore refuses a file without a version: that of the format followed here
    m.add_message(7, graph);
    m.add_bool(10, true);
    m.add_int64(13, 3);
    for (auto &p : file_.primitives) m.add_message(12, p);
    for (auto &[key, value] : graph_.user_info) {
      std::string pair;
      pbf_writer e(pair);
      e.add_string(1, key);
      e.add_string(2, value);
      m.add_message(14, pair);
    }
    return out;
  }

 private:
  // A reader drops all up to the first colon, as MindSpore does.
  std::string parameter_name(const std::string &name) {
    return file_.unique(name.find(':') == std::string::npos ? name : "main:" + name);
  }

  std::string body() {
    std::string out;
    pbf_writer g(out);
    g.add_string(2, graph_.name);
    for (ValueId id : graph_.inputs) {
      wire_[id] = parameter_name(graph_.value(id).name);
      g.add_message(5, encode_value_info(wire_[id], graph_.value(id).type, "", dims_.write(graph_.value(id).type)));
    }
    used_.insert(graph_.outputs.begin(), graph_.outputs.end());
    for (NodeId n : graph_.order()) used_.insert(graph_.node(n).inputs.begin(), graph_.node(n).inputs.end());
    for (ValueId id : used_) {
      const Value &v = graph_.value(id);
      if (v.kind != Value::kConstant || !v.parameter) continue;
      wire_[id] = parameter_name(v.name);
      g.add_message(3, encode_tensor(v.constant, wire_[id], external_, order_.is_state(id) ? v.name : ""));
    }
    for (NodeId n : graph_.order())
      if (!graph_.node(n).dead) node(graph_.node(n));
    std::vector<std::string> outputs;
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      ValueId id = graph_.outputs[i];
      const TensorType &type = graph_.value(id).type;
      std::string wire = operand(id, false, true);
      if (order_.any() && (i == 0 || order_.is_state(id))) wire = order_.last(wire, type);
      outputs.push_back(
          encode_value_info(wire, type, i < graph_.output_names.size() ? graph_.output_names[i] : "", ""));
    }
    for (auto &n : file_.nodes) g.add_message(1, n);
    for (auto &o : outputs) g.add_message(6, o);
    return out;
  }

  std::string none(const std::string &name) { return file_.constant(name, encode_none("value")); }

  // The wire name of a value, `itself` where it is updated. A shape (`value: true` in op.yaml) is a scalar or a tuple
  // in MindIR, so that a constant that is used as a shape and as a tensor is written as both.
  std::string operand(ValueId id, bool shape, bool itself = false) {
    if (auto it = wire_.find(id); it != wire_.end()) return itself ? it->second : order_.read(id, it->second);
    const Value &v = graph_.value(id);
    if (v.kind != Value::kConstant) throw MindirError(fmt::format("value '{}' is used before it is computed", v.name));
    shape = shape && v.known && v.constant.dtype() == OPGRAFT_INT64 && v.constant.dims().size() <= 1;
    auto [it, added] = constants_.try_emplace({id, shape});
    if (!added) return it->second;
    std::string attribute = !shape                      ? encode_attribute("value", v.constant)
                            : v.constant.dims().empty() ? encode_attribute("value", *v.constant.data<int64_t>())
                                                        : encode_attribute("value", *v.known);
    return it->second = file_.constant(v.name, attribute);
  }

  // Whether MindSpore's primitive gives a tuple: of what may be several outputs, here perhaps one.
  static bool gives_tuple(const Node &n, bool custom) {
    return n.outputs.size() != 1 || (!custom && n.impl->manifest.outputs.back().variadic);
  }

  // The abstract of a node's outputs; none for shapes, which are tuples in MindSpore.
  std::string shapes(const Node &n, bool tuple) {
    std::vector<TensorType> types;
    for (ValueId id : n.outputs) {
      if (graph_.value(id).known) return "";
      types.push_back(graph_.value(id).type);
    }
    return tuple ? encode_tuple(types) : encode_abstract(types);
  }

  void node(const Node &n) {
    const std::vector<size_t> updated = updates(n);
    const bool custom = is_custom(graph_, n), tuple = gives_tuple(n, custom);
    std::string wire = file_.unique(n.name), shape = shapes(n, tuple);
    std::vector<std::string> attributes, operands;
    std::string op = n.op;
    const Manifest &m = n.impl->manifest;
    std::set<std::string> placed;
    if (custom) {
      op = "Custom";
      const bool function = !n.impl->function.empty();  // its name here means nothing elsewhere
      auto path = path_from_env_ ? library_variable(n.impl->path) : fs::absolute(n.impl->path).string();
      attributes.push_back(encode_attribute("func_name", path + ":" + (function ? n.impl->function : n.impl->name())));
      if (path_from_env_) attributes.push_back(encode_attribute("path_from_env", true));
      placed.insert("path_from_env");
      attributes.push_back(encode_attribute("func_type", std::string("aot")));
      placed.insert("opgraft_function");
      if (!function) attributes.push_back(encode_attribute("opgraft_op", n.impl->spec()));
      if (!function && !n.spec.empty()) attributes.push_back(encode_attribute("opgraft_spec", n.spec));
      if (n.fallback)
        attributes.push_back(
            encode_attribute("opgraft_fallback", Writer(*n.fallback, external_, path_from_env_).model()));
      if (!function) inference(n, attributes);
      for (size_t i = 0; i < n.inputs.size(); ++i)
        operands.push_back(operand(n.inputs[i], false, std::binary_search(updated.begin(), updated.end(), i)));
    } else if (n.op == "MakeTuple") {
      attributes.push_back(encode_attribute("opgraft_value", true));
      for (ValueId v : n.inputs) operands.push_back(operand(v, true));
    } else if (n.op == "TupleGetItem") {
      operands = {operand(n.inputs.at(0), true),
                  file_.constant(n.name + ".index", encode_attribute("value", n.attrs.at("index")))};
      placed.insert("index");
    } else {
      place(n, m, operands, placed);
    }
    for (auto &[key, value] : n.attrs)
      if (!placed.count(key)) attributes.push_back(encode_attribute(key, value));
    if (!updated.empty()) {
      if (!n.attrs.count(kUpdates)) attributes.push_back(encode_attribute(kUpdates, true));
      operands.push_back(order_.monad());
      // MindSpore's primitives give the variable itself.
      const Value &first = graph_.value(n.inputs[updated[0]]);
      if (!custom && first.parameter) shape = encode_abstract({graph_.value(n.outputs.at(0)).type}, first.name);
    }
    file_.add(wire, n.name, file_.primitive(op, attributes), operands, shape);
    order_.added(n, updated, wire);
    if (!tuple) {
      if (!updated.empty() && !custom && used_.count(n.outputs[0]))
        wire = order_.copy(wire, graph_.value(n.outputs[0]).type);
      wire_[n.outputs[0]] = wire;
      return;
    }
    for (size_t i = 0; i < n.outputs.size(); ++i) {
      std::string index = file_.constant(fmt::format("{}.{}", n.name, i), encode_attribute("value", int64_t(i)));
      std::string item = file_.unique(fmt::format("{}.item{}", n.name, i));
      file_.add(item, item, file_.primitive("TupleGetItem", {}), {wire, index}, "");
      wire_[n.outputs[i]] = item;
    }
  }

  // What MindSpore needs to ask the file for shapes and types: of a Custom with Python's inference it knows nothing
  // after loading.
  void inference(const Node &n, std::vector<std::string> &attributes) {
    const Manifest &m = n.impl->manifest;
    std::vector<std::string> inputs, outputs, attrs;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      auto &t = *m.input(i);
      inputs.push_back(t.variadic ? fmt::format("{}{}", t.name, i) : t.name);
    }
    for (size_t i = 0; i < n.outputs.size(); ++i) {
      auto &t = m.outputs[std::min(i, m.outputs.size() - 1)];
      outputs.push_back(t.variadic ? fmt::format("{}{}", t.name, i) : t.name);
    }
    for (auto &[key, value] : n.attrs) attrs.push_back(key);
    if (std::any_of(m.inputs.begin(), m.inputs.end(), [](auto &t) { return t.optional || t.variadic; })) {
      attributes.push_back(encode_attribute("n_inputs", int64_t(n.inputs.size())));
      attrs.push_back("n_inputs");
    }
    attributes.push_back(encode_attribute("cpp_infer_shape", true));
    attributes.push_back(encode_attribute("cpp_infer_type", true));
    attributes.push_back(encode_attribute("multi_output", n.outputs.size() > 1));
    attributes.push_back(encode_attribute("primitive_target", std::string("CPU")));
    attributes.push_back(encode_attribute("input_names", inputs));
    attributes.push_back(
        encode_attribute("reg_op_name", fmt::format("{}_{}_{}", m.name, n.inputs.size(), n.outputs.size())));
    attributes.push_back(encode_attribute("output_names", outputs));
    attributes.push_back(encode_attribute("attr_names", attrs));
  }

  // An attribute as MindSpore's primitive takes it: dtypes and layouts are numbers there.
  static AttrValue as_operand(const ManifestAttr &attr, const AttrValue &value) {
    if (auto *axis = std::get_if<int64_t>(&value); axis && attr.tuple) return std::vector<int64_t>{*axis};
    auto *text = std::get_if<std::string>(&value);
    if (text && attr.name == "dtype" && dtype_from_name(*text)) return int64_t(dtype_from_name(*text));
    if (auto number = text ? number_of(attr.name, *text) : std::nullopt) return *number;
    return value;
  }

  void place(const Node &n, const Manifest &m, std::vector<std::string> &operands, std::set<std::string> &placed) {
    auto order = m.mindir;
    if (order.empty())
      for (auto &t : m.inputs) order.push_back(t.name);
    size_t taken = 0;
    for (auto &name : order) {
      int index = m.input_index(name);
      if (index < 0) {
        auto it = n.attrs.find(name);
        placed.insert(name);
        if (it == n.attrs.end()) {
          operands.push_back("");
          continue;
        }
        const AttrValue value = as_operand(*m.attr(name), it->second);
        auto *text = std::get_if<std::string>(&value);
        operands.push_back(
            text && text->empty() ? "" : file_.constant(n.name + "." + name, encode_attribute("value", value)));
      } else if (size_t(index) >= n.inputs.size()) {
        operands.push_back("");
      } else if (m.inputs[size_t(index)].state) {
        operands.push_back(operand(n.inputs[size_t(index)], false, true));
        ++taken;
      } else if (bool shape = m.inputs[size_t(index)].value; m.variadic() && size_t(index) + 1 == m.inputs.size()) {
        std::vector<std::string> each;
        for (size_t k = size_t(index); k < n.inputs.size(); ++k, ++taken) each.push_back(operand(n.inputs[k], shape));
        std::string tuple = file_.unique(n.name + "." + name);
        file_.add(tuple, tuple, file_.primitive("MakeTuple", {}), each, "");
        operands.push_back(tuple);
      } else {
        operands.push_back(operand(n.inputs[size_t(index)], shape));
        ++taken;
      }
    }
    if (taken != n.inputs.size())
      throw MindirError(
          fmt::format("node {}: {} of {} inputs have a place in op.yaml's mindir", n.name, taken, n.inputs.size()));
    for (auto &o : operands)
      if (o.empty()) o = none(n.name + ".none");
  }

  const Graph &graph_;
  External *external_;
  bool path_from_env_;
  std::set<ValueId> used_;
  Nodes file_;
  Order order_{graph_, file_};
  std::map<ValueId, std::string> wire_;
  std::map<std::pair<ValueId, bool>, std::string> constants_;
  DimensionWriter dims_{graph_.symbols};
};

// Whether variables can stand for the paths of a graph's .so files.
void check_variables(const Graph &graph, const fs::path &file) {
  std::map<std::string, std::string> paths;
  for (NodeId id : graph.order()) {
    const Node &n = graph.node(id);
    if (n.dead || !is_custom(graph, n)) continue;
    const auto &path = paths.try_emplace(library_variable(n.impl->path), n.impl->path).first->second;
    if (path != n.impl->path)
      throw MindirError(fmt::format("{}: {} would stand for {} and for {}: write absolute paths", file.string(),
                                    library_variable(path), path, n.impl->path));
  }
  for (ValueId id : graph.inputs) {
    const Value &v = graph.value(id);
    if (!v.type.ranked || std::any_of(v.type.dims.begin(), v.type.dims.end(), [](int64_t d) { return d < 0; }))
      throw MindirError(
          fmt::format("{}: custom paths by environment need known dimensions, because MindSpore asks the .so for open "
                      "ones and finds it by its path only; input '{}' has open ones: write absolute paths",
                      file.string(), v.name));
  }
}

}  // namespace

std::string library_variable(const fs::path &library) {
  std::string name = "OPGRAFT_" + library.filename().string();
  for (char &c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'), digit = c >= '0' && c <= '9';
    c = c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : letter || digit ? c : '_';
  }
  return name;
}

void write_mindir(const Graph &graph, const std::filesystem::path &file, const MindirOptions &options) {
  size_t total = 0;
  for (size_t i = 0; i < graph.value_count(); ++i)
    if (graph.value(ValueId(i)).parameter) total += graph.value(ValueId(i)).constant.bytes();
  External external;
  fs::path folder = file.parent_path() / (file.stem().string() + "_variables");
  external.location = folder.filename().string() + "/data_0";
  bool outside = total > 0 && (total >= options.external_from || total > kMostInline);
  if (options.path_from_env) check_variables(graph, file);
  std::string model = Writer(graph, outside ? &external : nullptr, options.path_from_env).model();
  if (model.size() > 2 * kMostInline - 1)
    throw MindirError(fmt::format("{}: model exceeds 2 GiB of inline data", file.string()));
  Replacement main(file);
  main.write(model.data(), model.size());
  main.finish();
  if (!external.tensors.empty()) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) throw MindirError(fmt::format("{}: cannot create: {}", folder.string(), error.message()));
    Replacement data(folder / "data_0");
    char zeros[kDataAlign] = {1};
    data.write(zeros, kDataHeader);
    zeros[0] = 0;
    for (auto &[offset, t] : external.tensors) {
      if (all_zeros(t)) data.skip(t.bytes());
      else data.write(t.data(), t.bytes());
      data.write(zeros, (kDataAlign - t.bytes() % kDataAlign) % kDataAlign);
    }
    data.finish();
    data.commit();
  }
  main.commit();
}

}  // namespace opgraft
