// Memory for the results of a session's runs.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "infer/tensor.h"

namespace opgraft {

// Hands out new tensors. Large ones that nobody holds any more are handed out again, since fresh memory costs a page
// fault every 4 KiB, ten times what an addition over them takes. At most the bytes of one run's results are kept so;
// tensors may outlive this object, and be let go in any thread.
class Results {
 public:
  Results();
  // Tensors of these types, uninitialised. Throws std::bad_alloc.
  std::vector<Tensor> make(const std::vector<TensorType> &types);
  size_t kept_bytes() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace opgraft
