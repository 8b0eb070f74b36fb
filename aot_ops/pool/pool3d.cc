// MaxPool3DWithArgmax and AvgPool3D, NCDHW: MindSpore's two-dimensional pools with given padding are these with a depth
// of one. A mean of that depth is pool.cc's; the rest are plain loops.
#include <algorithm>
#include <array>
#include <cmath>

#include "opgraft/op.h"
#include "pool.h"

namespace opgraft {
namespace {

enum Kind { kMax, kMean };

// Three numbers for depth, height and width: given as one, three, or five with those of N and C first.
std::array<int64_t, 3> triple(const Arguments &c, const char *name, int64_t least) {
  const auto v = c.attr_ints(name, {least});
  const size_t n = v.size();
  bool ok = (n == 1 || n == 3 || n == 5) && (n != 5 || (v[0] == 1 && v[1] == 1));
  for (int64_t i : v) ok = ok && i >= least && i < int64_t(1) << 31;
  c.check(ok, name, " must be 1, 3 or 5 numbers of at least ", least, ", the first two of 5 being 1, got ", v);
  return n == 1 ? std::array{v[0], v[0], v[0]} : std::array{v[n - 3], v[n - 2], v[n - 1]};
}

struct Pool3D {
  std::array<Window, 3> axis;
  std::array<int64_t, 3> after;  // padding behind, of a mean
};

template <Kind kind> Pool3D problem(const Arguments &c) {
  Pool3D g{};
  const auto kernel = triple(c, kind == kMax ? "ksize" : "kernel_size", 1), stride = triple(c, "strides", 1);
  auto dilation = std::array<int64_t, 3>{1, 1, 1}, before = dilation;
  if (kind == kMax) {
    dilation = triple(c, "dilation", 1);
    before = g.after = triple(c, "pads", 0);
  } else {
    auto pad = c.attr_ints("pad", {0});
    bool ok = pad.size() == 1 || pad.size() == 6;
    for (int64_t p : pad) ok = ok && p >= 0 && p < int64_t(1) << 31;
    c.check(ok, "pad must be 1 or 6 numbers that are not negative, got ", pad);
    if (pad.size() == 1) pad.resize(6, pad[0]);
    const auto again = c.attr_ints("pad_list");
    c.check(again.empty() || again == pad, "pad_list must be pad ", pad, ", got ", again);
    for (size_t i = 0; i < 3; ++i) before[i] = pad[2 * i], g.after[i] = pad[2 * i + 1];
  }
  const bool ceil = c.attr_bool("ceil_mode", false);
  for (size_t i = 0; i < 3; ++i) {
    Window &w = g.axis[i] = {c.input(0).dim(2 + int(i)), -1, kernel[i], stride[i], dilation[i], before[i]};
    c.check(before[i] + g.after[i] <= kernel[i], "the padding of both sides must be at most the window of ", kernel[i],
            ", got ", before[i], " and ", g.after[i]);
    if (w.in < 0) continue;
    fit_window(w, "pad", before[i], g.after[i], ceil);
    c.check(w.out > 0, "dimension ", 2 + i, " of x with its padding must hold the window of ", w.span(), ", got ",
            w.in);
  }
  return g;
}

template <Kind kind> void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  auto x = c.input(0).shape();
  c.check(x.size() == 5, "x must have 5 dimensions (N, C, D, H, W), got shape ", x);
  for (const char *name : {"format", "data_format"})
    if (c.attr_string(name, "NCDHW") != "NCDHW")
      c.fail(OPGRAFT_UNSUPPORTED, name, " must be NCDHW, got '", c.attr_string(name, ""), "'");
  const Pool3D g = problem<kind>(c);
  const Shape y{x[0], x[1], g.axis[0].out, g.axis[1].out, g.axis[2].out};
  c.output(c.input(0).dtype(), y);
  if (kind == kMax) {
    const std::string type = c.attr_string("argmax_type", "int64");
    if (type != "int64") c.fail(OPGRAFT_UNSUPPORTED, "argmax_type must be int64, got '", type, "'");
    c.output(OPGRAFT_INT64, y);
  } else {
    const std::string mode = c.attr_string("pad_mode", "PAD");
    if (mode != "PAD" && mode != "pad") c.fail(OPGRAFT_UNSUPPORTED, "pad_mode must be PAD, got '", mode, "'");
    c.check(c.attr_int("divisor_override", 0) >= 0, "divisor_override must not be negative, got ",
            c.attr_int("divisor_override", 0));
  }
}

// One window, its numbers as Sum: f(value, place in the plane) for each element in order.
template <class T, class F> void each(const Pool3D &g, const T *x, const int64_t *at, const F &f) {
  const auto &[d, h, w] = g.axis;
  int64_t first[3], last[3];  // padding may be far larger than x
  for (size_t i = 0; i < 3; ++i) elements_in(g.axis[i], at[i], first + i, last + i);
  for (int64_t i = first[0]; i < last[0]; ++i)
    for (int64_t j = first[1]; j < last[1]; ++j)
      for (int64_t k = first[2]; k < last[2]; ++k) {
        const int64_t place = (d.at(at[0], i) * h.in + h.at(at[1], j)) * w.in + w.at(at[2], k);
        f(float(x[place]), place);
      }
}

// What the sum of a window is divided by: padding counts, what ceil_mode adds behind it does not.
int64_t divisor(const Pool3D &g, const int64_t *at, int64_t inside, bool padding, int64_t given) {
  if (given) return given;
  if (!padding) return inside;
  int64_t n = 1;
  for (size_t i = 0; i < 3; ++i) {
    const Window &w = g.axis[i];
    n *= std::min(w.kernel, w.in + g.after[i] - w.at(at[i], 0));
  }
  return n;
}

// Sum: float in the kernel, double in its twin.
template <Kind kind, class Sum> void run(const Context &c, int64_t grain) {
  const Pool3D g = problem<kind>(c);
  const auto &[d, h, w] = g.axis;
  const int64_t plane = d.in * h.in * w.in, given = c.attr_int("divisor_override", 0);
  const bool padding = c.attr_bool("count_include_pad", true);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    c.parallel_for(c.output(0).size(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        const int64_t at[3] = {u / (w.out * h.out) % d.out, u / w.out % h.out, u % w.out};
        const T *x = c.input(0).data<T>() + u / (w.out * h.out * d.out) * plane;
        if constexpr (kind == kMax) {
          float most = -HUGE_VALF;
          int64_t place = -1;
          each(g, x, at, [&](float v, int64_t i) {
            if (place < 0 || v > most || v != v) most = v, place = i;
          });
          c.output(0).data<T>()[u] = T(most);
          c.output(1).data<int64_t>()[u] = std::max<int64_t>(place, 0);
        } else {
          Sum sum = 0;
          int64_t inside = 0;
          each(g, x, at, [&](float v, int64_t) { sum += Sum(v), ++inside; });
          c.output(0).data<T>()[u] = T(inside ? float(sum / Sum(divisor(g, at, inside, padding, given))) : 0.0f);
        }
      }
    });
  });
}

