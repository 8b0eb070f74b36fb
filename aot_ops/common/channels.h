// What operators with scales and offsets by channel share: their checks, their values in float32, their loop.
#pragma once

#include <algorithm>
#include <vector>

#include "aot_ops/common/streams.h"
#include "hwy/cache_control.h"

namespace opgraft {

// The axis of x that an input has an element each for; -1: it has one element.
inline int axis_of(const Arguments &c, int i) {
  const auto x = c.input(0).shape(), s = c.input(i).shape();
  for (size_t k = 0; k < s.size(); ++k)
    if (s[k] != 1) return int(k + x.size() - s.size());
  return -1;
}

inline void check_channels(const InferContext &c, int i, const char *name) {
  const auto x = c.input(0).shape(), s = c.input(i).shape();
  int others = 0;
  bool fits = s.size() <= x.size() || element_count(s) == 1;
  for (size_t k = 0; fits && k < s.size(); ++k) {
    if (s[k] == 1) continue;
    ++others;
    fits = may_equal(s[k], x[k + x.size() - s.size()]);
  }
  c.check(fits && others <= 1, name, ".shape must be x.shape ", x, " with all dimensions but one as 1, got ", s);
}
inline void check_floats(const InferContext &c, int i, const char *name) {
  c.check_dtype(i, name, {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
}
// That both have one element, or lie along the same axis.
inline void check_same_axis(const InferContext &c, int i, const char *name, int other, const char *other_name) {
  const int a = axis_of(c, other), b = axis_of(c, i);
  c.check(a < 0 || b < 0 || a == b, name, " must have the axis of ", other_name, ", got shapes ", c.input(i).shape(),
          " and ", c.input(other).shape());
}

// How often the channels come round.
struct Channels {
  int64_t count = 1, inner = 1;
};
inline Channels channels_of(const Context &c) {
  int axis = -1;
  for (int i = 1; i < c.inputs(); ++i)
    if (c.input(i).size() != 0) axis = std::max(axis, axis_of(c, i));
  const auto x = c.input(0).shape();
  if (axis < 0) return {1, c.input(0).size()};
  return {x[size_t(axis)], element_count(x.subspan(size_t(axis) + 1))};
}

// An input by channel in float32: as it lies, or a copy; `none` where there is no such input.
class ByChannel {
 public:
  ByChannel(const Context &c, const Channels &r, int i, float none) {
    if (!has(c, i)) {
      own_.assign(size_t(r.count), none);
      return;
    }
    const TensorView t = c.input(i);
    if (t.dtype() == OPGRAFT_FLOAT32 && t.size() == r.count) {
      lies_ = t.data<float>();
      return;
    }
    own_.resize(size_t(r.count));
    dispatch<float, float16, bfloat16, int32_t>(c, t.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (int64_t k = 0; k < r.count; ++k) own_[size_t(k)] = float(t.data<T>()[t.size() == 1 ? 0 : k]);
    });
  }
  static bool has(const Context &c, int i) { return c.inputs() > i && c.input(i).size() != 0; }
  const float *data() const { return lies_ ? lies_ : own_.data(); }
  template <class F> void change(const Channels &r, const F &f) {
    if (lies_) own_.assign(lies_, lies_ + r.count), lies_ = nullptr;
    for (float &v : own_) v = f(v);
  }

 private:
  const float *lies_ = nullptr;
  std::vector<float> own_{};
};

// run(first element, of how many, of how many rows, channel, past) over all of x: runs of one channel; on the last
// axis, of all of them, and some together, which read scale and offset once.
template <class Run> void each_run(Context &c, const Channels &r, int rows_together, const Run &run) {
  const bool last = r.inner == 1, past = goes_past_caches(c);
  const int64_t length = last ? r.count : r.inner;
  c.parallel_for(c.input(0).size(), 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      const int64_t at = i % length, n = std::min(end - i, length - at);
      const int64_t channel = last ? at : i / length % r.count;
      const int64_t rows = last && !past && n == length && end - i >= rows_together * length ? rows_together : 1;
      run(i, n, rows, channel, past);
      i += n * rows;
    }
    if (past) hwy::FlushStream();
  });
}

}  // namespace opgraft
