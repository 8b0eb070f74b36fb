// Operators built for MindSpore's AOT Custom, without opgraft's note: run as MindSpore would run them,
// whatever std::string ABI they were built with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "registry/manifest.h"
#include "registry/string_abi.h"

namespace opgraft {

class Library;
struct FileId;

// MindSpore's AotExtra as the operator sees it: the first 40 bytes are its layout. One per kernel:
// it holds the attributes, and what Init left there.
class ForeignExtra {
 public:
  ForeignExtra(std::vector<std::pair<std::string, AttrValue>> attrs, std::shared_ptr<const Library> library,
               StringAbi strings);
  ~ForeignExtra();
  ForeignExtra(const ForeignExtra &) = delete;

  const std::vector<size_t> &workspace() const { return workspace_; }  // bytes, set by Init
  const AttrValue *find(std::string_view name) const;
  StringAbi strings() const { return strings_; }  // as the file's symbols advise

 private:
  void *vtable_;
  std::vector<size_t> workspace_;
  void *kernel_data_ = nullptr;
  // From here on invisible to the operator.
  std::vector<std::pair<std::string, AttrValue>> attrs_;
  std::shared_ptr<const Library> library_;  // holds the destructor of kernel_data_
  StringAbi strings_;
};

// Ranks, shapes and dtype names of inputs and outputs as the entry takes them. Holds copies, which the
// operator, whose pointers are not const, may write to.
class ForeignArguments {
 public:
  ForeignArguments() = default;
  ForeignArguments(std::vector<std::vector<int64_t>> shapes, std::vector<std::string> dtypes = {});
  ForeignArguments(ForeignArguments &&) = default;
  ForeignArguments &operator=(ForeignArguments &&) = default;
  int *ndims() const { return const_cast<int *>(ndims_.data()); }
  int64_t **shapes() const { return const_cast<int64_t **>(pointers_.data()); }
  const char **dtypes() const { return const_cast<const char **>(dtypes_.data()); }

 private:
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<std::string> names_;
  std::vector<int> ndims_;
  std::vector<int64_t *> pointers_;
  std::vector<const char *> dtypes_;
};

// Calls contain what the operator throws: all throw Error, naming operator, file and code or cause.
class ForeignOp {
 public:
  // Through the white list, ELF, digest (where one is given), symbol and dependency checks; throws LoadError.
  static std::shared_ptr<ForeignOp> load(const std::filesystem::path &file, const std::string &function,
                                         const std::vector<std::filesystem::path> &whitelist = {},
                                         const std::string &sha256 = {});

  std::unique_ptr<ForeignExtra> extra(std::vector<std::pair<std::string, AttrValue>> attrs) const;

  bool has_infer_shape() const { return infer_shape_; }
  bool has_infer_type() const { return infer_type_; }
  // The number of outputs decides the function's C++ type, which nothing in the file tells.
  std::vector<std::vector<int64_t>> infer_shapes(ForeignExtra &extra, std::vector<std::vector<int64_t>> inputs,
                                                 int n_outputs) const;
  std::vector<int32_t> infer_types(ForeignExtra &extra, std::vector<int32_t> inputs, int n_outputs) const;
  // arguments: inputs, then outputs; params: the same, then workspaces.
  void init(ForeignExtra &extra, const ForeignArguments &arguments) const;
  void launch(ForeignExtra &extra, int nparam, void **params, const ForeignArguments &arguments) const;

  const std::string &function() const { return function_; }
  const std::filesystem::path &path() const;  // canonical
  const FileId &id() const;
  const std::shared_ptr<const Library> &library() const { return library_; }

 private:
  template <class F> auto contained(const char *what, F &&f) const;
  void check(int code, const char *what) const;
  std::shared_ptr<const Library> library_;
  std::string function_;
  StringAbi strings_ = StringAbi::kEither;
  void *launch_ = nullptr, *init_ = nullptr, *infer_shape_ = nullptr, *infer_type_ = nullptr;
};

}  // namespace opgraft
