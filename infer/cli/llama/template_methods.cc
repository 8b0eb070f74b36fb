// Methods of texts and dicts in a chat template.
#include <fmt/format.h>

#include <locale.h>
#include <wctype.h>

#include <algorithm>

#include "infer/cli/llama/template_expression.h"
#include "infer/cli/text/utf8.h"

namespace opgraft::llama {
namespace {

using Given = std::vector<std::optional<Value>>;

bool is_letter(char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

bool within(char32_t c, std::initializer_list<std::pair<char32_t, char32_t>> ranges) {
  return std::ranges::any_of(ranges, [&](auto &r) { return c >= r.first && c <= r.second; });
}

// The C library maps one character to one. Where Python maps to several or looks around, the text is refused.
std::string cased(std::string_view text, Case to) {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  std::string out;
  while (!text.empty()) {
    const text::Character c = text::first_character(text);
    const std::string_view as_is = text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
    const bool many = to == Case::kLower ? within(c.code, {{0x130, 0x130}, {0x3A3, 0x3A3}})
                                         : within(c.code, {{0xDF, 0xDF},
                                                           {0x149, 0x149},
                                                           {0x1F0, 0x1F0},
                                                           {0x390, 0x390},
                                                           {0x3B0, 0x3B0},
                                                           {0x587, 0x587},
                                                           {0x1E96, 0x1E9A},
                                                           {0x1F50, 0x1FFC},
                                                           {0xFB00, 0xFB17}});
    const bool title = to == Case::kTitle && within(c.code, {{0x1C4, 0x1CC}, {0x1F1, 0x1F3}, {0x10D0, 0x10FF}});
    if (c.code < 0x80) {
      const char ascii = as_is[0];
      out += !is_letter(ascii) ? ascii : to == Case::kLower ? char(ascii | 0x20) : char(ascii & ~0x20);
    } else if (many || title || !locale) {
      throw std::runtime_error(fmt::format("upper and lower case of '{}' are not known here", as_is));
    } else {
      out += text::to_utf8(
          char32_t(to == Case::kLower ? towlower_l(wint_t(c.code), locale) : towupper_l(wint_t(c.code), locale)));
    }
  }
  return out;
}

// str.title: other than the filter, a word is letters.
std::string titled(std::string text) {
  bool inside = false;
  for (char &c : text) {
    if (c & 0x80) throw std::runtime_error("title of a text that is not ASCII is not known here");
    if (is_letter(c)) c = inside ? char(c | 0x20) : char(c & ~0x20);
    inside = is_letter(c);
  }
  return text;
}

Value split(const std::string &text, const Given &given, Budget &budget) {
  const bool blank = !given[0] || std::holds_alternative<None>(given[0]->is);
  int64_t left = given[1] ? integer_of(*given[1], "split: maxsplit") : -1;
  std::vector<Value> parts;
  std::string_view rest = text;
  budget.spend(text.size());
  const auto add = [&](std::string_view part) { parts.push_back(budget.text(std::string(part))); };
  if (blank) {
    for (rest = stripped(rest, true, false); !rest.empty(); rest = stripped(rest, true, false)) {
      size_t end = left-- ? 0 : rest.size();
      while (end < rest.size() && !is_space(text::first_character(rest.substr(end)).code))
        end += text::first_character(rest.substr(end)).bytes;
      add(rest.substr(0, end));
      rest.remove_prefix(end);
    }
  } else {
    const std::string &by = text_of(*given[0], "split: sep");
    if (by.empty()) throw std::runtime_error("split: sep is empty");
    for (size_t at = found_at(rest, by); left-- && at != rest.npos; at = found_at(rest, by)) {
      add(rest.substr(0, at));
      rest.remove_prefix(at + by.size());
    }
    add(rest);
  }
  return budget.list(std::move(parts));
}

bool begins(const std::string &text, const Value &with, bool end, Budget &budget) {
  if (const Sequence *any = with.sequence(); any && any->kind == Sequence::kTuple)
    return std::ranges::any_of(any->items, [&](auto &one) { return begins(text, one, end, budget); });
  const std::string &part = text_of(with, end ? "endswith" : "startswith");
  budget.spend(part.size() / 8 + 1);
  return end ? text.ends_with(part) : text.starts_with(part);
}

struct Method {
  std::vector<std::string_view> names;  // of its arguments
  size_t least;
  Value (*run)(Evaluator &, const std::string &, const Given &);
};

template <bool left, bool right> Value strip(Evaluator &e, const std::string &text, const Given &given) {
  std::optional<std::string_view> which;
  if (given[0] && !std::holds_alternative<None>(given[0]->is)) which = text_of(*given[0], "strip");
  e.budget.spend(text.size() * (which ? 1 + which->size() : 1));
  return e.budget.text(std::string(stripped(text, left, right, which)));
}

const std::unordered_map<std::string_view, Method> &methods() {
  static const std::unordered_map<std::string_view, Method> all = {
      {"strip", {{""}, 0, strip<true, true>}},
      {"lstrip", {{""}, 0, strip<true, false>}},
      {"rstrip", {{""}, 0, strip<false, true>}},
      {"upper",
       {{},
        0,
        [](Evaluator &e, const std::string &t, const Given &) {
          return e.budget.text(with_case(t, Case::kUpper, Case::kUpper));
        }}},
      {"lower",
       {{},
        0,
        [](Evaluator &e, const std::string &t, const Given &) {
          return e.budget.text(with_case(t, Case::kLower, Case::kLower));
        }}},
      {"title", {{}, 0, [](Evaluator &e, const std::string &t, const Given &) { return e.budget.text(titled(t)); }}},
      {"capitalize",
       {{},
        0,
        [](Evaluator &e, const std::string &t, const Given &) {
          return e.budget.text(with_case(t, Case::kTitle, Case::kLower));
        }}},
      {"split",
       {{"sep", "maxsplit"},
        0,
        [](Evaluator &e, const std::string &t, const Given &g) { return split(t, g, e.budget); }}},
      {"startswith",
       {{""},
        1,
        [](Evaluator &e, const std::string &t, const Given &g) { return Value(begins(t, *g[0], false, e.budget)); }}},
      {"endswith",
       {{""},
        1,
        [](Evaluator &e, const std::string &t, const Given &g) { return Value(begins(t, *g[0], true, e.budget)); }}},
      {"replace",
       {{"", "", ""},
        2,
        [](Evaluator &e, const std::string &t, const Given &g) {
          return e.budget.text(replaced(t, text_of(*g[0], "replace"), text_of(*g[1], "replace"),
                                        g[2] ? integer_of(*g[2], "replace") : -1, e.budget));
        }}},
      {"join",
       {{""},
        1,
        [](Evaluator &e, const std::string &t, const Given &g) {
          const auto items = items_of(*g[0], e.budget);
          for (auto &item : items) text_of(item, "join");
          return e.budget.text(joined(items, t, e.budget));
        }}},
      {"find",
       {{""},
        1,
        [](Evaluator &e, const std::string &t, const Given &g) {
          e.budget.spend(t.size());
          const size_t at = found_at(t, text_of(*g[0], "find"));
          return Value(at == t.npos ? int64_t(-1) : int64_t(length(std::string_view(t).substr(0, at))));
        }}},
      {"count",
       {{""},
        1,
        [](Evaluator &e, const std::string &t, const Given &g) {
          const std::string &what = text_of(*g[0], "count");
          e.budget.spend(t.size());
          int64_t count = 0;
          if (what.empty()) return Value(int64_t(length(t) + 1));
          for (size_t at = found_at(t, what); at != t.npos; at = found_at(t, what, at + what.size())) ++count;
          return Value(count);
        }}},
  };
  return all;
}

// What Python's kinds have, one space around each.
constexpr std::string_view kTextNames =
    " capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha isascii "
    "isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip "
    "maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
    "splitlines startswith strip swapcase title translate upper zfill ";
constexpr std::string_view kDictNames = " clear copy fromkeys get items keys pop popitem setdefault update values ";
constexpr std::string_view kListNames =
    " append clear copy count extend index insert pop remove reverse sort start stop step ";
constexpr std::string_view kNumberNames =
    " as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag is_integer numerator "
    "real "
    "to_bytes ";
constexpr std::string_view kMacroNames = " name arguments catch_kwargs catch_varargs caller explicit_caller ";

}  // namespace

bool has_attribute(const Value &of, std::string_view name) {
  const std::string_view names = of.text()             ? kTextNames
                                 : of.dict()           ? kDictNames
                                 : of.sequence()       ? kListNames
                                 : of.number()         ? kNumberNames
                                 : of.is.index() == 10 ? kMacroNames
                                                       : "";
  return names.find(fmt::format(" {} ", name)) != names.npos;
}

Value called_method(Evaluator &evaluator, const Value &of, const std::string &name, Arguments given) {
  Budget &budget = evaluator.budget;
  if (of.text()) {
    if (const auto found = methods().find(name); found != methods().end()) {
      const Method &m = found->second;
      return m.run(evaluator, *of.text(), bound(name, std::move(given), m.names, m.least));
    }
  } else if (const Dict *dict = of.dict()) {
    if (name == "get") {
      const auto all = bound(name, std::move(given), {"", ""}, 1);
      if (!hashable(*all[0])) throw std::runtime_error(fmt::format("get: a {} is no key", kind_of(*all[0])));
      const Value *found = dict->find(*all[0], budget);
      return found ? *found : all[1].value_or(None());
    }
    if (name == "items" || name == "keys" || name == "values") {
      bound(name, std::move(given), {}, 0);
      std::vector<Value> items;
      for (auto &[key, held] : dict->items)
        items.push_back(name == "items" ? budget.sequence(Sequence::kTuple, {key, held}) : name == "keys" ? key : held);
      return budget.sequence(Sequence::kView, std::move(items));
    }
  }
  throw std::runtime_error(fmt::format("{}.{} is not known here", kind_of(of), name));
}

std::string with_case(std::string_view text, Case first, Case rest) {
  const size_t head = text.empty() ? 0 : text::first_character(text).bytes;
  return cased(text.substr(0, head), first) + cased(text.substr(head), rest);
}

std::string replaced(std::string_view text, std::string_view old, std::string_view with, int64_t count,
                     Budget &budget) {
  std::string out;
  size_t at = 0;
  budget.spend(text.size());
  while (count-- && at <= text.size()) {
    const size_t found = found_at(text, old, at);
    if (found == text.npos) break;
    out += text.substr(at, found - at);
    out += with;
    budget.spend(1 + with.size());
    at = found + old.size();
    if (!old.empty()) continue;
    if (at == text.size()) return out;
    const size_t bytes = text::first_character(text.substr(at)).bytes;  // an empty text is around each character
    out += text.substr(at, bytes);
    at += bytes;
  }
  if (at < text.size()) out += text.substr(at);
  return out;
}

std::string joined(const std::vector<Value> &items, std::string_view by, Budget &budget) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    budget.spend(1 + by.size());
    if (i) out += by;
    print(items[i], false, out, budget);
  }
  return out;
}

