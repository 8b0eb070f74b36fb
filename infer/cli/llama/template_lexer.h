// The words of a chat template, as Jinja cuts it with trim_blocks and lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace opgraft::llama {

struct Token {
  // Begin and end of {{ }} are kPrint and kPrintEnd, those of {% %} kTag and kTagEnd.
  enum Kind { kData, kPrint, kPrintEnd, kTag, kTagEnd, kName, kString, kInteger, kFloat, kOperator, kEnd } kind;
  std::string text;  // of a string what it spells
  int line;
};

// `source` must be UTF-8. Throws std::runtime_error with the line. The last token is kEnd.
std::vector<Token> tokens(std::string_view source);
[[noreturn]] void fail_at(int line, const std::string &why);

}  // namespace opgraft::llama
