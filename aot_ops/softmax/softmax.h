// What Softmax and its gradients share beside their axis: a mask that broadcasts.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "aot_ops/common/softmax_axis.h"
#include "opgraft/op.h"

namespace opgraft {

// What is done to the scores: an addition, or with bools a choice. Over x's dimensions, with strides of 0 where it is
// broadcast.
struct SoftmaxMask {
  const void *data;    // null: nothing is done
  bool chosen, hides;  // of bools; they are true where a score becomes another number, else where it stays
  int rank, axis;
  int64_t dims[OPGRAFT_MAX_RANK], stride[OPGRAFT_MAX_RANK];

  int64_t step() const { return stride[axis]; }  // along the axis
  // Where it begins for row r of all that lie along the axis.
  int64_t row(int64_t r) const {
    int64_t at = 0;
    for (int i = rank - 1; i >= 0; --i) {
      if (i == axis) continue;
      at += r % dims[i] * stride[i];
      r /= dims[i];
    }
    return at;
  }
  // Of neighbouring rows, as they lie along the dimensions from `first` on: from a multiple of `length` on so many lie
  // `step` apart in the mask.
  struct Run {
    int64_t length = 1, step = 0;
  };
  Run run(int first) const {
    Run found;
    for (int k = rank - 1; k >= first; --k) {
      if (k == axis || dims[k] == 1) continue;
      if (found.length == 1) found.step = stride[k];
      else if (stride[k] != found.length * found.step) break;
      found.length *= dims[k];
    }
    return found;
  }
  // Where it lies for x's i-th element.
  int64_t of(int64_t i) const {
    int64_t at = 0;
    for (int k = rank - 1; k >= 0; i /= dims[k--]) at += i % dims[k] * stride[k];
    return at;
  }
  const uint8_t *bools() const { return static_cast<const uint8_t *>(data); }
  bool gone(int64_t i) const { return (bools()[i] != 0) == hides; }
};

// Where a mask begins for one row after the other: with divisions only where a run of them does.
class MaskRows {
 public:
  MaskRows(const SoftmaxMask &mask, int64_t row) : mask_(mask), run_(mask.run(0)), row_(row) {}
  // How many rows, the next one first, are apart() from each other.
  int64_t left() {
    if (left_ == 0) at_ = mask_.row(row_), left_ = run_.length - row_ % run_.length;
    return left_;
  }
  int64_t apart() const { return run_.step; }
  // For the next row; `count`, at most left(), are taken.
  int64_t next(int64_t count = 1) {
    left();
    row_ += count, left_ -= count;
    return std::exchange(at_, at_ + count * run_.step);
  }

 private:
  SoftmaxMask mask_;
  SoftmaxMask::Run run_;
  int64_t row_, at_ = 0, left_ = 0;
};

// Input i, a mask of `x`, broadcasts to input 0; bools choose, of x's dtype it is added.
inline void check_mask(InferContext &c, int i, const char *x) {
  if (c.input(i).dtype() != OPGRAFT_BOOL) c.check_same_dtype(i, "mask", 0, x);
  auto s = c.input(0).shape(), m = c.input(i).shape();
  bool ok = m.size() <= s.size();
  for (size_t k = 0; ok && k < m.size(); ++k) {
    const int64_t a = m[m.size() - 1 - k], b = s[s.size() - 1 - k];
    ok = a == 1 || may_equal(a, b);
  }
  c.check(ok, "mask.shape must broadcast to ", x, ".shape ", s, ", got ", m);
}

// The mask's strides over x's dimensions, 0 where it is broadcast.
inline void mask_strides(std::span<const int64_t> x, std::span<const int64_t> mask, int64_t *stride) {
  std::fill_n(stride, x.size(), 0);
  int64_t step = 1;
  for (size_t k = 0; k < mask.size(); ++k) {
    const int64_t n = mask[mask.size() - 1 - k];
    if (n != 1) stride[x.size() - 1 - k] = step;
    step *= n;
  }
}

// Input i, where there is one, else of no data and broadcast.
inline SoftmaxMask softmax_mask(const Context &c, int i, int axis) {
  SoftmaxMask m{};
  const auto x = c.input(0).shape();
  m.rank = int(x.size()), m.axis = axis;
  std::copy(x.begin(), x.end(), m.dims);
  if (c.inputs() <= i) return m;
  m.data = c.input(i).raw();
  m.chosen = c.input(i).dtype() == OPGRAFT_BOOL;
  m.hides = c.attr_bool("hides", false);
  mask_strides(x, c.input(i).shape(), m.stride);
  return m;
}

}  // namespace opgraft
