#include "infer/cli/llama/template_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <stdexcept>
#include <utility>

#include "infer/cli/llama/template_lexer.h"

namespace opgraft::llama {
namespace {

using Names = std::initializer_list<std::string_view>;

bool one_of(std::string_view name, Names names) { return std::ranges::find(names, name) != names.end(); }

// The grammar of jinja2.parser, function by function.
class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokens(source)) {}

  std::vector<Statement> run() { return statements({}); }

 private:
  using Kind = Expression::Kind;

  struct Deeper {
    explicit Deeper(Parser &parser) : depth(parser.depth_) {
      if (++depth > kDeepestTree) parser.fail(fmt::format("nested deeper than {}", kDeepestTree));
    }
    ~Deeper() { --depth; }
    int &depth;
  };

  // --- tokens ---
  const Token &now() const { return tokens_[at_]; }
  const Token &next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(std::string_view op) const { return now().kind == Token::kOperator && now().text == op; }
  bool is_name(Names names) const { return now().kind == Token::kName && one_of(now().text, names); }
  bool skip(std::string_view op) { return is(op) && (next(), true); }
  bool skip_name(std::string_view name) { return is_name({name}) && (next(), true); }
  [[noreturn]] void fail(const std::string &why) const { fail_at(now().line, why); }

  std::string found() const {
    const char *const kNames[] = {"text", "{{", "}}", "{%", "%}", "", "a text", "", "", "", "the end"};
    const std::string name = kNames[now().kind];
    return name.empty() ? "'" + now().text + "'" : name;
  }
  void expect(std::string_view op) {
    if (!skip(op)) fail(fmt::format("expected '{}', got {}", op, found()));
  }
  void expect(Token::Kind kind, const char *name) {
    if (now().kind != kind) fail(fmt::format("expected {}, got {}", name, found()));
    next();
  }
  std::string name() {
    if (now().kind != Token::kName) fail(fmt::format("expected a name, got {}", found()));
    return next().text;
  }

  // --- expressions ---
  ExpressionPtr make(Kind kind, int line, std::string name = {}) {
    auto made = std::make_unique<Expression>();
    made->kind = kind, made->line = line, made->name = std::move(name);
    return made;
  }
  void add(Expression &to, ExpressionPtr part) {
    if (part) deepen(to, *part);
    to.parts.push_back(std::move(part));
  }
  void deepen(Expression &outer, const Expression &inner) {
    outer.depth = std::max(outer.depth, inner.depth + 1);
    if (outer.depth > kDeepestTree) fail(fmt::format("nested deeper than {}", kDeepestTree));
  }
  ExpressionPtr around(Kind kind, int line, std::string name, ExpressionPtr first, ExpressionPtr second = nullptr) {
    auto made = make(kind, line, std::move(name));
    add(*made, std::move(first));
    if (second) add(*made, std::move(second));
    return made;
  }

  ExpressionPtr expression(bool with_if = true) {
    const Deeper deeper(*this);
    auto left = any();
    while (with_if && is_name({"if"})) {
      const int line = next().line;
      auto test = any();
      left = around(Kind::kIf, line, "", std::move(test), std::move(left));
      if (skip_name("else")) add(*left, expression());
    }
    return left;
  }

  // A chain of one logical operator.
  ExpressionPtr any() {
    auto left = all();
    if (!is_name({"or"})) return left;
    left = around(Kind::kOr, now().line, "", std::move(left));
    while (skip_name("or")) add(*left, all());
    return left;
  }
  ExpressionPtr all() {
    auto left = negated();
    if (!is_name({"and"})) return left;
    left = around(Kind::kAnd, now().line, "", std::move(left));
    while (skip_name("and")) add(*left, negated());
    return left;
  }
  ExpressionPtr negated() {
    const Deeper deeper(*this);
    if (!is_name({"not"})) return comparison();
    const int line = next().line;
    return around(Kind::kNot, line, "", negated());
  }

