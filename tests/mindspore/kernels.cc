// Operators in MindSpore's convention, one for every row of test_rows.py.
#include <cstring>
#include <stdexcept>

#include "custom_aot_extra.h"

namespace {
int64_t count(const int64_t *shape, int rank) {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= shape[i];
  return n;
}
AotExtra &attributes(void *extra) { return *static_cast<AotExtra *>(extra); }
float widen(uint16_t half) {  // normal float16 numbers and zero
  if (!(half & 0x7fff)) return 0;
  uint32_t bits = uint32_t(half & 0x8000) << 16 | ((half >> 10 & 31u) + 112) << 23 | uint32_t(half & 1023) << 13;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
uint16_t narrow(float f) {  // of numbers that float16 has
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if (!(bits & 0x7fffffff)) return 0;
  return uint16_t(bits >> 16 & 0x8000) | uint16_t(((bits >> 23 & 255) - 112) << 10) | uint16_t(bits >> 13 & 1023);
}
}  // namespace

// y = x, whatever it is.
extern "C" std::vector<int64_t> CopyInferShape(int *ndims, int64_t **shapes, AotExtra *) {
  return {shapes[0], shapes[0] + ndims[0]};
}
extern "C" TypeId CopyInferType(std::vector<TypeId> types, AotExtra *) { return types[0]; }
extern "C" int Copy(int, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *, void *) {
  int64_t size = 4;
  const std::string type = dtypes[0];
  if (type == "bool" || type == "int8" || type == "uint8") size = 1;
  if (type == "float16" || type == "bfloat16" || type == "int16" || type == "uint16") size = 2;
  if (type == "float64" || type == "int64" || type == "uint64" || type == "complex64") size = 8;
  const int64_t bytes = size * count(shapes[0], ndims[0]);
  if (bytes) std::memcpy(params[1], params[0], size_t(bytes));
  return 0;
}

// Sum of a matrix along `axis`, which stays as 1 with `keep_dim`.
extern "C" std::vector<int64_t> ReduceInferShape(int *ndims, int64_t **shapes, AotExtra *extra) {
  if (ndims[0] != 2) throw std::runtime_error("x must be a matrix");
  const int64_t kept = shapes[0][1 - extra->Attr<int64_t>("axis")];
  if (!extra->Attr<bool>("keep_dim")) return {kept};
  return extra->Attr<int64_t>("axis") ? std::vector<int64_t>{kept, 1} : std::vector<int64_t>{1, kept};
}
extern "C" TypeId ReduceInferType(std::vector<TypeId> types, AotExtra *) { return types[0]; }
extern "C" int Reduce(int, void **params, int *, int64_t **shapes, const char **, void *, void *extra) {
  const bool rows = attributes(extra).Attr<int64_t>("axis") == 1;
  auto *x = static_cast<float *>(params[0]), *y = static_cast<float *>(params[1]);
  const int64_t m = shapes[0][0], n = shapes[0][1];
  for (int64_t i = 0; i < (rows ? m : n); ++i) {
    y[i] = 0;
    for (int64_t k = 0; k < (rows ? n : m); ++k) y[i] += rows ? x[i * n + k] : x[k * n + i];
  }
  return 0;
}

// The same once more, for a reg_info of its own: MindSpore keeps the first one of a function.
extern "C" int ReduceTrailing(int n, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *stream,
                              void *extra) {
  return Reduce(n, params, ndims, shapes, dtypes, stream, extra);
}

// y[i] = x[index[i]]
extern "C" int Reorganize(int, void **params, int *, int64_t **shapes, const char **dtypes, void *, void *) {
  if (std::strcmp(dtypes[0], "float32") || std::strcmp(dtypes[1], "int64")) return 11;
  for (int64_t i = 0; i < shapes[1][0]; ++i)
    static_cast<float *>(params[2])[i] = static_cast<float *>(params[0])[static_cast<int64_t *>(params[1])[i]];
  return 0;
}

// float16 of float32 times float16
extern "C" int Mixed(int, void **params, int *, int64_t **shapes, const char **dtypes, void *, void *) {
  if (std::strcmp(dtypes[0], "float32") || std::strcmp(dtypes[1], "float16") || std::strcmp(dtypes[2], "float16"))
    return 12;
  for (int64_t i = 0; i < shapes[0][0]; ++i)
    static_cast<uint16_t *>(params[2])[i] =
        narrow(static_cast<float *>(params[0])[i] * widen(static_cast<uint16_t *>(params[1])[i]));
  return 0;
}

// (a + b, a - b, a b); grads.cc has its gradient
extern "C" int Three(int nparam, void **params, int *ndims, int64_t **shapes, const char **, void *, void *) {
  if (nparam != 5) return nparam;
  float *p[5];
  for (int i = 0; i < 5; ++i) p[i] = static_cast<float *>(params[i]);
  for (int64_t i = 0; i < count(shapes[0], ndims[0]); ++i)
    p[2][i] = p[0][i] + p[1][i], p[3][i] = p[0][i] - p[1][i], p[4][i] = p[0][i] * p[1][i];
  return 0;
}

// y = sum of a + b along `axis`, by way of a workspace that holds a + b; what Init saw is in the kernel data.
namespace {
struct AddReduceData final : AotKernelData {
  AddReduceData(int64_t axis, int rank) : axis(axis), rank(rank) {}
  int64_t axis;
  int rank;
};
}  // namespace
extern "C" std::vector<int64_t> AddReduceInferShape(int *ndims, int64_t **shapes, AotExtra *extra) {
  if (ndims[0] != 2) throw std::runtime_error("a must be a matrix");
  const int64_t kept = shapes[0][1 - extra->Attr<int64_t>("axis")];
  if (!extra->Attr<bool>("keep_dim")) return {kept};
  return extra->Attr<int64_t>("axis") ? std::vector<int64_t>{kept, 1} : std::vector<int64_t>{1, kept};
}
extern "C" TypeId AddReduceInferType(std::vector<TypeId> types, AotExtra *) { return types[0]; }
extern "C" int AddReduceInit(int *ndims, int64_t **, const char **dtypes, AotExtra *extra) {
  if (std::strcmp(dtypes[0], "float32")) return 21;
  extra->SetKernelData(new AddReduceData(extra->Attr<int64_t>("axis"), ndims[0]));
  extra->SetWorkSpace({64 * sizeof(float), sizeof(double)});
  return 0;
}
extern "C" int AddReduce(int nparam, void **params, int *, int64_t **shapes, const char **, void *, void *extra) {
  auto *data = dynamic_cast<AddReduceData *>(attributes(extra).KernelData());
  const int64_t m = shapes[0][0], n = shapes[0][1];
  if (nparam != 5 || !data || data->rank != 2 || m * n > 64) return 22;
  auto *a = static_cast<float *>(params[0]), *b = static_cast<float *>(params[1]), *y = static_cast<float *>(params[2]);
  auto *sums = static_cast<float *>(params[3]);
  auto *total = static_cast<double *>(params[4]);
  for (int64_t i = 0; i < m * n; ++i) sums[i] = a[i] + b[i];
  const bool rows = data->axis == 1;
  for (int64_t i = 0; i < (rows ? m : n); ++i) {
    *total = 0;
    for (int64_t k = 0; k < (rows ? n : m); ++k) *total += rows ? sums[i * n + k] : sums[k * n + i];
    y[i] = static_cast<float>(*total);
  }
  return 0;
}

// y = x^2; its gradient is written in Python
extern "C" int Square(int, void **params, int *ndims, int64_t **shapes, const char **, void *, void *) {
  auto *x = static_cast<float *>(params[0]), *y = static_cast<float *>(params[1]);
  for (int64_t i = 0; i < count(shapes[0], ndims[0]); ++i) y[i] = x[i] * x[i];
  return 0;
}

// Every kind of attribute, as 8 numbers.
extern "C" int Kinds(int, void **params, int *, int64_t **, const char **, void *, void *extra) {
  AotExtra &a = attributes(extra);
  auto *y = static_cast<float *>(params[1]);
  y[0] = a.Attr<bool>("flag");
  y[1] = float(a.Attr<int64_t>("number"));
  y[2] = a.Attr<float>("factor");
  y[3] = float(a.Attr<std::string>("a_name_of_more_than_fifteen_characters").size());
  y[4] = y[5] = y[6] = y[7] = 0;
  for (auto v : a.Attr<std::vector<int64_t>>("ints")) y[4] = y[4] * 10 + float(v);
  for (auto v : a.Attr<std::vector<float>>("floats")) y[5] += v;
  for (auto &row : a.Attr<std::vector<std::vector<int64_t>>>("ints2d")) y[6] = y[6] * 10 + float(row.size());
  for (auto &row : a.Attr<std::vector<std::vector<float>>>("floats2d"))
    for (auto v : row) y[7] += v;
  return 0;
}

extern "C" int KindsTrailing(int n, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *stream,
                             void *extra) {
  return Kinds(n, params, ndims, shapes, dtypes, stream, extra);
}

// Fails in the part that `where` names, as `how` says: with a code, an exception, or by asking for an attribute that
// is not set.
namespace {
int fail(AotExtra &a, const std::string &where) {
  if (a.Attr<std::string>("where") != where) return 0;
  const auto how = a.Attr<std::string>("how");
  if (how == "throw") throw std::runtime_error("the cause of it");
  return how == "code" ? 7 : static_cast<int>(a.Attr<int64_t>("not_there"));
}
}  // namespace
extern "C" int FailsInit(int *, int64_t **, const char **, AotExtra *extra) { return fail(*extra, "Init"); }
extern "C" std::vector<int64_t> FailsInferShape(int *ndims, int64_t **shapes, AotExtra *extra) {
  fail(*extra, "InferShape");
  return {shapes[0], shapes[0] + ndims[0]};
}
extern "C" TypeId FailsInferType(std::vector<TypeId> types, AotExtra *extra) {
  fail(*extra, "InferType");
  return types[0];
}
extern "C" int Fails(int, void **, int *, int64_t **, const char **, void *, void *extra) {
  return fail(attributes(extra), "launch");
}
