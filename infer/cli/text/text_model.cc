#include "infer/cli/text/text_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "infer/cli/text/utf8.h"

namespace opgraft::text {
namespace {

using nlohmann::json;
constexpr const char *kKey = "opgraft.text";

template <size_t n> std::optional<std::array<std::string, n>> texts(const json &fields, const char *name) {
  const auto found = fields.find(name);
  if (found == fields.end() || found->is_null()) return std::nullopt;
  if (!found->is_array() || found->size() != n)
    throw std::runtime_error(fmt::format("{} must be {} texts, got {}", name, n, shown(*found)));
  std::array<std::string, n> out;
  for (size_t i = 0; i < n; ++i) out[i] = (*found)[i].get<std::string>();
  return out;
}

std::shared_ptr<const Graph> checked(std::shared_ptr<const Graph> graph) {
  std::string names;
  for (ValueId id : graph->inputs) names += (names.empty() ? "" : ", ") + graph->value(id).name;
  if (names != "input_ids, position_ids")
    throw std::runtime_error(
        fmt::format("the model must take input_ids and position_ids, got {}", names.empty() ? "nothing" : names));
  return graph;
}

// The double in [0, 1) that 53 bits make, as NumPy's RandomState.random has it, in float32.
float uniform(std::mt19937 &generator) {
  const double high = generator() >> 5, low = generator() >> 6;
  return float(std::min((high * 0x1p26 + low) * 0x1p-53, 1 - 0x1p-24));
}

// Text of ids as they come. What ends in U+FFFD may be a character of which bytes are still to come.
class Pieces {
 public:
  std::string add(const std::string &bytes) {
    held_ += bytes;
    std::string text = repaired(held_);
    if (text.ends_with("\uFFFD")) return {};
    held_.clear();
    return text;
  }

