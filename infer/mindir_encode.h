// MindIR messages made from the engine's types, as serialised bytes.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "infer/attrs.h"
#include "infer/tensor.h"

namespace opgraft::mindir {

constexpr uint64_t kDataAlign = 64;              // of tensors in a data file
constexpr uint64_t kDataHeader = 64;             // of a data file; its first byte is 1 on little-endian machines
constexpr size_t kMostInline = size_t(1) << 30;  // as in MindSpore; protobuf ends at 2 GiB

// Tensors that go to a data file beside the model.
struct External {
  std::string location;
  uint64_t offset = kDataHeader;
  std::vector<std::pair<uint64_t, Tensor>> tensors;
  // Where the tensor's bytes begin; those of one buffer are written once.
  uint64_t place(const Tensor &tensor);

 private:
  std::map<std::pair<const void *, size_t>, uint64_t> placed_;
};

// A TensorProto without data: dtype and dimensions, -1 for a symbol.
std::string encode_type(const TensorType &type);
// A TensorProto; its bytes go to `external` unless that is null or there are none. `ref_key` names a Parameter that
// nodes update.
std::string encode_tensor(const Tensor &tensor, const std::string &name, External *external,
                          const std::string &ref_key = "");
std::string encode_value_info(const std::string &name, const TensorType &type, const std::string &doc,
                              const std::string &dims);
std::string encode_attribute(const std::string &name, const AttrValue &value);
std::string encode_attribute(const std::string &name, const Tensor &value);
std::string encode_attribute(const std::string &name, const std::vector<std::string> &value);
std::string encode_none(const std::string &name);
std::string encode_monad(const std::string &name);
// The abstract of a node with these outputs, as its attribute `shape`. `ref_key`: the output is this Parameter.
std::string encode_abstract(const std::vector<TensorType> &outputs, const std::string &ref_key = "");
// Where the outputs are a tuple, be it of one.
std::string encode_tuple(const std::vector<TensorType> &outputs);

}  // namespace opgraft::mindir
