#include <fmt/format.h>

#include <algorithm>

#include "infer/passes/pattern.h"

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
        if (std::string &label = p_.calls[size_t(a.node)].label; label.empty()) label = name;
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
    throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: pattern {}: expected {} at {}", origin_, quoted(s_), expected,
                                                   quoted(s_.substr(at_, 24))));
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
      if (a.kind == Pattern::Arg::kNode && peek() == '[') {
        ++at_;
        if (!number(v, integer) || !integer || v < 0 || v > 63 || peek() != ']') fail("an output's number");
        a.output = int(v);
        ++at_;
      }
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
        if (peek() == '*') {
          if (c.args.size() > 1) fail("one argument that is all inputs");
          c.all = true, ++at_;
        }
      }
      skip(true);
      if (peek() == ',') ++at_;
      else if (peek() != ')') fail("',' or ')'");
    }
    if (c.all && c.args.size() > 1) fail("no argument beside one that is all inputs");
    ++at_;
    a = {Pattern::Arg::kNode, "", 0, int(p_.calls.size())};
    p_.calls.push_back(std::move(c));
  }
  void setting() {
    Pattern::Setting s;
    s.attr = word();
    skip(false);
    if (s.attr == "late" && peek() != '=') return void(p_.late = true);
    if (s.attr == "rank" && peek() == '(') return rank();
    if (s.attr == "dim" && peek() == '(') return same_dim();
    if (s.attr == "density" && peek() == '(') return density();
    if (s.attr == "dtype" && peek() == '(') return dtype();
    if (s.attr == "shape" && peek() == '(') return same_shape();
    if (const auto kind = Pattern::Setting::named(s.attr); kind && peek() == '(') return arranged(*kind);
    if (s.attr.empty() || peek() != '=') fail("attr=value");
    ++at_;
    skip(false);
    if (s_.compare(at_, 2, "1/") == 0) {
      at_ += 2;
      s.kind = Pattern::Setting::kInverse;
      s.name = word();
      if (peek() == '/' && (++at_, s.other = word()).empty()) fail("a name");
    } else if (s_.compare(at_, 4, "dim(") == 0) {
      at_ += 3;
      s.kind = Pattern::Setting::kDim;
      dimension(s.name, s.index);
    } else if (!made_of_constants(s)) {
      bool ok;
      s.literal = literal(ok);
      if (!ok) {
        // A bare word that the op declares a string for, or a name bound in the program.
        s.kind = Pattern::Setting::kName;
        s.name = word();
        if (s.name.empty()) fail("a value");
        skip(false);
        if (peek() == '*') {
          ++at_;
          skip(false);
          s.kind = Pattern::Setting::kProduct;
          s.other = word();
          if (s.other.empty()) fail("a name");
        }
      }
    }
    p_.settings.push_back(std::move(s));
  }

  // bools(b), off(c, b) or -off(c, b)
  bool made_of_constants(Pattern::Setting &s) {
    const size_t start = at_;
    s.inverse = peek() == '-';
    at_ += s.inverse;
    const std::string what = word();
    if (peek() != '(' || (what != "off" && (what != "bools" || s.inverse))) return at_ = start, false;
    s.kind = what == "off" ? Pattern::Setting::kOff : Pattern::Setting::kBools;
    ++at_;
    s.name = word();
    if (what == "off" && peek() == ',') ++at_, skip(false), s.other = word();
    if (s.name.empty() || (what == "off" && s.other.empty()) || peek() != ')') fail("bools(name) or off(name, name)");
    return ++at_, true;
  }
  // (name, index)
  void dimension(std::string &name, int64_t &index) {
    if (peek() != '(') fail("'('");
    ++at_;
    name = word();
    skip(false);
    if (peek() == ',') ++at_;
    if (name.empty()) fail("dim(name, index)");
    index = whole("dim(name, index)");
    skip(false);
    if (peek() != ')') fail("')'");
    ++at_;
  }
  void same_dim() {
    Pattern::Setting s;
    s.kind = Pattern::Setting::kSameDim;
    dimension(s.name, s.index);
    skip(false);
    const bool same = s_.compare(at_, 4, "=dim") == 0;
    if (peek() != '=') fail("=dim(name, index) or a number");
    at_ += same ? 4 : 1;
    if (same) dimension(s.other, s.other_index);
    else s.kind = Pattern::Setting::kSize, s.count = whole("dim(name, index) or a number");
    p_.settings.push_back(std::move(s));
  }
  // (a), (a)>=n, (a)=halves, (a, x), (-a, x), (a, x, axis) or (a, x, axis)=i/n
  void arranged(Pattern::Setting::Kind kind) {
    Pattern::Setting s;
    s.kind = kind;
    auto symbol = [&](char c) {
      skip(false);
      if (peek() != c) fail(std::string("'") + c + "'");
      ++at_;
      skip(false);
    };
    symbol('(');
    const bool may_fill = kind == Pattern::Setting::kCausal;
    if (may_fill && peek() == '-') ++at_, s.inverse = true;
    s.name = word();
    skip(false);
    if (s.inverse && peek() != ',') fail("','");
    const bool least = kind == Pattern::Setting::kRows || kind == Pattern::Setting::kColumns;
    if (s.arranged() || kind == Pattern::Setting::kAlong || (may_fill && peek() == ',')) {
      symbol(',');
      s.other = word();
      skip(false);
      s.any_axis = may_fill || (kind == Pattern::Setting::kAlong && peek() == ')');
      if (!s.any_axis) {
        symbol(',');
        s.index = whole("a whole number");
      }
      if (s.other.empty()) fail("a name");
    }
    if (s.name.empty()) fail("a name");
    symbol(')');
    if (kind == Pattern::Setting::kColumns && peek() == '=') return count(std::move(s));
    if (kind == Pattern::Setting::kTurns) {
      symbol('=');
      if (peek() == '-') ++at_, s.inverse = true;
      const std::string of = word();
      s.pairs = of == "pairs";
      if (!s.pairs && of != "halves") fail("halves or pairs");
    }
    if (least) {
      symbol('>');
      symbol('=');
      s.index = whole("a whole number");
    }
    if (kind == Pattern::Setting::kPart || kind == Pattern::Setting::kEvery) {
      symbol('=');
      s.part = whole("a whole number");
      symbol('/');
      s.count = whole("a whole number");
      if (s.count < 1 || s.part < 0 || s.part >= s.count) fail("i/n with i below n");
    }
    p_.settings.push_back(std::move(s));
  }
  // Behind columns(name)
  void count(Pattern::Setting s) {
    s.kind = Pattern::Setting::kCount;
    ++at_;
    skip(false);
    s.inverse = s_.compare(at_, 2, "1/") == 0;
    if (s.inverse) at_ += 2;
    s.other = word();
    if (s.other.empty()) fail("a name");
    p_.settings.push_back(std::move(s));
  }
  void rank() {
    Pattern::Setting s = of_name(Pattern::Setting::kRank, "rank(name)=n", '=');
    s.index = whole("a number of dimensions");
    p_.settings.push_back(std::move(s));
  }
  void density() {
    Pattern::Setting s = of_name(Pattern::Setting::kDensity, "density(name)<share", '<');
    double v;
    bool integer;
    if (!number(v, integer) || !(v > 0) || v > 1) fail("a share of the elements, above 0 and at most 1");
    s.literal = v;
    p_.settings.push_back(std::move(s));
  }
  void same_shape() {
    Pattern::Setting s = of_name(Pattern::Setting::kSameShape, "shape(name)=shape(name)", '=');
    if (s_.compare(at_, 6, "shape(") != 0) fail("shape(name)");
    at_ += 6;
    s.other = word();
    if (s.other.empty() || peek() != ')') fail("shape(name)");
    ++at_;
    p_.settings.push_back(std::move(s));
  }
  void dtype() {
    Pattern::Setting s = of_name(Pattern::Setting::kDtype, "dtype(name)=dtype", '=');
    std::vector<int64_t> wanted;
    do wanted.push_back(dtype_from_name(word()));
    while (wanted.back() && peek() == '/' && ++at_);
    if (!wanted.back()) fail("a dtype");
    s.literal = wanted;
    p_.settings.push_back(std::move(s));
  }
  // (name) and the sign behind it
  Pattern::Setting of_name(Pattern::Setting::Kind kind, const char *form, char sign) {
    Pattern::Setting s;
    s.kind = kind;
    ++at_;
    s.name = word();
    if (s.name.empty() || peek() != ')') fail(form);
    ++at_;
    skip(false);
    if (peek() != sign) fail(std::string("'") + sign + "'");
    ++at_;
    skip(false);
    return s;
  }
  int64_t whole(const char *expected) {
    double v;
    bool integer;
    skip(false);
    if (!number(v, integer) || !integer) fail(expected);
    return int64_t(v);
  }

  const std::string &s_;
  std::string origin_;
  size_t at_ = 0;
  int depth_ = 0;
  Pattern p_;
};

}  // namespace

Pattern parse_pattern(const std::string &program, const std::string &origin) { return Parser(program, origin).parse(); }

}  // namespace opgraft::passes
