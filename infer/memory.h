// The arena: offsets by lifetime.
#pragma once

#include <cstddef>
#include <map>

namespace opgraft {

// Hands out 256-byte aligned ranges of one growing arena, best fit first; freed neighbours merge.
// O(log n) a call.
class Arena {
 public:
  static constexpr size_t kAlign = 256;
  size_t take(size_t bytes);
  void give(size_t offset, size_t bytes);
  size_t size() const { return size_; }

 private:
  static size_t round(size_t bytes) { return bytes == 0 ? kAlign : (bytes + kAlign - 1) / kAlign * kAlign; }
  void add(size_t offset, size_t bytes);
  void drop(std::map<size_t, size_t>::iterator hole);
  std::map<size_t, size_t> holes_;         // offset -> bytes
  std::multimap<size_t, size_t> by_size_;  // bytes -> offset
  size_t size_ = 0;
};

}  // namespace opgraft
