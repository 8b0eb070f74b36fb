// Messages of errors, made of parts that are joined only where there is an error: what a kernel checks at each call, or
// at each element, costs the comparison alone. Included by arguments.h.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "opgraft/abi.h"

namespace opgraft {

// Whether a dimension or a known value is the id of a symbol.
inline bool is_symbol(int64_t dim) { return dim <= OPGRAFT_FIRST_SYMBOL; }

// A shape as Python writes a tuple: "(2, 3)", "(4,)", "()"; "?" stands for a dimension that is not known, "s0" for a
// symbol.
inline std::string to_string(std::span<const int64_t> dims) {
  std::string s = "(";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i) s += ", ";
    if (is_symbol(dims[i])) {
      s += 's';
      s += std::to_string(OPGRAFT_FIRST_SYMBOL - dims[i]);
    } else {
      s += dims[i] == -1 ? "?" : std::to_string(dims[i]);
    }
  }
  return s + (dims.size() == 1 ? ",)" : ")");
}

// A text, a number, or a shape. It refers to the text's or shape's memory: good to the end of the call it is given to.
class MessagePart {
 public:
  template <std::signed_integral T>
  requires(!std::same_as<T, char>) MessagePart(T value) : value_(int64_t(value)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) MessagePart(T value) : value_(uint64_t(value)) {}
  MessagePart(double value) : value_(value) {}
  template <class T>
  requires std::convertible_to<const T &, std::string_view> MessagePart(const T &text)
      : value_(std::string_view(text)) {}
  template <class T>
  requires std::convertible_to<const T &, std::span<const int64_t>> MessagePart(const T &dims)
      : value_(std::span<const int64_t>(dims)) {}

  std::string text() const {
    return std::visit(
        [](const auto &value) -> std::string {
          if constexpr (requires { std::to_string(value); }) return std::to_string(value);
          else if constexpr (requires { to_string(value); }) return to_string(value);
          else return std::string(value);
        },
        value_);
  }

 private:
  std::variant<int64_t, uint64_t, double, std::string_view, std::span<const int64_t>> value_;
};

inline std::string joined(std::initializer_list<MessagePart> parts) {
  std::string s;
  for (const MessagePart &part : parts) s += part.text();
  return s;
}

}  // namespace opgraft
