#include "registry/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <shared_mutex>
#include <tuple>

#include "registry/choice.h"
#include "registry/functions.h"
#include "registry/library.h"

namespace opgraft {
namespace fs = std::filesystem;

namespace {

// What follows the @ of a spec: an exact version, or ^ and its leading parts.
struct Wanted {
  Version least;
  bool exact = false, minor_given = false;

  bool takes(const Version &v) const {
    if (exact) return v == least;
    if (v < least || v.major != least.major) return false;
    return least.major > 0 || !minor_given || v.minor == least.minor;  // 0.x promises nothing across minors
  }
};

std::optional<Wanted> parse_wanted(std::string_view text) {
  Wanted w;
  w.exact = !text.starts_with('^');
  if (!w.exact) text.remove_prefix(1);
  int *parts[] = {&w.least.major, &w.least.minor, &w.least.patch}, n = 0;
  const char *at = text.data(), *end = at + text.size();
  for (;; ++at) {
    if (n == 3 || at == end || *at < '0' || *at > '9') return std::nullopt;
    auto r = std::from_chars(at, end, *parts[n++]);
    if (r.ec != std::errc()) return std::nullopt;
    at = r.ptr;
    if (at == end) break;
    if (*at != '.') return std::nullopt;
  }
  w.minor_given = n > 1;
  if (w.exact && n != 3) return std::nullopt;
  return w;
}

std::pair<std::string_view, std::string_view> split(std::string_view spec) {
  auto at = spec.find('@');
  return at == spec.npos ? std::pair{spec, std::string_view()} : std::pair{spec.substr(0, at), spec.substr(at + 1)};
}

// The path as it is named and the file that it names now: a pin holds for a link as well as for its target.
std::array<std::string, 2> names_of(const fs::path &file) {
  std::error_code error;
  return {fs::absolute(file, error).lexically_normal().string(), fs::weakly_canonical(file, error).string()};
}

bool later(const OpPtr &a, const OpPtr &b) { return std::tie(a->version, a->score) > std::tie(b->version, b->score); }

}  // namespace

Registry &Registry::global() {
  // Never destroyed: operators may still be running when the process exits.
  static Registry *registry = [] {
    auto *r = new Registry;
    for (auto &d : operator_folders())
      for (auto &e : r->load_directory(d)) fmt::print(stderr, "opgraft: refused {} [{}]\n", e.what(), e.step);
    return r;
  }();
  return *registry;
}

// Called under mutex_.
bool Registry::is_loaded(const Library &library) const {
  auto known = files_.find(library.path().string());
  return known != files_.end() && known->second.front()->library->id() == library.id();
}

void Registry::refuse_duplicates(const Library &library, const std::vector<Manifest> &manifests) const {
  std::shared_lock lock(mutex_);
  if (is_loaded(library)) return;
  auto path = library.path().string();
  for (auto &m : manifests)
    for (auto [i, end] = ops_.equal_range(m.name); i != end; ++i) {
      auto &op = *i->second;
      if (op.manifest.version != m.version || op.manifest.implementation != m.implementation) continue;
      throw std::runtime_error(
          op.path == path ? fmt::format("{} is registered from an earlier state of this file; give the new one a new "
                                        "version, or start a new process",
                                        op.title())
                          : fmt::format("{} is registered already, from {}", op.title(), op.path));
    }
}

std::vector<OpPtr> Registry::load(const fs::path &file) {
  // One file at a time: between the look for duplicates and the entry nobody else may register.
  std::lock_guard one(loading_);
  // A file that is loaded already passes the steps again: it may have changed, the white list too.
  auto library = Library::open(file, whitelist(), nullptr, pinned(file),
                               [this](auto &library, auto &manifests) { refuse_duplicates(library, manifests); });
  auto key = library->path().string();
  std::vector<OpPtr> ops;
  for (auto &e : library->entries()) {
    auto op = std::make_shared<Op>();
    op->native = &e.native;
    op->manifest = e.manifest;
    op->version = e.version;
    op->score = e.score;
    op->path = key;
    op->library = library;
    ops.push_back(std::move(op));
  }
  std::unique_lock lock(mutex_);
  if (is_loaded(*library)) return files_[key];
  for (auto &op : ops) {
    auto &family = families_[op->spec()];
    if (!family) family = std::make_shared<Family>();
    std::const_pointer_cast<Op>(op)->family = family;
    family->add(op);
    ops_.emplace(op->name(), op);
    for (auto &other : op->manifest.names) other_names_.emplace(other.name, op->name());
  }
  return files_[key] = std::move(ops);
}

std::vector<LoadError> Registry::load_directory(const fs::path &dir) {
  std::vector<LoadError> refused;
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator i(dir, error), end; !error && i != end; i.increment(error)) {
    auto name = i->path().filename().string();
    if (name.ends_with(".so") && !name.starts_with("lib")) files.push_back(i->path());
  }
  if (error) refused.emplace_back(dir.string(), "file", "cannot be listed: " + error.message());
  std::sort(files.begin(), files.end());
  for (auto &f : files) try {
      load(f);
    } catch (const LoadError &e) {
      refused.push_back(e);
    }
  return refused;
}

