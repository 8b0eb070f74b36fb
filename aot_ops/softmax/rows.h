// What Softmax and ScaledMaskedSoftmax hand their kernel.
#pragma once

#include "softmax.h"

namespace opgraft {
struct SoftmaxRows : SoftmaxAxis {
  const void *x;
  void *y;
  float scale, mask_scale, fill;  // fill: what a score becomes that bools hide
  bool nan_to_zero;               // a row that would be NaN
  SoftmaxMask mask;
  float *room;  // of the kernel: `kept` numbers beside y
  int64_t kept;
};
}  // namespace opgraft
