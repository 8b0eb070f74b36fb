// Where the dynamic linker would find a needed library; asked before dlopen so that what is missing
// can be named.
#pragma once

#include <filesystem>
#include <string_view>

#include "registry/elf.h"

namespace opgraft {

// True if `name` (an entry of elf.needed) is loaded in this process or lies where the dynamic linker
// looks for it on behalf of the file at `user`.
bool find_dependency(std::string_view name, const Elf &elf, const std::filesystem::path &user);

}  // namespace opgraft
