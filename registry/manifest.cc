#include "registry/manifest.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "opgraft/op.h"

namespace opgraft {
namespace {

constexpr size_t kMostBytes = 1 << 20;  // far above any real op.yaml
constexpr size_t kMostDepth = 64;

class Reader {
 public:
  Reader(std::string_view origin, int line) : origin_(origin), line_(line) {}

  [[noreturn]] void fail(const YAML::Node &at, const std::string &what) const {
    throw ManifestError(
        fmt::format("{}:{}: {}{}", origin_, line_ + at.Mark().line + 1, op_.empty() ? "" : op_ + ": ", what));
  }

  Manifest read(const YAML::Node &doc) {
    op_.clear();
    if (!doc.IsMap()) fail(doc, "expected a mapping of fields");
    only(doc, {"name",    "version",  "doc",           "inputs",      "outputs",        "attrs",    "dtypes",
               "inplace", "view",     "deterministic", "commutative", "moves_values",   "backward", "mindir",
               "names",   "replaces", "align",         "layout",      "implementation", "custom",   "primitive_rank"});
    Manifest m;
    m.name = text(doc, "name");
    if (m.name.empty() || m.name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") !=
                              std::string::npos)
      fail(doc["name"], fmt::format("name must be a C identifier, got '{}'", m.name));
    op_ = m.name;
    m.version = text(doc, "version");
    Version::parse(m.version, fmt::format("{}: {}", origin_, op_));
    m.doc = text(doc, "doc", "");
    m.backward = text(doc, "backward", "");
    m.implementation = text(doc, "implementation", "");
    m.deterministic = flag(doc, "deterministic", true);
    m.commutative = flag(doc, "commutative", false);
    m.moves_values = flag(doc, "moves_values", false);
    m.custom = flag(doc, "custom", false);
    if (auto rank = doc["primitive_rank"]) m.primitive_rank = number<int64_t>(rank, "an int");
    m.inputs = tensors(doc["inputs"], "inputs");
    m.outputs = tensors(doc["outputs"], "outputs");
    if (m.outputs.empty()) fail(doc, "outputs must name at least one output");
    if (auto d = doc["dtypes"]) {
      if (!d.IsMap()) fail(d, "dtypes must map type variables to lists of dtypes");
      for (auto e : d) {
        std::vector<int32_t> set;
        for (auto &n : strings(e.second, "dtypes")) {
          set.push_back(dtype_from_name(n));
          if (set.back() == OPGRAFT_UNKNOWN) fail(e.second, fmt::format("unknown dtype '{}'", n));
        }
        m.dtypes.emplace_back(e.first.as<std::string>(), std::move(set));
      }
    }
    for (auto *list : {&m.inputs, &m.outputs})
      for (auto &t : *list) {
        bool variable = std::any_of(m.dtypes.begin(), m.dtypes.end(), [&](auto &d) { return d.first == t.dtype; });
        if (!variable && dtype_from_name(t.dtype) == OPGRAFT_UNKNOWN)
          fail(doc, fmt::format("dtype of {} must be a dtype or a variable of dtypes, got '{}'", t.name, t.dtype));
      }
    if (auto a = doc["attrs"]) {
      if (!a.IsSequence()) fail(a, "attrs must be a list");
      for (auto e : a) {
        m.attrs.push_back(attribute(e));
        auto &made = m.attrs.back();
        if (!made.axis_of.empty() && m.input_index(made.axis_of) < 0)
          fail(e, fmt::format("attribute {}: axis_of must name an input, got '{}'", made.name, made.axis_of));
      }
    }
    m.inplace = pairs(doc["inplace"], m);
    m.view = pairs(doc["view"], m);
    if (auto x = doc["mindir"]) {
      m.mindir = strings(x, "mindir");
      for (auto &n : m.mindir)
        if (m.input_index(n) < 0 && !m.attr(n))
          fail(x, fmt::format("mindir names '{}', which is no input or attribute", n));
    }
    if (auto n = doc["names"]) m.names = names(n, m);
    if (auto r = doc["replaces"]) m.replaces = strings(r, "replaces");
    return m;
  }

