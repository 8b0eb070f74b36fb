#include "infer/memory.h"

#include <new>

namespace opgraft {

void Arena::add(size_t offset, size_t bytes) {
  holes_.emplace(offset, bytes);
  by_size_.emplace(bytes, offset);
}

void Arena::drop(std::map<size_t, size_t>::iterator hole) {
  auto [low, high] = by_size_.equal_range(hole->second);
  for (auto it = low; it != high; ++it)
    if (it->second == hole->first) {
      by_size_.erase(it);
      break;
    }
  holes_.erase(hole);
}

size_t Arena::take(size_t bytes) {
  constexpr size_t kMost = size_t(1) << 48;  // beyond any address space
  if (bytes > kMost || size_ > kMost - bytes) throw std::bad_alloc();
  bytes = round(bytes);
  if (auto it = by_size_.lower_bound(bytes); it != by_size_.end()) {
    auto [hole_bytes, offset] = *it;
    drop(holes_.find(offset));
    if (hole_bytes > bytes) add(offset + bytes, hole_bytes - bytes);
    return offset;
  }
  // A hole at the very end grows; otherwise the arena does.
  if (!holes_.empty()) {
    auto last = std::prev(holes_.end());
    if (last->first + last->second == size_) {
      size_t offset = last->first;
      drop(last);
      size_ = offset + bytes;
      return offset;
    }
  }
  size_t offset = size_;
  size_ += bytes;
  return offset;
}

void Arena::give(size_t offset, size_t bytes) {
  bytes = round(bytes);
  auto next = holes_.lower_bound(offset);
  if (next != holes_.end() && offset + bytes == next->first) {
    bytes += next->second;
    auto gone = next++;
    drop(gone);
  }
  if (next != holes_.begin()) {
    auto prev = std::prev(next);
    if (prev->first + prev->second == offset) {
      offset = prev->first;
      bytes += prev->second;
      drop(prev);
    }
  }
  add(offset, bytes);
}

}  // namespace opgraft
