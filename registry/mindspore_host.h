// What the real MindSpore would make of a file.
#pragma once

#include <filesystem>
#include <vector>

#include "registry/registry.h"

namespace opgraft {

struct HostReport {
  // "may crash": it does where the file asks for an attribute, and whether it does nothing has told.
  enum Verdict { kLoads, kMayCrash, kCrashes, kRefuses } verdict = kLoads;
  std::vector<Check> checks;
  const char *word() const;  // of the verdict: "loads", "may crash", "crashes", "refuses"
};

// The steps by which MindSpore 2.10 takes a .so for ops.Custom(func_type="aot"), each with whether it passes and what
// MindSpore does where it does not; MindSpore itself says little or nothing. Loads the file last (its constructors
// run), in another process first, where the steps before have passed. With `call` its functions are run as well
// (mindspore_probe.h).
HostReport examine_for_mindspore(const std::filesystem::path &file, bool call = false);

}  // namespace opgraft
