// MindIR's messages as flat views into the file: one level at a time, nothing copied that the file
// does not hold, every wire type checked. Field numbers are those of MindSpore's mind_ir.proto.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "infer/attrs.h"
#include "infer/tensor.h"

namespace opgraft::mindir {

// Says what is wrong; the reader adds file and place.
[[noreturn]] inline void refuse(const std::string &what) { throw std::runtime_error(what); }

enum AttributeType : int32_t {
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kUint32 = 12,
  kUint64 = 13,
  kBfloat16 = 16,
  kTensor = 17,
  kGraphType = 18,
  kTensors = 19,
  kTuple = 20,
  kList = 21,
  kUmonad = 23,
  kIomonad = 24,
  kNoneType = 25,
  kFunctor = 38,
  kScalar = 39
};

// TensorProto.DataType and back; OPGRAFT_UNKNOWN or 0 where there is none.
int32_t dtype_of(int64_t data_type);
int32_t data_type_of(int32_t dtype);

struct TensorProto {
  std::string_view name, raw, location, ref_key;
  std::vector<int64_t> dims, ints;
  std::vector<double> floats;
  int64_t data_type = 0, offset = 0, length = -1, compression = 0;
  bool has_raw = false, external = false;
  // A TensorProto without data and dimensions stands for a type.
  bool is_type() const { return !has_raw && !external && dims.empty() && ints.empty() && floats.empty(); }
};

struct AttributeProto {
  std::string_view name, s;
  int64_t type = 0, i = 0;
  float f = 0;
  double d = 0;
  std::vector<int64_t> ints;
  std::vector<double> floats;
  std::vector<std::string_view> strings, tensors, values;
};

struct NodeProto {
  std::string_view name, op_type, domain;
  std::vector<std::string_view> inputs, outputs, attributes;
};

struct PrimitiveProto {
  std::string_view name, op_type;
  std::vector<std::string_view> attributes;
};

struct ValueInfoProto {
  std::string_view name, doc, denotation;
  std::vector<std::string_view> tensors;
};

struct GraphProto {
  std::string_view name;
  std::vector<std::string_view> nodes, parameters, inputs, outputs;
};

struct ModelProto {
  std::string_view graph;
  bool has_graph = false, little_endian = true;
  std::vector<std::string_view> primitives, functions;
  std::vector<std::pair<std::string_view, std::string_view>> user_info;
};

// Each throws protozero::exception or std::runtime_error on a malformed message.
TensorProto parse_tensor(std::string_view bytes);
AttributeProto parse_attribute(std::string_view bytes);
NodeProto parse_node(std::string_view bytes);
PrimitiveProto parse_primitive(std::string_view bytes);
ValueInfoProto parse_value_info(std::string_view bytes);
GraphProto parse_graph(std::string_view bytes);
ModelProto parse_model(std::string_view bytes);

// A constant of the file: what stands at an attribute's or an operand's place.
struct Literal {
  enum Kind { kNone, kMonad, kBool, kInt, kFloat, kString, kTuple, kTensor } kind = kNone;
  int64_t i = 0;
  double d = 0;
  std::string s;
  std::vector<Literal> items;
  Tensor tensor;

  static Literal of(int64_t v) {
    Literal l;
    l.kind = kInt;
    l.i = v;
    return l;
  }
};

// The literal as an attribute of this kind (opgraft_attr_kind); false where it does not fit.
bool to_attr(const Literal &literal, int32_t kind, AttrValue &out);
// A number as a 0-d tensor; false where it is none, or would lose its fraction.
bool to_scalar(const Literal &literal, int32_t dtype, Tensor &out);
// The literal as a tensor: scalars are 0-d (bool, int64, float32), tuples of scalars 1-D.
bool to_tensor(const Literal &literal, Tensor &out);

}  // namespace opgraft::mindir
