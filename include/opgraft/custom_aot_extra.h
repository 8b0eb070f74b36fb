// What an operator written for MindSpore's AOT Custom includes: AotExtra and AotKernelData, in the global
// namespace, with the layout that MindSpore's own header gives them (mindspore.h has the details). A file
// built with this header loads in MindSpore, too. There the std::string of the file must be of the wheel's
// kind: build it with -D_GLIBCXX_USE_CXX11_ABI=0. opgraft serves both kinds.
//
//   int Op(int nparam, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *stream,
//          void *extra);                            // params: inputs, outputs, workspaces
//   int OpInit(int *ndims, int64_t **shapes, const char **dtypes, AotExtra *extra);
//   std::vector<int64_t> OpInferShape(int *ndims, int64_t **shapes, AotExtra *extra);
//   TypeId OpInferType(std::vector<TypeId> types, AotExtra *extra);
//
// all extern "C" and but the first optional. With several outputs InferShape gives a vector of shapes and
// InferType a vector of types.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

static_assert(sizeof(std::vector<int64_t>) == 3 * sizeof(void *),
              "MindSpore's std::vector is of three pointers: build operators without _GLIBCXX_DEBUG");

// State that Init leaves for the launches; the host deletes it.
class AotKernelData {
 public:
  AotKernelData() = default;
  virtual ~AotKernelData() = default;
};

class AotExtra {
 public:
  AotExtra() = default;
  virtual ~AotExtra() = default;

  virtual bool HasAttr(std::string name) = 0;

  // T: bool, int64_t, float, std::string, a vector of int64_t or float, or a vector of such vectors.
  // Throws where the attribute is missing or of another type.
  template <class T> T Attr(std::string name);

  // Bytes of each workspace; Init asks for them, they follow the outputs in params.
  void SetWorkSpace(const std::vector<size_t> &bytes) { workspace_ = bytes; }
  const std::vector<size_t> &WorkSpace() const { return workspace_; }
  void SetKernelData(AotKernelData *data) { kernel_data_ = data; }
  AotKernelData *KernelData() const { return kernel_data_; }

 private:
  // The order is the ABI.
  virtual bool GetAttrBool(std::string name) = 0;
  virtual int64_t GetAttrInt(std::string name) = 0;
  virtual float GetAttrFloat(std::string name) = 0;
  virtual std::string GetAttrStr(std::string name) = 0;
  virtual std::vector<int64_t> GetAttrIntVec(std::string name) = 0;
  virtual std::vector<float> GetAttrFloatVec(std::string name) = 0;
  virtual std::vector<std::vector<int64_t>> GetAttrInt2DVec(std::string name) = 0;
  virtual std::vector<std::vector<float>> GetAttrFloat2DVec(std::string name) = 0;

  std::vector<size_t> workspace_;
  AotKernelData *kernel_data_ = nullptr;
};

template <class T> T AotExtra::Attr(std::string name) {
  if constexpr (std::is_same_v<T, bool>) return GetAttrBool(name);
  else if constexpr (std::is_integral_v<T>) return static_cast<T>(GetAttrInt(name));
  else if constexpr (std::is_floating_point_v<T>) return static_cast<T>(GetAttrFloat(name));
  else if constexpr (std::is_same_v<T, std::string>) return GetAttrStr(name);
  else if constexpr (std::is_same_v<T, std::vector<int64_t>>) return GetAttrIntVec(name);
  else if constexpr (std::is_same_v<T, std::vector<float>>) return GetAttrFloatVec(name);
  else if constexpr (std::is_same_v<T, std::vector<std::vector<int64_t>>>) return GetAttrInt2DVec(name);
  else {
    static_assert(std::is_same_v<T, std::vector<std::vector<float>>>, "no attribute has this type");
    return GetAttrFloat2DVec(name);
  }
}

// MindSpore's numbers of element types.
enum TypeId : int {
  kTypeUnknown = 0,
  kNumberTypeBool = 30,
  kNumberTypeInt8 = 32,
  kNumberTypeInt16 = 33,
  kNumberTypeInt32 = 34,
  kNumberTypeInt64 = 35,
  kNumberTypeUInt8 = 37,
  kNumberTypeUInt16 = 38,
  kNumberTypeUInt32 = 39,
  kNumberTypeUInt64 = 40,
  kNumberTypeFloat16 = 42,
  kNumberTypeFloat32 = 43,
  kNumberTypeFloat64 = 44,
  kNumberTypeBFloat16 = 45,
  kNumberTypeComplex64 = 48
};
