#include "infer/cli/llama/template_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "infer/cli/text/utf8.h"

namespace opgraft::llama {
namespace {

constexpr size_t kItem = 32;  // bytes that an item of a list counts for

template <class... F> struct Cases : F... { using F::operator()...; };
template <class... F> Cases(F...) -> Cases<F...>;

int checked_depth(int depth) {
  if (depth > kDeepestValue) throw std::runtime_error(fmt::format("lists nested deeper than {}", kDeepestValue));
  return depth;
}

void check_items(size_t items) {
  if (items > kMostItems) throw std::runtime_error(fmt::format("a list of more than {} items", kMostItems));
}
void check_bytes(size_t bytes) {
  if (bytes > kMostBytes) throw std::runtime_error(fmt::format("a text of more than {} bytes", kMostBytes));
}

// Python's: the shortest digits, and a point or an exponent.
std::string printed_real(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}

void quote(std::string_view text, std::string &out) {
  const char mark = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  out += mark;
  while (!text.empty()) {
    const text::Character c = text::first_character(text);
    const char ascii = text[0];
    if (ascii == mark || ascii == '\\') out += {'\\', ascii};
    else if (ascii == '\n' || ascii == '\r' || ascii == '\t')
      out += {'\\', ascii == '\n' ? 'n' : ascii == '\r' ? 'r' : 't'};
    else if (c.code < 0x20 || (c.code >= 0x7F && c.code < 0xA1) || c.code == 0xAD)
      out += fmt::format("\\x{:02x}", uint32_t(c.code));
    else if (c.code < 0x7F) out += ascii;
    else if (is_space(c.code)) out += fmt::format("\\u{:04x}", uint32_t(c.code));
    else out += text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
  }
  out += mark;
}

void print_items(const auto &items, const char *ends, std::string &out, Budget &budget, auto one) {
  out += ends[0];
  for (size_t i = 0; i < items.size(); ++i) {
    if (i) out += ", ";
    one(items[i]);
    budget.spend(8);
  }
  out += ends[1];
}

bool in_order(const Value &a, const Value &b) {
  const Sequence *x = a.sequence(), *y = b.sequence();
  return x && y && x->kind == y->kind && x->kind <= Sequence::kTuple;
}

}  // namespace

const std::string *Value::text() const {
  const auto *text = std::get_if<Text>(&is);
  return text ? text->get() : nullptr;
}

const Sequence *Value::sequence() const {
  const auto *found = std::get_if<std::shared_ptr<const Sequence>>(&is);
  return found ? found->get() : nullptr;
}

const Dict *Value::dict() const {
  const auto *found = std::get_if<std::shared_ptr<const Dict>>(&is);
  return found ? found->get() : nullptr;
}

std::optional<int64_t> Value::integer() const {
  if (const bool *b = std::get_if<bool>(&is)) return *b;
  if (const int64_t *i = std::get_if<int64_t>(&is)) return *i;
  return std::nullopt;
}

double Value::real() const {
  const double *d = std::get_if<double>(&is);
  return d ? *d : double(*integer());
}

int Value::depth() const {
  if (const auto *loop = std::get_if<std::shared_ptr<const Loop>>(&is)) return 1 + (*loop)->over->depth;
  return sequence() ? sequence()->depth : dict() ? dict()->depth : 0;
}

const Value *Dict::find(const Value &key, Budget &budget) const {
  for (auto &[name, value] : items)
    if (same(name, key, budget)) return &value;
  return nullptr;
}

const Value *Dict::find(std::string_view key, Budget &budget) const {
  budget.spend(4 * items.size() + key.size());
  const auto found = std::ranges::find_if(items, [&](auto &i) { return i.first.text() && *i.first.text() == key; });
  return found == items.end() ? nullptr : &found->second;
}

void Budget::spend(size_t work) {
  if (work > left_) throw std::runtime_error("it takes more steps than a template may");
  left_ -= work;
}

Value Budget::text(std::string value) {
  check_bytes(value.size());
  spend(kItem + value.size());
  return Text(std::make_shared<const std::string>(std::move(value)));
}

Value Budget::sequence(Sequence::Kind kind, std::vector<Value> items) {
  check_items(items.size());
  spend(kItem * (1 + items.size()));
  int depth = 1;
  for (const Value &item : items) depth = std::max(depth, 1 + item.depth());
  const bool key = kind != Sequence::kList && std::ranges::all_of(items, hashable);
  return std::make_shared<const Sequence>(Sequence{kind, std::move(items), checked_depth(depth), key});
}

Value Budget::dict(std::vector<std::pair<Value, Value>> items) {
  spend(2 * kItem * (1 + items.size()));
  int depth = 1;
  for (auto &[key, value] : items) depth = std::max({depth, 1 + key.depth(), 1 + value.depth()});
  return std::make_shared<const Dict>(Dict{std::move(items), checked_depth(depth)});
}

bool truth(const Value &value) {
  return std::visit(
      Cases{
          [](const Undefined &) { return false; }, [](None) { return false; },
          [](const Text &text) { return !text->empty(); },
          [](const std::shared_ptr<const Sequence> &s) { return s->kind == Sequence::kIterator || !s->items.empty(); },
          [](const std::shared_ptr<const Dict> &dict) { return !dict->items.empty(); },
          [](const std::shared_ptr<const Loop> &) { return true; }, [](auto simple) { return bool(simple); }},
      value.is);
}

bool hashable(const Value &value) { return !value.dict() && (!value.sequence() || value.sequence()->hashable); }

std::string kind_of(const Value &value) {
  static const char *const kSequences[] = {"list", "tuple", "range", "view", "iterator"};
  if (value.sequence()) return kSequences[value.sequence()->kind];
  static const char *const kNames[] = {"Undefined", "None", "bool", "int",       "float", "str",
                                       "",          "dict", "loop", "namespace", "macro"};
  return kNames[value.is.index()];
}

bool same(const Value &a, const Value &b, Budget &budget) {
  budget.spend(4);
  if (a.number() && b.number()) return order(a, b, budget) == 0;
  if (a.is.index() != b.is.index()) return false;
  if (a.text()) {
    if (a.text()->size() != b.text()->size()) return false;
    budget.spend(a.text()->size() / 8);
    return *a.text() == *b.text();
  }
  if (a.sequence() && a.sequence() != b.sequence()) {
    const Sequence &x = *a.sequence(), &y = *b.sequence();
    if (x.kind >= Sequence::kView || y.kind >= Sequence::kView)
      throw std::runtime_error(fmt::format("a {} is not compared here", kind_of(a)));
    return x.kind == y.kind &&
           std::ranges::equal(x.items, y.items, [&](auto &p, auto &q) { return same(p, q, budget); });
  }
  if (a.dict() && a.dict() != b.dict()) {
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    return std::ranges::all_of(a.dict()->items, [&](auto &item) {
      const Value *other = b.dict()->find(item.first, budget);
      return other && same(item.second, *other, budget);
    });
  }
  if (std::holds_alternative<std::shared_ptr<const Loop>>(a.is))
    return std::get<std::shared_ptr<const Loop>>(a.is) == std::get<std::shared_ptr<const Loop>>(b.is);
  if (auto *space = std::get_if<Namespace *>(&a.is)) return *space == std::get<Namespace *>(b.is);
  if (auto *macro = std::get_if<const Statement *>(&a.is)) return *macro == std::get<const Statement *>(b.is);
  return true;  // undefined, none, and containers that are one
}

std::partial_ordering order(const Value &a, const Value &b, Budget &budget) {
  if (a.undefined()) fail_undefined(*a.undefined());
  if (b.undefined()) fail_undefined(*b.undefined());
  budget.spend(4);
  if (a.integer() && b.integer()) return *a.integer() <=> *b.integer();
  if (a.number() && b.number()) {
    // long double holds an int64_t
    const auto wide = [](const Value &v) { return v.integer() ? (long double)(*v.integer()) : (long double)v.real(); };
    return wide(a) <=> wide(b);
  }
  if (a.text() && b.text()) {
    budget.spend(std::min(a.text()->size(), b.text()->size()) / 8);
    return a.text()->compare(*b.text()) <=> 0;  // UTF-8 has the order of its characters
  }
  if (!in_order(a, b)) throw std::runtime_error(fmt::format("{} and {} have no order", kind_of(a), kind_of(b)));
  const auto &x = a.sequence()->items, &y = b.sequence()->items;
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
    if (!same(x[i], y[i], budget)) return order(x[i], y[i], budget);
  return x.size() <=> y.size();
}

void print(const Value &value, bool quoted, std::string &out, Budget &budget) {
  const size_t before = out.size();
  const auto inner = [&](const Value &v) { print(v, true, out, budget); };
  if (value.undefined()) out += quoted ? "Undefined" : "";
  else if (std::holds_alternative<None>(value.is)) out += "None";
  else if (auto *b = std::get_if<bool>(&value.is)) out += *b ? "True" : "False";
  else if (auto *i = std::get_if<int64_t>(&value.is)) out += std::to_string(*i);
  else if (auto *d = std::get_if<double>(&value.is)) out += printed_real(*d);
  else if (value.text() && quoted) quote(*value.text(), out);
  else if (value.text()) out += *value.text();
  else if (value.sequence() && value.sequence()->kind <= Sequence::kTuple) {
    const bool list = value.sequence()->kind == Sequence::kList, one = value.sequence()->items.size() == 1;
    print_items(value.sequence()->items, list ? "[]" : "()", out, budget, inner);
    if (!list && one) out.insert(out.size() - 1, ",");
  } else if (value.dict())
    print_items(value.dict()->items, "{}", out, budget, [&](auto &item) {
      inner(item.first);
      out += ": ";
      inner(item.second);
    });
  else throw std::runtime_error(fmt::format("a {} is not printed here", kind_of(value)));
  // What items added is counted for each list around them: they are few.
  budget.spend(1 + out.size() - std::min(before, out.size()));
  check_bytes(out.size());
}

std::string printed(const Value &value, Budget &budget) {
  std::string out;
  print(value, false, out, budget);
  return out;
}

void print_json(const Value &value, std::optional<int64_t> indent, std::string &out, Budget &budget, int level) {
  const size_t before = out.size();
  const auto text = [&](const std::string &t) { out += nlohmann::json(t).dump(); };
  const auto break_line = [&](int to) {
    if (indent) out += '\n', out.append(size_t(*indent * to), ' ');
  };
  const auto all = [&](const auto &items, const char *ends, auto one) {
    out += ends[0];
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) out += indent ? "," : ", ";
      break_line(level + 1);
      one(items[i]);
      budget.spend(1);
    }
    if (!items.empty()) break_line(level);
    out += ends[1];
  };
  const auto inner = [&](const Value &v) { print_json(v, indent, out, budget, level + 1); };
  if (std::holds_alternative<None>(value.is)) out += "null";
  else if (auto *b = std::get_if<bool>(&value.is)) out += *b ? "true" : "false";
  else if (auto *d = std::get_if<double>(&value.is))
    out += std::isnan(*d) ? "NaN" : std::isinf(*d) ? (*d < 0 ? "-Infinity" : "Infinity") : printed_real(*d);
  else if (value.integer()) out += std::to_string(*value.integer());
  else if (value.text()) text(*value.text());
  else if (value.sequence() && value.sequence()->kind <= Sequence::kTuple) all(value.sequence()->items, "[]", inner);
  else if (value.dict())
    all(value.dict()->items, "{}", [&](auto &item) {
      if (item.first.depth() || item.first.undefined())
        throw std::runtime_error(fmt::format("tojson: a {} is no key", kind_of(item.first)));
      std::string key;
      print_json(item.first, {}, key, budget);
      item.first.text() ? void(out += key) : text(key);
      out += ": ";
      inner(item.second);
    });
  else throw std::runtime_error(fmt::format("tojson: a {} is no JSON", kind_of(value)));
  budget.spend(1 + out.size() - before);
  check_bytes(out.size());
}

