// Expressions of a chat template: the grammar of jinja2.parser, function by function.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "infer/cli/llama/template_lexer.h"
#include "infer/cli/llama/template_parser.h"

namespace opgraft::llama {

inline bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

class ExpressionParser {
 protected:
  using Kind = Expression::Kind;
  using Names = std::initializer_list<std::string_view>;

  explicit ExpressionParser(std::string_view source) : tokens_(tokens(source)) {}

  struct Deeper {
    explicit Deeper(ExpressionParser &parser) : depth(parser.depth_) {
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
  ExpressionPtr make(Kind kind, int line, std::string name = {});
  void add(Expression &to, ExpressionPtr part);
  void deepen(Expression &outer, const Expression &inner);
  ExpressionPtr around(Kind kind, int line, std::string name, ExpressionPtr first, ExpressionPtr second = nullptr);
  ExpressionPtr expression(bool with_if = true);
  // A chain of one logical operator.
  ExpressionPtr any();
  ExpressionPtr all();
  ExpressionPtr negated();
  ExpressionPtr comparison();
  ExpressionPtr arithmetic(Names operators, auto part);
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr unary(bool with_filter);
  ExpressionPtr constant(int line, Value value);
  ExpressionPtr primary();
  // [a, b] or {a: b}
  ExpressionPtr display(bool dict, int line);
  // One expression, or several with commas: a tuple.
  ExpressionPtr tuple(bool with_if, bool may_be_empty = false);
  ExpressionPtr postfix(ExpressionPtr made);
  ExpressionPtr subscript(ExpressionPtr of);
  void arguments(Expression &to);
  ExpressionPtr call(ExpressionPtr function);
  std::string dotted();
  ExpressionPtr filters(ExpressionPtr made);
  ExpressionPtr test(ExpressionPtr of);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace opgraft::llama
