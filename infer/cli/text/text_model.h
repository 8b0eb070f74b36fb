// Text of a model that keeps its own caches: what python/opgraft/generation.py does, without Python.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "infer/cli/text/tokenizer.h"
#include "infer/session.h"

namespace opgraft::text {

// What a model's file says of its text, in user_info.
struct Text {
  std::string tokenizer;                             // JSON
  std::vector<int64_t> ends;                         // ids that end a text
  int64_t context = 0;                               // positions that there are
  std::optional<std::array<std::string, 2>> chat;    // before and after what a person says
  std::optional<std::array<std::string, 3>> system;  // the same around a system message and what a person says
  // Throws std::runtime_error.
  static Text of(const std::map<std::string, std::string> &user_info);
  std::map<std::string, std::string> user_info() const;
};

struct Drawing {
  int64_t max_tokens = 256, top_k = 0, seed = 0;
  double temperature = 0, top_p = 1;
};

struct Statistics {
  int64_t prompt_tokens = 0, tokens = 0;
  double first_token = 0, rest = 0;  // seconds
  size_t kv_bytes = 0;
  std::string end;  // "eos", "length", "interrupted"
  std::optional<double> prompt_rate() const;
  std::optional<double> decode_rate() const;
};

class TextModel {
 public:
  // (input_ids (1, S), position_ids (S,)) -> logits (1, 1, vocabulary), the last token's. Throws std::runtime_error.
  explicit TextModel(std::shared_ptr<const Graph> graph);
  Model &model() { return *model_; }
  // Ids of what a person says, within the model's chat form where it has one; `system`: what the model is told before
  // it. Throws std::runtime_error.
  std::vector<int32_t> encode(const std::string &prompt, bool chat, const std::optional<std::string> &system) const;
  // Gives each id and the text that it adds as they come; a character's bytes wait until they are all there. A text
  // ends before an id of `ends`, and where `stop`, asked after each, says so. Throws std::runtime_error, Error,
  // GraphError.
  Statistics generate(const std::vector<int32_t> &ids, const Drawing &drawing,
                      const std::function<void(int32_t id, const std::string &piece)> &give,
                      const std::function<bool()> &stop);

 private:
  int32_t draw(float uniform, const Attrs &attrs) const;
  bool ends(int32_t id) const;

  Text text_;
  Tokenizer tokenizer_;
  std::shared_ptr<Model> model_;
  Session session_;
  OpPtr sample_;
  std::vector<Tensor> logits_;
};

}  // namespace opgraft::text
