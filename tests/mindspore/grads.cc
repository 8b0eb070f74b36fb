// Gradients of operators in kernels.cc, in a file of their own.
#include "custom_aot_extra.h"

// Of Three by a and b, from a, b and three gradients.
extern "C" int ThreeGrad(int nparam, void **params, int *ndims, int64_t **shapes, const char **, void *, void *) {
  if (nparam != 7) return nparam;
  float *p[7];
  for (int i = 0; i < 7; ++i) p[i] = static_cast<float *>(params[i]);
  int64_t n = 1;
  for (int i = 0; i < ndims[0]; ++i) n *= shapes[0][i];
  for (int64_t i = 0; i < n; ++i) {
    p[5][i] = p[2][i] + p[3][i] + p[4][i] * p[1][i];
    p[6][i] = p[2][i] - p[3][i] + p[4][i] * p[0][i];
  }
  return 0;
}
