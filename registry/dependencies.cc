#include "registry/dependencies.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
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

}  // namespace

bool find_dependency(std::string_view name, const Elf &elf, const fs::path &user) {
  std::error_code ignored;
  auto origin = user.parent_path();
  if (name.find('/') != name.npos) return fs::exists(expand(std::string(name), origin), ignored);
  if (void *loaded = ::dlopen(std::string(name).c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
    ::dlclose(loaded);
    return true;
  }
  auto *environment = std::getenv("LD_LIBRARY_PATH");
  for (auto &dirs : {split(elf.runpath.empty() ? elf.rpath : elf.runpath, origin),
                     split(environment ? environment : "", origin), system_directories()})
    for (auto &d : dirs)
      if (fs::exists(d / name, ignored)) return true;
  return false;
}

}  // namespace opgraft
