#include "infer/cli/text/bpe.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <queue>
#include <stdexcept>

#include "infer/cli/text/utf8.h"

namespace opgraft::text {
namespace {

bool printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Spelling {
  std::array<char32_t, 256> codes{};
  std::array<int, 0x144> bytes{};  // by code, -1: none
  Spelling() {
    bytes.fill(-1);
    char32_t other = 0x100;
    for (int b = 0; b < 256; ++b) {
      codes[size_t(b)] = printable(b) ? char32_t(b) : other++;
      bytes[codes[size_t(b)]] = b;
    }
  }
};
const Spelling kSpelling;

}  // namespace

std::string shown(const nlohmann::json &value) {
  if (value.is_structured()) return value.type_name();
  const std::string text = value.dump();
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

char32_t spelled(unsigned char byte) { return kSpelling.codes[byte]; }

std::string bytes_of(const std::string &token) {
  std::string out;
  for (std::string_view rest = token; !rest.empty();) {
    const Character c = first_character(rest);
    if (!c.valid || c.code >= kSpelling.bytes.size() || kSpelling.bytes[c.code] < 0) return token;
    out += char(kSpelling.bytes[c.code]);
    rest.remove_prefix(c.bytes);
  }
  return out;
}

Bpe::Bpe(const nlohmann::json &model) {
  const nlohmann::json &vocabulary = model.at("vocab");
  if (!vocabulary.is_object()) throw std::runtime_error("model.vocab must be an object, got " + shown(vocabulary));
  for (auto &[token, value] : vocabulary.items()) {
    const int64_t id = value.is_number_integer() ? value.get<int64_t>() : -1;
    if (id < 0 || id > INT32_MAX) throw std::runtime_error(fmt::format("the id of '{}' is {}", token, shown(value)));
    ids_.emplace(token, int32_t(id));
  }
  for (auto &[token, id] : ids_) tokens_[id] = &token;
  const auto known = [&](const std::string &token) {
    const int32_t found = id(token);
    if (found < 0) throw std::runtime_error(fmt::format("a merge names '{}', which is no token", token));
    return found;
  };
  int32_t rank = 0;
  for (auto &pair : model.at("merges")) {
    std::string left, right;
    if (pair.is_string()) {  // "left right", as files have it that are older
      const auto &both = pair.get_ref<const std::string &>();
      const size_t at = both.find(' ');
      if (at == std::string::npos) throw std::runtime_error(fmt::format("the merge '{}' is no pair", both));
      left = both.substr(0, at), right = both.substr(at + 1);
    } else {
      left = pair.at(0).get<std::string>(), right = pair.at(1).get<std::string>();
    }
    const uint64_t key = uint64_t(known(left)) << 32 | uint32_t(known(right));
    merges_[key] = {rank++, known(left + right)};
  }
  for (int b = 0; b < 256; ++b) bytes_[size_t(b)] = id(to_utf8(spelled(static_cast<unsigned char>(b))));
}

const std::string *Bpe::token(int32_t id) const {
  auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : found->second;
}

int32_t Bpe::id(const std::string &token) const {
  auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

const Bpe::Merge *Bpe::merge(int32_t left, int32_t right) const {
  auto found = merges_.find(uint64_t(left) << 32 | uint32_t(right));
  return found == merges_.end() ? nullptr : &found->second;
}

// The pair of the lowest rank first, of several the leftmost: a list of symbols, and a heap of pairs in it, of which
// those that no longer stand there are passed over.
void Bpe::encode(std::string_view piece, std::vector<int32_t> &ids) const {
  struct Symbol {
    int32_t id;
    size_t before, after;  // kEnd: none
  };
  struct Pair {
    int32_t rank;
    size_t at;
    int32_t id;
    bool operator<(const Pair &o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  constexpr size_t kEnd = SIZE_MAX;
  std::vector<Symbol> symbols;
  for (unsigned char byte : piece)
    if (bytes_[byte] >= 0) symbols.push_back({bytes_[byte], symbols.size() - 1, symbols.size() + 1});
  if (symbols.empty()) return;
  symbols.back().after = kEnd;
  std::priority_queue<Pair> pairs;
  const auto consider = [&](size_t at) {
    if (at == kEnd || symbols[at].after == kEnd) return;
    if (const Merge *m = merge(symbols[at].id, symbols[symbols[at].after].id)) pairs.push({m->rank, at, m->id});
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(i);
  while (!pairs.empty()) {
    const Pair p = pairs.top();
    pairs.pop();
    Symbol &left = symbols[p.at];
    if (left.id < 0 || left.after == kEnd) continue;
    Symbol &right = symbols[left.after];
    const Merge *m = merge(left.id, right.id);
    if (!m || m->id != p.id) continue;
    left.id = p.id;
    left.after = right.after;
    right.id = -1;
    if (left.after != kEnd) symbols[left.after].before = p.at;
    consider(left.before);
    consider(p.at);
  }
  for (size_t i = 0; i != kEnd; i = symbols[i].after) ids.push_back(symbols[i].id);
}

}  // namespace opgraft::text
