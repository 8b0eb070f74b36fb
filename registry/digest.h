// SHA-256 (FIPS 180-4), to tell whether a pinned file is the one that was pinned.
#pragma once

#include <span>
#include <string>

namespace opgraft {

// 64 lower-case hexadecimal digits, as sha256sum prints them.
std::string sha256(std::span<const char> bytes);

}  // namespace opgraft
