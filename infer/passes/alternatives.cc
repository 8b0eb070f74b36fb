#include <fmt/format.h>

#include <algorithm>

#include "infer/passes/pattern.h"

namespace opgraft::passes {
namespace {

class Alternatives {
 public:
  Alternatives(const std::string &program, const std::string &origin) : whole_(program), origin_(origin) {}

  std::vector<std::string> all() {
    constexpr auto kMost = 64;  // each is written out within the one before it
    if (std::count(whole_.begin(), whole_.end(), '{') > kMost) fail(fmt::format("at most {} braces", kMost));
    expand(whole_);
    return std::move(out_);
  }

 private:
  static std::string trimmed(const std::string &text) { return text.substr(0, text.find_last_not_of(" \n") + 1); }
  [[noreturn]] void fail(const std::string &expected) const {
    throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: pattern {}: expected {}", origin_, quoted(whole_), expected));
  }

  // Where one of `marks` stands first from `at` on, outside of quotes and of braces that open behind `at`; or npos.
  size_t find(const std::string &text, size_t at, std::string_view marks) const {
    int depth = 0;
    for (; at < text.size(); ++at) {
      const char c = text[at];
      if (depth == 0 && marks.find(c) != marks.npos) return at;
      if (c == '"' || c == '\'') {
        at = text.find(c, at + 1);
        if (at == text.npos) fail("a closing quote");
      } else if (c == '{') {
        ++depth;
      } else if (c == '}' && --depth < 0) {
        fail("'{' before '}'");
      }
    }
    if (depth > 0) fail("'}' to close '{'");
    return text.npos;
  }
  // The same of an arrow, in front of settings.
  size_t find_arrow(const std::string &text) const {
    size_t at = find(text, 0, "-");
    while (at != text.npos && text.compare(at, 2, "->") != 0) at = find(text, at + 1, "-");
    return at;
  }

  // Writes out the first group, and with it the others. Settings of an alternative go behind those of all.
  void expand(const std::string &text) {
    const size_t begin = find(text, 0, "{|");
    if (begin == text.npos) {
      if (out_.size() == kMostSpellings) fail(fmt::format("at most {} spellings", kMostSpellings));
      out_.push_back(trimmed(text));
      return;
    }
    if (text[begin] == '|') fail("'|' within '{' and '}'");
    std::vector<std::string> alternatives;
    size_t end = begin;
    do {
      const size_t from = end + 1;
      end = find(text, from, "|}");
      if (end == text.npos) fail("'}' to close '{'");
      alternatives.push_back(text.substr(from, end - from));
    } while (text[end] == '|');
    for (auto &one : alternatives) {
      const size_t arrow = find_arrow(one);
      const std::string body = arrow == one.npos ? one : trimmed(one.substr(0, arrow));
      std::string chosen = text.substr(0, begin) + body + text.substr(end + 1);
      if (arrow != one.npos)
        chosen = trimmed(chosen) + (find_arrow(chosen) == chosen.npos ? " ->" : ",") + one.substr(arrow + 2);
      expand(chosen);
    }
  }

  const std::string &whole_, &origin_;
  std::vector<std::string> out_{};
};

}  // namespace

std::vector<std::string> spellings(const std::string &program, const std::string &origin) {
  return Alternatives(program, origin).all();
}

}  // namespace opgraft::passes