  ExpressionPtr comparison() {
    auto left = sum();
    ExpressionPtr made;
    while (true) {
      std::string op;
      if (now().kind == Token::kOperator && one_of(now().text, {"==", "!=", "<", "<=", ">", ">="})) op = now().text;
      else if (is_name({"in"})) op = "in";
      else if (is_name({"not"}) && tokens_[at_ + 1].kind == Token::kName && tokens_[at_ + 1].text == "in") op = "not in";
      if (op.empty()) return made ? std::move(made) : std::move(left);
      if (!made) made = around(Kind::kCompare, now().line, "", std::move(left));
      if (op == "not in") next();
      next();
      made->operators.push_back(op);
      add(*made, sum());
    }
  }

  ExpressionPtr arithmetic(Names operators, auto part) {
    auto left = part();
    while (now().kind == Token::kOperator && one_of(now().text, operators)) {
      const Token &op = next();
      left = around(Kind::kArithmetic, op.line, op.text, std::move(left), part());
    }
    return left;
  }
  ExpressionPtr sum() {
    return arithmetic({"+", "-"}, [&] { return concatenation(); });
  }
  ExpressionPtr concatenation() {
    auto left = product();
    if (!is("~")) return left;
    left = around(Kind::kConcat, now().line, "", std::move(left));
    while (skip("~")) add(*left, product());
    return left;
  }
  ExpressionPtr product() {
    return arithmetic({"*", "/", "//", "%"}, [&] { return arithmetic({"**"}, [&] { return unary(true); }); });
  }

  ExpressionPtr unary(bool with_filter) {
    const Deeper deeper(*this);
    ExpressionPtr made;
    if (is("-") || is("+")) {
      const Token &op = next();
      made = around(op.text == "-" ? Kind::kNegative : Kind::kPositive, op.line, "", unary(false));
    } else {
      made = primary();
    }
    made = postfix(std::move(made));
    while (with_filter) {
      if (is("|")) made = filters(std::move(made));
      else if (is_name({"is"})) made = test(std::move(made));
      else if (is("(")) made = call(std::move(made));
      else break;
    }
    return made;
  }

  ExpressionPtr constant(int line, Value value) {
    auto made = make(Kind::kConstant, line);
    made->constant = std::move(value);
    return made;
  }

  ExpressionPtr primary() {
    const Token &token = next();
    switch (token.kind) {
      case Token::kName:
        if (one_of(token.text, {"true", "True"})) return constant(token.line, true);
        if (one_of(token.text, {"false", "False"})) return constant(token.line, false);
        if (one_of(token.text, {"none", "None"})) return constant(token.line, None());
        return make(Kind::kName, token.line, token.text);
      case Token::kString: {
        std::string text = token.text;
        while (now().kind == Token::kString) text += next().text;
        return constant(token.line, Text(std::make_shared<const std::string>(std::move(text))));
      }
      case Token::kInteger: return constant(token.line, int64_t(std::stoll(token.text)));
      case Token::kFloat: {
        double value = 0;
        if (std::from_chars(token.text.data(), token.text.data() + token.text.size(), value).ec != std::errc())
          fail_at(token.line, fmt::format("{} is out of range", token.text));
        return constant(token.line, value);
      }
      case Token::kOperator:
        if (token.text == "(") {
          auto made = tuple(true, true);
          expect(")");
          return made;
        }
        if (token.text == "[" || token.text == "{") return display(token.text == "{", token.line);
        [[fallthrough]];
      default: --at_; fail(fmt::format("expected an expression, got {}", found()));
    }
  }

  // [a, b] or {a: b}
  ExpressionPtr display(bool dict, int line) {
    const std::string_view end = dict ? "}" : "]";
    auto made = make(dict ? Kind::kDict : Kind::kList, line);
    while (!is(end)) {
      if (!made->parts.empty()) expect(",");
      if (is(end)) break;
      add(*made, expression());
      if (!dict) continue;
      expect(":");
      add(*made, expression());
    }
    next();
    return made;
  }

