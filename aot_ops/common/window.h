// Windows that slide over the height and width of NCHW and NHWC tensors: what Conv2D and the pools share.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "opgraft/op.h"

namespace opgraft {

// One axis: element k of window o is x[o * stride + k * dilation - before], outside of x padding.
struct Window {
  int64_t in, out, kernel, stride, dilation, before;
  int64_t span() const { return (kernel - 1) * dilation + 1; }
  int64_t at(int64_t o, int64_t k) const { return o * stride + k * dilation - before; }
};

// The elements of window o that lie in x: [first, last).
inline void elements_in(const Window &w, int64_t o, int64_t *first, int64_t *last) {
  const int64_t from = w.at(o, 0);
  const auto steps = [&](int64_t n) { return w.dilation == 1 ? n : n / w.dilation; };  // rows are many, and short
  *first = from < 0 ? steps(-from + w.dilation - 1) : 0;
  *last = from >= w.in ? 0 : std::min(w.kernel, steps(w.in - 1 - from) + 1);
}

// Height and width of an attribute: one number for both, two, or four with those of N and C, in the layout's order.
inline std::array<int64_t, 2> window_pair(const Arguments &c, const char *name, std::vector<int64_t> fallback,
                                          bool nhwc = false) {
  const auto v = c.attr_ints(name, std::move(fallback));
  const size_t n = v.size(), last = n - (n == 4 && nhwc ? 2 : 1);
  bool ok = (n == 1 || n == 2 || n == 4) && (n != 4 || (v[0] == 1 && v[nhwc ? 3 : 1] == 1));
  for (int64_t i : v) ok = ok && i > 0 && i < int64_t(1) << 31;
  c.check(ok, name, " must be 1, 2 or 4 positive numbers, the first ", nhwc ? "and the last of 4" : "two of 4",
          " being 1, got ", v);
  return {v[n < 2 ? 0 : last - 1], v[last]};
}

// The pad_mode in lower case, one of `allowed`.
inline std::string window_mode(const Arguments &c, std::initializer_list<const char *> allowed) {
  std::string mode = c.attr_string("pad_mode", "valid"), names;
  for (char &l : mode) l = char(l >= 'A' && l <= 'Z' ? l - 'A' + 'a' : l);
  for (const char *a : allowed) {
    if (mode == a) return mode;
    names += (names.empty() ? "" : ", ") + std::string(a);
  }
  c.fail(OPGRAFT_INVALID_VALUE, "pad_mode must be one of ", names, ", got '", mode, "'");
}

// Whether the channels lie last. MindSpore's primitives call the attribute format or data_format.
inline bool channels_last(const Arguments &c) {
  const std::string name = c.has_attr("format") ? "format" : "data_format", format = c.attr_string(name, "NCHW");
  if (format != "NCHW" && format != "NHWC")
    c.fail(OPGRAFT_UNSUPPORTED, name, " must be NCHW or NHWC, got '", format, "'");
  return format == "NHWC";
}

inline void check_image(const Arguments &c, bool nhwc) {
  auto x = c.input(0).shape();
  c.check(x.size() == 4, "x must have 4 dimensions ", nhwc ? "(N, H, W, C)" : "(N, C, H, W)", ", got shape ", x);
}

// w.out and w.before; before and after: the padding of pad_mode "pad". out is 0 where x is too small for one window.
// ceil: a last window may reach beyond the padding behind, but not begin in it.
inline void fit_window(Window &w, const std::string &mode, int64_t before, int64_t after, bool ceil = false) {
  if (mode == "same") {
    w.out = (w.in + w.stride - 1) / w.stride;
    w.before = std::max<int64_t>(0, (w.out - 1) * w.stride + w.span() - w.in) / 2;  // the odd one goes behind
    return;
  }
  w.before = mode == "pad" ? before : 0;
  const int64_t free = w.in + w.before + (mode == "pad" ? after : 0) - w.span();
  w.out = free < 0 ? 0 : (free + (ceil ? w.stride - 1 : 0)) / w.stride + 1;
  if (ceil && w.out > 0 && w.at(w.out - 1, 0) >= w.in) --w.out;
}

// The output's dimension, of an input dimension that may be open.
inline int64_t window_dim(const InferContext &c, Window w, const std::string &mode, int64_t before, int64_t after,
                          const char *name, bool ceil = false) {
  if (w.in >= 0) {
    fit_window(w, mode, before, after, ceil);
    c.check(w.out > 0, "x's ", name, " with its padding must hold the window of ", w.span(), ", got ", w.in);
    return w.out;
  }
  if (w.stride != 1) return -1;
  if (mode == "same") return w.in;
  const int64_t more = (mode == "pad" ? before + after : 0) - w.span() + 1;
  return more == 0 ? w.in : more > 0 ? c.dim_op('+', w.in, more) : c.dim_op('-', w.in, -more);
}

}  // namespace opgraft
