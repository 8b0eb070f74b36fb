// Attributes, state and workspace by Init, inference of its own; and a function of several outputs.
#include <atomic>
#include <cstring>

#include "custom_aot_extra.h"

namespace {
std::atomic<int> inits{0};
struct Data : AotKernelData {
  float factor = 0;
  int number = 0;
};
int64_t count(const int64_t *shape, int rank) {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= shape[i];
  return n;
}
}  // namespace

extern "C" std::vector<int64_t> ScaleInferShape(int *ndims, int64_t **shapes, AotExtra *) {
  return {shapes[0], shapes[0] + ndims[0]};
}
extern "C" TypeId ScaleInferType(std::vector<TypeId> types, AotExtra *) { return types[0]; }
extern "C" int ScaleInit(int *ndims, int64_t **shapes, const char **dtypes, AotExtra *extra) {
  if (std::strcmp(dtypes[1], "float32") != 0) return 2;
  auto *data = new Data;
  data->factor = extra->HasAttr("factor") ? extra->Attr<float>("factor") : 1;
  data->number = ++inits;
  extra->SetKernelData(data);
  extra->SetWorkSpace({size_t(count(shapes[0], ndims[0])) * 4});
  return 0;
}
// y = x * factor, by way of the workspace.
extern "C" int Scale(int nparam, void **params, int *ndims, int64_t **shapes, const char **, void *, void *extra) {
  if (nparam != 3) return 3;
  auto *data = static_cast<Data *>(static_cast<AotExtra *>(extra)->KernelData());
  auto *x = static_cast<float *>(params[0]), *y = static_cast<float *>(params[1]), *w = static_cast<float *>(params[2]);
  const int64_t n = count(shapes[0], ndims[0]);
  for (int64_t i = 0; i < n; ++i) w[i] = x[i] * data->factor;
  std::memcpy(y, w, size_t(n) * 4);
  return 0;
}
extern "C" int InitsOfScale() { return inits; }

// Row sums and row lengths of a matrix.
extern "C" std::vector<std::vector<int64_t>> RowsInferShape(int *, int64_t **shapes, AotExtra *) {
  return {{shapes[0][0]}, {shapes[0][0]}};
}
extern "C" std::vector<TypeId> RowsInferType(std::vector<TypeId> types, AotExtra *) {
  return {types[0], kNumberTypeInt64};
}
extern "C" int Rows(int, void **params, int *, int64_t **shapes, const char **, void *, void *) {
  for (int64_t r = 0; r < shapes[0][0]; ++r) {
    float sum = 0;
    for (int64_t c = 0; c < shapes[0][1]; ++c) sum += static_cast<float *>(params[0])[r * shapes[0][1] + c];
    static_cast<float *>(params[1])[r] = sum;
    static_cast<int64_t *>(params[2])[r] = shapes[0][1];
  }
  return 0;
}
