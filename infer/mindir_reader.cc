#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <map>
#include <protozero/exception.hpp>

#include "infer/mindir.h"
#include "infer/mindir_wire.h"

namespace opgraft {
namespace {

namespace fs = std::filesystem;
using namespace mindir;

constexpr int kMostNesting = 16;       // of tuples, and of values within attributes
constexpr int kMostFallbacks = 4;      // of fallback graphs within fallback graphs
constexpr size_t kMostFlat = 1 << 16;  // elements of a flattened tuple

struct Mapping {
  void *data = nullptr;
  size_t size = 0;
  ~Mapping() {
    if (data) munmap(data, size);
  }
  std::string_view bytes() const { return {static_cast<const char *>(data), size}; }
};

std::shared_ptr<Mapping> map_file(const fs::path &file) {
  auto fail = [&](const std::string &why) { throw MindirError(fmt::format("{}: {}", file.string(), why)); };
  int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(fmt::format("cannot open: {}", std::strerror(errno)));
  struct stat st {};
  bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  auto m = std::make_shared<Mapping>();
  m->size = regular ? size_t(st.st_size) : 0;
  if (m->size) m->data = mmap(nullptr, m->size, PROT_READ, MAP_PRIVATE, fd, 0);
  int error = errno;
  close(fd);
  if (!regular) fail("not a regular file");
  if (m->data == MAP_FAILED) {
    m->data = nullptr;
    fail(fmt::format("cannot map: {}", std::strerror(error)));
  }
  return m;
}

// A value of the file while it is read: a graph value, a constant not yet placed, or a tuple.
struct Item {
  enum Kind { kValue, kLiteral, kTuple } kind = kLiteral;
  ValueId id = kNone;  // kValue; else the value it was made into, once it was
  Literal literal;
  std::vector<size_t> items;
  std::string name;
};

using Literals = std::map<std::string, Literal, std::less<>>;

// One entry of the primitives table; its attributes are read once, however many nodes refer to it.
struct Primitive {
  PrimitiveProto proto;
  bool read = false;
  Literals attrs;
  std::shared_ptr<const Graph> fallback;
};

class Reader {
 public:
  // `owner` keeps `bytes` alive (null: weights are copied); `dir` holds external data (empty: refused).
  Reader(std::string_view bytes, const Registry &registry, std::string origin, std::shared_ptr<void> owner,
         fs::path dir, bool external, int depth)
      : bytes_(bytes),
        registry_(registry),
        origin_(std::move(origin)),
        owner_(std::move(owner)),
        dir_(std::move(dir)),
        external_(external),
        depth_(depth) {}

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
    place_ = "graph";
    GraphProto g = parse_graph(m.graph);
    graph_ = std::make_shared<Graph>(std::string(g.name.empty() ? "main" : g.name));
    for (size_t i = 0; i < g.inputs.size(); ++i) {
      place_ = fmt::format("graph.input[{}]", i);
      input(parse_value_info(g.inputs[i]));
    }
    for (size_t i = 0; i < g.parameters.size(); ++i) {
      place_ = fmt::format("graph.parameter[{}]", i);
      TensorProto t = parse_tensor(g.parameters[i]);
      place_ += fmt::format(" '{}'", t.name);
      define(t.name, value_item(graph_->add_constant(tensor(t), plain(t.name), true)));
    }
    for (size_t i = 0; i < g.nodes.size(); ++i) {
      place_ = fmt::format("graph.node[{}]", i);
      node(parse_node(g.nodes[i]));
    }
    if (g.outputs.empty()) fail("graph has no output: cut short?");
    for (size_t i = 0; i < g.outputs.size(); ++i) {
      place_ = fmt::format("graph.output[{}]", i);
      ValueInfoProto v = parse_value_info(g.outputs[i]);
      std::vector<size_t> flat;
      flatten(lookup(v.name), flat, 0);
      std::string name(v.doc.empty() ? plain(v.name) : std::string(v.doc));
      for (size_t k = 0; k < flat.size(); ++k) {
        graph_->outputs.push_back(value_of(flat[k]));
        graph_->output_names.push_back(flat.size() == 1 ? name : fmt::format("{}_{}", name, k));
      }
    }
    return graph_;
  }

