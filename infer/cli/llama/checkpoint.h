// Weights of a GGUF file of the architecture llama. What examples/llama/checkpoint.py does.
#pragma once

#include <optional>
#include <string>

#include "infer/cli/llama/config.h"

namespace opgraft::llama {

// Rows of blocks as the file has them, uint8 (N, bytes), in a format of BlockQuantMatMul.
struct Blocks {
  Tensor rows;
  std::string format;
};

// Eight bits, int8 (N, K), and a scale for each row, float32 (N,).
struct Channels {
  Tensor codes, scale;
};

class Checkpoint {
 public:
  // All throw GgufError.
  explicit Checkpoint(Gguf gguf);
  const Gguf &file() const { return gguf_; }
  const Config &config() const { return config_; }
  // A tensor as float32 or bfloat16; what the file quantises is expanded. Bytes that do as they are stay mapped.
  Tensor weight(const std::string &name, const Shape &shape, int32_t dtype) const;
  std::optional<Blocks> stored(const std::string &name, const Shape &shape) const;  // none: not in such blocks
  Channels channels(const std::string &name, const Shape &shape) const;

 private:
  const GgufTensor &tensor(const std::string &name, const Shape &shape) const;
  Tensor bytes(const GgufTensor &t, int32_t dtype, Shape dims) const;

  Gguf gguf_;
  Config config_;
};

}  // namespace opgraft::llama
