// Walks a contiguous output row by row while N operands follow with strides of their own: what
// broadcasting, transposing, slicing and tiling have in common. Strides count elements.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "opgraft/abi.h"

namespace opgraft {

template <int N> struct Strided {
  static constexpr int kDims = 2 * OPGRAFT_MAX_RANK;  // Tile splits each dimension in two
  int dims = 0;                                       // outer dimensions, without the row
  int64_t extent[kDims] = {}, stride[N][kDims] = {};
  int64_t row = 1, step[N] = {};  // length of a row, and each operand's stride along it
  int64_t total = 1;

  // Adds the next inner dimension; it merges with the one before where all operands allow it.
  void push(int64_t n, const int64_t (&s)[N]) {
    total *= n;
    if (n == 1) return;
    bool merge = dims > 0;
    for (int k = 0; merge && k < N; ++k) merge = stride[k][dims - 1] == s[k] * n;
    if (!merge) extent[dims++] = 1;
    extent[dims - 1] *= n;
    for (int k = 0; k < N; ++k) stride[k][dims - 1] = s[k];
  }
  // The innermost dimension becomes the row.
  void finish() {
    if (dims == 0) return;
    row = extent[--dims];
    for (int k = 0; k < N; ++k) step[k] = stride[k][dims];
  }
  // f(offsets of the operands, offset in the output, length) for each piece of a row in [begin, end).
  template <class F> void walk(int64_t begin, int64_t end, F &&f) const {
    if (begin >= end) return;
    int64_t index[kDims], offset[N] = {}, at[N], rest = begin / row, first = begin % row;
    for (int i = dims - 1; i >= 0; --i) {
      index[i] = rest % extent[i];
      rest /= extent[i];
      for (int k = 0; k < N; ++k) offset[k] += index[i] * stride[k][i];
    }
    while (begin < end) {
      const int64_t n = row - first < end - begin ? row - first : end - begin;
      for (int k = 0; k < N; ++k) at[k] = offset[k] + first * step[k];
      f(at, begin, n);
      begin += n;
      first = 0;
      for (int i = dims - 1; i >= 0; --i) {
        for (int k = 0; k < N; ++k) offset[k] += stride[k][i];
        if (++index[i] < extent[i]) break;
        index[i] = 0;
        for (int k = 0; k < N; ++k) offset[k] -= stride[k][i] * extent[i];
      }
    }
  }
};

// The walk of `out` in which N contiguous operands broadcast; every step is 0 or 1.
template <int N> Strided<N> broadcast_rows(std::span<const int64_t> out, const std::span<const int64_t> (&in)[N]) {
  int64_t strides[OPGRAFT_MAX_RANK][N];
  for (int k = 0; k < N; ++k) {
    int64_t s = 1;
    for (size_t j = 0; j < out.size(); ++j) {  // from the innermost dimension
      int64_t n = j < in[k].size() ? in[k][in[k].size() - 1 - j] : 1;
      strides[out.size() - 1 - j][k] = n == 1 ? 0 : s;
      s *= n;
    }
  }
  Strided<N> r;
  for (size_t i = 0; i < out.size(); ++i) r.push(out[i], strides[i]);
  r.finish();
  return r;
}

}  // namespace opgraft
