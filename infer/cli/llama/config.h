// Hyperparameters of a GGUF file of the architecture llama.
#pragma once

#include "infer/cli/llama/gguf.h"

namespace opgraft::llama {

// By the names of transformers' LlamaConfig.
struct Config {
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads,
      head_dim, max_position_embeddings;
  double rms_norm_eps, rope_theta;
  bool tie_word_embeddings;
};

// Throws GgufError.
Config read_config(const Gguf &file);

}  // namespace opgraft::llama
