// When results go past the caches. Include it in the HWY_ONCE part of an op's source.
#pragma once

#include <cstdint>

#include "aot_ops/common/caches.h"
#include "opgraft/op.h"
#include "opgraft/simd.h"

namespace opgraft {

// Whether a call's float32 results are better written past the caches: where they leave the graph and its tensors are
// twice what the cores' own caches hold, on Intel's processors with AVX-512, whose L3 is little faster than their
// memory. A line of the result is then not read before it is written. Emerald Rapids, two threads, 12 MB to 50 MB: 0.76
// to 0.8 of the time of a sum of two tensors. What an operator reads next stays in the caches: it would take 1.05
// to 1.2 times as long, both together (docs/performance_intel.md). AMD's L3 is two to four times as fast as memory.
inline bool goes_past_caches(const Context &c) {
  static const bool may = simd::target() == simd::kAvx3 && simd::intel();
  if (!may || !c.unread() || reinterpret_cast<uintptr_t>(c.output(0).raw()) % 4) return false;
  uint64_t bytes = 0;
  for (int i = 0; i < c.outputs(); ++i) bytes += uint64_t(c.output(i).size()) * dtype_size(c.output(i).dtype());
  for (int i = 0; i < c.inputs(); ++i) {
    if (c.input(i).raw() == c.output(0).raw()) return false;
    bytes += uint64_t(c.input(i).size()) * dtype_size(c.input(i).dtype());
  }
  return bytes > 2 * own_caches(c.threads());
}

}  // namespace opgraft
