#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "infer/passes/pattern.h"

namespace opgraft::passes {
namespace {

template <class List> std::string names(const char *what, const List &list) {
  std::vector<std::string> out;
  for (auto &x : list) out.push_back(x.name);
  return fmt::format("{} ({})", what, out.empty() ? "none" : fmt::format("{}", fmt::join(out, ", ")));
}

// What a pattern of op.yaml may say: the op that goes in is made of names, and a name that nothing takes up would
// match anything and be dropped.
class Checker {
 public:
  Checker(const Pattern &p, const std::string &program, const Manifest &op, const FindOp &find, bool strict)
      : p_(p), program_(program), op_(op), find_(find), strict_(strict) {}

  void run() {
    for (auto &s : p_.settings) asked_.insert({s.name, s.other});
    reach(p_.results[0]);
    // A further result that takes an input of what was reached is found among that value's users.
    for (auto &r : p_.results)
      if (r.kind == Pattern::Arg::kNode && takes_known(p_.calls[size_t(r.node)])) reach(r);
    for (size_t i = 0; i < p_.calls.size(); ++i)
      if (!reached_.count(int(i)))
        fail(fmt::format("{} must be computed on the way to the first result, or share an input with it",
                         p_.calls[i].label.empty() ? p_.calls[i].op : p_.calls[i].label));
    for (auto &r : p_.results)
      if (r.kind != Pattern::Arg::kNode) fail("results must be calls or labels");
    for (auto &c : p_.calls) {
      for (auto &a : c.args)
        if (a.kind == Pattern::Arg::kVariable) variable(a.name);
      const Manifest *primitive = find_(c.op);
      if (strict_) known(c, primitive);
      for (auto &[attr, want] : c.attrs)
        if (want.kind == Pattern::Want::kBind) bind(c, attr, want.name, primitive);
    }
    settings();
    bound();
  }

 private:
  [[noreturn]] void fail(const std::string &what) const {
    throw Error(OPGRAFT_INVALID_VALUE,
                fmt::format("{}@{}: pattern {}: {}", op_.name, op_.version, quoted(program_), what));
  }

  void reach(const Pattern::Arg &a) {
    if (a.kind != Pattern::Arg::kNode || !reached_.insert(a.node).second) return;
    for (auto &x : p_.calls[size_t(a.node)].args) {
      reach(x);
      if (x.kind == Pattern::Arg::kVariable && !op_.attr(x.name)) met_.insert(x.name);
    }
  }
  bool takes_known(const Pattern::Call &c) const {
    return std::any_of(c.args.begin(), c.args.end(), [&](auto &a) {
      return (a.kind == Pattern::Arg::kVariable && met_.count(a.name)) ||
             (a.kind == Pattern::Arg::kNode && reached_.count(a.node));
    });
  }

  void variable(const std::string &name) {
    if (op_.attr(name)) {
      attrs_.insert(name);
    } else if (op_.input_index(name) >= 0 || asked_.count(name)) {
      values_.insert(name);
    } else {
      fail(fmt::format("{} must be an input {}, an attribute {}, a label of a line before, or _ for anything", name,
                       names("of the op", op_.inputs), names("of the op", op_.attrs)));
    }
  }

  // attr=name: an attribute of the op, a name that a setting takes up, or a word where the primitive takes words.
  void bind(const Pattern::Call &c, const std::string &attr, const std::string &name, const Manifest *primitive) {
    auto *declared = primitive ? primitive->attr(attr) : nullptr;
    if (op_.attr(name) || asked_.count(name)) attrs_.insert(name);
    else if (declared && declared->kind != OPGRAFT_ATTR_STRING)
      fail(fmt::format("{}({}=) must be a value, an attribute {}, or _ for anything, got {}", c.op, attr,
                       names("of the op", op_.attrs), name));
  }

  void known(const Pattern::Call &c, const Manifest *primitive) const {
    if (!primitive) fail(fmt::format("no registered op is named {}", c.op));
    auto &m = *primitive;
    if (int n = int(c.args.size()); n < m.least_inputs() || (n > int(m.inputs.size()) && !m.variadic()))
      fail(fmt::format("{} must have {}, got {} arguments", c.op, names("inputs", m.inputs), n));
    for (auto &[attr, want] : c.attrs)
      if (!m.attr(attr)) fail(fmt::format("{}({}=) must be one of its {}", c.op, attr, names("attributes", m.attrs)));
  }

