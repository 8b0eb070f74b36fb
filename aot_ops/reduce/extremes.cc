// ArgMaxWithValue, ArgMinWithValue, MaxDim and MinDim: the largest or smallest value along one axis, and its place.
#include "opgraft/op.h"

#include <algorithm>

namespace {
using namespace opgraft;

enum Kind { kArgMax, kArgMin, kMaxDim, kMinDim };
constexpr bool least(Kind k) { return k == kArgMin || k == kMinDim; }
// MaxDim and MinDim are mint's: the value comes first, and their attributes have other names.
constexpr bool of_mint(Kind k) { return k == kMaxDim || k == kMinDim; }

template <Kind kind> int axis_of(const Arguments &c) {
  const int rank = c.input(0).rank();
  const int64_t axis = c.attr_int(of_mint(kind) ? "dim" : "axis", of_mint(kind) ? -1 : 0);
  return rank == 0 && (axis == 0 || axis == -1) ? 0 : c.axis(axis, rank, of_mint(kind) ? "dim" : "axis");
}

template <Kind kind> void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT32, OPGRAFT_INT64});
  auto x = c.input(0).shape();
  const int axis = axis_of<kind>(c);
  Shape y(x.begin(), x.end());
  if (!y.empty()) {
    if (y[size_t(axis)] == 0)
      c.fail(OPGRAFT_INVALID_VALUE, of_mint(kind) ? "dim " : "axis ", axis, " holds no element, shape ", x);
    if (c.attr_bool(of_mint(kind) ? "keepdim" : "keep_dims", false)) y[size_t(axis)] = 1;
    else y.erase(y.begin() + axis);
  }
  if (of_mint(kind)) c.output(c.input(0).dtype(), y);
  c.output(OPGRAFT_INT64, y);
  if (!of_mint(kind)) c.output(c.input(0).dtype(), y);
}

// The first of equals; a NaN wins, the first one.
template <Kind kind> void run(Context &c, int64_t grain) {
  const auto x = c.input(0).shape();
  const int axis = axis_of<kind>(c);
  const int64_t n = x.empty() ? 1 : x[size_t(axis)];
  int64_t inner = 1;
  for (size_t i = size_t(axis) + 1; i < x.size(); ++i) inner *= x[i];
  dispatch<float, float16, bfloat16, int32_t, int64_t>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    using E = std::conditional_t<std::is_integral_v<T>, T, float>;
    const T *from = c.input(0).data<T>();
    T *value = c.output(of_mint(kind) ? 0 : 1).template data<T>();
    int64_t *place = c.output(of_mint(kind) ? 1 : 0).template data<int64_t>();
    c.parallel_for(c.output(0).size(), std::max<int64_t>(1, grain / n), [&](int64_t begin, int64_t end) {
      for (int64_t u = begin; u < end; ++u) {
        const T *row = from + u / inner * n * inner + u % inner;
        E best = E(row[0]);
        int64_t at = 0;
        for (int64_t i = 1; i < n && best == best; ++i) {
          const E v = E(row[i * inner]);
          if ((least(kind) ? v < best : v > best) || v != v) best = v, at = i;
        }
        value[u] = row[at * inner], place[u] = at;
      }
    });
  });
}
template <Kind kind> void Kernel(Context &c) { run<kind>(c, 8192); }
template <Kind kind> void Reference(Context &c) { run<kind>(c, INT64_MAX); }

}  // namespace

#define OPGRAFT_EXTREME(Name, kind)                                                         \
  OPGRAFT_OP(Name, .inputs = 1, .outputs = 2, .infer = Infer<kind>, .kernel = Kernel<kind>, \
             .reference = Reference<kind>)
OPGRAFT_EXTREME(ArgMaxWithValue, kArgMax)
OPGRAFT_EXTREME(ArgMinWithValue, kArgMin)
OPGRAFT_EXTREME(MaxDim, kMaxDim)
OPGRAFT_EXTREME(MinDim, kMinDim)
