#include "registry/functions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "registry/elf.h"
#include "registry/foreign.h"
#include "registry/foreign_op.h"
#include "registry/library.h"

namespace opgraft {
namespace fs = std::filesystem;

namespace {

struct Functions {
  std::mutex mutex;
  std::map<std::string, OpPtr, std::less<>> ops;     // by name
  std::map<std::string, OpPtr, std::less<>> by_key;  // by function and attributes
};
Functions &functions() {
  static auto *f = new Functions;  // like the registry, never destroyed
  return *f;
}

std::pair<std::string, std::string> split(std::string_view func_name) {
  auto colon = func_name.rfind(':');
  if (colon == func_name.npos || func_name.find('/', colon) != func_name.npos) return {std::string(func_name), ""};
  return {std::string(func_name.substr(0, colon)), std::string(func_name.substr(colon + 1))};
}

// Where models may load from: what a person named for it, and opgraft's own folder.
Directories trusted(const Registry &registry) {
  Directories dirs = registry.whitelist();
  if (auto *one = std::getenv("MS_CUSTOM_AOT_WHITE_LIST"); one && *one) dirs.emplace_back(one);
  for (auto &d : operator_folders()) dirs.push_back(d);
  return dirs;
}

bool loaded_before(const fs::path &file) {
  std::error_code error;
  auto real = fs::canonical(file, error);
  if (error) return false;
  auto &f = functions();
  std::lock_guard lock(f.mutex);
  return std::any_of(f.ops.begin(), f.ops.end(), [&](auto &op) { return op.second->path == real; });
}

}  // namespace

FileKind examine_kind(const fs::path &file) {
  identify(file);
  FileKind kind;
  try {
    const ElfFile elf(file);
    kind.native = elf->note(OPGRAFT_NOTE_OWNER, OPGRAFT_NOTE_TYPE).has_value();
    for (auto &s : elf->exports()) {
      constexpr std::string_view kPrefix = "opgraft_op_";
      if (kind.native && s.name.starts_with(kPrefix)) kind.names.emplace_back(s.name.substr(kPrefix.size()));
      if (kind.native || s.is_object || s.name.starts_with('_')) continue;
      // FuncInit and its like belong to Func.
      bool part = false;
      for (std::string_view suffix : {"Init", "InferShape", "InferType"})
        part |= s.name.ends_with(suffix) && elf->find(s.name.substr(0, s.name.size() - suffix.size()));
      if (!part) kind.names.emplace_back(s.name);
    }
  } catch (const ElfError &e) {
    throw LoadError(file.string(), "elf", e.what());
  }
  std::sort(kind.names.begin(), kind.names.end());
  return kind;
}

OpPtr find_function(std::string_view name) {
  auto &f = functions();
  std::lock_guard lock(f.mutex);
  auto it = f.ops.find(name);
  return it == f.ops.end() ? nullptr : it->second;
}

OpPtr load_function(const Registry &registry, const fs::path &file, const std::string &function,
                    const std::vector<ManifestAttr> &attrs) {
  auto foreign = ForeignOp::load(file, function, registry.whitelist(), registry.pinned(file));
  auto &id = foreign->id();
  std::string key = fmt::format("{}:{}:{}:{}:{}:{}", id.device, id.inode, id.size, id.modified_ns,
                                foreign->path().string(), function);
  for (auto &a : attrs) key += fmt::format(";{}:{}", a.name, a.kind);
  auto &f = functions();
  std::lock_guard lock(f.mutex);
  auto &known = f.by_key[key];
  if (known) return known;
  auto name = fmt::format("{}#{}", function, f.ops.size() + 1);
  known = make_foreign_op(foreign, name, attrs);
  f.ops.emplace(name, known);
  return known;
}

OpPtr model_function(const Registry &registry, std::string_view func_name, const std::vector<ManifestAttr> &attrs,
                     const fs::path &beside) {
  auto [path, function] = split(func_name);
  std::error_code error;
  const auto dirs = trusted(registry);
  auto there = [&](const fs::path &f) { return !f.empty() && fs::is_regular_file(f, error); };
  auto allowed = [&](const fs::path &f) {
    const auto real = fs::canonical(f);
    return loaded_before(f) || std::any_of(dirs.begin(), dirs.end(), [&](auto &d) { return lies_in(real, d); });
  };
  const fs::path written = path, name = written.filename();
  const fs::path neighbour = beside.empty() || name.empty() ? fs::path() : beside / name;
  fs::path file = there(neighbour) && allowed(neighbour) ? neighbour : written;
  for (auto d = dirs.begin(); !there(file) && d != dirs.end(); ++d)
    if (!name.empty() && there(*d / name)) file = *d / name;
  if (!there(file)) file = neighbour;
  if (!there(file)) return nullptr;
  auto real = fs::canonical(file);
  if (!allowed(file))
    throw LoadError(file.string(), "whitelist",
                    fmt::format("a model may not load this file: its folder is on no white list. If you trust it, name "
                                "its folder in MS_CUSTOM_AOT_WHITE_LIST or opgraft.set_whitelist(['{}']), or load "
                                "it first with ops.Custom('{}')",
                                real.parent_path().string(), real.string() + ":" + function));
  auto kind = examine_kind(real);
  if (std::find(kind.names.begin(), kind.names.end(), function) == kind.names.end())
    throw LoadError(file.string(), "symbols",
                    fmt::format("has no operator '{}', it has {}", function,
                                kind.names.empty() ? "none" : fmt::format("{}", fmt::join(kind.names, ", "))));
  if (!kind.native) return load_function(registry, real, function, attrs);
  if (&registry != &Registry::global()) return nullptr;
  for (auto &op : Registry::global().load(real))
    if (op->name() == function) return op;
  return nullptr;
}

}  // namespace opgraft
