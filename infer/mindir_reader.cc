#include <fmt/format.h>

#include <map>
#include <protozero/exception.hpp>
#include <set>

#include "infer/mindir.h"
#include "infer/mindir_custom.h"
#include "infer/mindir_data.h"
#include "infer/mindir_dims.h"
#include "infer/mindir_enums.h"
#include "infer/mindir_items.h"
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
    // Order of side effects: an inference graph has none, so that these are their first operand or nothing.
    if (op == "Load" || op == "Depend") return items_.define(output, operand(0));
    if (op == "UpdateState") {
      Literal l;
      l.kind = Literal::kMonad;
      return items_.define(output, items_.literal(l));
    }
    std::vector<size_t> operands;
    for (auto in : n.inputs)
      if (size_t i = lookup(in); !items_.monad(i)) operands.push_back(i);
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
    items_.define(output, apply(op, name, operands, *primitive, n));
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

  void attribute(const Manifest &m, const std::string &name, const Literal &l, Attrs &out) const {
    if (l.kind == Literal::kNone) return;  // absent: the op's default
    AttrValue v;
    int32_t kind = m.attr(name)->kind;
    auto word = kind == OPGRAFT_ATTR_STRING && l.kind == Literal::kInt ? word_of(name, l.i) : std::nullopt;
    if (word) v = *word;
    else if (!to_attr(l, kind, v)) fail(fmt::format("attribute {} has a value of the wrong kind", name));
    out.insert_or_assign(name, std::move(v));
  }

  static std::string text(const Literals &attrs, std::string_view name) {
    auto it = attrs.find(name);
    return it == attrs.end() || it->second.kind != Literal::kString ? "" : it->second.s;
  }

  size_t apply(const std::string &op, const std::string &name, std::vector<size_t> operands, Primitive &primitive,
               const NodeProto &proto) {
    const bool custom = op == "Custom";
    const Literals trailing = custom ? take_trailing(items_, operands, primitive.attrs) : Literals();
    const Literals &attrs = trailing.empty() ? primitive.attrs : trailing;
    CustomNode found;
    if (custom) try {
        found = find_custom(registry_, attrs, outputs_of(proto), dir_);
      } catch (const std::runtime_error &e) {
        if (!fallback_of(primitive)) throw;
        fmt::print(stderr, "opgraft: {}: {}: its original subgraph runs instead: {}\n", origin_, place_, e.what());
        return expanded(*primitive.fallback, name, operands);
      }
    else if (op.find('#') == op.npos && (found.impl = registry_.find(op))) found.op = found.impl->name();
    if (!found.impl) fail(fmt::format("no registered operator answers to '{}'", op));
    const Manifest &m = found.impl->manifest;
    const bool function = !found.impl->function.empty();
    Attrs given = std::move(found.attrs);
    if (!function)
      for (auto &[key, l] : attrs)
        if (m.attr(key)) attribute(m, key, l, given);
    // MindSpore's primitives may carry their layout under both names.
    if (auto l = attrs.find("data_format"); l != attrs.end() && !m.attr("data_format") && m.attr("format")) {
      Literal layout = l->second;
      if (auto word = layout.kind == Literal::kInt ? word_of("data_format", layout.i) : std::nullopt)
        layout.kind = Literal::kString, layout.s = *word;
      attribute(m, "format", layout, given);
    }
    auto order = function ? std::vector<std::string>{m.inputs[0].name}
                 : custom ? std::vector<std::string>{}
                          : m.operands_of(op);
    std::vector<ValueId> in = inputs(m, std::move(order), operands, given);
    NodeId id = graph_->add_node(registry_, found.op, in, given, name);
    if (custom && !function) graph_->node(id).spec = found.spec;
    graph_->node(id).fallback = fallback_of(primitive);
    return results(graph_->node(id).outputs, name);
  }

  size_t results(const std::vector<ValueId> &outputs, const std::string &name) {
    if (outputs.size() == 1) return items_.value(outputs[0]);
    std::vector<size_t> each;
    for (ValueId v : outputs) each.push_back(items_.value(v));
    return items_.tuple(std::move(each), name);
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

  size_t expanded(const Graph &fallback, const std::string &name, const std::vector<size_t> &operands) {
    if (*budget_ < passes::expanded_size(fallback))
      fail(fmt::format("the subgraphs of missing operators have more than {} nodes", kMostExpanded));
    *budget_ -= passes::expanded_size(fallback);
    std::vector<ValueId> in;
    for (size_t item : operands) in.push_back(items_.value_of(item));
    return results(passes::expand(fallback, in, *graph_, registry_), name);
  }

  // An operand that the operator has no place for and that is None or the number that op.yaml states.
  void expect(const std::string &word, size_t position, size_t item) const {
    Literal l;
    AttrValue v;
    int64_t number = 0;
    const bool constant = items_.literal_of(item, l);
    if (word == "none" && constant && l.kind == Literal::kNone) return;
    if (whole_number(word, number) && constant && to_attr(l, OPGRAFT_ATTR_FLOAT, v) &&
        std::get<double>(v) == double(number))
      return;
    fail(fmt::format("operand {} must be {}: opgraft knows no other", position, word == "none" ? "None" : word));
  }

  // Operands by position: op.yaml's `mindir`, or all inputs followed by attributes in their order.
  std::vector<ValueId> inputs(const Manifest &m, std::vector<std::string> order, const std::vector<size_t> &operands,
                              Attrs &given) {
    if (order.empty()) {
      for (auto &t : m.inputs) order.push_back(t.name);
      for (auto &a : m.attrs) order.push_back(a.name);
    }
    std::vector<ValueId> in;
    std::vector<std::pair<size_t, Literal>> numbers;  // by place in `in`
    size_t position = 0;
    for (size_t k = 0; k < operands.size();) {
      if (position >= order.size())
        fail(fmt::format("takes at most {} operands, got {}", order.size(), operands.size()));
      const std::string &name = order[position];
      const Item &item = items_[operands[k]];
      bool literal = item.kind == Item::kLiteral && item.literal.kind != Literal::kTensor;
      int index = m.input_index(name);
      if (index < 0 && !m.attr(name)) {
        expect(name, position, operands[k]);
        ++position, ++k;
        continue;
      }
      if (index < 0) {
        Literal l;
        if (!items_.literal_of(operands[k], l)) fail(fmt::format("operand {} ({}) must be a constant", k, name));
        attribute(m, name, l, given);
        ++position, ++k;
        continue;
      }
      if (literal && item.literal.kind == Literal::kNone) {
        ++position, ++k;
        continue;
      }
      bool variadic = m.variadic() && size_t(index) + 1 == m.inputs.size();
      if (in.size() < size_t(index)) in.resize(size_t(index), kNone);
      if (variadic && in.size() > size_t(index) && literal && position + 1 < order.size()) {
        ++position;  // inputs given one by one end where a number or text stands
        continue;
      }
      if (variadic && item.kind == Item::kTuple) {
        for (size_t each : std::vector<size_t>(item.items)) in.push_back(items_.value_of(each));
        ++position;
      } else {
        const size_t at = variadic ? in.size() : size_t(index);
        if (literal && item.literal.kind != Literal::kTuple) numbers.emplace_back(at, item.literal);
        if (at == in.size()) in.push_back(kNone);
        in[at] = items_.value_of(operands[k]);
        if (!variadic) ++position;
      }
      ++k;
    }
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i] == kNone) fail(fmt::format("input {} is missing before others", m.inputs[i].name));
    for (auto &[at, number] : numbers) in[at] = as_its_peer(m, in, at, number);
    return in;
  }

  // A number beside tensors has the dtype of one that op.yaml gives the same type.
  ValueId as_its_peer(const Manifest &m, const std::vector<ValueId> &in, size_t at, const Literal &number) {
    auto type_of = [&](size_t i) -> auto & { return m.inputs[std::min(i, m.inputs.size() - 1)].dtype; };
    for (size_t i = 0; i < in.size(); ++i) {
      const Value &peer = graph_->value(in[i]);
      if (i == at || type_of(i) != type_of(at) || peer.kind == Value::kConstant) continue;
      Tensor t;
      if (!to_scalar(number, peer.type.dtype, t)) break;
      return graph_->add_constant(std::move(t));
    }
    return in[at];
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
