// GGUF files, ggml's format of models: version 2 and 3, little endian, mapped and read without trust.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "infer/tensor.h"

namespace opgraft::llama {

// The file is no model of this kind: names file, key or tensor, what was expected and what came.
struct GgufError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How ggml stores numbers: `block` of them in `bytes`.
struct GgmlType {
  uint32_t id;
  const char *name;
  int64_t block, bytes;
};

struct GgufTensor {
  const GgmlType *type;
  Shape dims;  // row-major: the file's in reverse
  std::string_view bytes;
};

class Gguf {
 public:
  // Throws GgufError, also where the file cannot be opened.
  explicit Gguf(const std::filesystem::path &file);
  // The same of bytes that outlive it; `name` stands for the file in messages.
  Gguf(std::string_view bytes, std::string name);

  // Values of the metadata, nothing where the key is missing; GgufError where they are of another kind.
  std::optional<int64_t> integer(const std::string &key) const;
  std::optional<double> real(const std::string &key) const;  // an integer, too
  std::optional<std::string> text(const std::string &key) const;
  std::optional<std::vector<std::string>> texts(const std::string &key) const;
  std::optional<std::vector<int64_t>> integers(const std::string &key) const;

  // What was found of a key, or else; GgufError without either.
  template <class T> T need(const std::string &key, std::optional<T> found, std::optional<T> otherwise = {}) const {
    if (!found && !otherwise) refuse(key + " is missing");
    return std::move(found ? *found : *otherwise);
  }

  const GgufTensor *tensor(const std::string &name) const;  // null: none
  const std::string &name() const { return name_; }
  const std::shared_ptr<void> &owner() const { return owner_; }  // of the bytes; null where they were given
  [[noreturn]] void refuse(const std::string &why) const;        // GgufError with the file's name

 private:
  struct Value {
    uint32_t type, item;  // item: of an array
    uint64_t count;       // of an array; else 1
    std::string_view bytes;
  };
  void parse(std::string_view bytes);
  void read_value(class Cursor &in, const std::string &key);
  void read_tensor(Cursor &in);
  void place_tensors(std::string_view data, uint64_t alignment);
  const Value *find(const std::string &key, bool (*fits)(const Value &), const char *wanted) const;

  std::string name_;
  std::shared_ptr<void> owner_;
  std::map<std::string, Value> values_;
  std::map<std::string, GgufTensor> tensors_;
  std::map<std::string, uint64_t> offsets_;  // of tensors, into the data
};

}  // namespace opgraft::llama