  // One expression, or several with commas: a tuple.
  ExpressionPtr tuple(bool with_if, bool may_be_empty = false) {
    const Deeper deeper(*this);
    auto made = make(Kind::kTuple, now().line);
    bool comma = false;
    while (now().kind != Token::kPrintEnd && now().kind != Token::kTagEnd && !is(")") && !is_name({"recursive"})) {
      add(*made, expression(with_if));
      if (!skip(",")) break;
      comma = true;
    }
    if (!comma && !made->parts.empty()) return std::move(made->parts[0]);
    if (!comma && !may_be_empty) fail(fmt::format("expected an expression, got {}", found()));
    return made;
  }

  ExpressionPtr postfix(ExpressionPtr made) {
    while (true) {
      if (is("(")) made = call(std::move(made));
      else if (is(".") || is("[")) made = subscript(std::move(made));
      else return made;
    }
  }

  ExpressionPtr subscript(ExpressionPtr of) {
    const Token &token = next();
    if (token.text == ".") {
      if (now().kind != Token::kInteger) return around(Kind::kAttribute, token.line, name(), std::move(of));
      return around(Kind::kItem, token.line, "", std::move(of), primary());
    }
    ExpressionPtr bounds[3];
    int colons = 0;
    for (auto &bound : bounds) {
      if (!is(":") && !is("]") && !is(",")) bound = expression();
      if (colons == 2 || !skip(":")) break;
      ++colons;
    }
    if (is(",")) fail("several subscripts are not known here");
    expect("]");
    if (!colons && !bounds[0]) fail("expected an expression, got ']'");
    if (!colons) return around(Kind::kItem, token.line, "", std::move(of), std::move(bounds[0]));
    auto made = around(Kind::kSlice, token.line, "", std::move(of));
    for (auto &bound : bounds) add(*made, std::move(bound));
    return made;
  }

  void arguments(Expression &to) {
    expect("(");
    for (bool first = true; !is(")"); first = false) {
      if (!first) expect(",");
      if (is(")")) break;
      if (is("*") || is("**")) fail(fmt::format("'{}' before an argument is not known here", now().text));
      const Token &following = tokens_[at_ + 1];
      if (now().kind == Token::kName && following.kind == Token::kOperator && following.text == "=") {
        std::string key = name();
        if (std::ranges::any_of(to.named, [&](auto &n) { return n.first == key; }))
          fail(fmt::format("the argument '{}' is given twice", key));
        next();
        auto value = expression();
        deepen(to, *value);
        to.named.emplace_back(std::move(key), std::move(value));
      } else {
        if (!to.named.empty()) fail("an argument without a name behind one with a name");
        add(to, expression());
      }
    }
    next();
  }
  ExpressionPtr call(ExpressionPtr function) {
    auto made = around(Kind::kCall, now().line, "", std::move(function));
    arguments(*made);
    return made;
  }
  std::string dotted() {
    std::string all = name();
    while (skip(".")) all += "." + name();
    return all;
  }
  ExpressionPtr filters(ExpressionPtr made) {
    while (skip("|")) {
      const int line = now().line;
      made = around(Kind::kFilter, line, dotted(), std::move(made));
      if (is("(")) arguments(*made);
    }
    return made;
  }
  ExpressionPtr test(ExpressionPtr of) {
    const int line = next().line;
    const bool negative = skip_name("not");
    auto made = around(Kind::kTest, line, dotted(), std::move(of));
    const Token::Kind kind = now().kind;
    if (is("(")) {
      arguments(*made);
    } else if ((kind == Token::kName && !is_name({"else", "or", "and"})) || kind == Token::kString ||
               kind == Token::kInteger || kind == Token::kFloat || is("[") || is("{")) {
      if (is_name({"is"})) fail("tests cannot be chained");
      add(*made, postfix(primary()));
    }
    return negative ? around(Kind::kNot, line, "", std::move(made)) : std::move(made);
  }

