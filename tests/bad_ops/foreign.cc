// An operator as MindSpore's users write it; built with either std::string ABI.
#include "opgraft/custom_aot_extra.h"

struct Data : AotKernelData {
  float factor = 0;
};

extern "C" std::vector<int64_t> ScaleInferShape(int *ndims, int64_t **shapes, AotExtra *) {
  return {shapes[0], shapes[0] + ndims[0]};
}
extern "C" TypeId ScaleInferType(std::vector<TypeId> types, AotExtra *) { return types[0]; }
extern "C" int ScaleInit(int *, int64_t **, const char **, AotExtra *extra) {
  if (extra->HasAttr("absent") || !extra->HasAttr("factor")) return 2;
  auto *data = new Data;
  data->factor = extra->Attr<float>("factor");
  extra->SetWorkSpace({16, 32});
  extra->SetKernelData(data);
  return 0;
}
extern "C" int Scale(int nparam, void **params, int *, int64_t **shapes, const char **, void *, void *extra_pointer) {
  auto *extra = static_cast<AotExtra *>(extra_pointer);
  if (nparam != 4) return 3;
  if (extra->Attr<std::string>("mode") != "fast") return 4;
  auto text = extra->Attr<std::string>("a_name_longer_than_fifteen_characters");
  if (text != "and a value that is longer than fifteen characters too") return 5;
  if (extra->Attr<std::vector<std::vector<int64_t>>>("grid") != std::vector<std::vector<int64_t>>{{1, 2}, {3}})
    return 6;
  for (int64_t i = 0; i < shapes[0][0]; ++i)
    static_cast<float *>(params[1])[i] =
        static_cast<float *>(params[0])[i] * static_cast<Data *>(extra->KernelData())->factor;
  return 0;
}
