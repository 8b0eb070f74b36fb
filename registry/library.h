// One shared object, opened through the list of guarded steps.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "registry/registry.h"

namespace opgraft {

// What tells one file's contents from another's.
struct FileId {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t modified_ns = 0;
  bool operator==(const FileId &) const = default;
};
// Follows symlinks; throws FileMissing or LoadError (step "file").
FileId identify(const std::filesystem::path &file);

using Directories = std::vector<std::filesystem::path>;

class Library {
 public:
  struct Entry {
    opgraft_op native{};  // members that the file's descriptor does not reach are null
    Manifest manifest;
    Version version;
    int32_t score = 1;
  };

  // Throws where the operators of a file, known by path(), id() and what its note says, may not be registered.
  using Admit = std::function<void(const Library &, const std::vector<Manifest> &)>;
  // Runs all steps on an opgraft operator file; throws LoadError at the first refusal. No code of the file runs
  // before all steps but the last, its score, have passed. `sha256`: what the file is pinned to, or empty. With
  // `report` every step is noted there, and a refusal is noted, not thrown (the result is then null).
  static std::shared_ptr<const Library> open(const std::filesystem::path &file, const Directories &whitelist,
                                             std::vector<Check> *report = nullptr, const std::string &sha256 = {},
                                             Admit admit = {});
  // The same for a file made for MindSpore, which has no note and no descriptor but exports `function`.
  static std::shared_ptr<const Library> open_foreign(const std::filesystem::path &file, const Directories &whitelist,
                                                     const std::string &function, const std::string &sha256 = {},
                                                     std::vector<Check> *report = nullptr);
  ~Library();
  Library(const Library &) = delete;

  const std::filesystem::path &path() const { return path_; }  // canonical
  const FileId &id() const { return id_; }
  const std::vector<Entry> &entries() const { return entries_; }  // those that can run here
  void *symbol(const std::string &name) const;                    // null where there is none

 private:
  friend struct Loading;
  Library() = default;
  std::filesystem::path path_;
  FileId id_;
  void *handle_ = nullptr;
  std::vector<Entry> entries_;
};

// The folder of opgraft's own operators, beside libopgraft.so; always allowed.
std::filesystem::path own_operators();
// That folder, where there is one, and those of OPGRAFT_OPS_PATH (colon-separated).
Directories operator_folders();
// Whether a canonical path lies in `dir`, whose symlinks are resolved.
bool lies_in(const std::filesystem::path &canonical, const std::filesystem::path &dir);

}  // namespace opgraft
