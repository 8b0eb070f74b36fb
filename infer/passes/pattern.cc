#include "infer/passes/pattern.h"

#include <fmt/format.h>

#include <cmath>

namespace opgraft::passes {
namespace {

class Parser {
 public:
  Parser(const std::string &text, const std::string &origin) : s_(text), origin_(origin) {}

  Pattern parse() {
    for (;;) {
      skip(true);
      size_t start = at_;
      std::string name = word();
      skip(false);
      if (!name.empty() && peek() == '=') {
        ++at_;
        skip(false);
        Pattern::Arg a = arg();
        if (a.kind != Pattern::Arg::kNode) fail("a call after '='");
        p_.calls[size_t(a.node)].label = name;
        if (!p_.labels.emplace(name, a).second) fail("a new name, '" + name + "' is taken");
        continue;
      }
      at_ = start;
      p_.results.push_back(arg());
      skip(false);
      while (peek() == ',') {
        ++at_;
        skip(true);
        p_.results.push_back(arg());
        skip(false);
      }
      break;
    }
    if (p_.results[0].kind != Pattern::Arg::kNode) fail("a call as the first result");
    skip(true);
    if (s_.compare(at_, 2, "->") == 0) {
      at_ += 2;
      do {
        skip(true);
        setting();
        skip(true);
      } while (peek() == ',' && ++at_);
    }
    skip(true);
    if (at_ != s_.size()) fail("the end");
    return std::move(p_);
  }

 private:
  [[noreturn]] void fail(const std::string &expected) const {
    throw Error(OPGRAFT_INVALID_VALUE,
                fmt::format("{}: pattern: expected {} at '{}'", origin_, expected, s_.substr(at_, 24)));
  }
  char peek() const { return at_ < s_.size() ? s_[at_] : '\0'; }
  void skip(bool lines) {
    while (peek() == ' ' || peek() == '\t' || (lines && (peek() == '\n' || peek() == '\r'))) ++at_;
  }
  std::string word() {
    size_t start = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '_') ++at_;
    std::string w = s_.substr(start, at_ - start);
    if (!w.empty() && std::isdigit(static_cast<unsigned char>(w[0]))) {
      at_ = start;
      return "";
    }
    return w;
  }
  bool number(double &value, bool &integer) {
    const char *begin = s_.c_str() + at_;
    if (!std::isdigit(static_cast<unsigned char>(*begin)) && *begin != '-' && *begin != '.') return false;
    char *end;
    value = std::strtod(begin, &end);
    if (end == begin) return false;
    integer = std::string_view(begin, size_t(end - begin)).find_first_of(".eE") == std::string::npos;
    at_ += size_t(end - begin);
    return true;
  }
  AttrValue literal(bool &ok) {
    ok = true;
    double v;
    bool integer;
    if (number(v, integer)) return integer ? AttrValue(int64_t(v)) : AttrValue(v);
    if (peek() == '[') {
      ++at_;
      std::vector<int64_t> list;
      for (skip(true); peek() != ']'; skip(true)) {
        if (!number(v, integer) || !integer) fail("a list of int");
        list.push_back(int64_t(v));
        skip(true);
        if (peek() == ',') ++at_;
      }
      ++at_;
      return list;
    }
    if (peek() == '"' || peek() == '\'') {
      char q = s_[at_++];
      size_t end = s_.find(q, at_);
      if (end == std::string::npos) fail("a closing quote");
      std::string text = s_.substr(at_, end - at_);
      at_ = end + 1;
      return text;
    }
    size_t start = at_;
    std::string w = word();
    if (w == "true" || w == "false") return w == "true";
    at_ = start;
    ok = false;
    return false;
  }
  Pattern::Arg arg() {
    if (++depth_ > 64) fail("less nesting");
    Pattern::Arg a;
    double v;
    bool integer;
    skip(true);
    if (number(v, integer)) {
      a.kind = Pattern::Arg::kNumber;
      a.number = v;
    } else {
      a.name = word();
      if (a.name.empty()) fail("a name, number or call");
      if (peek() == '(') call(a);
      else if (a.name == "_") a.kind = Pattern::Arg::kAny;
      else if (auto it = p_.labels.find(a.name); it != p_.labels.end()) a = it->second;
      else a.kind = Pattern::Arg::kVariable;
    }
    --depth_;
    return a;
  }
  void call(Pattern::Arg &a) {
    Pattern::Call c;
    c.op = a.name;
    ++at_;
    for (skip(true); peek() != ')'; skip(true)) {
      size_t start = at_;
      std::string name = word();
      skip(false);
      if (!name.empty() && peek() == '=') {
        ++at_;
        skip(true);
        Pattern::Want w;
        bool ok;
        w.literal = literal(ok);
        if (ok) w.kind = Pattern::Want::kLiteral;
        else {
          w.name = word();
          if (w.name.empty()) fail("an attribute's value");
          w.kind = w.name == "_" ? Pattern::Want::kAnything : Pattern::Want::kBind;
        }
        c.attrs.emplace_back(name, w);
      } else {
        at_ = start;
        c.args.push_back(arg());
      }
      skip(true);
      if (peek() == ',') ++at_;
      else if (peek() != ')') fail("',' or ')'");
    }
    ++at_;
    a = {Pattern::Arg::kNode, "", 0, int(p_.calls.size())};
    p_.calls.push_back(std::move(c));
  }
  void setting() {
    Pattern::Setting s;
    s.attr = word();
    skip(false);
    if (s.attr.empty() || peek() != '=') fail("attr=value");
    ++at_;
    skip(false);
    if (s_.compare(at_, 2, "1/") == 0) {
      at_ += 2;
      s.kind = Pattern::Setting::kInverse;
      s.name = word();
    } else if (s_.compare(at_, 4, "dim(") == 0) {
      at_ += 4;
      s.kind = Pattern::Setting::kDim;
      s.name = word();
      skip(false);
      if (peek() == ',') ++at_;
      skip(false);
      double v;
      bool integer;
      if (!number(v, integer)) fail("a dimension's index");
      s.index = int64_t(v);
      skip(false);
      if (peek() != ')') fail("')'");
      ++at_;
    } else {
      bool ok;
      s.literal = literal(ok);
      if (!ok) {
        // A bare word that the op declares a string for, or a name bound in the program.
        s.kind = Pattern::Setting::kName;
        s.name = word();
        if (s.name.empty()) fail("a value");
      }
    }
    p_.settings.push_back(std::move(s));
  }