 private:
  std::string held_;
};

}  // namespace

Text Text::of(const std::map<std::string, std::string> &user_info) {
  const auto found = user_info.find(kKey);
  if (found == user_info.end())
    throw std::runtime_error(fmt::format("the model says nothing of a tokenizer: its user_info has no {}", kKey));
  try {
    const json fields = json::parse(found->second);
    Text t;
    t.tokenizer = fields.at("tokenizer").get<std::string>();
    t.ends = fields.at("eos").get<std::vector<int64_t>>();
    t.context = fields.at("context").get<int64_t>();
    t.chat = (void(fields.at("chat")), texts<2>(fields, "chat"));
    t.system = texts<3>(fields, "system");
    if (t.context < 1 || t.context > INT32_MAX)
      throw std::runtime_error(fmt::format("context must be positive, got {}", t.context));
    return t;
  } catch (const std::exception &e) {  // json's, or one of the above
    throw std::runtime_error(fmt::format("the model's {} in user_info is damaged: {}", kKey, e.what()));
  }
}

std::map<std::string, std::string> Text::user_info() const {
  json fields{{"tokenizer", tokenizer}, {"eos", ends}, {"chat", nullptr}, {"context", context}, {"system", nullptr}};
  if (chat) fields["chat"] = *chat;
  if (system) fields["system"] = *system;
  return {{kKey, fields.dump()}};
}

std::optional<double> Statistics::prompt_rate() const {
  if (first_token == 0) return std::nullopt;
  return double(prompt_tokens) / first_token;
}

std::optional<double> Statistics::decode_rate() const {
  if (tokens < 2 || rest <= 0) return std::nullopt;
  return double(tokens - 1) / rest;
}

TextModel::TextModel(std::shared_ptr<const Graph> graph)
    : text_(Text::of(graph->user_info)),
      tokenizer_(text_.tokenizer),
      model_(std::make_shared<Model>(checked(std::move(graph)))),
      session_(model_),
      sample_(Registry::global().resolve("SampleToken")) {}

std::vector<int32_t> TextModel::encode(const std::string &prompt, bool chat,
                                       const std::optional<std::string> &system) const {
  const std::string said = system.value_or("") + prompt;
  if (!is_utf8(prompt) || !is_utf8(said)) throw std::runtime_error("the prompt must be UTF-8 text");
  std::string whole = prompt;
  if (system) {
    if (!chat || !text_.system)
      throw std::runtime_error(
          fmt::format("a system message needs a chat form, {}",
                      chat ? "the model's file has none with a system message" : "got a prompt outside of it"));
    whole = (*text_.system)[0] + *system + (*text_.system)[1] + prompt + (*text_.system)[2];
  } else if (chat && text_.chat) {
    whole = (*text_.chat)[0] + prompt + (*text_.chat)[1];
  }
  std::vector<int32_t> ids = tokenizer_.encode(whole);
  if (tokenizer_.decode(ids) == whole) return ids;
  std::string lost = "the model's own chat form";
  for (std::string_view rest = said; !rest.empty();) {
    const Character c = first_character(rest);
    if (tokenizer_.decode(tokenizer_.encode(rest.substr(0, c.bytes))) != rest.substr(0, c.bytes)) {
      lost = fmt::format("U+{:04X}", uint32_t(c.code));
      break;
    }
    rest.remove_prefix(c.bytes);
  }
  throw std::runtime_error("the model's vocabulary cannot spell " + lost);
}

bool TextModel::ends(int32_t id) const { return std::ranges::find(text_.ends, id) != text_.ends.end(); }

int32_t TextModel::draw(float at, const Attrs &attrs) const {
  const Shape &dims = logits_[0].dims();
  if (dims.empty() || logits_[0].size() != dims.back())
    throw std::runtime_error("the model must give logits (1, 1, vocabulary), got shape " + to_string(dims));
  Tensor where(OPGRAFT_FLOAT32, Shape(dims.begin(), dims.end() - 1));
  *where.data<float>() = at;
  return *run_op(sample_, {logits_[0], where}, attrs)[0].data<int32_t>();
}

Statistics TextModel::generate(const std::vector<int32_t> &ids, const Drawing &drawing,
                               const std::function<void(int32_t, const std::string &)> &give,
                               const std::function<bool()> &stop) {
  if (ids.empty()) throw std::runtime_error("generate: ids must not be empty");
  for (int32_t id : ids)
    if (id < 0 || id >= tokenizer_.size())
      throw std::runtime_error(fmt::format("generate: ids must be in [0, {}), got {}", tokenizer_.size(), id));
  if (int64_t(ids.size()) > text_.context)
    throw std::runtime_error(
        fmt::format("the prompt has {} tokens, the model's context {}", ids.size(), text_.context));
  if (drawing.seed < 0 || drawing.seed > int64_t(UINT32_MAX))
    throw std::runtime_error(fmt::format("the seed must be in [0, {}], got {}", UINT32_MAX, drawing.seed));
  const Attrs attrs{{"temperature", drawing.temperature}, {"top_k", drawing.top_k}, {"top_p", drawing.top_p}};
  std::mt19937 generator{uint32_t(drawing.seed)};
  Statistics stats;
  stats.prompt_tokens = int64_t(ids.size());
  Pieces pieces;
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  Clock::time_point begin = Clock::now();
  session_.reset();

  int64_t position = 0;
  std::vector<Tensor> step{Tensor(OPGRAFT_INT32, {1, stats.prompt_tokens}),
                           Tensor(OPGRAFT_INT32, {stats.prompt_tokens})};
  std::ranges::copy(ids, step[0].data<int32_t>());
  for (int32_t i = 0; i < int32_t(ids.size()); ++i) step[1].data<int32_t>()[i] = i;
  logits_ = session_.run(step);
  if (logits_.empty()) throw std::runtime_error("the model must give logits, got nothing");
  position += stats.prompt_tokens;
  step = {Tensor(OPGRAFT_INT32, {1, 1}), Tensor(OPGRAFT_INT32, {1})};
  while (true) {
    const int32_t drawn = draw(uniform(generator), attrs);
    const Clock::time_point now = Clock::now();
    if (stats.tokens == 0) {
      stats.first_token = seconds(now - begin);
      begin = now;
    }
    stats.rest = seconds(now - begin);
    stats.kv_bytes = session_.state_bytes();
    if (ends(drawn)) {
      stats.end = "eos";
      break;
    }
    ++stats.tokens;
    give(drawn, pieces.add(tokenizer_.bytes(drawn)));
    if (stop()) stats.end = "interrupted";
    else if (stats.tokens >= drawing.max_tokens || position >= text_.context) stats.end = "length";
    if (!stats.end.empty()) break;
    *step[0].data<int32_t>() = drawn;
    *step[1].data<int32_t>() = int32_t(position++);
    session_.run_into(step, logits_);
  }
  return stats;
}

}  // namespace opgraft::text
