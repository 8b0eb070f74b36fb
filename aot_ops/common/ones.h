// Parameters of a row, as they broadcast.
#pragma once

#include <algorithm>
#include <span>

#include "opgraft/op.h"

namespace opgraft {

// A shape without the ones before its `last` dimensions (0: before its first other one): [1, 1, N] as it broadcasts
// is [N].
inline std::span<const int64_t> without_ones(std::span<const int64_t> shape, int last = 0) {
  while (int(shape.size()) > std::max(last, 1) && shape[0] == 1) shape = shape.subspan(1);
  return shape;
}

}  // namespace opgraft
