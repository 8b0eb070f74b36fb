#include "infer/cli/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "infer/cli/text/utf8.h"

namespace opgraft::text {
namespace {

using nlohmann::json;

// Parts that would change what comes out must be as they are known here; null also where they are missing.
void must_be(const json &object, const std::string &where, const char *name, const json &wanted) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null() ? wanted.is_null() || wanted == false : *found == wanted) return;
  throw std::runtime_error(fmt::format("{}{} must be {}, got {}", where, name, wanted.dump(),
                                       found == object.end() ? "nothing" : shown(*found)));
}

}  // namespace

Tokenizer::Tokenizer(std::string_view text) {
  try {
    read(text);
  } catch (const json::exception &e) {
    throw std::runtime_error(fmt::format("the model's tokenizer is damaged: {}", e.what()));
  } catch (const std::runtime_error &e) {
    throw std::runtime_error(fmt::format("the model's tokenizer: {}", e.what()));
  }
}

void Tokenizer::read(std::string_view text) {
  const json all = json::parse(text);
  for (const char *part : {"truncation", "padding", "normalizer", "post_processor"}) must_be(all, "", part, json());
  const json &model = all.at("model");
  must_be(model, "model.", "type", "BPE");
  for (const char *part : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    must_be(model, "model.", part, json());
  for (const char *part : {"byte_fallback", "ignore_merges"}) must_be(model, "model.", part, false);
  must_be(all.at("decoder"), "decoder.", "type", "ByteLevel");
  bpe_ = std::make_unique<Bpe>(model);
  const json &before = all.at("pre_tokenizer");
  std::vector<const json *> steps;
  if (before.at("type") != "Sequence") steps.push_back(&before);
  else
    for (auto &step : before.at("pretokenizers")) steps.push_back(&step);
  if (steps.empty()) throw std::runtime_error("pre_tokenizer must not be empty");
  for (size_t i = 0; i + 1 < steps.size(); ++i) read_splits(*steps[i]);
  const json &last = *steps.back();
  must_be(last, "pre_tokenizer: the last one's ", "type", "ByteLevel");
  must_be(last, "ByteLevel.", "add_prefix_space", false);
  must_be(last, "ByteLevel.", "use_regex", false);
  read_added(all.at("added_tokens"));
}

void Tokenizer::read_splits(const json &step) {
  const auto type = step.at("type").get<std::string>();
  if (type == "Digits") {
    splits_.emplace_back(step.at("individual_digits").get<bool>() ? "\\p{N}" : "\\p{N}+");
  } else if (type == "Split") {
    must_be(step, "Split.", "behavior", "Isolated");
    must_be(step, "Split.", "invert", false);
    splits_.emplace_back(step.at("pattern").at("Regex").get<std::string>());
  } else {
    throw std::runtime_error(fmt::format("pre_tokenizer must be Digits, Split or ByteLevel, got {}", type));
  }
}

void Tokenizer::read_added(const json &list) {
  for (const json &token : list) {
    const auto content = token.at("content").get<std::string>();
    const auto id = token.at("id").get<int64_t>();
    for (const char *part : {"single_word", "lstrip", "rstrip", "normalized"})
      must_be(token, fmt::format("added token '{}': ", content), part, false);
    if (content.empty() || id < 0 || id != bpe_->id(content))
      throw std::runtime_error(fmt::format("added token '{}' must be in the vocabulary as {}", content, id));
    added_[content[0]].emplace_back(content, int32_t(id));
    special_[int32_t(id)] = token.at("special").get<bool>();
  }
  for (auto &[byte, tokens] : added_)
    std::ranges::stable_sort(tokens, std::greater(), [](auto &token) { return token.first.size(); });
}

const std::pair<std::string, int32_t> *Tokenizer::added_at(std::string_view text) const {
  const auto tokens = added_.find(text[0]);
  if (tokens != added_.end())
    for (auto &token : tokens->second)
      if (text.starts_with(token.first)) return &token;
  return nullptr;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const auto *token = added_at(text.substr(at));
    if (!token) {
      ++at;
      continue;
    }
    encode_plain(text.substr(begin, at - begin), ids);
    ids.push_back(token->second);
    begin = at += token->first.size();
  }
  encode_plain(text.substr(begin), ids);
  return ids;
}

void Tokenizer::encode_plain(std::string_view text, std::vector<int32_t> &ids) const {
  std::vector<std::string_view> pieces{text}, finer;
  for (const Splitter &s : splits_) {
    finer.clear();
    for (std::string_view piece : pieces) s.split(piece, finer);
    std::swap(pieces, finer);
  }
  for (std::string_view piece : pieces) bpe_->encode(piece, ids);
}

std::string Tokenizer::decode(const std::vector<int32_t> &ids) const {
  std::string out;
  for (int32_t id : ids)
    if (const std::string *token = bpe_->token(id)) out += bytes_of(*token);
  return repaired(out);
}

std::string Tokenizer::bytes(int32_t id) const {
  const std::string *token = bpe_->token(id);
  const auto special = special_.find(id);
  return !token || (special != special_.end() && special->second) ? std::string() : bytes_of(*token);
}

}  // namespace opgraft::text
