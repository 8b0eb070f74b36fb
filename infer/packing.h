// Weights in their ops' own forms.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "infer/tensor.h"
#include "registry/registry.h"

namespace opgraft {

// A constant input that an op may want in a form of its own.
struct PackRequest {
  const Op *op;
  std::vector<opgraft_tensor> inputs;
  std::span<const opgraft_attr> attrs;
  std::string attrs_text;
  int32_t input;
  const Tensor *weight;          // the input; it rests once it is packed
  const void *packed = nullptr;  // the answer; null where the op wants none
};

// Weights in their ops' own forms, made once per model.
class PackedWeights {
 public:
  // Answers all of them; what is new is made on the pool's threads. Throws Error, having kept nothing of this call.
  void answer(std::vector<PackRequest> &requests);
  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    const Op *op;
    int32_t input;
    std::string attrs;
    int32_t dtype;
    Shape dims;  // two parameters of a file may share bytes
    std::shared_ptr<void> blob;
    bool answers(const PackRequest &r) const;
  };
  using Entries = std::multimap<const void *, Entry>;  // by weight
  Entries entries_;
  size_t bytes_ = 0;
};

}  // namespace opgraft
