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
  // Of a mean: by what it is divided. 0: the elements of x in the window; with `padding` those of the padding, too.
  int64_t divisor = 0;
  bool padding = false;
  int64_t h_after = 0, w_after = 0;  // the padding behind, with `padding`
  // Of several channels: a row of y is made in parts of `part` channels and `run` pixels. The columns of x that these
  // see lie in a line of floats, which fits into L1 unless the window is very wide.
  int64_t part = 1, run = 1;

  // Columns of x that `run` pixels of y see at most.
  int64_t columns() const { return std::min(w.in, (run - 1) * w.stride + w.kernel); }
  int64_t parts() const { return (channels + part - 1) / part; }
  // What rows and columns of a window, of which `inside` lie in x, contribute to the divisor, as factors.
  float rows(int64_t i, int64_t inside) const { return divisor ? 1.0f : float(padding ? seen(h, i, h_after) : inside); }
  float count(int64_t j, int64_t inside) const {
    return divisor ? float(divisor) : float(padding ? seen(w, j, w_after) : inside);
  }
  static int64_t seen(const Window &w, int64_t o, int64_t after) {
    return std::min(w.kernel, w.in + after - w.at(o, 0));
  }
};

// Sets part and run. Runs overlap by what two neighbouring windows share: less than half of a line.
inline void cut(Pool &g) {
  constexpr int64_t kLine = 8192, kLeast = 64;
  const int64_t kernel = std::min(g.w.kernel, g.w.in);
  g.part = std::min(g.channels, std::max(kLeast, kLine / (2 * std::max<int64_t>(1, kernel)) / kLeast * kLeast));
  if (g.w.stride > g.w.kernel) return;  // what lies between windows is not read
  g.run = std::max(kernel / g.w.stride + 1, (kLine / std::max<int64_t>(1, g.part) - kernel) / g.w.stride + 1);
}

// The kernel of both layouts; each window must see an element of x.
void run_pool(const Context &c, const Pool &g);

}  // namespace opgraft
