// What the real MindSpore would make of a file.
#pragma once

#include <filesystem>
#include <vector>

#include "registry/registry.h"

namespace opgraft {

// The steps by which MindSpore 2.10 takes a .so for ops.Custom(func_type="aot"), each with whether it passes and what
// MindSpore does where it does not; MindSpore itself says little or nothing. Loads the file last (its constructors
// run), where the steps before have passed.
std::vector<Check> examine_for_mindspore(const std::filesystem::path &file);

}  // namespace opgraft
