// What libstdc++'s classes look like in a file built for MindSpore: std::string has two layouts, std::vector another
// one where it was built for debugging.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

namespace opgraft {

class Elf;

// kEither: nothing tells.
enum class StringAbi { kOld, kNew, kEither };

// What a file's symbols say, which only advises: short strings are built inline, and with -static-libstdc++ it has the
// symbols of both.
struct StringSymbols {
  StringAbi abi = StringAbi::kEither;
  bool none = false;     // it can hold no std::string at all
  bool not_old = false;  // if it builds strings, they are new ones: the old one's code is always called by name
};
StringSymbols string_symbols(const Elf &elf);

// Whether its symbols say that a file is built with _GLIBCXX_DEBUG, which makes std::vector a larger class: what the
// host takes for a vector is none, and the reverse.
bool has_debug_vectors(const Elf &elf);

// Of a std::string passed by value, by its memory alone: in both its first word points at the characters. kEither
// where that fits both, which takes a long name and a coincidence.
StringAbi string_abi(const void *argument);

// The name argument of a getter. `hint` decides where its memory does not.
struct StringArgument {
  std::string_view text;
  bool new_abi;
  StringArgument(const void *argument, StringAbi hint);
};

// A std::string result, built in the caller's room: one word under the old ABI, four under the new.
struct StringResult {
  uint64_t words[4];
  StringResult(std::string_view s, bool new_abi);
  StringResult(const StringResult &) = delete;
  ~StringResult() {}  // not trivial: returned through a pointer, as std::string is
};

}  // namespace opgraft
