#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <protozero/exception.hpp>
#include <set>

#include "infer/mindir.h"
#include "infer/mindir_custom.h"
#include "infer/mindir_data.h"
#include "infer/mindir_dims.h"
#include "infer/mindir_enums.h"
#include "infer/mindir_forms.h"
#include "infer/mindir_items.h"
#include "infer/mindir_nodes.h"
#include "infer/mindir_operands.h"
#include "infer/mindir_views.h"
#include "infer/passes/subgraph.h"

namespace opgraft {
namespace {

namespace fs = std::filesystem;
using namespace mindir;

constexpr int kMostFallbacks = 4;          // of fallback graphs within fallback graphs
constexpr size_t kMostExpanded = 200'000;  // nodes of fallbacks that stand for missing operators

// One entry of the primitives table; its attributes are read once, however many nodes refer to it.
struct Primitive {
  PrimitiveProto proto;
  bool read = false;
  Literals attrs;
  std::shared_ptr<const Graph> fallback;
};

// Where a node stands among the updates of a graph: after those of its operands.
struct Moment {
  Past past{};
  bool ordered = false;  // by a monad
};

class Reader {
 public:
  // `dir` is the model's folder, empty for a model in memory.
  Reader(std::string_view bytes, const Registry &registry, std::string origin, DataReader data, fs::path dir, int depth,
         std::shared_ptr<size_t> budget = std::make_shared<size_t>(kMostExpanded))
      : bytes_(bytes),
        registry_(registry),
        origin_(std::move(origin)),
        data_(std::move(data)),
        dir_(std::move(dir)),
        depth_(depth),
        budget_(std::move(budget)) {}

  std::shared_ptr<Graph> read() {
    try {
      return model();
    } catch (const MindirError &) {
      throw;
    } catch (const protozero::exception &e) {
      fail(fmt::format("malformed protobuf ({})", e.what()));
    } catch (const std::bad_alloc &) {
      fail("not enough memory");
    } catch (const std::exception &e) {
      fail(e.what());
    }
  }

 private:
  [[noreturn]] void fail(const std::string &what) const {
    throw MindirError(fmt::format("{}: {}: {}", origin_, place_, what));
  }

  std::shared_ptr<Graph> model() {
    if (bytes_.substr(0, 4) == "\xd8\x5e\x3a\x7f")
      fail("the file is encrypted (AES-GCM); opgraft reads plain MindIR only");
    if (bytes_.empty()) fail("the file is empty");
    ModelProto m = parse_model(bytes_);
    if (!m.has_graph) fail("has no graph: not a MindIR file, or cut short");
    if (!m.little_endian) fail("written on a big-endian machine");
    for (auto &p : m.primitives) {
      place_ = fmt::format("primitives[{}]", &p - m.primitives.data());
      PrimitiveProto proto = parse_primitive(p);
      std::string name(proto.name);
      primitives_[name].proto = std::move(proto);
    }
    for (auto &f : m.functions) {
      place_ = fmt::format("functions[{}]", &f - m.functions.data());
      functions_.insert(parse_graph(f).name);
    }
    place_ = "graph";
    GraphProto g = parse_graph(m.graph);
    *graph_ = Graph(std::string(g.name.empty() ? "main" : g.name));
    for (auto &[key, value] : m.user_info) graph_->user_info.insert_or_assign(std::string(key), std::string(value));
    for (auto &v : g.inputs) dims_.declare(parse_value_info(v).denotation, graph_->symbols);
    for (size_t i = 0; i < g.inputs.size(); ++i) {
      place_ = fmt::format("graph.input[{}]", i);
      input(parse_value_info(g.inputs[i]));
    }
    for (size_t i = 0; i < g.parameters.size(); ++i) {
      place_ = fmt::format("graph.parameter[{}]", i);
      TensorProto t = parse_tensor(g.parameters[i]);
      place_ += fmt::format(" '{}'", t.name);
      items_.define(t.name, items_.value(graph_->add_constant(data_.tensor(t), plain(t.name), true)));
    }
    for (size_t i = 0; i < g.nodes.size(); ++i) {
      place_ = fmt::format("graph.node[{}]", i);
      node(parse_node(g.nodes[i]));
    }
    if (g.outputs.empty()) fail("graph has no output: cut short?");
    for (size_t i = 0; i < g.outputs.size(); ++i) {
      place_ = fmt::format("graph.output[{}]", i);
      ValueInfoProto v = parse_value_info(g.outputs[i]);
      auto flat = items_.flatten(items_.lookup(v.name));
      std::string name(v.doc.empty() ? plain(v.name) : std::string(v.doc));
      for (size_t k = 0; k < flat.size(); ++k) {
        graph_->outputs.push_back(items_.value_of(flat[k]));
        graph_->output_names.push_back(flat.size() == 1 ? name : fmt::format("{}_{}", name, k));
      }
    }
    items_.updates.place();
    drop_unread(*graph_, formed_);
    return graph_;
  }