std::vector<Value> items_of(const Value &value, Budget &budget) {
  if (value.undefined()) return {};
  std::vector<Value> items;
  if (value.text()) {
    const auto parts = characters(*value.text());
    items.reserve(parts.size());
    for (std::string_view part : parts) items.push_back(budget.text(std::string(part)));
  } else if (value.dict()) {
    for (auto &item : value.dict()->items) items.push_back(item.first);
  } else if (const Sequence *all = value.sequence()) {
    const bool gone = all->kind == Sequence::kIterator && std::exchange(all->used, true);
    if (!gone) items = all->items;
  } else {
    throw std::runtime_error(fmt::format("a {} has no items", kind_of(value)));
  }
  budget.spend(kItem * items.size());
  return items;
}

void fail_undefined(const Undefined &value) { throw std::runtime_error(*value.why); }

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t length(std::string_view text) {
  return size_t(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  check_items(length(text));
  out.reserve(length(text));
  while (!text.empty()) {
    const size_t bytes = text::first_character(text).bytes;
    out.push_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return out;
}

std::string_view stripped(std::string_view text, bool left, bool right, std::optional<std::string_view> which) {
  const auto goes = [&](std::string_view c) {
    return which ? which->find(c) != which->npos : is_space(text::first_character(c).code);
  };
  while (left && !text.empty() && goes(text.substr(0, text::first_character(text).bytes)))
    text.remove_prefix(text::first_character(text).bytes);
  while (right && !text.empty()) {
    size_t at = text.size() - 1;
    while (at && (text[at] & 0xC0) == 0x80) --at;
    if (!goes(text.substr(at))) break;
    text.remove_suffix(text.size() - at);
  }
  return text;
}

size_t found_at(std::string_view text, std::string_view what, size_t from) {
  if (from > text.size()) return text.npos;
  if (what.empty()) return from;
  const void *found = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found ? size_t(static_cast<const char *>(found) - text.data()) : text.npos;
}

}  // namespace opgraft::llama