 private:
  void only(const YAML::Node &map, std::initializer_list<std::string_view> known) const {
    for (auto e : map) {
      if (!e.first.IsScalar()) fail(e.first, "field names must be plain text");
      if (std::find(known.begin(), known.end(), e.first.Scalar()) == known.end())
        fail(e.first, fmt::format("unknown field '{}'", e.first.Scalar()));
    }
  }
  std::string text(const YAML::Node &map, const char *key, const char *fallback = nullptr) const {
    auto n = map[key];
    if (!n) {
      if (fallback) return fallback;
      fail(map, fmt::format("field '{}' is missing", key));
    }
    if (!n.IsScalar()) fail(n, fmt::format("{} must be text", key));
    return n.Scalar();
  }
  bool flag(const YAML::Node &map, const char *key, bool fallback) const {
    auto n = map[key];
    if (!n) return fallback;
    bool b;
    if (!n.IsScalar() || !YAML::convert<bool>::decode(n, b)) fail(n, fmt::format("{} must be true or false", key));
    return b;
  }
  std::vector<std::string> strings(const YAML::Node &n, const char *key) const {
    if (!n.IsSequence()) fail(n, fmt::format("{} must be a list", key));
    std::vector<std::string> out;
    for (auto e : n) {
      if (!e.IsScalar()) fail(e, fmt::format("{} must be a list of text", key));
      out.push_back(e.Scalar());
    }
    return out;
  }
  std::vector<ManifestTensor> tensors(const YAML::Node &list, const char *key) const {
    std::vector<ManifestTensor> out;
    if (!list) return out;
    if (!list.IsSequence()) fail(list, fmt::format("{} must be a list", key));
    for (auto e : list) {
      if (!e.IsMap()) fail(e, fmt::format("{} must be a list of {{name, dtype}}", key));
      only(e, {"name", "dtype", "optional", "variadic", "value", "state", "doc"});
      ManifestTensor t;
      t.name = text(e, "name");
      t.dtype = text(e, "dtype");
      t.optional = flag(e, "optional", false);
      t.variadic = flag(e, "variadic", false);
      t.value = flag(e, "value", false);
      t.state = flag(e, "state", false);
      if (!out.empty() && out.back().variadic) fail(e, "only the last input may be variadic");
      if (!out.empty() && out.back().optional && !t.optional)
        fail(e, "an input after an optional one must be optional");
      out.push_back(std::move(t));
    }
    return out;
  }
  std::vector<ManifestName> names(const YAML::Node &list, const Manifest &m) const {
    if (!list.IsSequence()) fail(list, "names must be a list");
    std::vector<ManifestName> out;
    for (auto e : list) {
      if (e.IsScalar()) {
        out.push_back({e.Scalar(), {}});
        continue;
      }
      if (!e.IsMap()) fail(e, "names must be a list of text or {name, mindir}");
      only(e, {"name", "mindir"});
      if (!e["mindir"]) fail(e, "names: field 'mindir' is missing");
      out.push_back({text(e, "name"), strings(e["mindir"], "mindir")});
      for (auto &n : out.back().mindir)
        if (int64_t v; m.input_index(n) < 0 && !m.attr(n) && n != "none" && !whole_number(n, v))
          fail(e, fmt::format("names: {}: '{}' is no input, attribute, number or 'none'", out.back().name, n));
    }
    return out;
  }
  template <class T> T number(const YAML::Node &n, const char *what) const {
    T v;
    if (!n.IsScalar() || !YAML::convert<T>::decode(n, v)) fail(n, fmt::format("default must be {}", what));
    return v;
  }
  template <class T> std::vector<T> numbers(const YAML::Node &n, const char *what) const {
    if (!n.IsSequence()) fail(n, fmt::format("default must be a list of {}", what));
    std::vector<T> out;
    for (auto e : n) out.push_back(number<T>(e, what));
    return out;
  }
  template <class T> std::vector<std::vector<T>> rows(const YAML::Node &n, const char *what) const {
    if (!n.IsSequence()) fail(n, fmt::format("default must be a list of lists of {}", what));
    std::vector<std::vector<T>> out;
    for (auto e : n) out.push_back(numbers<T>(e, what));
    return out;
  }
  ManifestAttr attribute(const YAML::Node &e) const {
    if (!e.IsMap()) fail(e, "attrs must be a list of {name, type}");
    only(e, {"name", "type", "default", "axis_of", "tuple", "ours", "doc"});
    static constexpr const char *kKinds[] = {"bool", "int", "float", "str", "ints", "floats", "ints2d", "floats2d"};
    ManifestAttr a;
    a.name = text(e, "name");
    auto type = text(e, "type");
    for (int k = 0; k < 8; ++k)
      if (type == kKinds[k]) a.kind = k + 1;
    if (!a.kind)
      fail(e["type"],
           fmt::format(
               "attribute {}: type must be one of bool, int, float, str, ints, floats, ints2d, floats2d, got '{}'",
               a.name, type));
    a.axis_of = text(e, "axis_of", "");
    if (!a.axis_of.empty() && a.kind != OPGRAFT_ATTR_INT && a.kind != OPGRAFT_ATTR_INTS)
      fail(e, fmt::format("attribute {}: axis_of goes with type int or ints, got {}", a.name, type));
    a.tuple = flag(e, "tuple", false);
    if (a.tuple && a.kind != OPGRAFT_ATTR_INT)
      fail(e, fmt::format("attribute {}: tuple goes with type int, got {}", a.name, type));
    a.ours = flag(e, "ours", false);
    if (a.ours && !e["default"]) fail(e, fmt::format("attribute {}: ours goes with a default", a.name));
    if (auto d = e["default"]) switch (a.kind) {
        case OPGRAFT_ATTR_BOOL: a.fallback = flag(e, "default", false); break;
        case OPGRAFT_ATTR_INT: a.fallback = number<int64_t>(d, "an int"); break;
        case OPGRAFT_ATTR_FLOAT: a.fallback = number<double>(d, "a float"); break;
        case OPGRAFT_ATTR_STRING: a.fallback = text(e, "default"); break;
        case OPGRAFT_ATTR_INTS: a.fallback = numbers<int64_t>(d, "int"); break;
        case OPGRAFT_ATTR_FLOATS: a.fallback = numbers<double>(d, "float"); break;
        case OPGRAFT_ATTR_INTS2D: a.fallback = rows<int64_t>(d, "int"); break;
        default: a.fallback = rows<double>(d, "float");
      }
    return a;
  }
  std::vector<std::pair<int, int>> pairs(const YAML::Node &list, const Manifest &m) const {
    std::vector<std::pair<int, int>> out;
    if (!list) return out;
    if (!list.IsSequence()) fail(list, "expected a list of {output, input}");
    for (auto e : list) {
      if (!e.IsMap()) fail(e, "expected {output, input}");
      only(e, {"output", "input"});
      auto o = text(e, "output"), i = text(e, "input");
      int oi = -1;
      for (size_t k = 0; k < m.outputs.size(); ++k)
        if (m.outputs[k].name == o) oi = int(k);
      if (oi < 0) fail(e, fmt::format("no output is named '{}'", o));
      if (m.input_index(i) < 0) fail(e, fmt::format("no input is named '{}'", i));
      out.emplace_back(oi, m.input_index(i));
    }
    return out;
  }