  const std::string &s_;
  std::string origin_;
  size_t at_ = 0;
  int depth_ = 0;
  Pattern p_;
};

bool scalar(const Value &v, double &out) {
  if (v.kind != Value::kConstant || v.constant.size() != 1 || v.parameter) return false;
  switch (v.type.dtype) {
    case OPGRAFT_FLOAT32: out = *v.constant.data<float>(); return true;
    case OPGRAFT_FLOAT64: out = *v.constant.data<double>(); return true;
    case OPGRAFT_FLOAT16: out = double(float(*v.constant.data<float16>())); return true;
    case OPGRAFT_BFLOAT16: out = double(float(*v.constant.data<bfloat16>())); return true;
    case OPGRAFT_INT32: out = *v.constant.data<int32_t>(); return true;
    case OPGRAFT_INT64: out = double(*v.constant.data<int64_t>()); return true;
    default: return false;
  }
}

bool close(double a, double b, int32_t dtype) {
  double tolerance = dtype == OPGRAFT_FLOAT16 ? 1e-3 : dtype == OPGRAFT_BFLOAT16 ? 8e-3 : 1e-6;
  return std::fabs(a - b) <= tolerance * std::max(std::fabs(a), std::fabs(b));
}

bool same(const AttrValue &got, const AttrValue &want) {
  if (got == want) return true;
  auto number = [](const AttrValue &v, double &x) {
    if (auto i = std::get_if<int64_t>(&v)) return x = double(*i), true;
    if (auto f = std::get_if<double>(&v)) return x = *f, true;
    return false;
  };
  double a, b;
  if (number(got, a) && number(want, b)) return close(a, b, OPGRAFT_FLOAT32);
  auto list = std::get_if<std::vector<int64_t>>(&got);
  auto one = std::get_if<int64_t>(&want);
  return list && one && list->size() == 1 && list->front() == *one;
}

class Matcher {
 public:
  Matcher(const Graph &g, const Pattern &p, const Manifest *target) : g_(g), p_(p), target_(target) {}

  bool run(NodeId root, Match &out) {
    m_.nodes.assign(p_.calls.size(), kNone);
    std::vector<Goal> goals{{p_.results[0], g_.node(root).outputs[0]}};
    if (!solve(goals)) return false;
    for (auto &r : p_.results) {
      if (r.kind == Pattern::Arg::kNode) {
        if (m_.nodes[size_t(r.node)] == kNone) return false;
        m_.results.push_back(g_.node(m_.nodes[size_t(r.node)]).outputs[0]);
      } else {
        return false;
      }
    }
    out = std::move(m_);
    return true;
  }

 private:
  struct Goal {
    Pattern::Arg want;
    ValueId value;
  };

