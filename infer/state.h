// Memory of the Parameters that operators update in place: of one session, in one mapping. Address space is taken for
// all of it at once, pages as they are written; a fork shares what was written before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "infer/tensor.h"

namespace opgraft {

// Bytes that all sessions of a model have written, and how many they may.
struct StateBudget {
  std::atomic<size_t> used{0};
  std::atomic<size_t> most{SIZE_MAX};
  bool take(size_t bytes);  // false where that would be too many
  void give(size_t bytes) { used -= bytes; }
};

class StateMemory {
 public:
  // Begins with these contents; zeros where a tensor has no data. Throws Error(OPGRAFT_OUT_OF_MEMORY).
  StateMemory(std::vector<Tensor> initial, std::shared_ptr<StateBudget> budget);
  ~StateMemory();
  StateMemory(const StateMemory &) = delete;

  void *data(size_t i) const { return base_ + offsets_[i]; }
  // The bytes are about to be written: false where the budget does not allow it, and nothing is changed.
  bool touch(const void *data, size_t bytes);
  // Bytes of pages written by this session, and by those it is a fork of: what they share counts in both.
  size_t bytes() const;
  // Back to the initial contents, at the same addresses.
  void reset();
  // Another one with the same contents; neither sees what the other writes from now on. Copies nothing, but for what
  // was written since this one was forked itself.
  std::unique_ptr<StateMemory> fork();

 private:
  struct File;  // pages, whole or the common part of several forks
  explicit StateMemory(const StateMemory *from);
  void map(int flags);
  void fill();
  bool take(size_t first, size_t last);
  void forget();

  std::vector<Tensor> initial_;
  std::shared_ptr<StateBudget> budget_;
  std::vector<size_t> offsets_;
  size_t size_ = 0;
  char *base_ = nullptr;
  std::shared_ptr<File> file_;
  bool forked_ = false;        // the mapping is private: what is written is this session's own
  std::vector<bool> written_;  // pages, by this session: of the file, or once forked of its own
  size_t pages_ = 0;           // of written_
};

}  // namespace opgraft
