#include "infer/cli/llama/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "infer/cli/llama/chat_template.h"

namespace opgraft::llama {
namespace {

using nlohmann::json;
constexpr int64_t kControl = 3;  // a token's type
// GPT-2's pieces of a text.
constexpr const char *kWords = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char *kDigits = "smollm";  // splits numbers into digits first
constexpr const char *kKinds[] = {"default", "gpt-2", kDigits};

// As `tokenizers` writes it.
std::string tokenizer_json(const Gguf &file, const std::vector<std::string> &tokens, bool digits) {
  const auto key = [](const char *name) { return std::string("tokenizer.ggml.") + name; };
  std::unordered_map<std::string, int64_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) ids[tokens[i]] = int64_t(i);
  json merges = json::array();
  for (const std::string &m : file.need(key("merges"), file.texts(key("merges")))) {
    const size_t space = m.find(' ');
    const std::string left = m.substr(0, space), right = space == m.npos ? "" : m.substr(space + 1);
    for (const std::string &part : {left, right, left + right})
      if (space == m.npos || !ids.contains(part))
        file.refuse(fmt::format("its vocabulary is damaged: merge '{}' is of tokens that it lacks", m));
    merges.push_back({left, right});
  }
  const auto types = file.need(key("token_type"), file.integers(key("token_type")));
  json added = json::array();
  for (size_t i = 0; i < std::min(tokens.size(), types.size()); ++i)
    if (types[i] == kControl && !tokens[i].empty() && ids.at(tokens[i]) == int64_t(i))
      added.push_back({{"id", i},
                       {"content", tokens[i]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
  json steps = json::array();
  if (digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", kWords}}}, {"behavior", "Isolated"}, {"invert", false}});
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return json{{"added_tokens", std::move(added)},
              {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model", {{"type", "BPE"}, {"vocab", std::move(ids)}, {"merges", std::move(merges)}}}}
      .dump();
}

// What a template puts around what is said.
class Forms {
 public:
  Forms(const Gguf &file, const std::string &source, const std::vector<std::string> &tokens)
      : template_(source), bos_(special(file, "bos", tokens)), eos_(special(file, "eos", tokens)) {}

  // Before, between and after one message of each role; nothing where the template does not hold each once. Throws
  // std::runtime_error.
  template <size_t n>
  std::optional<std::array<std::string, n + 1>> around(const std::array<const char *, n> &roles) const {
    std::vector<Message> messages;
    for (const char *role : roles) messages.push_back({role, fmt::format("\u2603{}\u2603", role)});
    const std::string whole = template_.text(messages, bos_, eos_, true);
    std::array<std::string, n + 1> parts;
    size_t begin = 0;
    for (size_t i = 0; i < n; ++i) {
      const std::string &mark = messages[i].content;
      const size_t at = whole.find(mark);
      if (at == whole.npos || at < begin || whole.find(mark, at + mark.size()) != whole.npos) return std::nullopt;
      parts[i] = whole.substr(begin, at - begin);
      begin = at + mark.size();
    }
    parts[n] = whole.substr(begin);
    return parts;
  }

 private:
  static std::string special(const Gguf &file, const char *name, const std::vector<std::string> &tokens) {
    const auto id = file.integer(fmt::format("tokenizer.ggml.{}_token_id", name));
    return id && *id >= 0 && *id < int64_t(tokens.size()) ? tokens[size_t(*id)] : "";
  }

  ChatTemplate template_;
  std::string bos_, eos_;
};

}  // namespace

text::Text text_of(const Gguf &file, int64_t context) {
  const auto model = file.need("tokenizer.ggml.model", file.text("tokenizer.ggml.model"));
  const auto kind = file.text("tokenizer.ggml.pre").value_or("default");
  if (model != "gpt2" || std::ranges::find(kKinds, kind) == std::end(kKinds))
    file.refuse(fmt::format("tokenizer must be gpt2 with {}, got {} with {}", fmt::join(kKinds, ", "), model, kind));
  const auto tokens = file.need("tokenizer.ggml.tokens", file.texts("tokenizer.ggml.tokens"));
  text::Text text;
  text.tokenizer = tokenizer_json(file, tokens, kind == kDigits);
  text.ends = {file.need("tokenizer.ggml.eos_token_id", file.integer("tokenizer.ggml.eos_token_id"))};
  text.context = context;
  const auto source = file.text("tokenizer.chat_template").value_or("");
  if (source.empty()) return text;
  try {
    const Forms forms(file, source, tokens);
    text.chat = forms.around<1>({"user"});
    if (!text.chat) throw std::runtime_error("does not hold once what is said");
    try {
      text.system = forms.around<2>({"system", "user"});
    } catch (const std::runtime_error &) {  // templates raise where they want none
    }
  } catch (const std::runtime_error &e) {
    file.refuse(fmt::format("chat template: {}", e.what()));
  }
  return text;
}

}  // namespace opgraft::llama