  std::string origin_, op_;
  int line_;  // of the file at which the document begins
};

// yaml-cpp parses recursively: deep nesting would overflow the stack before we see a node. Every
// level costs a bracket or a deeper indent, so both are counted first.
void check_depth(std::string_view yaml, std::string_view origin) {
  size_t brackets = 0, indent = 0, dashes = 0, line = 1;
  bool leading = true;
  for (char c : yaml) {
    if (c == '\n') {
      ++line;
      indent = dashes = 0;
      leading = true;
      continue;
    }
    if (leading && (c == ' ' || c == '\t' || c == '-' || c == '?' || c == ':')) {
      c == ' ' || c == '\t' ? ++indent : ++dashes;
    } else {
      leading = false;
      if (c == '[' || c == '{') ++brackets;
      if ((c == ']' || c == '}') && brackets) --brackets;
    }
    if (brackets > kMostDepth || indent > 4 * kMostDepth || dashes > kMostDepth)
      throw ManifestError(fmt::format("{}:{}: nested deeper than {} levels", origin, line, kMostDepth));
  }
}

// Anchors and aliases let a few bytes stand for gigabytes; an op.yaml has no use for them.
void refuse_aliases(std::string_view yaml, std::string_view origin) {
  size_t line = 1;
  for (size_t i = 0; i < yaml.size(); ++i) {
    if (yaml[i] == '\n') ++line;
    bool starts = i == 0 || std::string_view(" \t\r\n,[{:-?").find(yaml[i - 1]) != std::string_view::npos;
    bool names = i + 1 < yaml.size() && std::string_view(" \t\r\n").find(yaml[i + 1]) == std::string_view::npos;
    if ((yaml[i] == '&' || yaml[i] == '*') && starts && names)
      throw ManifestError(fmt::format("{}:{}: YAML anchors and aliases are not accepted", origin, line));
  }
}

// Where the document that begins at `from` ends: the next line that starts with "---", or the end.
size_t document_end(std::string_view yaml, size_t from) {
  for (size_t at = yaml.find("---", from); at != std::string_view::npos; at = yaml.find("---", at + 3))
    if (at == 0 || yaml[at - 1] == '\n') return at;
  return yaml.size();
}

// yaml-cpp 0.7 makes empty documents without end out of some broken text (LoadAll then never returns),
// so each document is parsed alone, and a second one in the same text is an error.
void check_single(const std::string &text, std::string_view origin, int line) {
  struct Ignore : YAML::EventHandler {
    void OnDocumentStart(const YAML::Mark &) override {}
    void OnDocumentEnd() override {}
    void OnNull(const YAML::Mark &, YAML::anchor_t) override {}
    void OnAlias(const YAML::Mark &, YAML::anchor_t) override {}
    void OnScalar(const YAML::Mark &, const std::string &, YAML::anchor_t, const std::string &) override {}
    void OnSequenceStart(const YAML::Mark &, const std::string &, YAML::anchor_t, YAML::EmitterStyle::value) override {}
    void OnSequenceEnd() override {}
    void OnMapStart(const YAML::Mark &, const std::string &, YAML::anchor_t, YAML::EmitterStyle::value) override {}
    void OnMapEnd() override {}
  } ignore;
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  if (parser.HandleNextDocument(ignore) && parser.HandleNextDocument(ignore))
    throw ManifestError(fmt::format("{}:{}: text that belongs to no field follows the operator", origin, line + 1));
}

}  // namespace

const ManifestAttr *Manifest::attr(std::string_view n) const {
  for (auto &a : attrs)
    if (a.name == n) return &a;
  return nullptr;
}

int Manifest::input_index(std::string_view n) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].name == n) return int(i);
  return -1;
}

