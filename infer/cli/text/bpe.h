// Byte pair encoding (Sennrich et al. 2016) over bytes.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace opgraft::text {

class Bpe {
 public:
  // The `model` of a tokenizer's JSON. Throws std::runtime_error, nlohmann::json::exception.
  explicit Bpe(const nlohmann::json &model);
  // Appends the ids of one piece of text. Bytes that the vocabulary lacks are left out.
  void encode(std::string_view piece, std::vector<int32_t> &ids) const;
  const std::string *token(int32_t id) const;  // as the vocabulary spells it; null: none
  int32_t id(const std::string &token) const;  // -1: none
  size_t size() const { return ids_.size(); }

 private:
  struct Merge {
    int32_t rank, id;
  };
  const Merge *merge(int32_t left, int32_t right) const;

  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, const std::string *> tokens_;
  std::unordered_map<uint64_t, Merge> merges_;  // by both ids
  std::array<int32_t, 256> bytes_;              // ids of single bytes
};

// A JSON value for a message: what nests is not followed.
std::string shown(const nlohmann::json &value);

// How vocabularies spell a byte: printable characters stand for themselves, others for U+0100 and on (Radford et al.
// 2019).
char32_t spelled(unsigned char byte);
// The bytes that a token spells; its own UTF-8 where it has characters that spell none.
std::string bytes_of(const std::string &token);

}  // namespace opgraft::text