  void settings() {
    const auto is_value = [&](const std::string &name) { return values_.count(name) || p_.labels.count(name); };
    for (auto &s : p_.settings)
      if (p_.sought(s) && is_value(s.name) && op_.input_index(s.other) >= 0) values_.insert(s.other);
    for (auto &s : p_.settings) {
      using Kind = Pattern::Setting;
      bool value = is_value(s.name), attr = attrs_.count(s.name);
      auto *declared = op_.attr(s.attr);
      const bool input = s.kind == Kind::kBools && op_.input_index(s.attr) >= 0;
      if (input) values_.insert(s.attr);
      if (!s.condition() && !declared && !input)
        fail(fmt::format("-> {}= must be one of {}", s.attr, names("the op's attributes", op_.attrs)));
      bool fits = s.kind == Kind::kLiteral ||
                  (s.kind == Kind::kName && (attr || declared->kind == OPGRAFT_ATTR_STRING)) ||
                  (s.kind == Kind::kInverse && (attr || value) && s.other.empty()) || (input && value) ||
                  (s.kind == Kind::kOff && value && is_value(s.other)) ||
                  ((s.kind == Kind::kProduct || s.kind == Kind::kInverse) && (attr || value) &&
                   (attrs_.count(s.other) || is_value(s.other))) ||
                  ((s.kind == Kind::kDim || s.kind == Kind::kRank || s.silent()) && value &&
                   (s.other.empty() || is_value(s.other) || (s.kind == Kind::kCausal && attrs_.count(s.other)))) ||
                  (s.kind == Kind::kShared && p_.labels.count(s.name)) ||
                  ((s.kind == Kind::kSameDim || s.arranged()) && value && is_value(s.other));
      if (!fits)
        fail(fmt::format("-> {}: {} must be {} that the pattern names",
                         s.arranged() || s.kind == Kind::kShared || (s.kind >= Kind::kSize && s.silent()) ? s.text()
                         : s.kind == Kind::kRank      ? "rank(" + s.name + ")"
                         : s.kind == Kind::kDtype     ? "dtype(" + s.name + ")"
                         : s.kind == Kind::kDensity   ? "density(" + s.name + ")"
                         : s.kind == Kind::kSameShape ? "shape(" + s.name + ")=shape(" + s.other + ")"
                         : s.kind == Kind::kSameDim   ? "dim(" + s.name + ")=dim(" + s.other + ")"
                                                      : s.attr + "=",
                         s.name,
                         s.kind == Kind::kName     ? "an attribute"
                         : s.kind == Kind::kShared ? "a label"
                                                   : "a value"));
    }
  }

  void bound() const {
    // One that others follow becomes a tensor without elements, of a dtype that must be known: see no_elements.
    const auto known = [&](const ManifestTensor &t) {
      const auto is_its = [&](auto &variable) { return variable.first == t.dtype; };
      return dtype_from_name(t.dtype) || std::any_of(op_.dtypes.begin(), op_.dtypes.end(), is_its) ||
             std::any_of(op_.inputs.begin(), op_.inputs.end(),
                         [&](auto &other) { return other.dtype == t.dtype && values_.count(other.name); });
    };
    std::string missing;
    for (auto &t : op_.inputs) {
      if (!values_.count(t.name)) {
        if (missing.empty() && !known(t)) missing = t.name;
        if (!t.optional) fail(fmt::format("input {} must be bound, the pattern does not name it", t.name));
      } else if (!missing.empty()) {
        fail(fmt::format("input {} must be bound, as {} after it is", missing, t.name));
      }
    }
  }

  const Pattern &p_;
  const std::string &program_;
  const Manifest &op_;
  const FindOp &find_;
  const bool strict_;
  std::set<std::string> asked_;           // by settings
  std::set<std::string> values_, attrs_;  // what a match binds
  std::set<int> reached_;
  std::set<std::string> met_;  // values of what was reached
};

}  // namespace

std::string quoted(const std::string &program) {
  std::string out = "'";
  for (char c : program) c == '\n' ? out += "\\n" : out += c;
  return out + "'";
}

FindOp find_in(const Registry &registry) {
  return [&registry](const std::string &name) -> const Manifest * {
    OpPtr op = registry.find(name);  // the registry keeps it
    return op ? &op->manifest : nullptr;
  };
}

Pattern op_pattern(const std::string &program, const Manifest &op, const FindOp &find, bool strict) {
  Pattern p = parse_pattern(program, op.name + "@" + op.version);
  Checker(p, program, op, find, strict).run();
  return p;
}

}  // namespace opgraft::passes
