#include "registry/mindspore_host.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "registry/elf.h"
#include "registry/functions.h"
#include "registry/library.h"
#include "registry/mindspore_probe.h"

namespace opgraft {
namespace {

constexpr const char *kBuild = "build it with -D_GLIBCXX_USE_CXX11_ABI=0";

constexpr const char *kSilently =
    "MindSpore fails when the operator is first used, with an empty message; the cause is in its log only";

// What the std::string of its symbols means.
HostReport::Verdict by_symbols(const Elf &elf, bool native, Check &check) {
  if (native) {
    check.detail = "opgraft's operators read attributes whatever ABI they were built with";
    return HostReport::kLoads;
  }
  auto symbols = string_symbols(elf);
  if (symbols.none) {
    check.detail = "it can hold no std::string, so it asks for no attribute";
    return HostReport::kLoads;
  }
  if (symbols.abi == StringAbi::kOld) {
    check.detail = "built with _GLIBCXX_USE_CXX11_ABI=0, as MindSpore is";
    return HostReport::kLoads;
  }
  check.ok = symbols.abi != StringAbi::kNew;
  if (!check.ok) check.detail = "built with _GLIBCXX_USE_CXX11_ABI=1";
  else if (symbols.not_old) check.detail = "built with _GLIBCXX_USE_CXX11_ABI=1, or holds no std::string";
  else check.detail = "no symbol tells the ABI; it may be _GLIBCXX_USE_CXX11_ABI=1";
  check.detail += ": MindSpore crashes without a message when such a file asks for an attribute; ";
  check.detail += kBuild;
  return HostReport::kMayCrash;
}

// Of a file with another std::vector: MindSpore passes one to and from these, else only where the file asks for it.
HostReport::Verdict of_debug_vectors(const Elf &elf, const std::vector<std::string> &functions) {
  const bool infers = std::any_of(functions.begin(), functions.end(), [&](auto &function) {
    return elf.find(function + "InferShape") || elf.find(function + "InferType");
  });
  return infers ? HostReport::kCrashes : HostReport::kMayCrash;
}

// What calling every function told; where it told nothing the verdict by symbols stays. A file has one ABI, unless its
// parts were built apart: then one function with the new one is enough.
HostReport::Verdict by_calls(const std::filesystem::path &file, const std::vector<std::string> &functions,
                             HostReport::Verdict before, Check &check) {
  std::string unknown, old;
  for (auto &function : functions) {
    auto found = probe(file, function);
    if (found.asked && found.abi == StringAbi::kNew) {
      check.ok = false;
      check.detail = fmt::format(
          "{} asks for an attribute with a std::string of _GLIBCXX_USE_CXX11_ABI=1: MindSpore crashes without a "
          "message; {}",
          found.part, kBuild);
      return HostReport::kCrashes;
    }
    if (found.asked && found.abi == StringAbi::kOld) old = found.part;
    else if ((found.asked || !found.returned) && unknown.empty()) unknown = found.part;
  }
  if (old.empty() && !unknown.empty()) {
    check.detail = fmt::format("{} failed before it asked for an attribute, if it does", unknown);
    return before;
  }
  check.detail = old.empty()
                     ? "no function asks for an attribute"
                     : old + " asks for an attribute with a std::string of _GLIBCXX_USE_CXX11_ABI=0, as MindSpore's";
  return HostReport::kLoads;
}

}  // namespace

const char *HostReport::word() const {
  static constexpr const char *kWords[] = {"loads", "may crash", "crashes", "refuses"};
  return kWords[verdict];
}

HostReport examine_for_mindspore(const std::filesystem::path &file, bool call) {
  HostReport report;
  auto refuse = [&](std::string step, std::string why, HostReport::Verdict verdict = HostReport::kRefuses) {
    report.checks.push_back({std::move(step), std::move(why), false});
    report.verdict = verdict;
    return report;
  };
  FileKind kind;
  try {
    kind = examine_kind(file);
  } catch (const LoadError &e) {
    return refuse(e.step, fmt::format("{}; {}", e.what(), kSilently));
  }
  if (kind.names.empty())
    return refuse("functions",
                  "exports no function that MindSpore could call; MindSpore finds out at the first launch");
  report.checks.push_back({"functions", fmt::format("{}", fmt::join(kind.names, ", ")), true});
  const ElfFile elf(file);
  if (has_debug_vectors(*elf))
    return refuse("std::vector",
                  "built with _GLIBCXX_DEBUG, whose std::vector has another layout than MindSpore's: it crashes where "
                  "it takes or gives one, as by InferShape, InferType and attributes; build it without",
                  of_debug_vectors(*elf, kind.names));
  Check whitelist{"whitelist", "MS_CUSTOM_AOT_WHITE_LIST is not set", true};
  if (auto *folder = std::getenv("MS_CUSTOM_AOT_WHITE_LIST")) {  // one; set to nothing it allows nothing
    const auto real = std::filesystem::canonical(file);
    if (!*folder || !lies_in(real, folder))
      return refuse("whitelist",
                    fmt::format("{} lies outside MS_CUSTOM_AOT_WHITE_LIST, '{}': MindSpore refuses the path",
                                real.string(), folder));
    whitelist.detail = fmt::format("lies in {}", folder);
  }
  report.checks.push_back(whitelist);
  void *open = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);  // then its constructors have run
  if (open) ::dlclose(open);
  if (!open && !survives_opening(file))
    return refuse("dlopen", "ends the process that opens it, or takes longer than 5 s: its constructors run then",
                  HostReport::kCrashes);
  std::vector<Check> steps;
  auto library = Library::open_foreign(file, {}, kind.names[0], {}, &steps);
  for (auto &step : steps) {
    // opgraft's own, or told above
    if (step.step == "digest" || step.step == "symbols" || step.step == "whitelist") continue;
    if (step.ok) {
      report.checks.push_back(step);
      continue;
    }
    // MindSpore opens lazily: a function that is missing is found when it is called.
    if (step.step == "dependencies" || step.step == "dlopen")
      if (void *lazily = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
        ::dlclose(lazily);
        if (void *whole = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
          ::dlclose(whole);
          continue;  // the dynamic linker knows better than we do
        }
        return refuse(
            step.step,
            step.detail + "; it is looked up when it is called, and then MindSpore's process ends with exit code 127",
            HostReport::kCrashes);
      }
    return refuse(step.step, fmt::format("{}; {}", step.detail, kSilently));
  }
  Check strings{"std::string", "", true}, calls{"calls", "", true};
  report.verdict = by_symbols(*elf, kind.native, strings);
  const bool told = call && !kind.native;
  if (told) report.verdict = by_calls(file, kind.names, report.verdict, calls);
  strings.ok |= report.verdict == HostReport::kLoads;  // the calls know better
  report.checks.push_back(std::move(strings));
  if (told) report.checks.push_back(std::move(calls));
  return report;
}

}  // namespace opgraft
