// Operators that show what MindSpore's users suffer from; test_faults.py.
#include "custom_aot_extra.h"

namespace {
AotExtra &attributes(void *extra) { return *static_cast<AotExtra *>(extra); }
int64_t count(int *ndims, int64_t **shapes) {
  int64_t n = 1;
  for (int i = 0; i < ndims[0]; ++i) n *= shapes[0][i];
  return n;
}
}  // namespace
#define AS_X(Op)                                                                              \
  extern "C" std::vector<int64_t> Op##InferShape(int *ndims, int64_t **shapes, AotExtra *) {  \
    return {shapes[0], shapes[0] + ndims[0]};                                                 \
  }                                                                                           \
  extern "C" TypeId Op##InferType(std::vector<TypeId> types, AotExtra *) { return types[0]; } \
  extern "C" int Op(int nparam, void **params, int *ndims, int64_t **shapes, const char **, void *, void *extra)

// y = x, without an attribute
AS_X(Copy) {
  (void)nparam, (void)extra;
  for (int64_t i = 0; i < count(ndims, shapes); ++i)
    static_cast<float *>(params[1])[i] = static_cast<float *>(params[0])[i];
  return 0;
}

// y = factor x, with one
AS_X(Scale) {
  (void)nparam;
  for (int64_t i = 0; i < count(ndims, shapes); ++i)
    static_cast<float *>(params[1])[i] = static_cast<float *>(params[0])[i] * attributes(extra).Attr<float>("factor");
  return 0;
}

// y is what Init saw: the first dimension; the first element how many bytes of workspace it asked for.
struct Seen final : AotKernelData {
  explicit Seen(int64_t rows) : rows(rows) {}
  int64_t rows;
};
extern "C" int StaleInit(int *, int64_t **shapes, const char **, AotExtra *extra) {
  extra->SetKernelData(new Seen(shapes[0][0]));
  extra->SetWorkSpace({size_t(shapes[0][0]) * 8});
  return 0;
}
AS_X(Stale) {
  if (nparam != 3) return 1;
  auto *y = static_cast<float *>(params[1]);
  for (int64_t i = 0; i < count(ndims, shapes); ++i)
    y[i] = static_cast<float>(static_cast<Seen *>(attributes(extra).KernelData())->rows);
  y[0] = static_cast<float>(attributes(extra).WorkSpace()[0]);
  return 0;
}

// y = 1 where the compiler optimised, else 0
AS_X(Optimized) {
  (void)nparam, (void)extra;
  for (int64_t i = 0; i < count(ndims, shapes); ++i)
#ifdef __OPTIMIZE__
    static_cast<float *>(params[1])[i] = 1;
#else
    static_cast<float *>(params[1])[i] = 0;
#endif
  return 0;
}
