// The files of a model: mapped to be read, and replaced as a whole when written.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "infer/mindir.h"

namespace opgraft::mindir {

struct Mapping {
  void *data = nullptr;
  size_t size = 0;
  ~Mapping();
  std::string_view bytes() const { return {static_cast<const char *>(data), size}; }
};

// Maps a regular file for reading; its pages come when they are touched. Throws MindirError.
std::shared_ptr<Mapping> map_file(const std::filesystem::path &file);

// A file that appears under its name only when it is whole. Throws MindirError.
class Replacement {
 public:
  explicit Replacement(std::filesystem::path target);
  Replacement(const Replacement &) = delete;
  ~Replacement();
  void write(const void *data, size_t size);
  void skip(size_t size);  // zeros, which take no room on disk
  void finish();           // flushes to disk
  void commit();           // takes the name

 private:
  [[noreturn]] void fail(const char *what);
  std::filesystem::path target_;
  std::string temporary_;
  int fd_ = -1;
};

}  // namespace opgraft::mindir
