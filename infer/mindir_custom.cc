#include "infer/mindir_custom.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string_view>

#include "opgraft/op.h"
#include "registry/functions.h"
#include "registry/library.h"

namespace opgraft::mindir {
namespace {

std::string text(const Literals &attrs, std::string_view name) {
  auto it = attrs.find(name);
  return it == attrs.end() || it->second.kind != Literal::kString ? "" : it->second.s;
}

// The literal in the first kind that holds it; false for what attributes cannot be (lists of text, types).
bool any_attr(const Literal &l, AttrValue &out) {
  switch (l.kind) {
    case Literal::kBool: return to_attr(l, OPGRAFT_ATTR_BOOL, out);
    case Literal::kInt: return to_attr(l, OPGRAFT_ATTR_INT, out);
    case Literal::kFloat: return to_attr(l, OPGRAFT_ATTR_FLOAT, out);
    case Literal::kString: return to_attr(l, OPGRAFT_ATTR_STRING, out);
    case Literal::kTuple:
      for (int32_t kind : {OPGRAFT_ATTR_INTS, OPGRAFT_ATTR_FLOATS, OPGRAFT_ATTR_INTS2D, OPGRAFT_ATTR_FLOATS2D})
        if (to_attr(l, kind, out)) return true;
      return false;
    default: return false;
  }
}

// A registered operator of that name from a file of that name: the file of the model, wherever it was.
OpPtr registered(const Registry &registry, const std::string &func) {
  auto colon = func.rfind(':');
  if (colon == func.npos) return nullptr;
  auto op = registry.find(func.substr(colon + 1));
  using std::filesystem::path;
  return op && path(op->path).filename() == path(func.substr(0, colon)).filename() ? op : nullptr;
}

// The path and function that a node names; as in MindSpore, with `path_from_env` a variable that holds the path.
std::string function_of(const Literals &attrs) {
  auto func = text(attrs, "func_name");
  auto from_env = attrs.find("path_from_env");
  const auto colon = func.rfind(':');
  if (from_env == attrs.end() || from_env->second.kind != Literal::kBool || !from_env->second.i || colon == func.npos)
    return func;
  auto *path = std::getenv(func.substr(0, colon).c_str());
  return path && *path ? path + func.substr(colon) : func;
}

bool local(std::string_view spec) { return spec.find('#') != spec.npos; }  // a name of some process

// What the file states of the outputs, as attributes of registry/functions.h.
void declare(const std::vector<TensorProto> &outputs, bool shapes, bool dtypes, Attrs &attrs) {
  std::string shape, dtype;
  for (auto &t : outputs) {
    if (&t != outputs.data()) shape += ";", dtype += ";";
    for (size_t k = 0; k < t.dims.size(); ++k)
      shape += (k ? "," : "") + (t.dims[k] < 0 ? std::string("?") : std::to_string(t.dims[k]));
    dtype += dtype_name(dtype_of(t.data_type));
    if (shapes && t.dims.size() == 1 && t.dims[0] == -2)
      refuse("a Custom of unknown rank whose file exports no InferShape");
  }
  attrs.try_emplace("opgraft_outputs", int64_t(outputs.size()));
  if (shapes) attrs.try_emplace("out_shape", shape);
  if (dtypes) attrs.try_emplace("out_dtype", dtype);
}

}  // namespace

std::vector<TensorProto> outputs_of(const NodeProto &node) {
  std::vector<TensorProto> out;
  for (auto bytes : node.attributes) {
    AttributeProto a = parse_attribute(bytes);
    if (a.name != "shape" && a.type != kTensors) continue;
    for (auto t : a.tensors) out.push_back(parse_tensor(t));
    for (auto v : a.values)
      for (auto t : parse_attribute(v).tensors) out.push_back(parse_tensor(t));
  }
  return out;
}

Literals take_trailing(const Items &items, std::vector<size_t> &operands, const Literals &attrs) {
  Literals out;
  auto names = attrs.find("input_names"), taken = attrs.find("attr_names");
  if (names == attrs.end() || taken == attrs.end()) return out;
  auto &order = names->second.items;
  std::set<std::string_view> known;
  for (auto &name : taken->second.items)
    if (!name.s.empty()) known.insert(name.s);
  std::vector<size_t> tensors;
  for (size_t k = 0; k < operands.size(); ++k) {
    Literal value;
    if (k >= order.size() || !known.count(order[k].s)) tensors.push_back(operands[k]);
    else if (!items.literal_of(operands[k], value))
      refuse(fmt::format("operand {} (attribute {}) must be a constant", k, order[k].s));
    else out.insert_or_assign(order[k].s, std::move(value));
  }
  operands = std::move(tensors);
  if (!out.empty()) out.insert(attrs.begin(), attrs.end());
  return out;
}

CustomNode find_custom(const Registry &registry, const Literals &attrs, const std::vector<TensorProto> &outputs,
                       const std::filesystem::path &beside) {
  CustomNode c;
  c.spec = text(attrs, "opgraft_spec");
  // `written` is for messages: a model may name any variable, and its value may be a secret.
  auto exact = text(attrs, "opgraft_op"), func = function_of(attrs), written = text(attrs, "func_name");
  for (auto &spec : {c.spec, exact})
    if (!c.impl && !spec.empty() && !local(spec) && (c.impl = registry.find(spec))) c.op = spec;
  if (!c.impl && (c.impl = registered(registry, func))) c.op = c.impl->name();
  if (c.impl) return c;
  if (auto type = text(attrs, "func_type"); !type.empty() && type != "aot")
    refuse(fmt::format("func_type must be 'aot', got '{}'", type));
  std::vector<ManifestAttr> declared;
  for (auto &[name, literal] : attrs) {
    AttrValue v;
    if (name == "func_name" || name == "func_type" || name == "path_from_env" ||
        (name.starts_with("opgraft_") && name != "opgraft_outputs") || !any_attr(literal, v))
      continue;
    bool ours = name == "out_shape" || name == "out_dtype" || name == "opgraft_outputs";
    if (ours && attr_kind(v) != (name == "opgraft_outputs" ? OPGRAFT_ATTR_INT : OPGRAFT_ATTR_STRING)) continue;
    if (!ours) declared.push_back({name, attr_kind(v), std::nullopt});
    c.attrs.emplace(name, std::move(v));
  }
  if (!func.empty()) c.impl = model_function(registry, func, declared, beside);
  if (!c.impl)
    refuse(fmt::format(
        "no registered operator answers to '{}'{}", exact.empty() ? written : exact,
        func.empty() ? ""
                     : ", and its file is neither there nor, by its base name, beside the model or in a folder of "
                       "MS_CUSTOM_AOT_WHITE_LIST, opgraft.set_whitelist or OPGRAFT_OPS_PATH: " +
                           written + (written == func ? "" : " (from the environment)")));
  c.op = c.impl->spec();
  if (c.impl->function.empty()) {
    c.attrs.clear();
    return c;
  }
  auto exports = [&](const char *suffix) { return c.impl->library->symbol(c.impl->function + suffix) != nullptr; };
  if (!outputs.empty()) declare(outputs, !exports("InferShape"), !exports("InferType"), c.attrs);
  return c;
}

}  // namespace opgraft::mindir
