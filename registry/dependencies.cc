#include "registry/dependencies.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace opgraft {
namespace fs = std::filesystem;

namespace {

using Paths = std::vector<fs::path>;

std::string expand(std::string text, const fs::path &origin) {
  for (std::string_view word : {"$ORIGIN", "${ORIGIN}"})
    for (size_t at = 0; (at = text.find(word, at)) != text.npos; at += origin.string().size())
      text.replace(at, word.size(), origin.string());
  return text;
}

Paths split(std::string_view list, const fs::path &origin) {
  Paths out;
  for (size_t at = 0; at < list.size();) {
    auto end = std::min(list.find_first_of(":;", at), list.size());
    if (end > at) out.emplace_back(expand(std::string(list.substr(at, end - at)), origin));
    at = end + 1;
  }
  return out;
}

// The directories of /etc/ld.so.conf, from which ld.so.cache is made.
void read_conf(const fs::path &file, Paths &out, int depth = 0) {
  std::ifstream in(file);
  for (std::string line; depth < 8 && std::getline(in, line);) {
    line.erase(std::min(line.find('#'), line.size()));
    auto begin = line.find_first_not_of(" \t");
    if (begin == line.npos) continue;
    line = line.substr(begin, line.find_last_not_of(" \t") + 1 - begin);
    if (!line.starts_with("include ") && !line.starts_with("include\t")) {
      out.emplace_back(line);
      continue;
    }
    auto pattern = line.substr(line.find_first_not_of(" \t", 7));
    if (pattern[0] != '/') pattern = (file.parent_path() / pattern).string();
    glob_t found{};
    if (::glob(pattern.c_str(), 0, nullptr, &found) == 0)
      for (size_t i = 0; i < found.gl_pathc; ++i) read_conf(found.gl_pathv[i], out, depth + 1);
    ::globfree(&found);
  }
}

const Paths &system_directories() {
  static const Paths dirs = [] {
    Paths all;
    read_conf("/etc/ld.so.conf", all);
    // Where the C library itself was found: the multiarch directory on Debian.
    if (Dl_info info; ::dladdr(reinterpret_cast<void *>(&::malloc), &info) && info.dli_fname)
      all.push_back(fs::path(info.dli_fname).parent_path());
    for (auto d : {"/lib64", "/usr/lib64", "/lib", "/usr/lib", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
                   "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"})
      all.emplace_back(d);
    return all;
  }();
  return dirs;
}

struct Close {
  void operator()(void *handle) const { ::dlclose(handle); }
};
using Handle = std::unique_ptr<void, Close>;

// Opens nothing: a handle of what is loaded already, or null.
Handle loaded(const std::string &name) { return Handle(::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD)); }

// A library that is not loaded, read as a file.
struct File {
  fs::path path;
  ElfFile elf;
  std::set<std::string_view> exports;

  explicit File(const fs::path &file) : path(file), elf(file) {
    for (auto &s : elf->exports()) exports.insert(s.name);
  }
};

std::unique_ptr<File> read(const fs::path &path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return nullptr;
  try {
    return std::make_unique<File>(path);
  } catch (const ElfError &) {
    return nullptr;  // another machine's: the linker looks further
  }
}

// Where the linker looks for what a file needs. An RPATH holds for what the file's libraries need as well, unless they
// have a RUNPATH; `inherited` are those of the files on the way.
std::unique_ptr<File> find(std::string_view name, const Elf &elf, const fs::path &origin, const Paths &inherited) {
  if (name.find('/') != name.npos) return read(expand(std::string(name), origin));
  auto *environment = std::getenv("LD_LIBRARY_PATH");
  for (auto &dirs : {elf.runpath.empty() ? inherited : Paths(), split(environment ? environment : "", origin),
                     split(elf.runpath, origin), system_directories()})
    for (auto &d : dirs)
      if (auto file = read(d / name)) return file;
  return nullptr;
}

// All that a file and what it needs may bind to.
class Scope {
 public:
  Scope() { handles_.emplace_back(::dlopen(nullptr, RTLD_LAZY)); }  // the program, and what is loaded for all

  // The first needed library that is not there, with who needs it.
  std::optional<std::string> add(const Elf &elf, const fs::path &user, const Paths &of_users = {}) {
    auto rpath = elf.runpath.empty() ? split(elf.rpath, user.parent_path()) : Paths();
    rpath.insert(rpath.end(), of_users.begin(), of_users.end());
    for (auto name : elf.needed) {
      if (!seen_.emplace(name).second) continue;
      auto text = name.find('/') == name.npos ? std::string(name) : expand(std::string(name), user.parent_path());
      if (auto handle = loaded(text)) {
        handles_.push_back(std::move(handle));
        continue;
      }
      auto file = find(name, elf, user.parent_path(), rpath);
      if (!file) return fmt::format("needs the library {}, which is not found", name);
      files_.push_back(std::move(file));
      auto &added = *files_.back();
      if (auto cause = add(*added.elf, added.path, rpath)) return fmt::format("{} {}", name, *cause);
    }
    return std::nullopt;
  }

  bool defines(const Elf::Import &wanted) const {
    const std::string name(wanted.name), version(wanted.version);
    for (auto &handle : handles_)
      if (version.empty() ? ::dlsym(handle.get(), name.c_str()) : ::dlvsym(handle.get(), name.c_str(), version.c_str()))
        return true;
    return std::any_of(files_.begin(), files_.end(), [&](auto &file) {
      auto &versions = file->elf->versions;
      bool right = version.empty() || versions.empty() || std::count(versions.begin(), versions.end(), version);
      return right && file->exports.contains(wanted.name);
    });
  }

 private:
  std::set<std::string, std::less<>> seen_;
  std::vector<Handle> handles_;
  std::vector<std::unique_ptr<File>> files_;
};

}  // namespace

std::optional<std::string> unmet_dependency(const Elf &elf, const fs::path &user) {
  Scope scope;
  if (auto cause = scope.add(elf, user)) return cause;
  for (auto &wanted : elf.undefined)
    if (!wanted.weak && !scope.defines(wanted))
      return fmt::format("undefined symbol: {}{}{}, in none of the libraries it needs ({})", wanted.name,
                         wanted.version.empty() ? "" : "@", wanted.version, fmt::join(elf.needed, ", "));
  return std::nullopt;
}

}  // namespace opgraft