  bool solve(std::vector<Goal> goals) {
    if (++steps_ > 20000) return false;
    while (!goals.empty()) {
      Goal goal = goals.back();
      goals.pop_back();
      const Value &v = g_.value(goal.value);
      double x;
      switch (goal.want.kind) {
        case Pattern::Arg::kAny: continue;
        case Pattern::Arg::kNumber:
          if (!scalar(v, x) || !close(x, goal.want.number, v.type.dtype)) return false;
          continue;
        case Pattern::Arg::kVariable: {
          const std::string &name = goal.want.name;
          if (target_ && target_->attr(name)) {
            if (!scalar(v, x) || !bind(name, AttrValue(x))) return false;
            continue;
          }
          auto [it, added] = m_.values.emplace(name, goal.value);
          if (!added && it->second != goal.value) return false;
          continue;
        }
        case Pattern::Arg::kNode: break;
      }
      const Pattern::Call &c = p_.calls[size_t(goal.want.node)];
      if (v.kind != Value::kResult || v.index != 0) return false;
      const Node &n = g_.node(v.producer);
      NodeId &bound = m_.nodes[size_t(goal.want.node)];
      if (bound != kNone) {
        if (bound != v.producer) return false;
        continue;
      }
      if (n.op != c.op || n.inputs.size() != c.args.size() || !attrs(n, c)) return false;
      bound = v.producer;
      bool swap = n.impl->manifest.commutative && c.args.size() == 2;
      for (int order = 0; order < (swap ? 2 : 1); ++order) {
        std::vector<Goal> next = goals;
        for (size_t i = c.args.size(); i-- > 0;) next.push_back({c.args[i], n.inputs[order ? 1 - i : i]});
        if (!swap) {
          goals = std::move(next);
          break;
        }
        Match saved = m_;
        if (solve(std::move(next))) return true;
        m_ = std::move(saved);
      }
      if (swap) return false;
    }
    return true;
  }

  bool bind(const std::string &name, AttrValue value) {
    auto [it, added] = m_.attrs.emplace(name, value);
    return added || same(it->second, value);
  }

  bool attrs(const Node &n, const Pattern::Call &c) {
    for (auto &[name, want] : c.attrs) {
      auto it = n.attrs.find(name);
      if (it == n.attrs.end()) return false;
      switch (want.kind) {
        case Pattern::Want::kAnything: break;
        case Pattern::Want::kLiteral:
          if (!same(it->second, want.literal)) return false;
          break;
        case Pattern::Want::kBind:
          // A bare word is a string literal where the attribute is a string and the op has no such attribute.
          if (std::holds_alternative<std::string>(it->second) && !(target_ && target_->attr(want.name))) {
            if (std::get<std::string>(it->second) != want.name) return false;
          } else if (!bind(want.name, it->second)) {
            return false;
          }
      }
    }
    return true;
  }

  const Graph &g_;
  const Pattern &p_;
  const Manifest *target_;
  Match m_;
  int steps_ = 0;
};

}  // namespace

Pattern parse_pattern(const std::string &program, const std::string &origin) { return Parser(program, origin).parse(); }

Pattern pattern_of(const Graph &g) {
  Pattern p;
  std::map<ValueId, Pattern::Arg> args;
  for (ValueId v : g.inputs) args[v] = {Pattern::Arg::kVariable, g.value(v).name, 0, -1};
  for (NodeId id : g.order()) {
    const Node &n = g.node(id);
    Pattern::Call c;
    c.op = n.op;
    c.label = n.name;
    for (ValueId v : n.inputs) {
      double x;
      if (auto it = args.find(v); it != args.end()) c.args.push_back(it->second);
      else if (scalar(g.value(v), x)) c.args.push_back({Pattern::Arg::kNumber, "", x, -1});
      else c.args.push_back({});  // a target shape: follows from the sizes
    }
    for (auto &[k, v] : n.attrs) c.attrs.push_back({k, {Pattern::Want::kLiteral, v, ""}});
    Pattern::Arg a{Pattern::Arg::kNode, "", 0, int(p.calls.size())};
    p.calls.push_back(std::move(c));
    args[n.outputs[0]] = a;
    p.labels[n.name] = a;
  }
  for (ValueId v : g.outputs) {
    auto it = args.find(v);
    if (it == args.end() || it->second.kind != Pattern::Arg::kNode)
      throw Error(OPGRAFT_INVALID_VALUE, "substitute: the pattern must return the result of an operator");
    p.results.push_back(it->second);
  }
  if (p.results.empty()) throw Error(OPGRAFT_INVALID_VALUE, "substitute: the pattern returns nothing");
  return p;
}

bool match(const Graph &graph, const Pattern &pattern, const Manifest *target, NodeId root, Match &out) {
  return Matcher(graph, pattern, target).run(root, out);
}

}  // namespace opgraft::passes
