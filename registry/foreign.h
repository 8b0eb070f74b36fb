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

namespace opgraft {

class Library;

// MindSpore's AotExtra as the operator sees it: the first 40 bytes are its layout. One per kernel:
// it holds the attributes, and what Init left there.
class ForeignExtra {
 public:
  explicit ForeignExtra(std::vector<std::pair<std::string, AttrValue>> attrs, std::shared_ptr<const Library> library);
  ~ForeignExtra();
  ForeignExtra(const ForeignExtra &) = delete;

  const std::vector<size_t> &workspace() const { return workspace_; }  // bytes, set by Init
  const AttrValue *find(std::string_view name) const;

 private:
  void *vtable_;
  std::vector<size_t> workspace_;
  void *kernel_data_ = nullptr;
  // From here on invisible to the operator.
  std::vector<std::pair<std::string, AttrValue>> attrs_;
  std::shared_ptr<const Library> library_;  // holds the destructor of kernel_data_
};

struct ForeignTensor {
  void *data = nullptr;
  std::vector<int64_t> shape;
  std::string dtype;  // MindSpore's name: "float32"
};

class ForeignOp {
 public:
  // Through the white list, ELF, symbol and dependency checks; throws LoadError.
  static std::shared_ptr<ForeignOp> load(const std::filesystem::path &file, const std::string &function,
                                         const std::vector<std::filesystem::path> &whitelist = {});

  std::unique_ptr<ForeignExtra> extra(std::vector<std::pair<std::string, AttrValue>> attrs) const;

  bool has_infer_shape() const { return infer_shape_; }
  bool has_infer_type() const { return infer_type_; }
  // The number of outputs decides the function's C++ type, which nothing in the file tells.
  std::vector<std::vector<int64_t>> infer_shapes(ForeignExtra &extra, std::vector<std::vector<int64_t>> inputs,
                                                 int n_outputs) const;
  std::vector<int32_t> infer_types(ForeignExtra &extra, std::vector<int32_t> inputs, int n_outputs) const;
  // tensors: inputs, then outputs. Both throw std::runtime_error on a code that is not 0.
  void init(ForeignExtra &extra, const std::vector<ForeignTensor> &tensors) const;
  void launch(ForeignExtra &extra, const std::vector<ForeignTensor> &tensors,
              const std::vector<void *> &workspaces = {}) const;

 private:
  std::shared_ptr<const Library> library_;
  std::string name_;
  void *launch_ = nullptr, *init_ = nullptr, *infer_shape_ = nullptr, *infer_type_ = nullptr;
};

}  // namespace opgraft
