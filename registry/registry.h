// Loaded operators: found by name and version, kept alive, chosen once.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "opgraft/abi.h"
#include "registry/manifest.h"

namespace opgraft {

class Library;  // one dlopen'ed shared object; closed when its last Op is gone
class Family;   // the implementations of one operator (choice.h)

// One operator of one loaded library. Immutable but for the counters; shared by all who resolved it.
struct Op {
  const opgraft_op *native = nullptr;
  Manifest manifest;
  Version version;
  int32_t score = 1;
  std::string path;      // of the shared object
  std::string function;  // of a file made for MindSpore (functions.h); empty: an opgraft operator
  std::shared_ptr<const Library> library;
  std::shared_ptr<Family> family;            // null: it has no other implementation
  mutable std::atomic<int64_t> failures{0};  // kernel failures that the reference took over

  const std::string &name() const { return manifest.name; }
  std::string spec() const { return manifest.name + "@" + manifest.version; }
  std::string title() const {  // spec, and which implementation
    return manifest.implementation.empty() ? spec() : spec() + " (" + manifest.implementation + ")";
  }
};
using OpPtr = std::shared_ptr<const Op>;

// A refused file: what() is "<path>: <cause>"; step names the check that refused.
struct LoadError : std::runtime_error {
  std::string path, step;
  LoadError(std::string path, std::string step, const std::string &cause)
      : std::runtime_error(path + ": " + cause), path(std::move(path)), step(std::move(step)) {}
};
// The file is not there (FileNotFoundError in Python).
struct FileMissing : LoadError {
  using LoadError::LoadError;
};
// No registered operator answers to the name and version asked for.
struct UnknownOp : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One guarded step of loading, as `opgraft doctor` prints it.
struct Check {
  std::string step, detail;
  bool ok = false;
};

class Registry {
 public:
  // The process's registry. Its first use loads the ops that lie beside libopgraft.so (folder ops/)
  // and those in OPGRAFT_OPS_PATH (colon-separated directories), logging what is refused.
  static Registry &global();

  Registry() = default;
  Registry(const Registry &) = delete;

  // Loads one shared object through all guarded steps and registers its ops. A file that is loaded
  // already (same canonical path, unchanged) returns its ops again. Throws LoadError.
  std::vector<OpPtr> load(const std::filesystem::path &file);
  // Loads every *.so of a directory but lib*.so; returns refusals instead of throwing.
  std::vector<LoadError> load_directory(const std::filesystem::path &dir);

  // "SwiGLU" (highest version, then score), "SwiGLU@1.0.0", "SwiGLU@^1", "SwiGLU@^1.2". Throws UnknownOp.
  OpPtr resolve(std::string_view spec) const;
  OpPtr find(std::string_view spec) const;  // null where resolve would throw UnknownOp
  std::vector<OpPtr> list() const;          // by name, then version

  // From now on a file is loaded only if its SHA-256 is this (64 hexadecimal digits, as sha256sum prints
  // them); checked before any of its code runs. Throws std::invalid_argument.
  void pin(const std::filesystem::path &file, std::string_view sha256);
  std::string pinned(const std::filesystem::path &file) const;  // empty where it is not

  // Directories that files must lie in, after resolving symlinks; empty: anywhere.
  // MS_CUSTOM_AOT_WHITE_LIST (one directory) is honoured as well.
  void set_whitelist(std::vector<std::filesystem::path> dirs);
  std::vector<std::filesystem::path> whitelist() const;

 private:
  bool is_loaded(const Library &) const;
  void refuse_duplicates(const Library &, const std::vector<Manifest> &) const;

  std::recursive_mutex loading_;  // a file's constructors may load files
  mutable std::shared_mutex mutex_;
  std::multimap<std::string, OpPtr, std::less<>> ops_;
  std::map<std::string, std::string, std::less<>> other_names_;  // op.yaml's `names`
  std::vector<std::filesystem::path> whitelist_;
  std::map<std::string, std::vector<OpPtr>> files_;
  std::map<std::string, std::string> pins_;                  // by path
  std::map<std::string, std::shared_ptr<Family>> families_;  // by spec
};

// Runs every loading step on a file and reports each, stopping at the first refusal. Runs no code of
// the file before all earlier steps have passed. `sha256`: what the file is pinned to, or empty.
std::vector<Check> examine(const std::filesystem::path &file, const std::vector<std::filesystem::path> &whitelist = {},
                           const std::string &sha256 = {});

}  // namespace opgraft