  // "12_construct:x" -> "x", as MindSpore reads parameter names.
  static std::string plain(std::string_view name) { return std::string(name.substr(name.find(':') + 1)); }

  void input(const ValueInfoProto &v) {
    std::string name = plain(v.name);
    place_ += fmt::format(" '{}'", name);
    if (v.tensors.size() != 1) fail("a graph input must be one tensor");
    TensorProto t = parse_tensor(v.tensors[0]);
    TensorType type;
    type.dtype = dtype_of(t.data_type);
    if (type.dtype == OPGRAFT_UNKNOWN) fail(fmt::format("unsupported data type {}", t.data_type));
    type.ranked = !(t.dims.size() == 1 && t.dims[0] == -2);
    std::string_view names = v.denotation;
    int64_t elements = int64_t(dtype_size(type.dtype));
    for (size_t k = 0; type.ranked && k < t.dims.size(); ++k) {
      if (k >= OPGRAFT_MAX_RANK) fail(fmt::format("rank {} is above {}", t.dims.size(), OPGRAFT_MAX_RANK));
      auto given = names.substr(0, names.find(','));
      names.remove_prefix(std::min(names.size(), given.size() + 1));
      int64_t d = t.dims[k];
      if (d < -1) fail(fmt::format("dimension {} is {}", k, d));
      if (d > 0 && __builtin_mul_overflow(elements, d, &elements)) fail("more elements than a tensor can have");
      if (d == -1) d = dims_.read(given.empty() ? fmt::format("{}_{}", name, k) : std::string(given), graph_->symbols);
      type.dims.push_back(d);
    }
    items_.define(v.name, items_.value(graph_->add_input(name, type)));
  }

  void refuse_function(std::string_view name) const {
    if (functions_.count(name))
      fail(fmt::format("calls the file's function '{}'; opgraft reads one graph, without calls", name));
  }
  size_t lookup(std::string_view name) const {
    refuse_function(name);
    return items_.lookup(name);
  }

  void node(const NodeProto &n) {
    auto output = n.outputs.empty() ? n.name : n.outputs[0];
    std::string name(!n.domain.empty() ? n.domain : !n.name.empty() ? n.name : output);
    place_ += fmt::format(" '{}'", name);
    if (n.op_type == "Constant") return constant(n, output);
    Primitive own;  // files before the primitives table keep op and attributes in the node
    Primitive *primitive = &own;
    if (n.op_type.starts_with("REF::")) {
      auto target = n.op_type.substr(5);
      auto p = primitives_.find(target);
      if (p == primitives_.end()) refuse_function(target);
      if (p == primitives_.end()) fail(fmt::format("op_type '{}' names no primitive of the file", n.op_type));
      primitive = &p->second;
    } else {
      own.proto.op_type = n.op_type, own.proto.attributes = n.attributes;
    }
    std::string op(primitive->proto.op_type);
    place_ += fmt::format(" ({})", op);
    auto operand = [&](size_t i) {
      if (i >= n.inputs.size()) fail(fmt::format("takes at least {} operands, got {}", i + 1, n.inputs.size()));
      return lookup(n.inputs[i]);
    };
    if (op == "Load" || op == "Depend" || op == "UpdateState") return items_.define(output, order(op, n));
    // A copy of what was loaded: that keeps its value anyway.
    if (op == "TensorMove" && items_[operand(0)].loaded) return items_.define(output, operand(0));
    std::vector<size_t> operands;
    Moment moment;
    for (auto in : n.inputs) {
      const size_t i = lookup(in);
      moment.past.join(items_[i].past);
      if (!items_.is_monad(i)) operands.push_back(i);
      else moment.ordered = true;
    }
    for (auto bytes : primitive->proto.attributes) {
      if (primitive->read) break;
      AttributeProto a = parse_attribute(bytes);
      // In the node itself `shape` is its abstract; in the table of primitives an attribute like others.
      if (a.type != kTensors && (primitive != &own || a.name != "shape"))
        primitive->attrs.insert_or_assign(std::string(a.name), data_.literal(a));
    }
    primitive->read = true;
    if (op == "MakeTuple" || op == "MakeList") {
      size_t tuple = items_.tuple(operands, name);
      // An op of the graph when it was written; else only a way to hand several values on.
      if (primitive->attrs.count("opgraft_value")) tuple = items_.value(items_.make_node(tuple));
      return items_.define(output, tuple);
    }
    if (op == "TupleGetItem" || op == "ListGetItem")
      return items_.define(output, items_.element(operand(0), operand(1), name));
    items_.define(output, apply(op, name, operands, *primitive, n, moment));
  }

