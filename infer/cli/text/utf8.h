// UTF-8 of people and models, which may be broken.
#pragma once

#include <string>
#include <string_view>

namespace opgraft::text {

// What a text begins with: a character, or (not valid) as much of one as is there before bytes that do not continue it,
// which the Unicode Standard, 3.9, calls a maximal subpart.
struct Character {
  size_t bytes;
  bool valid;
  char32_t code;
};
Character first_character(std::string_view text);  // text must not be empty

bool is_utf8(std::string_view text);
// U+FFFD in place of each broken part.
std::string repaired(std::string_view text);
std::string to_utf8(char32_t code);

}  // namespace opgraft::text
