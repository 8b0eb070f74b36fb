// What a pool over height and width consists of.
#pragma once

#include "aot_ops/common/window.h"

namespace opgraft {

struct Pool {
  const void *x;
  void *y;
  int64_t planes, channels;  // NCHW: N C planes of 1 channel; NHWC: N of C
  Window h, w;
  bool mean;
  // Of several channels: a row of y is made in parts of `part` channels and `run` pixels. The columns of x that these
  // see lie in a line of floats, which fits into L1 unless the window is very wide.
  int64_t part = 1, run = 1;

  // Columns of x that `run` pixels of y see at most.
  int64_t columns() const { return std::min(w.in, (run - 1) * w.stride + w.kernel); }
  int64_t parts() const { return (channels + part - 1) / part; }
};

// Sets part and run. Runs overlap by what two neighbouring windows share: less than half of a line.
inline void cut(Pool &g) {
  constexpr int64_t kLine = 8192, kLeast = 64;
  const int64_t kernel = std::min(g.w.kernel, g.w.in);
  g.part = std::min(g.channels, std::max(kLeast, kLine / (2 * std::max<int64_t>(1, kernel)) / kLeast * kLeast));
  if (g.w.stride > g.w.kernel) return;  // what lies between windows is not read
  g.run = std::max(kernel / g.w.stride + 1, (kLine / std::max<int64_t>(1, g.part) - kernel) / g.w.stride + 1);
}

}  // namespace opgraft
