#include "infer/mindir_dims.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

namespace opgraft::mindir {
namespace {

constexpr const char *kFormula = "*+-";

// A product of numbers and known names.
template <class Known> std::optional<int64_t> product(std::string_view text, Symbols &symbols, const Known &known) {
  int64_t result = 1;
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find('*', at), text.size());
    auto factor = text.substr(at, end - at);
    int64_t n = 0;
    auto [p, ec] = std::from_chars(factor.data(), factor.data() + factor.size(), n);
    bool numeric = ec == std::errc() && p == factor.data() + factor.size() && n >= 0;
    auto it = known.find(factor);
    if (!numeric && it == known.end()) return std::nullopt;
    result = symbols.op('*', result, numeric ? n : it->second);
    at = end + 1;
  }
  return result;
}

template <class Known> std::optional<int64_t> sum(std::string_view text, Symbols &symbols, const Known &known) {
  int64_t result = 0;
  // What is added comes first: no partial sum is then a negative number, which no dimension is.
  for (char turn : {'+', '-'}) {
    char sign = '+';
    for (size_t at = 0; at <= text.size();) {
      size_t end = std::min(text.find_first_of("+-", at), text.size());
      auto term = text.substr(at, end - at);
      if (sign == turn && !(term.empty() && at == 0)) {  // nothing stands before a leading sign
        auto value = product(term, symbols, known);
        if (!value) return std::nullopt;
        result = symbols.op(sign, result, *value);
      }
      if (end < text.size()) sign = text[end];
      at = end + 1;
    }
  }
  return result;
}

}  // namespace

void DimensionNames::declare(std::string_view shape, Symbols &symbols) {
  for (size_t at = 0; at < shape.size();) {
    size_t end = std::min(shape.find(',', at), shape.size());
    auto name = shape.substr(at, end - at);
    if (!name.empty() && name.find_first_of(kFormula) == std::string_view::npos) read(name, symbols);
    at = end + 1;
  }
}

int64_t DimensionNames::read(std::string_view text, Symbols &symbols) {
  auto it = known_.find(text);
  if (it != known_.end()) return it->second;
  if (text == "?") return -1;
  std::optional<int64_t> dim;
  if (text.find_first_of(kFormula) != std::string_view::npos) dim = sum(text, symbols, known_);
  if (!dim || !is_symbol(*dim)) dim = symbols.fresh(std::string(text));
  known_.emplace(text, *dim);
  return *dim;
}

std::string DimensionWriter::write(const TensorType &type) {
  std::string out;
  bool any = false;
  for (size_t k = 0; k < type.dims.size(); ++k) {
    if (k) out += ",";
    if (type.dims[k] >= 0) continue;
    any = true;
    auto [it, added] = written_.try_emplace(type.dims[k]);
    if (added) {
      it->second = symbols_.text(type.dims[k]);
      if (symbols_.is_free(type.dims[k])) {
        for (char &c : it->second)
          if (std::strchr(",+-*?", c)) c = '_';
        std::string plain = it->second;
        for (int n = 1; !names_.insert(it->second).second; ++n) it->second = fmt::format("{}_{}", plain, n);
      }
    }
    out += it->second;
  }
  return any ? out : "";
}

}  // namespace opgraft::mindir
