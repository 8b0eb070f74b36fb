// What a file needs of others, asked before dlopen so that what is missing can be named and no code has run.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "registry/elf.h"

namespace opgraft {

// Why the dynamic linker would refuse the file at `user`: a needed library (of it or of one that it needs) is neither
// loaded nor where the linker looks, or a symbol is defined neither there nor in this process. Null: nothing is
// missing.
std::optional<std::string> unmet_dependency(const Elf &elf, const std::filesystem::path &user);

}  // namespace opgraft
