#include "infer/cli/text/splitter.h"

#include <fmt/format.h>

#include <new>
#include <stdexcept>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace opgraft::text {
namespace {

std::string message(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char *>(text);
}

// PCRE2's \s has U+180E as well, which has been no white space since Unicode 6.3.
std::string with_white_space(const std::string &pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char c = pattern[++i];
    if (c == 's' || c == 'S') out += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    else out += {'\\', c};
  }
  return out;
}

}  // namespace

Splitter::Splitter(const std::string &pattern) {
  const std::string used = with_white_space(pattern);
  int error = 0;
  PCRE2_SIZE at = 0;
  // \C would cut characters.
  pcre2_code *code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(used.data()), used.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (!code) throw std::runtime_error(fmt::format("the pattern '{}': {}", pattern, message(error)));
  code_.reset(code, [](void *p) { pcre2_code_free(static_cast<pcre2_code *>(p)); });
  pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, nullptr);
  if (!match) throw std::bad_alloc();
  match_.reset(match, [](void *p) { pcre2_match_data_free(static_cast<pcre2_match_data *>(p)); });
}

void Splitter::split(std::string_view text, std::vector<std::string_view> &pieces) const {
  auto *code = static_cast<const pcre2_code *>(code_.get());
  auto *match = static_cast<pcre2_match_data *>(match_.get());
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto add = [&](size_t begin, size_t end) {
    if (end > begin) pieces.push_back(text.substr(begin, end - begin));
  };
  size_t done = 0, from = 0;
  while (from < text.size()) {
    // The whole text is checked at the first call.
    const int rc = pcre2_match(code, subject, text.size(), from, from ? PCRE2_NO_UTF_CHECK : 0, match, nullptr);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) throw std::runtime_error("the tokenizer's pattern: " + message(rc));
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(match);
    if (bounds[0] < from || bounds[1] < bounds[0])
      throw std::runtime_error("the tokenizer's pattern: matches end before they begin");
    if (bounds[0] > done) add(done, bounds[0]);
    add(bounds[0], bounds[1]);
    done = from = bounds[1];
    if (bounds[0] == bounds[1])  // an empty match: go on after the next character
      do ++from;
      while (from < text.size() && (text[from] & 0xC0) == 0x80);
  }
  add(done, text.size());
}

}  // namespace opgraft::text