  // "12_construct:x" -> "x", as MindSpore reads parameter names.
  static std::string plain(std::string_view name) { return std::string(name.substr(name.find(':') + 1)); }

  size_t add(Item item) { return items_.push_back(std::move(item)), items_.size() - 1; }
  size_t value_item(ValueId id) {
    Item i;
    i.kind = Item::kValue, i.id = id;
    return add(std::move(i));
  }
  size_t literal_item(Literal literal, std::string_view name = "") {
    Item i;
    i.literal = std::move(literal), i.name = name;
    return add(std::move(i));
  }
  void define(std::string_view name, size_t item) {
    if (name.empty()) fail("a value without a name");
    if (!names_.emplace(name, item).second) fail(fmt::format("'{}' is defined twice", name));
  }
  size_t lookup(std::string_view name) const {
    auto it = names_.find(name);
    if (it == names_.end()) fail(fmt::format("'{}' is used but not defined before", name));
    return it->second;
  }

  void flatten(size_t item, std::vector<size_t> &out, int depth) const {
    if (depth > kMostNesting) fail("tuples nested too deep");
    const Item &i = items_[item];
    if (i.kind != Item::kTuple) out.push_back(item);
    else
      for (size_t k : i.items) flatten(k, out, depth + 1);
    if (out.size() > kMostFlat) fail("a tuple of too many elements");
  }

  // The literal behind an item; false where it holds a computed value.
  bool literal_of(size_t item, Literal &out, int depth, size_t &budget) const {
    const Item &i = items_[item];
    if (depth > kMostNesting || budget-- == 0) fail("tuples nested too deep");
    if (i.kind == Item::kValue) {
      const Value &v = graph_->value(i.id);
      if (v.kind != Value::kConstant) return false;
      out.kind = Literal::kTensor, out.tensor = v.constant;
      return true;
    }
    if (i.kind == Item::kLiteral) return out = i.literal, true;
    out.kind = Literal::kTuple;
    for (size_t k : i.items) {
      out.items.emplace_back();
      if (!literal_of(k, out.items.back(), depth + 1, budget)) return false;
    }
    return true;
  }
  bool literal_of(size_t item, Literal &out) const {
    size_t budget = kMostFlat;
    return literal_of(item, out, 0, budget);
  }

  // The item as one graph value: constants are placed, a tuple of shape scalars becomes a MakeTuple.
  ValueId value_of(size_t item) {
    if (items_[item].id != kNone) return items_[item].id;
    Literal l;
    ValueId id = kNone;
    if (literal_of(item, l)) {
      Tensor t;
      if (!to_tensor(l, t))
        fail(fmt::format("constant '{}' is no tensor, number or tuple of numbers", items_[item].name));
      id = graph_->add_constant(std::move(t), items_[item].name);
    } else {
      std::vector<ValueId> in;
      for (size_t k : std::vector<size_t>(items_[item].items)) {
        if (items_[k].kind == Item::kTuple) fail("a tuple of tuples where a tensor or a shape is expected");
        in.push_back(value_of(k));
      }
      id = graph_->node(graph_->add_node(registry_, "MakeTuple", in, {}, items_[item].name)).outputs.at(0);
    }
    return items_[item].id = id;
  }