OpPtr Registry::find(std::string_view spec) const {
  auto [name, text] = split(spec);
  std::optional<Wanted> wanted;
  if (name.size() != spec.size() && !(wanted = parse_wanted(text))) return nullptr;
  if (name.find('#') != name.npos) return find_function(name);
  std::shared_lock lock(mutex_);
  if (auto other = other_names_.find(name); other != other_names_.end() && !ops_.contains(name)) name = other->second;
  OpPtr best;
  for (auto [i, end] = ops_.equal_range(name); i != end; ++i)
    if ((!wanted || wanted->takes(i->second->version)) && (!best || later(i->second, best))) best = i->second;
  return best;
}

OpPtr Registry::resolve(std::string_view spec) const {
  if (auto op = find(spec)) return op;
  auto [name, text] = split(spec);
  if (name.size() != spec.size() && !parse_wanted(text))
    throw UnknownOp(fmt::format("{}: version must be like 1.2.3, ^1 or ^1.2, got '{}'", name, text));
  std::vector<std::string> have;
  for (auto &op : list())
    if (op->name() == name) have.push_back(op->manifest.version);
  if (have.empty()) throw UnknownOp(fmt::format("{}: no such operator is registered", name));
  throw UnknownOp(fmt::format("{}: no version {} is registered, got {}", name, text, fmt::join(have, ", ")));
}

std::vector<OpPtr> Registry::list() const {
  std::vector<OpPtr> all;
  {
    std::shared_lock lock(mutex_);
    for (auto &[_, op] : ops_) all.push_back(op);
  }
  std::sort(all.begin(), all.end(),
            [](auto &a, auto &b) { return std::tie(a->name(), a->version) < std::tie(b->name(), b->version); });
  return all;
}

std::vector<fs::path> Registry::whitelist() const {
  std::shared_lock lock(mutex_);
  return whitelist_;
}

void Registry::pin(const fs::path &file, std::string_view sha256) {
  std::string digest(sha256);
  for (char &c : digest) c = c >= 'A' && c <= 'F' ? char(c - 'A' + 'a') : c;
  if (digest.size() != 64 || digest.find_first_not_of("0123456789abcdef") != digest.npos)
    throw std::invalid_argument(
        fmt::format("pin: sha256 must be 64 hexadecimal digits, got '{}' for {}", sha256, file.string()));
  std::unique_lock lock(mutex_);
  for (auto &key : names_of(file)) pins_[key] = digest;
}

std::string Registry::pinned(const fs::path &file) const {
  std::shared_lock lock(mutex_);
  for (auto &key : names_of(file))
    if (auto at = pins_.find(key); at != pins_.end()) return at->second;
  return "";
}

void Registry::set_whitelist(std::vector<fs::path> dirs) {
  std::unique_lock lock(mutex_);
  whitelist_ = std::move(dirs);
}

}  // namespace opgraft