  // --- statements ---
  // Up to a tag with one of these names, which is then the token read last.
  std::vector<Statement> statements(Names ends) {
    const Deeper deeper(*this);
    std::vector<Statement> all;
    while (now().kind != Token::kEnd) {
      const Token &token = next();
      if (token.kind == Token::kData) {
        all.push_back({Statement::kData, token.line, token.text});
      } else if (token.kind == Token::kPrint) {
        Statement made{Statement::kPrint, token.line};
        made.expressions.push_back(tuple(true));
        all.push_back(std::move(made));
        expect(Token::kPrintEnd, "}}");
      } else {
        if (is_name(ends)) return next(), std::move(all);
        all.push_back(statement());
        expect(Token::kTagEnd, "%}");
      }
    }
    if (ends.size()) fail(fmt::format("expected {}, got the end", *(ends.end() - 1)));
    return all;
  }
  std::vector<Statement> body(Names ends) {
    skip(":");
    expect(Token::kTagEnd, "%}");
    return statements(ends);
  }
  const std::string &end_tag() const { return tokens_[at_ - 1].text; }

  Statement statement() {
    const int line = now().line;
    const std::string tag = name();
    if (tag == "if") return if_(line);
    if (tag == "for") return for_(line);
    if (tag == "set") return set(line);
    if (tag == "macro") return macro(line);
    if (tag != "filter") fail_at(line, fmt::format("the tag '{}' is not known here", tag));
    Statement made{Statement::kFilter, line};
    auto filter = around(Kind::kFilter, line, dotted(), make(Kind::kName, line));
    if (is("(")) arguments(*filter);
    made.expressions.push_back(filters(std::move(filter)));
    made.bodies.push_back(body({"endfilter"}));
    return made;
  }

  Statement if_(int line) {
    Statement made{Statement::kIf, line};
    do {
      made.expressions.push_back(tuple(false));
      made.bodies.push_back(body({"elif", "else", "endif"}));
    } while (end_tag() == "elif");
    if (end_tag() == "else") made.bodies.push_back(body({"endif"}));
    return made;
  }

  std::string target() {
    if (is_name({"true", "True", "false", "False", "none", "None"})) fail(fmt::format("cannot set {}", found()));
    return name();
  }
  void targets(Statement &made) {
    const bool parentheses = skip("(");
    made.targets.push_back(target());
    while (skip(",")) {
      made.unpacks = true;
      if (now().kind != Token::kName || is_name({"in"})) break;
      made.targets.push_back(target());
    }
    if (parentheses) expect(")");
  }

  Statement for_(int line) {
    Statement made{Statement::kFor, line};
    targets(made);
    if (std::ranges::count(made.targets, "loop")) fail("cannot set 'loop'");
    if (!skip_name("in")) fail(fmt::format("expected 'in', got {}", found()));
    made.expressions.push_back(tuple(false));
    made.expressions.push_back(skip_name("if") ? expression() : nullptr);
    if (is_name({"recursive"})) fail("a recursive for is not known here");
    made.bodies.push_back(body({"endfor", "else"}));
    made.bodies.emplace_back();
    if (end_tag() == "else") made.bodies.back() = body({"endfor"});
    return made;
  }

  Statement set(int line) {
    Statement made{Statement::kSet, line};
    targets(made);
    if (!made.unpacks && skip(".")) made.text = std::exchange(made.targets[0], name());
    if (skip("=")) {
      made.expressions.push_back(tuple(true));
      return made;
    }
    if (made.unpacks || !made.text.empty()) fail("a block is set to one name");
    made.kind = Statement::kSetBlock;
    made.expressions.push_back(is("|") ? filters(make(Kind::kName, line)) : nullptr);
    made.bodies.push_back(body({"endset"}));
    return made;
  }

  Statement macro(int line) {
    Statement made{Statement::kMacro, line, name()};
    expect("(");
    while (!is(")")) {
      if (!made.targets.empty()) expect(",");
      if (one_of(now().text, {"caller", "varargs", "kwargs"}))
        fail(fmt::format("the argument '{}' is not known here", now().text));
      made.targets.push_back(target());
      if (skip("=")) made.expressions.push_back(expression());
      else if (!made.expressions.empty()) fail("an argument without default behind one with a default");
    }
    next();
    made.bodies.push_back(body({"endmacro"}));
    return made;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<Statement> parsed(std::string_view source) {
  if (source.size() > kMostSource)
    throw std::runtime_error(fmt::format("must be at most {} bytes, got {}", kMostSource, source.size()));
  return Parser(source).run();
}

}  // namespace opgraft::llama