const std::vector<std::string> &Manifest::operands_of(std::string_view primitive) const {
  if (primitive != name)
    for (auto &n : names)
      if (n.name == primitive && !n.mindir.empty()) return n.mindir;
  return mindir;
}

bool whole_number(std::string_view text, int64_t &value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

int Manifest::least_inputs() const {
  return int(std::count_if(inputs.begin(), inputs.end(), [](auto &t) { return !t.optional; }));
}

Version Version::parse(std::string_view text, std::string_view origin) {
  Version v;
  int *parts[] = {&v.major, &v.minor, &v.patch};
  const char *p = text.data(), *end = p + text.size();
  for (int i = 0; i < 3; ++i) {
    auto r = std::from_chars(p, end, *parts[i]);
    if (r.ec != std::errc() || *parts[i] < 0 || (i < 2 && (r.ptr == end || *r.ptr != '.')) || (i == 2 && r.ptr != end))
      throw ManifestError(fmt::format("{}: version must be MAJOR.MINOR.PATCH, got '{}'", origin, text));
    p = r.ptr + 1;
  }
  return v;
}

std::vector<Manifest> parse_manifests(std::string_view yaml, std::string_view origin) {
  if (yaml.size() > kMostBytes)
    throw ManifestError(fmt::format("{}: op.yaml must be at most {} bytes, got {}", origin, kMostBytes, yaml.size()));
  check_depth(yaml, origin);
  refuse_aliases(yaml, origin);
  std::vector<Manifest> out;
  int line = 0;  // at which the document begins
  for (size_t at = 0; at <= yaml.size();) {
    const size_t end = document_end(yaml, at);
    const std::string text(yaml.substr(at, end - at));
    try {
      check_single(text, origin, line);
      if (YAML::Node doc = YAML::Load(text); !doc.IsNull()) out.push_back(Reader(origin, line).read(doc));
    } catch (const YAML::Exception &e) {
      throw ManifestError(fmt::format("{}:{}: {}", origin, line + e.mark.line + 1, e.msg));
    }
    line += int(std::count(text.begin(), text.end(), '\n'));
    at = end < yaml.size() ? end + 3 : yaml.size() + 1;  // past the "---"
  }
  if (out.empty()) throw ManifestError(fmt::format("{}: no operator is described", origin));
  for (size_t i = 0; i < out.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (out[i].name == out[j].name)
        throw ManifestError(fmt::format("{}: operator {} is described twice", origin, out[i].name));
  return out;
}

}  // namespace opgraft
