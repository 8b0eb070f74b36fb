#include "registry/mindspore_host.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "registry/foreign.h"
#include "registry/functions.h"
#include "registry/library.h"

namespace opgraft {
namespace {

// What MindSpore does where our step of this name refuses.
std::string consequence(const std::string &step) {
  if (step == "file" || step == "elf") return "MindSpore refuses the file with an empty message";
  if (step == "whitelist") return "MindSpore refuses the path";
  return "MindSpore fails when the operator is first used, with an empty message; the cause is in its log only";
}

Check strings(const std::filesystem::path &file, bool native) {
  Check check{"std::string", "", true};
  if (native) {
    check.detail = "opgraft's operators read attributes whatever ABI they were built with";
    return check;
  }
  switch (string_abi(file)) {
    case StringAbi::kOld: check.detail = "built with _GLIBCXX_USE_CXX11_ABI=0, as MindSpore is"; break;
    case StringAbi::kEither:
      check.detail =
          "no symbol tells the ABI; if it asks for attributes it must be built with -D_GLIBCXX_USE_CXX11_ABI=0";
      break;
    case StringAbi::kNew:
      check.ok = false;
      check.detail =
          "built with _GLIBCXX_USE_CXX11_ABI=1: MindSpore crashes without a message when it asks for an attribute; "
          "build it with -D_GLIBCXX_USE_CXX11_ABI=0";
  }
  return check;
}

}  // namespace

std::vector<Check> examine_for_mindspore(const std::filesystem::path &file) {
  FileKind kind;
  std::vector<Check> report;
  try {
    kind = examine_kind(file);
  } catch (const LoadError &e) {
    return {{e.step, fmt::format("{}; {}", e.what(), consequence(e.step)), false}};
  }
  if (kind.names.empty())
    return {
        {"functions", "exports no function that MindSpore could call; MindSpore finds out at the first launch", false}};
  report.push_back({"functions", fmt::format("{}", fmt::join(kind.names, ", ")), true});
  report.push_back(strings(file, kind.native));
  if (!report.back().ok) return report;
  Directories allowed;
  if (auto *one = std::getenv("MS_CUSTOM_AOT_WHITE_LIST"); one && *one) allowed.emplace_back(one);
  std::vector<Check> steps;
  Library::open_foreign(file, allowed, kind.names[0], {}, &steps);
  for (auto &step : steps) {
    if (step.step == "digest" || step.step == "symbols") continue;  // opgraft's own; told above
    if (!step.ok) step.detail += "; " + consequence(step.step);
    report.push_back(step);
  }
  return report;
}

}  // namespace opgraft
