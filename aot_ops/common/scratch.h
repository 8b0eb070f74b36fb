// Memory of one call: the workspace where the host gave one that is large enough, else memory of its own.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "opgraft/op.h"

namespace opgraft {

template <class T> class Scratch {
 public:
  // `count` elements, aligned to 64 bytes, undefined.
  Scratch(const Context &c, size_t count) {
    const uint64_t bytes = (uint64_t(count) * sizeof(T) + 63) / 64 * 64;
    if (bytes == 0) return;
    if (c.workspace() && c.workspace_bytes() >= count * sizeof(T)) {
      data_ = static_cast<T *>(c.workspace());
      return;
    }
    own_.reset(std::aligned_alloc(64, bytes));
    if (!own_) throw std::bad_alloc();
    data_ = static_cast<T *>(own_.get());
  }
  T *get() const { return data_; }

 private:
  struct Free {
    void operator()(void *p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> own_;
  T *data_ = nullptr;
};

// Hands out memory piece by piece, each at a whole number of cache lines.
class Pieces {
 public:
  explicit Pieces(char *from) : free_(from) {}
  char *take(uint64_t bytes) {
    char *at = free_;
    free_ += (bytes + 63) / 64 * 64;
    return at;
  }

 private:
  char *free_;
};

}  // namespace opgraft
