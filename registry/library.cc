#include "registry/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "registry/dependencies.h"
#include "registry/descriptor.h"
#include "registry/digest.h"
#include "registry/elf.h"
#include "registry/string_abi.h"

namespace opgraft {
namespace fs = std::filesystem;

namespace {

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Missing : Refusal {
  using Refusal::Refusal;
};
[[noreturn]] void refuse(std::string cause) { throw Refusal(std::move(cause)); }

FileId id_of(const struct stat &s) {
  return {s.st_dev, s.st_ino, uint64_t(s.st_size), s.st_mtim.tv_sec * 1'000'000'000 + s.st_mtim.tv_nsec};
}

// Why a symbol may be undefined: it was built with the other std::string than what should define it.
std::string string_abi_hint(const Elf &elf, std::string_view cause) {
  if (cause.find("undefined symbol") == cause.npos) return "";
  auto is_old = [](auto &s) { return s.name.starts_with("_ZNSs") || s.name.starts_with("_ZNKSs"); };
  const bool old = std::any_of(elf.undefined.begin(), elf.undefined.end(), is_old);
  if (cause.find("__cxx11") == cause.npos && cause.find("Ss") == cause.npos) return "";
  return fmt::format(" (the name holds a std::string: this file is built with {}; build both sides with the same one)",
                     old ? "the old std::string ABI, _GLIBCXX_USE_CXX11_ABI=0" : "the new std::string ABI");
}

// The name to open a file by. The loader takes a name it has open for the same file, whatever lies there
// now; so a file that was replaced gets another name for the same path, "/a/./b.so".
std::string loader_name(const fs::path &path, const FileId &id) {
  static auto *mutex = new std::mutex;
  static auto *seen = new std::map<std::string, std::vector<FileId>>;
  std::lock_guard lock(*mutex);
  auto &ids = (*seen)[path.string()];
  for (size_t k = 0;; ++k) {
    auto name = path.parent_path().string();
    for (size_t i = 0; i < k; ++i) name += "/.";
    name += "/" + path.filename().string();
    if (k == ids.size()) return ids.push_back(id), name;
    if (ids[k] == id) return name;
    void *open = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (open) ::dlclose(open);
    else if (k + 1 == ids.size()) return ids[k] = id, name;
    if (open && ids[k].device == id.device && ids[k].inode == id.inode)
      refuse("was changed in place while it is loaded; put a new file in its place, or start a new process");
  }
}

}  // namespace

// All that the steps learn, in the order they run.
struct Loading {
  fs::path path;
  Directories whitelist;
  std::string function;  // foreign files only
  std::string pinned;    // SHA-256, or empty
  Library::Admit admit;

  std::shared_ptr<Library> library{new Library};
  std::vector<char> bytes;
  std::optional<Elf> elf;
  std::string_view yaml;
  std::vector<Manifest> manifests;

