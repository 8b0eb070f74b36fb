#include "registry/string_abi.h"

#include <algorithm>

#include "registry/elf.h"

namespace opgraft {

StringSymbols string_symbols(const Elf &elf) {
  bool old_names = false, new_names = false, frees = false;
  auto look = [&](std::string_view name) {
    new_names |= name.find("__cxx1112basic_string") != name.npos;
    old_names |= name.starts_with("_ZNSs") || name.starts_with("_ZNKSs");  // spelled Ss
    // Who passes a std::string must be able to free it; std::free may stand behind a hidden operator delete.
    frees |= name.starts_with("_ZdlPv") || name == "free";
  };
  for (auto &s : elf.undefined) look(s.name);
  for (auto &s : elf.exports()) look(s.name);
  auto shared = std::any_of(elf.needed.begin(), elf.needed.end(), [](auto n) { return n.starts_with("libstdc++"); });
  StringSymbols out;
  if (old_names != new_names) out.abi = old_names ? StringAbi::kOld : StringAbi::kNew;
  out.none = !old_names && !new_names && !frees;
  out.not_old = !old_names && shared;
  return out;
}

bool has_debug_vectors(const Elf &elf) {
  auto is_debug = [](auto &s) { return s.name.find("11__gnu_debug") != s.name.npos; };
  return std::any_of(elf.undefined.begin(), elf.undefined.end(), is_debug) ||
         std::any_of(elf.exports().begin(), elf.exports().end(), is_debug);  // with -static-libstdc++
}

namespace {

// An old string's characters follow {length, capacity, number of further owners}. Looked at only where that lies in
// the characters' own page, which can be read; before a new one's lies what the heap keeps there.
__attribute__((no_sanitize("address"))) bool looks_old(const char *text, size_t length) {
  const auto at = reinterpret_cast<uintptr_t>(text);
  if (at % 8 || at % 4096 < 24) return false;
  auto *rep = reinterpret_cast<const uint64_t *>(at) - 3;
  return rep[0] == length && rep[1] >= length && rep[1] < 1u << 20 && int32_t(rep[2]) >= -1;
}

}  // namespace

__attribute__((no_sanitize("address"))) StringAbi string_abi(const void *argument) {
  auto *words = static_cast<const uint64_t *>(argument);
  // New: {characters, length, capacity or, up to 15 of them, the characters themselves}.
  if (words[0] == reinterpret_cast<uint64_t>(words + 2)) return StringAbi::kNew;
  auto *text = reinterpret_cast<const char *>(words[0]);
  const size_t length = std::strlen(text);
  // An old string is its first word alone; what follows is of the caller's frame.
  const bool is_new = words[1] == length && words[2] >= std::max<size_t>(length, 16) && words[2] < 1u << 20;
  if (is_new == looks_old(text, length)) return is_new ? StringAbi::kEither : StringAbi::kOld;
  return is_new ? StringAbi::kNew : StringAbi::kOld;
}

StringArgument::StringArgument(const void *argument, StringAbi hint) {
  auto abi = string_abi(argument);
  if (abi == StringAbi::kEither) abi = hint;
  new_abi = abi == StringAbi::kNew;
  text = *static_cast<const char *const *>(argument);
}

StringResult::StringResult(std::string_view s, bool new_abi) {
  char *chars;
  if (!new_abi) {
    auto *rep = static_cast<uint64_t *>(::operator new(24 + s.size() + 1));
    rep[0] = rep[1] = s.size();
    rep[2] = 0;  // one owner
    chars = reinterpret_cast<char *>(rep + 3);
  } else {
    chars = s.size() < 16 ? reinterpret_cast<char *>(&words[2]) : static_cast<char *>(::operator new(s.size() + 1));
    words[1] = s.size();
    if (s.size() >= 16) words[2] = s.size();
  }
  words[0] = reinterpret_cast<uint64_t>(chars);
  std::memcpy(chars, s.data(), s.size());
  chars[s.size()] = 0;
}

}  // namespace opgraft
