#include "infer/cli/llama/template_expression_parser.h"

#include <charconv>
#include <utility>

namespace opgraft::llama {

ExpressionPtr ExpressionParser::make(Kind kind, int line, std::string name) {
  auto made = std::make_unique<Expression>();
  made->kind = kind, made->line = line, made->name = std::move(name);
  return made;
}

void ExpressionParser::add(Expression &to, ExpressionPtr part) {
  if (part) deepen(to, *part);
  to.parts.push_back(std::move(part));
}

void ExpressionParser::deepen(Expression &outer, const Expression &inner) {
  outer.depth = std::max(outer.depth, inner.depth + 1);
  if (outer.depth > kDeepestTree) fail(fmt::format("nested deeper than {}", kDeepestTree));
}

ExpressionPtr ExpressionParser::around(Kind kind, int line, std::string name, ExpressionPtr first,
                                       ExpressionPtr second) {
  auto made = make(kind, line, std::move(name));
  add(*made, std::move(first));
  if (second) add(*made, std::move(second));
  return made;
}

ExpressionPtr ExpressionParser::expression(bool with_if) {
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

ExpressionPtr ExpressionParser::any() {
  auto left = all();
  if (!is_name({"or"})) return left;
  left = around(Kind::kOr, now().line, "", std::move(left));
  while (skip_name("or")) add(*left, all());
  return left;
}

ExpressionPtr ExpressionParser::all() {
  auto left = negated();
  if (!is_name({"and"})) return left;
  left = around(Kind::kAnd, now().line, "", std::move(left));
  while (skip_name("and")) add(*left, negated());
  return left;
}

ExpressionPtr ExpressionParser::negated() {
  const Deeper deeper(*this);
  if (!is_name({"not"})) return comparison();
  const int line = next().line;
  return around(Kind::kNot, line, "", negated());
}

ExpressionPtr ExpressionParser::comparison() {
  auto left = sum();
  ExpressionPtr made;
  while (true) {
    std::string_view op;
    if (now().kind == Token::kOperator && one_of(now().text, {"==", "!=", "<", "<=", ">", ">="})) op = now().text;
    else if (is_name({"in"})) op = "in";
    else if (is_name({"not"}) && tokens_[at_ + 1].kind == Token::kName && tokens_[at_ + 1].text == "in") op = "not in";
    if (op.empty()) return made ? std::move(made) : std::move(left);
    if (!made) made = around(Kind::kCompare, now().line, "", std::move(left));
    if (op == "not in") next();
    next();
    made->operators.emplace_back(op);
    add(*made, sum());
  }
}

ExpressionPtr ExpressionParser::arithmetic(Names operators, auto part) {
  auto left = part();
  while (now().kind == Token::kOperator && one_of(now().text, operators)) {
    const Token &op = next();
    left = around(Kind::kArithmetic, op.line, op.text, std::move(left), part());
  }
  return left;
}

ExpressionPtr ExpressionParser::sum() {
  return arithmetic({"+", "-"}, [&] { return concatenation(); });
}

ExpressionPtr ExpressionParser::concatenation() {
  auto left = product();
  if (!is("~")) return left;
  left = around(Kind::kConcat, now().line, "", std::move(left));
  while (skip("~")) add(*left, product());
  return left;
}

ExpressionPtr ExpressionParser::product() {
  return arithmetic({"*", "/", "//", "%"}, [&] { return arithmetic({"**"}, [&] { return unary(true); }); });
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
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

ExpressionPtr ExpressionParser::constant(int line, Value value) {
  auto made = make(Kind::kConstant, line);
  made->constant = std::move(value);
  return made;
}

ExpressionPtr ExpressionParser::primary() {
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

ExpressionPtr ExpressionParser::display(bool dict, int line) {
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

ExpressionPtr ExpressionParser::tuple(bool with_if, bool may_be_empty) {
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

ExpressionPtr ExpressionParser::postfix(ExpressionPtr made) {
  while (true) {
    if (is("(")) made = call(std::move(made));
    else if (is(".") || is("[")) made = subscript(std::move(made));
    else return made;
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr of) {
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

void ExpressionParser::arguments(Expression &to) {
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

ExpressionPtr ExpressionParser::call(ExpressionPtr function) {
  auto made = around(Kind::kCall, now().line, "", std::move(function));
  arguments(*made);
  return made;
}

std::string ExpressionParser::dotted() {
  std::string all = name();
  while (skip(".")) all += "." + name();
  return all;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr made) {
  while (skip("|")) {
    const int line = now().line;
    made = around(Kind::kFilter, line, dotted(), std::move(made));
    if (is("(")) arguments(*made);
  }
  return made;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr of) {
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

}  // namespace opgraft::llama