  // Every step returns a detail to report (empty: nothing was asked), or throws Refusal or ElfError with the cause.
  std::string file();
  std::string allowed();
  std::string header();
  std::string digest();
  std::string abi();
  std::string manifest();
  std::string registered();
  std::string symbols();
  std::string descriptor();
  std::string function_symbol();
  std::string vectors();
  std::string dependencies();
  std::string open();
  std::string score();
};

std::string Loading::file() {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not block
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) throw Missing("no such file");
    refuse(fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } close{fd};
  struct stat s;
  if (::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) refuse("is not a regular file");
  library->id_ = id_of(s);
  library->path_ = fs::canonical(path);
  bytes.resize(size_t(s.st_size));
  size_t got = 0;
  while (got < bytes.size()) {
    auto n = ::read(fd, bytes.data() + got, bytes.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) refuse(n ? fmt::format("cannot be read: {}", std::strerror(errno)) : "changed while it was read");
    got += size_t(n);
  }
  return fmt::format("{} ({} bytes)", library->path_.string(), bytes.size());
}

std::string Loading::allowed() {
  Directories dirs = whitelist;
  if (auto *one = std::getenv("MS_CUSTOM_AOT_WHITE_LIST"); one && *one) dirs.emplace_back(one);
  if (dirs.empty()) return "no white list is set";
  auto listed = dirs;
  dirs.push_back(own_operators());
  for (auto &d : dirs)
    if (lies_in(library->path_, d)) return fmt::format("lies in {}", fs::canonical(d).string());
  std::vector<std::string> names;
  for (auto &d : listed) names.push_back(d.string());
  refuse(fmt::format("lies outside the white list ({}); its real path is {}", fmt::join(names, ", "),
                     library->path_.string()));
}

std::string Loading::header() {
  elf.emplace(bytes);
  return fmt::format("ELF 64-bit shared object, {}", elf->machine());
}

std::string Loading::digest() {
  if (pinned.empty()) return "no digest is pinned";
  auto got = sha256(bytes);
  if (got != pinned) refuse(fmt::format("sha256 must be {} as pinned, got {}", pinned, got));
  return "sha256 as pinned";
}

std::string Loading::abi() {
  auto note = elf->note(OPGRAFT_NOTE_OWNER, OPGRAFT_NOTE_TYPE);
  if (!note)
    refuse(
        "has no opgraft note: not an opgraft operator (build it with opgraft_add_op, or run its function with Custom)");
  uint32_t version;
  if (note->size() < sizeof version) refuse("has an opgraft note without an ABI version");
  std::memcpy(&version, note->data(), sizeof version);
  check_abi(version, "was");
  yaml = note->substr(sizeof version);
  return "ABI " + abi_text(version);
}

std::string Loading::manifest() {
  manifests = parse_manifests(yaml, "op.yaml");
  std::vector<std::string> names;
  for (auto &m : manifests) names.push_back(m.name + "@" + m.version);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string Loading::registered() {
  if (!admit) return "";
  admit(*library, manifests);
  return "no other file has them";
}

std::string Loading::symbols() {
  const std::string prefix = "opgraft_op_";
  for (auto &m : manifests) {
    for (auto &name : {prefix + m.name, m.name})
      if (!elf->find(name))
        refuse(fmt::format("symbol {} is missing: op.yaml describes {}, the file does not export it", name, m.name));
    auto *s = elf->find(prefix + m.name);
    if (!s->is_object || s->size < kLeastDescriptor)
      refuse(fmt::format("symbol {}{} must be data of at least {} bytes, got {} of {} bytes", prefix, m.name,
                         kLeastDescriptor, s->is_object ? "data" : "no data", s->size));
  }
  for (auto &s : elf->exports())
    if (s.name.starts_with(prefix) &&
        std::none_of(manifests.begin(), manifests.end(), [&](auto &m) { return prefix + m.name == s.name; }))
      refuse(fmt::format("manifest disagrees with exports: the file exports {}, op.yaml does not describe {}", s.name,
                         s.name.substr(prefix.size())));
  return fmt::format("{} operators export their symbols", manifests.size());
}

std::string Loading::function_symbol() {
  if (elf->find(function) && !elf->find(function)->is_object) return "exports " + function;
  if (elf->find(function)) refuse(fmt::format("symbol {} is data, expected a function", function));
  auto mangled = fmt::format("_Z{}{}", function.size(), function);
  for (auto &s : elf->exports())
    if (s.name.starts_with(mangled))
      refuse(fmt::format("symbol {} is missing: found {}, a C++ name; declare the function extern \"C\"", function,
                         s.name));
  refuse(fmt::format("symbol {} is missing: the file does not export it", function));
}

std::string Loading::vectors() {
  if (has_debug_vectors(*elf))
    refuse("is built with _GLIBCXX_DEBUG, whose std::vector has another layout than the host's; build it without");
  return "";
}

std::string Loading::descriptor() {
  for (auto &m : manifests) descriptor_in(*elf, *elf->find("opgraft_op_" + m.name), m);
  return "agrees with op.yaml";
}

std::string Loading::dependencies() {
  if (auto cause = unmet_dependency(*elf, library->path_)) refuse(*cause + string_abi_hint(*elf, *cause));
  return fmt::format("{}", fmt::join(elf->needed, ", "));
}

// The first step that runs code of the file: its constructors.
std::string Loading::open() {
  auto name = loader_name(library->path_, library->id_);
  library->handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library->handle_) {
    std::string cause = ::dlerror();
    auto prefix = name + ": ";
    if (cause.starts_with(prefix)) cause.erase(0, prefix.size());
    refuse("dlopen: " + cause + string_abi_hint(*elf, cause));
  }
  struct stat s;
  if (::stat(library->path_.c_str(), &s) != 0 || !(id_of(s) == library->id_)) refuse("changed while it was loaded");
  for (auto &m : manifests) {  // as it was in the file, unless a constructor wrote to it
    Library::Entry e;
    auto symbol = "opgraft_op_" + m.name;
    e.native = descriptor_at(static_cast<const opgraft_op *>(library->symbol(symbol)), elf->find(symbol)->size, m);
    e.version = Version::parse(m.version, "op.yaml");
    e.manifest = m;
    library->entries_.push_back(std::move(e));
  }
  return "opened";
}

std::string Loading::score() {
  std::vector<std::string> all;
  auto &entries = library->entries_;
  for (auto &e : entries) {
    e.score = e.native.score ? e.native.score() : 1;
    all.push_back(fmt::format("{} scores {}", e.manifest.name, e.score));
  }
  std::erase_if(entries, [](auto &e) { return e.score <= 0; });
  auto text = fmt::format("{}", fmt::join(all, ", "));
  if (entries.empty()) refuse("cannot run on this machine: " + text);
  return text;
}

namespace {

struct Step {
  const char *name;
  std::string (Loading::*run)();
};
constexpr Step kNative[] = {{"file", &Loading::file},
                            {"whitelist", &Loading::allowed},
                            {"elf", &Loading::header},
                            {"digest", &Loading::digest},
                            {"abi", &Loading::abi},
                            {"manifest", &Loading::manifest},
                            {"registered", &Loading::registered},
                            {"symbols", &Loading::symbols},
                            {"descriptor", &Loading::descriptor},
                            {"dependencies", &Loading::dependencies},
                            {"dlopen", &Loading::open},
                            {"score", &Loading::score}};
constexpr Step kForeign[] = {{"file", &Loading::file},
                             {"whitelist", &Loading::allowed},
                             {"elf", &Loading::header},
                             {"digest", &Loading::digest},
                             {"symbols", &Loading::function_symbol},
                             {"vectors", &Loading::vectors},
                             {"dependencies", &Loading::dependencies},
                             {"dlopen", &Loading::open}};

std::shared_ptr<const Library> run(Loading &l, std::span<const Step> steps, std::vector<Check> *report) {
  for (auto &step : steps) {
    std::string cause;
    bool missing = false;
    try {
      auto detail = (l.*step.run)();
      if (report && !detail.empty()) report->push_back({step.name, std::move(detail), true});
      continue;
    } catch (const std::exception &e) {
      cause = e.what();
      missing = dynamic_cast<const Missing *>(&e);
    } catch (...) {
      cause = "unknown exception from the file's code";
    }
    if (!report) {
      if (missing) throw FileMissing(l.path.string(), step.name, cause);
      throw LoadError(l.path.string(), step.name, cause);
    }
    report->push_back({step.name, cause, false});
    return nullptr;
  }
  return l.library;
}

}  // namespace

std::shared_ptr<const Library> Library::open(const fs::path &file, const Directories &whitelist,
                                             std::vector<Check> *report, const std::string &sha256, Admit admit) {
  Loading l;
  l.admit = std::move(admit);
  l.path = file;
  l.pinned = sha256;
  l.whitelist = whitelist;
  return run(l, kNative, report);
}

std::shared_ptr<const Library> Library::open_foreign(const fs::path &file, const Directories &whitelist,
                                                     const std::string &function, const std::string &sha256,
                                                     std::vector<Check> *report) {
  Loading l;
  l.path = file;
  l.pinned = sha256;
  l.whitelist = whitelist;
  l.function = function;
  return run(l, kForeign, report);
}

Library::~Library() {
  if (handle_) ::dlclose(handle_);
}

void *Library::symbol(const std::string &name) const { return ::dlsym(handle_, name.c_str()); }

FileId identify(const fs::path &file) {
  struct stat s;
  if (::stat(file.c_str(), &s) == 0) return id_of(s);
  if (errno == ENOENT || errno == ENOTDIR) throw FileMissing(file.string(), "file", "no such file");
  throw LoadError(file.string(), "file", fmt::format("cannot be read: {}", std::strerror(errno)));
}

fs::path own_operators() {
  Dl_info info;
  if (!::dladdr(reinterpret_cast<void *>(&own_operators), &info) || !info.dli_fname) return {};
  std::error_code error;
  auto self = fs::canonical(info.dli_fname, error);
  return error ? fs::path() : self.parent_path() / "ops";
}

Directories operator_folders() {
  Directories dirs;
  if (auto own = own_operators(); fs::is_directory(own)) dirs.push_back(own);
  std::string_view more = std::getenv("OPGRAFT_OPS_PATH") ? std::getenv("OPGRAFT_OPS_PATH") : "";
  while (!more.empty()) {
    auto end = std::min(more.find(':'), more.size());
    if (end) dirs.emplace_back(more.substr(0, end));
    more.remove_prefix(std::min(end + 1, more.size()));
  }
  return dirs;
}

bool lies_in(const fs::path &canonical, const fs::path &dir) {
  std::error_code error;
  auto real = fs::canonical(dir, error);
  if (error) return false;
  return std::mismatch(real.begin(), real.end(), canonical.begin(), canonical.end()).first == real.end();
}

std::vector<Check> examine(const fs::path &file, const Directories &whitelist, const std::string &sha256) {
  std::vector<Check> report;
  Library::open(file, whitelist, &report, sha256);
  return report;
}

}  // namespace opgraft
