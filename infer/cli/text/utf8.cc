#include "infer/cli/text/utf8.h"

namespace opgraft::text {

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true, char32_t(lead)};
  if (lead < 0xC2 || lead > 0xF4) return {1, false, 0};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t code = lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    // The second byte is where overlong forms, surrogates and what lies above U+10FFFF are told.
    const unsigned least = i > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned most = i > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (i >= text.size() || byte(i) < least || byte(i) > most) return {i, false, 0};
    code = code << 6 | (byte(i) & 0x3F);
  }
  return {length, true, code};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Character c = first_character(text);
    if (!c.valid) return false;
    text.remove_prefix(c.bytes);
  }
  return true;
}

std::string repaired(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character c = first_character(text);
    out += c.valid ? text.substr(0, c.bytes) : "\uFFFD";
    text.remove_prefix(c.bytes);
  }
  return out;
}

std::string to_utf8(char32_t code) {
  const auto tail = [&](int shift) { return char(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return {char(code)};
  if (code < 0x800) return {char(0xC0 | code >> 6), tail(0)};
  if (code < 0x10000) return {char(0xE0 | code >> 12), tail(6), tail(0)};
  return {char(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
}

}  // namespace opgraft::text