  int64_t dimension(std::string_view text) {
    auto known = symbols_.find(text);
    if (known != symbols_.end()) return known->second;
    if (text == "?") return -1;
    // A sum of products of names and numbers: 2*n+1.
    int64_t sum = 0;
    char sign = '+';
    bool derived = text.find_first_of("*+-") != std::string_view::npos;
    for (size_t at = 0; derived && at <= text.size();) {
      size_t end = std::min(text.find_first_of("+-", at), text.size());
      int64_t product = 1;
      for (size_t f = at; f <= end;) {
        size_t stop = std::min(text.find('*', f), end);
        auto factor = text.substr(f, stop - f);
        int64_t n = 0;
        auto [p, ec] = std::from_chars(factor.data(), factor.data() + factor.size(), n);
        bool numeric = ec == std::errc() && p == factor.data() + factor.size() && n >= 0;
        auto it = symbols_.find(factor);
        if (!numeric && it == symbols_.end()) derived = false;
        else product = graph_->symbols.op('*', product, numeric ? n : it->second);
        f = stop + 1;
      }
      if (derived) sum = graph_->symbols.op(sign, sum, product);
      if (end < text.size()) sign = text[end];
      at = end + 1;
    }
    int64_t dim = derived && is_symbol(sum) ? sum : graph_->symbols.fresh(std::string(text));
    symbols_.emplace(text, dim);
    return dim;
  }

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
      if (d == -1) d = dimension(given.empty() ? fmt::format("{}_{}", name, k) : std::string(given));
      type.dims.push_back(d);
    }
    define(v.name, value_item(graph_->add_input(name, type)));
  }

  std::string_view external(const TensorProto &t, std::shared_ptr<void> &owner) {
    fs::path location{std::string(t.location)};
    if (!external_) fail("external data in a model that was read from memory");
    if (location.empty() || location.is_absolute())
      fail(fmt::format("external data location '{}' must be relative", t.location));
    for (auto &part : location)
      if (part == "..") fail(fmt::format("external data location '{}' leaves the model's directory", t.location));
    if (t.location.find('\0') != std::string_view::npos) fail("external data location holds a zero byte");
    auto &mapping = files_[std::string(t.location)];
    try {
      if (!mapping) mapping = map_file(dir_ / location);
    } catch (const MindirError &e) {
      fail(fmt::format("external data: {}", e.what()));
    }
    if (t.offset < 0 || t.length < 0 || uint64_t(t.offset) > mapping->size ||
        uint64_t(t.length) > mapping->size - uint64_t(t.offset))
      fail(fmt::format("external data '{}' holds {} bytes, expected {} at offset {}", t.location, mapping->size,
                       t.length, t.offset));
    owner = mapping;
    return mapping->bytes().substr(size_t(t.offset), size_t(t.length));
  }

  Tensor tensor(const TensorProto &t) {
    int32_t dtype = dtype_of(t.data_type);
    if (dtype == OPGRAFT_UNKNOWN) fail(fmt::format("tensor '{}': unsupported data type {}", t.name, t.data_type));
    if (t.compression)
      fail(fmt::format("tensor '{}' is compressed (type {}), which opgraft does not read", t.name, t.compression));
    if (t.dims.size() > OPGRAFT_MAX_RANK)
      fail(fmt::format("tensor '{}': rank {} is above {}", t.name, t.dims.size(), OPGRAFT_MAX_RANK));
    int64_t count = 1, bytes = 0;
    for (int64_t d : t.dims)
      if (d < 0 || __builtin_mul_overflow(count, d, &count))
        fail(fmt::format("tensor '{}': impossible shape {}", t.name, to_string(t.dims)));
    if (__builtin_mul_overflow(count, int64_t(dtype_size(dtype)), &bytes))
      fail(fmt::format("tensor '{}': impossible shape", t.name));
    bool typed = !t.ints.empty() || !t.floats.empty();
    if (typed && !t.has_raw && !t.external) return typed_tensor(t, dtype, count);
    std::shared_ptr<void> owner = owner_;
    std::string_view data = t.external ? external(t, owner) : t.raw;
    if (data.size() != size_t(bytes))
      fail(fmt::format("tensor '{}': {}{} needs {} bytes, the file has {}", t.name, dtype_name(dtype),
                       to_string(t.dims), bytes, data.size()));
    bool aligned = reinterpret_cast<uintptr_t>(data.data()) % dtype_size(dtype) == 0;
    if (owner && aligned && bytes) return Tensor(dtype, t.dims, const_cast<char *>(data.data()), owner);
    Tensor copy(dtype, t.dims);
    if (bytes) std::memcpy(copy.data(), data.data(), size_t(bytes));
    return copy;
  }

  Tensor typed_tensor(const TensorProto &t, int32_t dtype, int64_t count) {
    bool real = dtype == OPGRAFT_FLOAT32 || dtype == OPGRAFT_FLOAT64;
    if (int64_t(real ? t.floats.size() : t.ints.size()) != count)
      fail(fmt::format("tensor '{}': expected {} elements of {}", t.name, count, dtype_name(dtype)));
    Tensor out(dtype, t.dims);
    size_t size = dtype_size(dtype);
    for (size_t k = 0; k < size_t(count); ++k) {
      float f = real ? float(t.floats[k]) : 0;
      const void *from = dtype == OPGRAFT_FLOAT32 ? static_cast<const void *>(&f)
                         : real                   ? static_cast<const void *>(&t.floats[k])
                                                  : &t.ints[k];
      std::memcpy(out.data<char>() + k * size, from, std::min(size, size_t(8)));  // little-endian integers are cut
    }
    return out;
  }

  Literal literal(const AttributeProto &a, int depth = 0) {
    if (depth > kMostNesting) fail("attribute values nested too deep");
    Literal l;
    switch (a.type) {
      case kBool:
        l.kind = Literal::kBool;
        l.i = a.i != 0;
        return l;
      case kUint8:
      case kInt8:
      case kUint16:
      case kInt16:
      case kInt32:
      case kInt64:
      case kUint32:
      case kUint64:
        if (a.ints.empty()) return Literal::of(a.i);
        break;
      case kFloat:  // `d` beside `f`: the double that our writer rounded
        if (!a.floats.empty()) break;
        l.kind = Literal::kFloat, l.d = float(a.d) == a.f ? a.d : double(a.f);
        return l;
      case kDouble:
        if (!a.floats.empty()) break;
        l.kind = Literal::kFloat, l.d = a.d;
        return l;
      case kString:
        if (!a.strings.empty()) break;
        l.kind = Literal::kString, l.s = a.s;
        return l;
      case kTensor:
      case kTensors: {
        if (a.tensors.size() != 1) break;
        TensorProto t = parse_tensor(a.tensors[0]);
        if (t.is_type() && a.type == kTensors) return Literal::of(dtype_of(t.data_type));
        l.kind = Literal::kTensor, l.tensor = tensor(t);
        return l;
      }
      case kUmonad:
      case kIomonad: l.kind = Literal::kMonad; return l;
      case kTuple:
      case kList: break;
      default: return l;  // none, and what opgraft has no use for
    }
    l.kind = Literal::kTuple;
    for (auto v : a.values) l.items.push_back(literal(parse_attribute(v), depth + 1));
    for (int64_t v : a.ints) l.items.push_back(Literal::of(v));
    for (double v : a.floats) l.items.emplace_back(), l.items.back().kind = Literal::kFloat, l.items.back().d = v;
    for (auto v : a.strings) l.items.emplace_back(), l.items.back().kind = Literal::kString, l.items.back().s = v;
    return l;
  }

  void node(const NodeProto &n) {
    auto output = n.outputs.empty() ? n.name : n.outputs[0];
    std::string name(!n.domain.empty() ? n.domain : !n.name.empty() ? n.name : output);
    place_ += fmt::format(" '{}'", name);
    if (n.op_type == "Constant") {
      for (auto bytes : n.attributes) {
        AttributeProto a = parse_attribute(bytes);
        if (a.name == "value" || n.attributes.size() == 1) return define(output, literal_item(literal(a), output));
      }
      fail("a Constant without a value");
    }
    Primitive own;  // files before the primitives table keep op and attributes in the node
    Primitive *primitive = &own;
    if (n.op_type.starts_with("REF::")) {
      auto p = primitives_.find(n.op_type.substr(5));
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
    if (op == "Load" || op == "Depend") return define(output, operand(0));
    if (op == "UpdateState") {
      Literal l;
      l.kind = Literal::kMonad;
      return define(output, literal_item(l));
    }
    std::vector<size_t> operands;
    for (auto in : n.inputs) {
      size_t i = lookup(in);
      if (items_[i].kind != Item::kLiteral || items_[i].literal.kind != Literal::kMonad) operands.push_back(i);
    }
    for (auto bytes : primitive->proto.attributes) {
      if (primitive->read) break;
      AttributeProto a = parse_attribute(bytes);
      if (a.name != "shape" && a.type != kTensors) primitive->attrs.insert_or_assign(std::string(a.name), literal(a));
    }
    primitive->read = true;
    if (op == "MakeTuple" || op == "MakeList") {
      Item i;
      i.kind = Item::kTuple, i.items = operands, i.name = name;
      size_t tuple = add(std::move(i));
      if (primitive->attrs.count("opgraft_value")) make_tuple(tuple, operands);
      return define(output, tuple);
    }
    if (op == "TupleGetItem" || op == "ListGetItem") return define(output, element(operand(0), operand(1), name));
    define(output, apply(op, name, operands, *primitive));
  }

  // A MakeTuple that was an op of the graph when it was written.
  void make_tuple(size_t tuple, const std::vector<size_t> &operands) {
    std::vector<ValueId> in;
    for (size_t k : operands) in.push_back(value_of(k));
    ValueId id = graph_->node(graph_->add_node(registry_, "MakeTuple", in, {}, items_[tuple].name)).outputs.at(0);
    items_[tuple].kind = Item::kValue, items_[tuple].id = id;
  }

  size_t element(size_t from, size_t index, const std::string &name) {
    Literal l;
    AttrValue v;
    if (!literal_of(index, l) || !to_attr(l, OPGRAFT_ATTR_INT, v)) fail("the index must be a constant int");
    int64_t i = std::get<int64_t>(v);
    Item::Kind kind = items_[from].kind;
    if (kind == Item::kValue) {
      const TensorType &t = graph_->value(items_[from].id).type;
      if (t.dtype == OPGRAFT_INT64 && t.dims.size() == 1)
        return value_item(
            graph_->node(graph_->add_node(registry_, "TupleGetItem", {items_[from].id}, {{"index", i}}, name))
                .outputs.at(0));
      if (i != 0 && i != -1) fail(fmt::format("element {} of a single tensor", i));
      return from;
    }
    bool tuple = kind == Item::kTuple;
    int64_t n = int64_t(tuple ? items_[from].items.size() : items_[from].literal.items.size());
    if (i < -n || i >= n) fail(fmt::format("element {} of a tuple of {}", i, n));
    size_t k = size_t(i < 0 ? i + n : i);
    if (tuple) return items_[from].items[k];
    return literal_item(Literal(items_[from].literal.items[k]), name);
  }

  void attribute(const Manifest &m, const std::string &name, const Literal &l, Attrs &out) const {
    if (l.kind == Literal::kNone) return;  // absent: the op's default
    AttrValue v;
    int32_t kind = m.attr(name)->kind;
    // MindSpore's C++ primitives carry the layout as an enum.
    if (name == "data_format" && l.kind == Literal::kInt && (l.i == 0 || l.i == 1))
      v = std::string(l.i ? "NHWC" : "NCHW");
    else if (!to_attr(l, kind, v)) fail(fmt::format("attribute {} has a value of the wrong kind", name));
    out.insert_or_assign(name, std::move(v));
  }

  static std::string text(const Literals &attrs, std::string_view name) {
    auto it = attrs.find(name);
    return it == attrs.end() || it->second.kind != Literal::kString ? "" : it->second.s;
  }

  size_t apply(std::string op, const std::string &name, const std::vector<size_t> &operands, Primitive &primitive) {
    auto &attrs = primitive.attrs;
    bool custom = op == "Custom";
    std::string spec = text(attrs, "opgraft_spec"), exact = text(attrs, "opgraft_op"), func = text(attrs, "func_name");
    OpPtr impl;
    if (custom) {
      if (!spec.empty()) impl = registry_.find(op = spec);
      if (!impl && !exact.empty()) impl = registry_.find(op = exact);
      if (!impl && !func.empty()) impl = registry_.find(op = func.substr(func.rfind(':') + 1));
      if (!impl) op = fmt::format("Custom {}", !exact.empty() ? exact : func);
    } else {
      impl = registry_.find(op);
    }
    if (!impl) fail(fmt::format("no registered operator answers to '{}'", op));
    const Manifest &m = impl->manifest;
    Attrs given;
    for (auto &[key, l] : attrs)
      if (m.attr(key)) attribute(m, key, l, given);
    std::vector<ValueId> in = inputs(m, custom ? std::vector<std::string>{} : m.mindir, operands, given);
    NodeId id = graph_->add_node(registry_, op, in, given, name);
    if (custom) graph_->node(id).spec = spec;
    auto fallback = text(attrs, "opgraft_fallback");
    if (!fallback.empty()) {
      if (depth_ >= kMostFallbacks) fail("fallback graphs nested too deep");
      auto &shared = primitive.fallback;
      if (!shared)
        shared = Reader(fallback, registry_, fmt::format("{}: {}: fallback", origin_, place_), nullptr, "", false,
                        depth_ + 1)
                     .read();
      graph_->node(id).fallback = shared;
    }
    auto &outputs = graph_->node(id).outputs;
    if (outputs.size() == 1) return value_item(outputs[0]);
    Item tuple;
    tuple.kind = Item::kTuple;
    for (ValueId v : std::vector<ValueId>(outputs)) tuple.items.push_back(value_item(v));
    return add(std::move(tuple));
  }

  // Operands by position: op.yaml's `mindir`, or all inputs followed by attributes in their order.
  std::vector<ValueId> inputs(const Manifest &m, std::vector<std::string> order, const std::vector<size_t> &operands,
                              Attrs &given) {
    if (order.empty()) {
      for (auto &t : m.inputs) order.push_back(t.name);
      for (auto &a : m.attrs) order.push_back(a.name);
    }
    std::vector<ValueId> in;
    size_t position = 0;
    for (size_t k = 0; k < operands.size(); ++k) {
      const Item &item = items_[operands[k]];
      if (position >= order.size())
        fail(fmt::format("takes at most {} operands, got {}", order.size(), operands.size()));
      const std::string &name = order[position];
      int index = m.input_index(name);
      if (index < 0) {
        Literal l;
        if (!literal_of(operands[k], l)) fail(fmt::format("operand {} ({}) must be a constant", k, name));
        attribute(m, name, l, given);
        ++position;
        continue;
      }
      if (item.kind == Item::kLiteral && item.literal.kind == Literal::kNone) {
        ++position;
        continue;
      }
      bool variadic = m.variadic() && size_t(index) + 1 == m.inputs.size();
      if (!variadic && size_t(index) != in.size())
        fail(fmt::format("operand {} ({}) follows an input that was left out", k, name));
      std::vector<size_t> flat{operands[k]};
      bool tuple = variadic && item.kind == Item::kTuple;
      if (tuple) flat = item.items;
      for (size_t f : flat) in.push_back(value_of(f));
      // Variadic inputs given one by one go on for as long as no later position needs the operand.
      if (!variadic || tuple || operands.size() - k <= order.size() - position) ++position;
    }
    return in;
  }

  std::string_view bytes_;
  const Registry &registry_;
  std::string origin_, place_ = "model";
  std::shared_ptr<void> owner_;
  fs::path dir_;
  bool external_;
  int depth_;
  std::shared_ptr<Graph> graph_;
  std::map<std::string, Primitive, std::less<>> primitives_;
  std::vector<Item> items_;
  std::map<std::string, size_t, std::less<>> names_;
  std::map<std::string, int64_t, std::less<>> symbols_;
  std::map<std::string, std::shared_ptr<Mapping>> files_;
};

}  // namespace

std::shared_ptr<Graph> read_mindir(const std::filesystem::path &file, const Registry &registry) {
  auto mapping = map_file(file);
  return Reader(mapping->bytes(), registry, file.string(), mapping, file.parent_path(), true, 0).read();
}

std::shared_ptr<Graph> parse_mindir(std::string_view bytes, const Registry &registry, const std::string &origin) {
  return Reader(bytes, registry, origin, nullptr, "", false, 0).read();
}

}  // namespace opgraft