  // What orders reads and updates: a monad, or the first operand.
  size_t order(const std::string &op, const NodeProto &n) {
    if (const size_t least = op == "Depend" ? 1 : 2; n.inputs.size() < least)
      fail(fmt::format("takes at least {} operands, got {}", least, n.inputs.size()));
    const size_t first = lookup(n.inputs[0]);
    Past past;
    for (auto in : n.inputs) past.join(items_[lookup(in)].past);
    if (const size_t k = op == "Load"; op != "Depend" && !items_.is_monad(lookup(n.inputs[k])))
      fail(fmt::format("operand {} must be a monad", k));
    if (items_.is_monad(first)) return items_.monad(std::move(past));
    return op == "Load" ? items_.loaded(first, past) : items_.later(first, past);
  }

  void constant(const NodeProto &n, std::string_view output) {
    for (auto bytes : n.attributes) {
      AttributeProto a = parse_attribute(bytes);
      if (a.name != "value" && n.attributes.size() != 1) continue;
      if (a.type == kGraphType || a.type == kFunctor)
        fail("the constant is a function; opgraft reads one graph, without calls");
      return items_.define(output, items_.literal(data_.literal(a), output));
    }
    fail("a Constant without a value");
  }

  static std::string text(const Literals &attrs, std::string_view name) {
    auto it = attrs.find(name);
    return it == attrs.end() || it->second.kind != Literal::kString ? "" : it->second.s;
  }

  size_t apply(const std::string &op, const std::string &name, std::vector<size_t> operands, Primitive &primitive,
               const NodeProto &proto, Moment moment) {
    const bool custom = op == "Custom";
    const Form form(name, operands, primitive.attrs, items_, *graph_, registry_);
    if (is_view(op)) return results(add_view(op, form, *budget_), name, moment.past, gives_parts(op));
    if (is_form(op)) {
      const auto before = ptrdiff_t(graph_->order().size());
      const auto given = add_form(op, form);
      formed_.insert(formed_.end(), graph_->order().begin() + before, graph_->order().end());
      return results(given, name, moment.past);
    }
    const Literals trailing = custom ? take_trailing(items_, operands, primitive.attrs) : Literals();
    const Literals &attrs = trailing.empty() ? primitive.attrs : trailing;
    CustomNode found;
    if (custom) try {
        found = find_custom(registry_, attrs, outputs_of(proto), dir_);
      } catch (const std::runtime_error &e) {
        if (!fallback_of(primitive)) throw;
        fmt::print(stderr, "opgraft: {}: {}: its original subgraph runs instead: {}\n", origin_, place_, e.what());
        return expanded(*primitive.fallback, name, operands, moment.past);
      }
    else if (op.find('#') == op.npos && (found.impl = registry_.find(op))) found.op = found.impl->name();
    if (!found.impl) fail(fmt::format("no registered operator answers to '{}'", op));
    const Manifest &m = found.impl->manifest;
    const bool function = !found.impl->function.empty();
    Attrs given = std::move(found.attrs);
    if (!function)
      for (auto &[key, l] : attrs)
        if (m.attr(key)) placed_.attribute(m, key, l, given);
    // MindSpore's primitives may carry their layout under both names.
    if (auto l = attrs.find("data_format"); l != attrs.end() && !m.attr("data_format") && m.attr("format")) {
      Literal layout = l->second;
      if (auto word = layout.kind == Literal::kInt ? word_of("data_format", layout.i) : std::nullopt)
        layout.kind = Literal::kString, layout.s = *word;
      placed_.attribute(m, "format", layout, given);
    }
    auto order = function ? std::vector<std::string>{m.inputs[0].name}
                 : custom ? std::vector<std::string>{}
                          : m.operands_of(op);
    std::vector<ValueId> in = placed_.inputs(m, std::move(order), operands, given);
    NodeId id = graph_->add_node(registry_, found.op, in, given, name);
    if (custom && !function) graph_->node(id).spec = found.spec;
    graph_->node(id).fallback = fallback_of(primitive);
    std::vector<ValueId> outputs = graph_->node(id).outputs;
    if (const auto changed = updated(id, moment); !changed.empty()) {
      // An output that is one of the variables: what there is when it is used.
      const auto abstracts = outputs_of(proto);
      for (size_t i = 0; i < outputs.size() && i < abstracts.size(); ++i) {
        const auto key = abstracts[i].ref_key;
        for (ValueId v : changed)
          if (!key.empty() && key == graph_->value(v).name) outputs[i] = v;
      }
    }
    return results(outputs, name, moment.past, !custom && m.outputs.back().variadic && !gives_tensor(proto));
  }

