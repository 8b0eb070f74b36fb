// Tensors and attribute values of a file. Refusals are std::runtime_error; the reader adds file and place.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "infer/mindir_file.h"
#include "infer/mindir_wire.h"

namespace opgraft::mindir {

constexpr int kMostNesting = 16;  // of tuples, and of values within attributes

class DataReader {
 public:
  // `owner` keeps the file's bytes alive (null: weights are copied). `dir` holds external data, which
  // is refused where `external` is false.
  DataReader(std::shared_ptr<void> owner, std::filesystem::path dir, bool external)
      : owner_(std::move(owner)), dir_(std::move(dir)), external_(external) {}

  // For a model within this one, in bytes that do not stay: the same external data.
  DataReader nested() const {
    DataReader inner(*this);
    inner.owner_ = nullptr;
    return inner;
  }

  // The tensor over the file's own bytes, or a copy where they are misaligned for its dtype.
  Tensor tensor(const TensorProto &proto);
  Literal literal(const AttributeProto &attribute, int depth = 0);

 private:
  std::string_view external(const TensorProto &proto, std::shared_ptr<void> &owner);

  std::shared_ptr<void> owner_;
  std::filesystem::path dir_;
  bool external_;
  std::map<std::string, std::shared_ptr<Mapping>> files_;
};

}  // namespace opgraft::mindir
