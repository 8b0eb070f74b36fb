// A byte-level tokenizer, of the JSON that Hugging Face's `tokenizers` writes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "infer/cli/text/bpe.h"
#include "infer/cli/text/splitter.h"

namespace opgraft::text {

class Tokenizer {
 public:
  // Throws std::runtime_error: what is damaged, or made of parts that are not known here. Known are a BPE model without
  // extras; Digits and Split before ByteLevel; added tokens that match as they stand.
  explicit Tokenizer(std::string_view json);
  // `text` must be UTF-8. What the vocabulary lacks is left out.
  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<int32_t> &ids) const;  // special tokens as well
  // The bytes that an id adds to a text; none where it is special or no token.
  std::string bytes(int32_t id) const;
  int64_t size() const { return int64_t(bpe_->size()); }

 private:
  void read(std::string_view json);
  void read_added(const nlohmann::json &list);
  void read_splits(const nlohmann::json &step);
  const std::pair<std::string, int32_t> *added_at(std::string_view text) const;
  void encode_plain(std::string_view text, std::vector<int32_t> &ids) const;

  std::unique_ptr<Bpe> bpe_;
  std::vector<Splitter> splits_;
  // By their first byte, longer ones first.
  std::unordered_map<char, std::vector<std::pair<std::string, int32_t>>> added_;
  std::unordered_map<int32_t, bool> special_;
};

}  // namespace opgraft::text