  // One output of a primitive that may have several is a tuple, but where its abstract is a tensor's, as opgraft wrote
  // it once.
  static bool gives_tensor(const NodeProto &n) {
    return std::ranges::any_of(n.attributes, [](auto bytes) {
      const AttributeProto a = parse_attribute(bytes);
      return a.name == "shape" && a.type == kTensors && a.tensors.size() == 1;
    });
  }

  // The Parameters and inputs that the node updates in place, where it may.
  std::vector<ValueId> updated(NodeId id, Moment &moment) {
    const Node &n = graph_->node(id);
    std::vector<ValueId> out;
    for (size_t i : updates(n)) {
      auto &declared = *n.impl->manifest.input(i);
      const Value &v = graph_->value(n.inputs[i]);
      if (v.parameter || v.kind == Value::kInput) out.push_back(n.inputs[i]);
      else if (!declared.variadic)
        fail(fmt::format("{} is updated in place and must be a Parameter or an input of the model, got {}",
                         declared.name, v.kind == Value::kConstant ? "a constant" : "a computed value"));
      if (items_.taken(n.inputs[i]))
        fail(fmt::format("updates '{}', whose value was needed before the model runs", v.name));
    }
    if (out.empty()) return out;
    for (ValueId v : out)
      if (NodeId before = items_.updates.missing(v, moment.past); moment.ordered && before != kNone)
        fail(fmt::format("updates '{}' under a monad that does not come after the update by '{}'",
                         graph_->value(v).name, graph_->node(before).name));
    if (!moment.ordered) moment.past = items_.updates.all();
    moment.past.add(items_.updates.add(out, id));
    return out;
  }

  size_t results(const std::vector<ValueId> &outputs, const std::string &name, const Past &past, bool tuple = false) {
    std::vector<size_t> each;
    for (ValueId v : outputs) each.push_back(items_.later(items_.value(v), past));
    return each.size() == 1 && !tuple ? each[0] : items_.tuple(std::move(each), name);
  }

  // What a grafted node replaced; null where the file does not say.
  std::shared_ptr<const Graph> fallback_of(Primitive &primitive) {
    auto bytes = text(primitive.attrs, "opgraft_fallback");
    if (bytes.empty() || primitive.fallback) return primitive.fallback;
    if (depth_ >= kMostFallbacks) fail("fallback graphs nested too deep");
    Reader inner(bytes, registry_, fmt::format("{}: {}: fallback", origin_, place_), data_.nested(), dir_, depth_ + 1,
                 budget_);
    return primitive.fallback = inner.read();
  }

  size_t expanded(const Graph &fallback, const std::string &name, const std::vector<size_t> &operands,
                  const Past &past) {
    if (*budget_ < passes::expanded_size(fallback))
      fail(fmt::format("the subgraphs of missing operators have more than {} nodes", kMostExpanded));
    *budget_ -= passes::expanded_size(fallback);
    std::vector<ValueId> in;
    for (size_t item : operands) in.push_back(items_.value_of(item));
    return results(passes::expand(fallback, in, *graph_, registry_), name, past);
  }

  std::string_view bytes_;
  const Registry &registry_;
  std::string origin_, place_ = "model";
  DataReader data_;
  fs::path dir_;
  int depth_;
  std::shared_ptr<size_t> budget_;  // of expanded nodes, one for the file
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  std::map<std::string, Primitive, std::less<>> primitives_;
  std::set<std::string_view> functions_;
  Items items_{*graph_, registry_};
  Operands placed_{*graph_, items_};
  std::vector<NodeId> formed_;  // nodes of forms
  DimensionNames dims_;
};

}  // namespace

std::shared_ptr<Graph> read_mindir(const std::filesystem::path &file, const Registry &registry) {
  auto mapping = map_file(file);
  return Reader(mapping->bytes(), registry, file.string(), DataReader(mapping, file.parent_path(), true),
                fs::absolute(file).parent_path(), 0)
      .read();
}

std::shared_ptr<Graph> parse_mindir(std::string_view bytes, const Registry &registry, const std::string &origin) {
  return Reader(bytes, registry, origin, DataReader(nullptr, "", false), "", 0).read();
}

}  // namespace opgraft
