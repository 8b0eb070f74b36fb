#include "infer/results.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes)
#endif

namespace opgraft {
namespace {

constexpr size_t kLarge = 128 << 10;  // bytes: from there on the allocator may ask the system each time

}  // namespace

struct Results::Shelf {
  struct Block {
    void *data;
    size_t bytes;
  };
  static void release(const Block &b) {
    ASAN_UNPOISON_MEMORY_REGION(b.data, b.bytes);
    std::free(b.data);
  }

  std::mutex mutex;
  std::vector<Block> blocks;  // the one put here first is first
  size_t kept = 0, most = 0;  // bytes

  ~Shelf() { std::for_each(blocks.begin(), blocks.end(), release); }

  // Room for results of so many bytes together from now on.
  void resize(size_t bytes) {
    const std::scoped_lock lock(mutex);
    most = bytes;
    while (kept > most) {
      release(blocks.front());
      kept -= blocks.front().bytes;
      blocks.erase(blocks.begin());
    }
  }
  void put(const Block &b) {
    const std::scoped_lock lock(mutex);
    if (kept + b.bytes > most) return release(b);
    ASAN_POISON_MEMORY_REGION(b.data, b.bytes);
    blocks.push_back(b);
    kept += b.bytes;
  }
  void *take(size_t bytes) {  // or null
    const std::scoped_lock lock(mutex);
    auto it = std::find_if(blocks.begin(), blocks.end(), [&](auto &b) { return b.bytes == bytes; });
    if (it == blocks.end()) return nullptr;
    void *data = it->data;
    blocks.erase(it);
    kept -= bytes;
    ASAN_UNPOISON_MEMORY_REGION(data, bytes);
    return data;
  }
};

Results::Results() : shelf_(std::make_shared<Shelf>()) {}

size_t Results::kept_bytes() const {
  const std::scoped_lock lock(shelf_->mutex);
  return shelf_->kept;
}

std::vector<Tensor> Results::make(const std::vector<TensorType> &types) {
  size_t large = 0;
  for (auto &t : types)
    if (const size_t bytes = byte_count(t.dtype, t.dims); bytes >= kLarge) large += bytes;
  shelf_->resize(large);
  std::vector<Tensor> made;
  for (auto &t : types) {
    const size_t bytes = byte_count(t.dtype, t.dims);
    if (bytes < kLarge) {
      made.emplace_back(t.dtype, t.dims);
      continue;
    }
    void *data = shelf_->take(bytes);
    if (!data) data = take_memory(t, bytes);
    std::shared_ptr<void> owner(data, [shelf = std::weak_ptr(shelf_), bytes](void *p) {
      if (const auto s = shelf.lock()) s->put({p, bytes});
      else std::free(p);
    });
    made.emplace_back(t.dtype, t.dims, data, std::move(owner));
  }
  return made;
}

}  // namespace opgraft
