#include "infer/cli/llama/template_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "infer/cli/llama/template_expression_parser.h"

namespace opgraft::llama {
namespace {

class Parser : ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  std::vector<Statement> run() { return statements({}); }

 private:
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
};

}  // namespace

std::vector<Statement> parsed(std::string_view source) {
  if (source.size() > kMostSource)
    throw std::runtime_error(fmt::format("must be at most {} bytes, got {}", kMostSource, source.size()));
  return Parser(source).run();
}

}  // namespace opgraft::llama