// A mean over height and width alone, each window of which sees something of x.
bool flat(const Context &c, const Pool3D &g, Pool &p) {
  const auto &[d, h, w] = g.axis;
  if (d.in != 1 || d.out != 1 || d.kernel != 1) return false;
  for (const Window &i : {h, w})
    if (i.in == 0 || i.before >= i.kernel || i.at(i.out - 1, 0) >= i.in) return false;
  p = {c.input(0).raw(), c.output(0).raw(), c.input(0).dim(0) * c.input(0).dim(1), 1, h, w, true};
  p.divisor = c.attr_int("divisor_override", 0), p.padding = c.attr_bool("count_include_pad", true);
  p.h_after = g.after[1], p.w_after = g.after[2];
  return true;
}

template <Kind kind> void Kernel(Context &c) {
  if (Pool p; kind == kMean && flat(c, problem<kind>(c), p)) return run_pool(c, p);
  run<kind, float>(c, 512);
}
template <Kind kind> void Reference(Context &c) { run<kind, double>(c, INT64_MAX); }

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(MaxPool3DWithArgmax, .inputs = 1, .outputs = 2, .infer = Infer<kMax>, .kernel = Kernel<kMax>,
           .reference = Reference<kMax>)
OPGRAFT_OP(AvgPool3D, .inputs = 1, .infer = Infer<kMean>, .kernel = Kernel<kMean>, .reference = Reference<kMean>)
