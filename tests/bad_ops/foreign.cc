// An operator as MindSpore's users write it; built with either std::string ABI.
#include <cstdint>
#include <string>
#include <vector>

class AotKernelData {
 public:
  virtual ~AotKernelData() = default;
};
class AotExtra {
 public:
  virtual ~AotExtra() = default;
  virtual bool HasAttr(std::string name) = 0;
  virtual bool GetAttrBool(std::string name) = 0;
  virtual int64_t GetAttrInt(std::string name) = 0;
  virtual float GetAttrFloat(std::string name) = 0;
  virtual std::string GetAttrStr(std::string name) = 0;
  virtual std::vector<int64_t> GetAttrIntVec(std::string name) = 0;
  virtual std::vector<float> GetAttrFloatVec(std::string name) = 0;
  virtual std::vector<std::vector<int64_t>> GetAttrInt2DVec(std::string name) = 0;
  virtual std::vector<std::vector<float>> GetAttrFloat2DVec(std::string name) = 0;
  std::vector<size_t> workspace_;
  AotKernelData *kernel_data_;
};
struct Data : AotKernelData {
  float factor = 0;
};

extern "C" std::vector<int64_t> ScaleInferShape(int *ndims, int64_t **shapes, AotExtra *) {
  return {shapes[0], shapes[0] + ndims[0]};
}
extern "C" int ScaleInferType(std::vector<int> types, AotExtra *) { return types[0]; }
extern "C" int ScaleInit(int *, int64_t **, const char **, AotExtra *extra) {
  if (extra->HasAttr("absent") || !extra->HasAttr("factor")) return 2;
  auto *data = new Data;
  data->factor = extra->GetAttrFloat("factor");
  extra->workspace_ = {16, 32};
  extra->kernel_data_ = data;
  return 0;
}
extern "C" int Scale(int nparam, void **params, int *, int64_t **shapes, const char **, void *, void *extra_pointer) {
  auto *extra = static_cast<AotExtra *>(extra_pointer);
  if (nparam != 4) return 3;
  if (extra->GetAttrStr("mode") != "fast") return 4;
  std::string text = extra->GetAttrStr("a_name_longer_than_fifteen_characters");
  if (text != "and a value that is longer than fifteen characters too") return 5;
  if (extra->GetAttrInt2DVec("grid") != std::vector<std::vector<int64_t>>{{1, 2}, {3}}) return 6;
  for (int64_t i = 0; i < shapes[0][0]; ++i)
    static_cast<float *>(params[1])[i] =
        static_cast<float *>(params[0])[i] * static_cast<Data *>(extra->kernel_data_)->factor;
  return 0;
}