std::vector<std::optional<Value>> bound(std::string_view function, Arguments given,
                                        const std::vector<std::string_view> &names, size_t least) {
  if (given.list.size() > names.size())
    throw std::runtime_error(
        fmt::format("{} takes at most {} arguments, got {}", function, names.size(), given.list.size()));
  std::vector<std::optional<Value>> all(names.size());
  std::ranges::move(given.list, all.begin());
  for (auto &[name, value] : given.named) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end() || all[size_t(found - names.begin())])
      throw std::runtime_error(
          fmt::format("{}: the argument '{}' is not known here, or is given twice", function, name));
    all[size_t(found - names.begin())] = std::move(value);
  }
  for (size_t i = 0; i < least; ++i)
    if (!all[i]) throw std::runtime_error(fmt::format("{} takes at least {} arguments, got {}", function, least, i));
  return all;
}

const std::string &text_of(const Value &value, std::string_view what) {
  if (!value.text()) throw std::runtime_error(fmt::format("{} must be a str, got {}", what, kind_of(value)));
  return *value.text();
}

int64_t integer_of(const Value &value, std::string_view what) {
  if (!value.integer()) throw std::runtime_error(fmt::format("{} must be an int, got {}", what, kind_of(value)));
  return *value.integer();
}

}  // namespace opgraft::llama
