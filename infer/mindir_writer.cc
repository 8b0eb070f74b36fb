#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <protozero/pbf_writer.hpp>
#include <set>

#include "infer/mindir.h"
#include "infer/mindir_wire.h"

namespace opgraft {
namespace {

namespace fs = std::filesystem;
using namespace mindir;
using protozero::pbf_writer;

constexpr uint64_t kAlign = 64;
constexpr uint64_t kHeader = 64;                 // of a data file; its first byte is 1 on little-endian machines
constexpr size_t kMostInline = size_t(1) << 30;  // as in MindSpore; protobuf ends at 2 GiB

// A file that appears under its name only when it is whole.
class Replacement {
 public:
  explicit Replacement(fs::path target) : target_(std::move(target)), temporary_(target_.string() + ".XXXXXX") {
    fd_ = mkostemp(temporary_.data(), O_CLOEXEC);
    if (fd_ < 0) fail("cannot create");
  }
  Replacement(const Replacement &) = delete;
  ~Replacement() {
    if (fd_ >= 0) close(fd_);
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }
  void write(const void *data, size_t size) {
    for (auto *p = static_cast<const char *>(data); size;) {
      ssize_t n = ::write(fd_, p, std::min(size, size_t(1) << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("cannot write");
      p += n, size -= size_t(n);
    }
  }
  void finish() {
    if (fchmod(fd_, 0644) != 0 || fsync(fd_) != 0) fail("cannot write");
  }
  void commit() {
    if (rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot replace");
    temporary_.clear();
  }

 private:
  [[noreturn]] void fail(const char *what) {
    throw MindirError(fmt::format("{}: {}: {}", target_.string(), what, std::strerror(errno)));
  }
  fs::path target_;
  std::string temporary_;
  int fd_ = -1;
};

struct External {
  std::string location;
  uint64_t offset = kHeader;
  std::vector<std::pair<uint64_t, Tensor>> tensors;
};

class Writer {
 public:
  Writer(const Graph &graph, External *external) : graph_(graph), external_(external) {}

  std::string model() {
    std::string out, graph = body();
    pbf_writer m(out);
    m.add_string(1, "1.1");
    m.add_string(2, "opgraft");
    m.add_message(7, graph);
    m.add_bool(10, true);
    m.add_int64(13, 3);
    for (auto &p : primitives_) m.add_message(12, p);
    return out;
  }

 private:
  std::string unique(std::string name) {
    if (name.empty()) name = "value";
    std::string tried = name;
    for (int k = 1; !used_.insert(tried).second; ++k) tried = fmt::format("{}_{}", name, k);
    return tried;
  }
  // A reader drops all up to the first colon, as MindSpore does.
  std::string parameter_name(const std::string &name) {
    return unique(name.find(':') == std::string::npos ? name : "main:" + name);
  }

  std::string body() {
    std::string out;
    pbf_writer g(out);
    g.add_string(2, graph_.name);
    for (ValueId id : graph_.inputs) {
      wire_[id] = parameter_name(graph_.value(id).name);
      g.add_message(5, value_info(wire_[id], graph_.value(id).type, "", dimensions(graph_.value(id).type)));
    }
    std::set<ValueId> used(graph_.outputs.begin(), graph_.outputs.end());
    for (NodeId n : graph_.order()) used.insert(graph_.node(n).inputs.begin(), graph_.node(n).inputs.end());
    for (ValueId id : used) {
      const Value &v = graph_.value(id);
      if (v.kind != Value::kConstant || !v.parameter) continue;
      wire_[id] = parameter_name(v.name);
      g.add_message(3, tensor(v.constant, wire_[id], external_));
    }
    for (NodeId n : graph_.order())
      if (!graph_.node(n).dead) node(graph_.node(n));
    std::vector<std::string> outputs;
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      ValueId id = graph_.outputs[i];
      outputs.push_back(value_info(operand(id, false), graph_.value(id).type,
                                   i < graph_.output_names.size() ? graph_.output_names[i] : "", ""));
    }
    for (auto &n : nodes_) g.add_message(1, n);
    for (auto &o : outputs) g.add_message(6, o);
    return out;
  }

  // Names of dimensions, so that equal symbols stay equal: "batch,,2*seq".
  std::string dimensions(const TensorType &t) {
    std::string out;
    bool any = false;
    for (size_t k = 0; k < t.dims.size(); ++k) {
      if (k) out += ",";
      if (t.dims[k] >= 0) continue;
      any = true;
      auto [it, added] = symbols_.try_emplace(t.dims[k]);
      if (added) {
        it->second = graph_.symbols.text(t.dims[k]);
        if (graph_.symbols.is_free(t.dims[k])) {
          for (char &c : it->second)
            if (std::strchr(",+-*?", c)) c = '_';
          std::string plain = it->second;
          for (int n = 1; !symbol_names_.insert(it->second).second; ++n) it->second = fmt::format("{}_{}", plain, n);
        }
      }
      out += it->second;
    }
    return any ? out : "";
  }

  static std::string abstract(const TensorType &t) {
    std::string out;
    pbf_writer p(out);
    if (!t.ranked) p.add_int64(1, -2);
    for (int64_t d : t.ranked ? t.dims : Shape{}) p.add_int64(1, d < 0 ? -1 : d);
    p.add_int32(2, data_type_of(t.dtype));
    return out;
  }

  static std::string value_info(const std::string &name, const TensorType &type, const std::string &doc,
                                const std::string &dims) {
    std::string out;
    pbf_writer v(out);
    v.add_string(1, name);
    v.add_message(2, abstract(type));
    if (!doc.empty()) v.add_string(3, doc);
    if (!dims.empty()) v.add_string(4, dims);
    return out;
  }

  static std::string tensor(const Tensor &t, const std::string &name, External *external) {
    std::string out;
    pbf_writer p(out);
    for (int64_t d : t.dims()) p.add_int64(1, d);
    p.add_int32(2, data_type_of(t.dtype()));
    p.add_string(7, name);
    if (!external || t.bytes() == 0) {
      if (t.bytes() > kMostInline)
        throw MindirError(fmt::format("constant '{}' of {} bytes is too large to be inline", name, t.bytes()));
      p.add_bytes(9, t.bytes() ? t.data<char>() : "", t.bytes());
      return out;
    }
    std::string e;
    pbf_writer w(e);
    w.add_string(1, external->location);
    w.add_int64(2, int64_t(external->offset));
    w.add_int64(3, int64_t(t.bytes()));
    p.add_message(12, e);
    external->tensors.emplace_back(external->offset, t);
    external->offset += (t.bytes() + kAlign - 1) / kAlign * kAlign;
    return out;
  }

  static std::string attribute(const std::string &name, const AttrValue &value) {
    std::string out;
    pbf_writer a(out);
    a.add_string(1, name);
    fill(a, value);
    return out;
  }
  static void fill(pbf_writer &a, const AttrValue &value) {
    std::visit(
        [&](auto &v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, bool>) a.add_int64(3, v), a.add_int32(16, kBool);
          else if constexpr (std::is_same_v<T, int64_t>) a.add_int64(3, v), a.add_int32(16, kInt64);
          else if constexpr (std::is_same_v<T, double>) {
            // MindSpore's attributes are float32; the exact double stands beside it for opgraft.
            a.add_float(2, float(v));
            if (double(float(v)) != v && !std::isnan(v)) a.add_double(4, v);
            a.add_int32(16, kFloat);
          } else if constexpr (std::is_same_v<T, std::string>) a.add_bytes(5, v), a.add_int32(16, kString);
          else {
            a.add_int32(16, kTuple);
            for (auto &item : v) {
              std::string inner;
              pbf_writer w(inner);
              fill(w, AttrValue(item));
              a.add_message(17, inner);
            }
          }
        },
        value);
  }

  std::string constant(const std::string &name, const std::string &attribute) {
    std::string out, wire = unique(name);
    pbf_writer n(out);
    n.add_string(2, wire);
    n.add_string(3, wire);
    n.add_string(4, "Constant");
    n.add_message(5, attribute);
    nodes_.push_back(std::move(out));
    return wire;
  }
  std::string none(const std::string &name) {
    std::string a;
    pbf_writer w(a);
    w.add_string(1, "value");
    w.add_int32(16, kNoneType);
    return constant(name, a);
  }

  // The wire name of a value. A shape (`value: true` in op.yaml) is a scalar or a tuple in MindIR.
  std::string operand(ValueId id, bool shape) {
    auto it = wire_.find(id);
    if (it != wire_.end()) return it->second;
    const Value &v = graph_.value(id);
    if (v.kind != Value::kConstant) throw MindirError(fmt::format("value '{}' is used before it is computed", v.name));
    std::string a;
    if (shape && v.constant.dtype() == OPGRAFT_INT64 && v.constant.dims().size() <= 1 &&
        v.constant.size() <= OPGRAFT_MAX_VALUES) {
      auto *p = v.constant.data<int64_t>();
      a = v.constant.dims().empty() ? attribute("value", *p)
                                    : attribute("value", std::vector<int64_t>(p, p + v.constant.size()));
    } else {
      pbf_writer w(a);
      w.add_string(1, "value");
      w.add_message(12, tensor(v.constant, "value0", nullptr));
      w.add_int32(16, kTensor);
    }
    return wire_[id] = constant(v.name, a);
  }

  std::string primitive(const std::string &op, const std::vector<std::string> &attributes) {
    std::string name = fmt::format("{}:{}", op, primitives_.size()), out;
    pbf_writer p(out);
    p.add_string(1, name);
    p.add_string(2, op);
    for (auto &a : attributes) p.add_message(3, a);
    primitives_.push_back(std::move(out));
    return "REF::" + name;
  }

  void add(const std::string &wire, const std::string &name, const std::string &op_type,
           const std::vector<std::string> &inputs, const std::string &shape) {
    std::string out;
    pbf_writer n(out);
    for (auto &i : inputs) n.add_string(1, i);
    n.add_string(2, wire);
    n.add_string(3, wire);
    n.add_string(4, op_type);
    if (!shape.empty()) n.add_message(5, shape);
    n.add_string(7, name);
    nodes_.push_back(std::move(out));
  }

  // The abstract of a node's outputs; none for shapes, which are tuples in MindSpore.
  std::string shapes(const Node &n) {
    std::vector<std::string> each;
    for (ValueId id : n.outputs) {
      const Value &v = graph_.value(id);
      if (v.known) return "";
      each.push_back("");
      pbf_writer w(each.back());
      if (n.outputs.size() == 1) w.add_string(1, "shape");
      w.add_message(12, abstract(v.type));
      w.add_int32(16, kTensors);
    }
    if (each.size() == 1) return each[0];
    std::string out;
    pbf_writer w(out);
    w.add_string(1, "shape");
    w.add_int32(16, kTuple);
    for (auto &e : each) w.add_message(17, e);
    return out;
  }

  void node(const Node &n) {
    std::string wire = unique(n.name), shape = shapes(n);
    std::vector<std::string> attributes, operands;
    std::string op = n.op;
    const Manifest &m = n.impl->manifest;
    std::set<std::string> placed;
    bool custom = !n.spec.empty() || n.fallback;
    if (custom) {
      op = "Custom";
      attributes.push_back(attribute("func_name", fs::absolute(n.impl->path).string() + ":" + n.impl->name()));
      attributes.push_back(attribute("func_type", std::string("aot")));
      attributes.push_back(attribute("opgraft_op", n.impl->spec()));
      if (!n.spec.empty()) attributes.push_back(attribute("opgraft_spec", n.spec));
      if (n.fallback) attributes.push_back(attribute("opgraft_fallback", Writer(*n.fallback, nullptr).model()));
      for (ValueId v : n.inputs) operands.push_back(operand(v, false));
    } else if (n.op == "MakeTuple") {
      attributes.push_back(attribute("opgraft_value", true));
      for (ValueId v : n.inputs) operands.push_back(operand(v, true));
    } else if (n.op == "TupleGetItem") {
      operands = {operand(n.inputs.at(0), true), constant(n.name + ".index", attribute("value", n.attrs.at("index")))};
      placed.insert("index");
    } else {
      place(n, m, operands, placed);
    }
    for (auto &[key, value] : n.attrs)
      if (!placed.count(key)) attributes.push_back(attribute(key, value));
    add(wire, n.name, primitive(op, attributes), operands, shape);
    if (n.outputs.size() == 1) {
      wire_[n.outputs[0]] = wire;
      return;
    }
    for (size_t i = 0; i < n.outputs.size(); ++i) {
      std::string index = constant(fmt::format("{}.{}", n.name, i), attribute("value", int64_t(i)));
      std::string item = unique(fmt::format("{}.item{}", n.name, i));
      add(item, item, primitive("TupleGetItem", {}), {wire, index}, "");
      wire_[n.outputs[i]] = item;
    }
  }

  void place(const Node &n, const Manifest &m, std::vector<std::string> &operands, std::set<std::string> &placed) {
    auto order = m.mindir;
    if (order.empty())
      for (auto &t : m.inputs) order.push_back(t.name);
    size_t needed = 0, taken = 0;
    for (auto &name : order) {
      int index = m.input_index(name);
      if (index < 0) {
        auto it = n.attrs.find(name);
        placed.insert(name);
        if (it == n.attrs.end()) {
          operands.push_back("");
          continue;
        }
        AttrValue value = it->second;
        auto *text = std::get_if<std::string>(&value);
        if (text && name == "dtype" && dtype_from_name(*text)) value = int64_t(dtype_from_name(*text));
        operands.push_back(constant(n.name + "." + name, attribute("value", value)));
      } else if (size_t(index) >= n.inputs.size()) {
        operands.push_back("");
        continue;
      } else if (bool shape = m.inputs[size_t(index)].value; m.variadic() && size_t(index) + 1 == m.inputs.size()) {
        std::vector<std::string> each;
        for (size_t k = size_t(index); k < n.inputs.size(); ++k, ++taken) each.push_back(operand(n.inputs[k], shape));
        std::string tuple = unique(n.name + "." + name);
        add(tuple, tuple, primitive("MakeTuple", {}), each, "");
        operands.push_back(tuple);
      } else {
        operands.push_back(operand(n.inputs[size_t(index)], shape));
        ++taken;
      }
      needed = operands.size();
    }
    if (taken != n.inputs.size())
      throw MindirError(
          fmt::format("node {}: {} of {} inputs have a place in op.yaml's mindir", n.name, taken, n.inputs.size()));
    operands.resize(needed);
    for (auto &o : operands)
      if (o.empty()) o = none(n.name + ".none");
  }

  const Graph &graph_;
  External *external_;
  std::set<std::string> used_, symbol_names_;
  std::map<ValueId, std::string> wire_;
  std::map<int64_t, std::string> symbols_;
  std::vector<std::string> nodes_, primitives_;
};

}  // namespace

void write_mindir(const Graph &graph, const std::filesystem::path &file, const MindirOptions &options) {
  size_t total = 0;
  for (size_t i = 0; i < graph.value_count(); ++i)
    if (graph.value(ValueId(i)).parameter) total += graph.value(ValueId(i)).constant.bytes();
  External external;
  fs::path folder = file.parent_path() / (file.stem().string() + "_variables");
  external.location = folder.filename().string() + "/data_0";
  bool outside = total > 0 && (total >= options.external_from || total > kMostInline);
  std::string model = Writer(graph, outside ? &external : nullptr).model();
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
    char zeros[kAlign] = {1};
    data.write(zeros, kHeader);
    zeros[0] = 0;
    for (auto &[offset, t] : external.tensors) {
      data.write(t.data(), t.bytes());
      data.write(zeros, (kAlign - t.bytes() % kAlign) % kAlign);
    }
    data.finish();
    data.commit();
  }
  main.commit();
}

}  // namespace opgraft
