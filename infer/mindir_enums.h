// Attributes that are words, but numbers where MindSpore's primitives take them as operands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace opgraft::mindir {

struct Enumerated {
  std::string_view attribute, word;
  int64_t number;
};
inline constexpr Enumerated kEnumerated[] = {
    {"data_format", "NCHW", 0}, {"data_format", "NHWC", 1}, {"pad_mode", "PAD", 0},  {"pad_mode", "SAME", 1},
    {"pad_mode", "VALID", 2},   {"pad_mode", "pad", 0},     {"pad_mode", "same", 1}, {"pad_mode", "valid", 2},
    {"approximate", "none", 0}, {"approximate", "tanh", 1}};

inline std::optional<int64_t> number_of(std::string_view attribute, std::string_view word) {
  for (auto &e : kEnumerated)
    if (e.attribute == attribute && e.word == word) return e.number;
  return std::nullopt;
}
inline std::optional<std::string> word_of(std::string_view attribute, int64_t number) {
  for (auto &e : kEnumerated)
    if (e.attribute == attribute && e.number == number) return std::string(e.word);
  return std::nullopt;
}

}  // namespace opgraft::mindir
