#include "infer/cli/llama/template_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "infer/cli/llama/template_value.h"
#include "infer/cli/text/utf8.h"

namespace opgraft::llama {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'); }

// Line ends as \n, and none at the end.
std::string with_newlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t begin = tag_from(at_);
      if (begin == source_.npos) {
        add(Token::kData, source_.substr(at_));
        break;
      }
      const char kind = source_[begin + 1];
      size_t inside = begin + 2;
      const char sign =
          inside < source_.size() && (source_[inside] == '-' || source_[inside] == '+') ? source_[inside] : 0;
      inside += sign ? 1 : 0;
      data(begin, sign, kind != '{');
      move(inside);
      if (kind == '#') comment();
      else if (const size_t raw = kind == '%' ? after_word("raw", inside) : source_.npos; raw != source_.npos)
        this->raw(raw);
      else words(kind);
    }
    add(Token::kEnd, "");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string &why) const { fail_at(line_, why); }
  void add(Token::Kind kind, std::string text) { out_.push_back({kind, std::move(text), line_}); }
  char at(size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
  bool follows(std::string_view what, size_t at) const {
    return std::string_view(source_).substr(at).starts_with(what);
  }

  void move(size_t to) {
    line_ += int(std::count(source_.begin() + at_, source_.begin() + to, '\n'));
    line_starting_ = to > at_ && source_[to - 1] == '\n';
    at_ = to;
  }

  size_t tag_from(size_t from) const {
    for (size_t i = source_.find('{', from); i != source_.npos; i = source_.find('{', i + 1))
      if (at(i + 1) == '{' || at(i + 1) == '%' || at(i + 1) == '#') return i;
    return source_.npos;
  }

  size_t after_space(size_t from) const {
    const std::string_view rest = std::string_view(source_).substr(from);
    return source_.size() - stripped(rest, true, false).size();
  }

  // Text up to `end`, where a tag with `sign` begins.
  void data(size_t end, char sign, bool block) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      text = stripped(text, false, true);
    } else if (sign != '+' && block) {
      const size_t last = text.rfind('\n') + 1;
      if ((last || line_starting_) && stripped(text.substr(last)).empty()) text = text.substr(0, last);
    }
    if (!text.empty()) add(Token::kData, std::string(text));
  }

  // Behind the end of a tag that begins here (`+` and `-` included), or npos.
  size_t after_end(std::string_view end, size_t from) const {
    if (at(from) == '-' && follows(end, from + 1)) return after_space(from + 1 + end.size());
    const bool plus = at(from) == '+' && end != "}}" && follows(end, from + 1);
    if (plus) return from + 1 + end.size();
    if (!follows(end, from)) return source_.npos;
    from += end.size();
    return end != "}}" && at(from) == '\n' ? from + 1 : from;
  }

  // Behind `{% word %}`, of which `{%` was read, or npos. A raw's own newline stays.
  size_t after_word(std::string_view word, size_t from) const {
    from = after_space(from);
    if (!follows(word, from)) return source_.npos;
    from = after_space(from + word.size());
    if (word != "raw") return after_end("%}", from);
    if (follows("%}", from)) return from + 2;
    return follows("-%}", from) ? after_space(from + 3) : source_.npos;
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == source_.npos && at_ == source_.size()) return;
    if (end == source_.npos) fail("a comment has no end");
    const bool sign = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    move(after_end("#}", sign ? end - 1 : end));
  }

  void raw(size_t begin) {
    move(begin);
    for (size_t i = source_.find("{%", at_); i != source_.npos; i = source_.find("{%", i + 1)) {
      const char sign = at(i + 2) == '-' || at(i + 2) == '+' ? at(i + 2) : 0;
      const size_t end = after_word("endraw", i + 2 + (sign ? 1 : 0));
      if (end == source_.npos) continue;
      data(i, sign, true);
      return move(end);
    }
    if (at_ < source_.size()) fail("raw has no end");
  }

  void words(char kind) {
    const std::string_view end = kind == '{' ? "}}" : "%}";
    add(kind == '{' ? Token::kPrint : Token::kTag, "");
    std::string open;
    while (true) {
      if (open.empty())
        if (const size_t after = after_end(end, at_); after != source_.npos) {
          add(kind == '{' ? Token::kPrintEnd : Token::kTagEnd, std::string(end));
          return move(after);
        }
      if (at_ == source_.size()) fail("a tag has no end");
      if (const size_t after = after_space(at_); after > at_) move(after);
      else word(open);
    }
  }

  void word(std::string &open) {
    const char c = at(at_);
    if (is_digit(c)) return number();
    if (is_letter(c)) {
      size_t end = at_;
      while (is_letter(at(end)) || is_digit(at(end))) ++end;
      add(Token::kName, source_.substr(at_, end - at_));
      return move(end);
    }
    if (c == '\'' || c == '"') return string(c);
    static const char *const kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                             "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto found = std::ranges::find_if(kOperators, [&](const char *o) { return follows(o, at_); });
    if (found == std::end(kOperators))
      fail(fmt::format("unexpected '{}'", source_.substr(at_, text::first_character(source_.substr(at_)).bytes)));
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    add(Token::kOperator, *found);
    move(at_ + std::string_view(*found).size());
  }

  // Behind digits that `_` may part, or npos.
  size_t after_digits(size_t from, auto is_one) const {
    if (!is_one(at(from))) return source_.npos;
    while (is_one(at(from)) || (at(from) == '_' && is_one(at(from + 1)))) ++from;
    return from;
  }

  void number() {
    size_t end = after_digits(at_, is_digit);
    bool real = false;
    if (!at_ || source_[at_ - 1] != '.') {  // a.1.5 has no float
      if (at(end) == '.' && is_digit(at(end + 1))) real = true, end = after_digits(end + 1, is_digit);
      if ((at(end) | 0x20) == 'e') {
        const size_t digits = end + 1 + (at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0);
        if (is_digit(at(digits))) real = true, end = after_digits(digits, is_digit);
      }
    }
    int base = 10;
    if (!real && at(at_) == '0') {
      const char mark = at(at_ + 1) | 0x20;
      const int wanted = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      const auto is_one = [&](char c) {
        const int value = is_digit(c) ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : 16;
        return value < wanted;
      };
      const size_t digits = at_ + 2 + (at(at_ + 2) == '_' ? 1 : 0);
      if (wanted != 10 && is_one(at(digits))) base = wanted, end = after_digits(digits, is_one);
      else end = after_digits(at_, [](char c) { return c == '0'; });
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    if (!real) {
      const std::string_view digits = std::string_view(text).substr(base == 10 ? 0 : 2);
      int64_t value = 0;
      if (std::from_chars(digits.data(), digits.data() + digits.size(), value, base).ec != std::errc())
        fail(fmt::format("{} does not fit 64 bits", text));
      text = std::to_string(value);
    }
    add(real ? Token::kFloat : Token::kInteger, std::move(text));
    move(end);
  }

  void string(char mark) {
    std::string text;
    for (size_t i = at_ + 1; i < source_.size(); ++i) {
      if (source_[i] == mark) {
        add(Token::kString, std::move(text));
        return move(i + 1);
      }
      if (source_[i] == '\\') i = escape(i + 1, text);
      else text += source_[i];
    }
    fail("a text in quotes has no end");
  }

  // Adds what the escape with its letter at `i` spells; its last place.
  size_t escape(size_t i, std::string &text) const {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kSpelled = "\a\b\f\n\r\t\v\\'\"";
    const char c = at(i);
    if (const size_t found = kLetters.find(c); found != kLetters.npos) return text += kSpelled[found], i;
    if (c == '\n') return i;
    const bool octal = c >= '0' && c <= '7';
    if (!octal && c != 'x' && c != 'u' && c != 'U') {
      if (c == 'N' || (c & 0x80)) fail("an escape that is not known here");
      return text += {'\\', c}, i;
    }
    const size_t begin = octal ? i : i + 1, wanted = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : 8;
    uint32_t code = 0;
    const char *first = source_.data() + begin, *last = first + std::min(wanted, source_.size() - begin);
    const auto [end, error] = std::from_chars(first, last, code, octal ? 8 : 16);
    if (error != std::errc() || (!octal && size_t(end - first) < wanted)) fail("an escape is cut");
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail(fmt::format("U+{:04X} is no character", code));
    text += text::to_utf8(char32_t(code));
    return begin + size_t(end - first) - 1;
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> out_;
};

}  // namespace

std::vector<Token> tokens(std::string_view source) { return Lexer(source).run(); }

void fail_at(int line, const std::string &why) { throw std::runtime_error(fmt::format("line {}: {}", line, why)); }

}  // namespace opgraft::llama
