#include "infer/cli/llama/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace opgraft::llama {

Config read_config(const Gguf &file) {
  using Integer = std::optional<int64_t>;
  const auto integer = [&](const std::string &key, Integer otherwise = std::nullopt) {
    return file.need(key, file.integer(key), otherwise);
  };
  const auto architecture = file.need("general.architecture", file.text("general.architecture"));
  if (architecture != "llama") file.refuse("architecture must be llama, got " + architecture);
  Config c;
  const Integer vocabulary = file.integer("llama.vocab_size");
  const auto tokens = file.need("tokenizer.ggml.tokens", file.texts("tokenizer.ggml.tokens"));
  c.vocab_size = vocabulary.value_or(int64_t(tokens.size()));
  const int64_t heads = c.num_attention_heads = integer("llama.attention.head_count");
  c.hidden_size = integer("llama.embedding_length");
  c.intermediate_size = integer("llama.feed_forward_length");
  c.num_hidden_layers = integer("llama.block_count");
  c.num_key_value_heads = integer("llama.attention.head_count_kv", heads);
  c.head_dim = integer("llama.attention.key_length", c.hidden_size / std::max<int64_t>(heads, 1));
  c.max_position_embeddings = integer("llama.context_length");
  constexpr const char *eps = "llama.attention.layer_norm_rms_epsilon", *base = "llama.rope.freq_base";
  c.rms_norm_eps = file.need(eps, file.real(eps));
  c.rope_theta = file.need<double>(base, file.real(base), 10000.0);
  c.tie_word_embeddings = !file.tensor("output.weight");
  const std::pair<const char *, int64_t> positive[] = {{"vocab_size", c.vocab_size},
                                                       {"hidden_size", c.hidden_size},
                                                       {"intermediate_size", c.intermediate_size},
                                                       {"num_hidden_layers", c.num_hidden_layers},
                                                       {"num_attention_heads", heads},
                                                       {"num_key_value_heads", c.num_key_value_heads},
                                                       {"head_dim", c.head_dim},
                                                       {"max_position_embeddings", c.max_position_embeddings}};
  for (auto &[name, n] : positive) {
    if (n <= 0) file.refuse(fmt::format("{} must be positive, got {}", name, n));
    if (n > INT32_MAX) file.refuse(fmt::format("{} must be at most {}, got {}", name, INT32_MAX, n));
  }
  if (!(c.rope_theta >= 1) || std::isinf(c.rope_theta))
    file.refuse(fmt::format("rope_theta must be a number of at least 1, got {}", c.rope_theta));
  if (heads % c.num_key_value_heads || c.head_dim % 2)
    file.refuse(fmt::format("{} heads of {} over {} key and value heads are not a llama", heads, c.head_dim,
                            c.num_key_value_heads));
  const int64_t rotated = integer("llama.rope.dimension_count", c.head_dim);
  if (rotated != c.head_dim) file.refuse(fmt::format("rope.dimension_count must be {}, got {}", c.head_dim, rotated));
  return c;
}

}  // namespace opgraft::llama
