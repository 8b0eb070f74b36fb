// Filters and tests of a chat template.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "infer/cli/llama/template_expression.h"
#include "infer/cli/text/utf8.h"

namespace opgraft::llama {
namespace {

using Given = std::vector<std::optional<Value>>;

Value missing(const char *why) { return Undefined{std::make_shared<const std::string>(why)}; }
bool flag(const std::optional<Value> &given) { return given && truth(*given); }

std::string or_else(const std::optional<Value> &given, const char *otherwise, Budget &budget) {
  return given ? printed(*given, budget) : otherwise;
}

size_t size_of(const Value &value) {
  if (value.undefined()) return 0;
  if (value.text()) return length(*value.text());
  if (value.dict()) return value.dict()->items.size();
  if (auto *loop = std::get_if<std::shared_ptr<const Loop>>(&value.is)) return (*loop)->over->items.size();
  if (!value.sequence() || value.sequence()->kind == Sequence::kIterator)
    throw std::runtime_error(fmt::format("a {} has no length", kind_of(value)));
  return value.sequence()->items.size();
}

// By a path as "function.name" or "0".
Value by_path(Evaluator &e, Value of, const Value &path, const std::optional<Value> &otherwise) {
  const std::string all = path.text() ? *path.text() : printed(path, e.budget);
  for (size_t at = 0; at <= all.size();) {
    const size_t end = std::min(all.find('.', at), all.size());
    const std::string part = all.substr(at, end - at);
    int64_t number = 0;
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    if (digits && std::from_chars(part.data(), part.data() + part.size(), number).ec != std::errc())
      throw std::runtime_error(fmt::format("{} does not fit 64 bits", part));
    of = e.item(of, digits ? Value(number) : e.budget.text(part));
    if (otherwise && of.undefined()) of = *otherwise;
    at = end + 1;
  }
  return of;
}

std::optional<Value> take(Arguments &given, std::string_view name) {
  const auto found = std::ranges::find(given.named, name, [](auto &n) { return n.first; });
  if (found == given.named.end()) return std::nullopt;
  Value value = std::move(found->second);
  given.named.erase(found);
  return value;
}

Value map(Evaluator &e, const Value &of, Arguments given) {
  std::vector<Value> items;
  const auto path = given.list.empty() ? take(given, "attribute") : std::nullopt;
  const auto otherwise = path ? take(given, "default") : std::nullopt;
  const bool has_default = otherwise && !std::holds_alternative<None>(otherwise->is);
  if (path && !given.named.empty()) throw std::runtime_error("map takes attribute and default");
  if (!path && given.list.empty()) throw std::runtime_error("map takes a filter or an attribute");
  const Arguments rest{std::vector<Value>(given.list.begin() + (path ? 0 : 1), given.list.end()), given.named};
  for (const Value &item : items_of(of, e.budget))
    items.push_back(path ? by_path(e, item, *path, has_default ? otherwise : std::nullopt)
                         : e.filter(text_of(given.list[0], "map: the filter"), item, rest));
  return e.budget.sequence(Sequence::kIterator, std::move(items));
}

// select, reject, selectattr, rejectattr
Value select(Evaluator &e, const Value &of, const Arguments &given, bool wanted, bool by_attribute) {
  const size_t named = by_attribute ? 1 : 0;
  if (given.list.size() < named) throw std::runtime_error("selectattr takes an attribute");
  const bool tests = given.list.size() > named;
  const Arguments rest{std::vector<Value>(given.list.begin() + ptrdiff_t(named + tests), given.list.end()),
                       given.named};
  std::vector<Value> items;
  for (Value &item : items_of(of, e.budget)) {
    const Value held = by_attribute ? by_path(e, item, given.list[0], {}) : item;
    const bool holds = tests ? e.test(text_of(given.list[named], "the test"), held, rest) : truth(held);
    if (holds == wanted) items.push_back(std::move(item));
  }
  return e.budget.sequence(Sequence::kIterator, std::move(items));
}

// What std::from_chars reads of a number as Python has it, with white space, `_` and `+`; empty for other texts.
std::string plain_number(std::string_view text) {
  text = stripped(text);
  bool other = false;  // digits of other scripts lie from U+0660, and none from U+2000 to U+A61F
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(text::first_character(rest).bytes)) {
    const char32_t c = text::first_character(rest).code;
    if (c >= 0x80 && (c < 0x660 || (c >= 0x2000 && c < 0xA620))) return {};
    other = other || c >= 0x80;
  }
  if (other) throw std::runtime_error("numbers in other digits are not known here");
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != '_' || !i || i + 1 == text.size() || !isdigit(text[i - 1]) || !isdigit(text[i + 1]))
      plain += text[i];
  return plain;
}

// All of a text as a number; nothing for other texts.
template <class T> std::optional<T> number_in(const std::string &plain) {
  T value{};
  const char *last = plain.data() + plain.size();
  const auto [end, error] = std::from_chars(plain.data(), last, value);
  if (plain.empty() || end != last || plain.find('(') != plain.npos) return std::nullopt;
  if (error == std::errc::result_out_of_range) throw std::runtime_error(fmt::format("{} is out of range", plain));
  return value;
}

Value to_integer(const Value &of, const std::optional<Value> &otherwise) {
  if (of.undefined()) fail_undefined(*of.undefined());
  if (of.integer()) return *of.integer();
  const std::string plain = of.text() ? plain_number(*of.text()) : std::string();
  if (const auto whole = number_in<int64_t>(plain)) return *whole;
  const auto real = of.number() ? std::optional(of.real()) : number_in<double>(plain);
  if (!real || (of.text() && !std::isfinite(*real))) return otherwise.value_or(int64_t(0));
  if (!(std::abs(*real) < 0x1p63)) throw std::runtime_error(fmt::format("int: {} does not fit 64 bits", *real));
  return int64_t(*real);
}

Value to_real(const Value &of, const std::optional<Value> &otherwise) {
  if (of.undefined()) fail_undefined(*of.undefined());
  if (of.number()) return of.real();
  const auto found = of.text() ? number_in<double>(plain_number(*of.text())) : std::nullopt;
  return found ? Value(*found) : otherwise.value_or(0.0);
}

std::string titled(const std::string &text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto parts = [&](size_t i) {
      return std::string_view("-({[<").find(text[i]) != std::string_view::npos ||
             is_space(text::first_character(std::string_view(text).substr(i)).code);
    };
    size_t end = at;
    const bool between = parts(at);
    while (end < text.size() && parts(end) == between)
      end += text::first_character(std::string_view(text).substr(end)).bytes;
    const std::string_view part = std::string_view(text).substr(at, end - at);
    out += between ? std::string(part) : with_case(part, Case::kUpper, Case::kLower);
    at = end;
  }
  return out;
}

std::string indented(const std::string &text, const Given &g, Budget &budget) {
  const int64_t width = g[0] && !g[0]->text() ? integer_of(*g[0], "indent: width") : 4;
  if (width > 1000) throw std::runtime_error("indent: more than 1000");
  const std::string margin =
      g[0] && g[0]->text() ? *g[0]->text() : std::string(size_t(std::max<int64_t>(width, 0)), ' ');
  std::string out = flag(g[1]) ? margin : "";
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    budget.spend(margin.size() + 1);
    if (at) out += '\n';
    if (at && (end > at || flag(g[2]))) out += margin;
    out += text.substr(at, end - at);
    at = end + 1;
  }
  return out;
}

struct Filter {
  std::vector<std::string_view> names;  // of its arguments
  size_t least;
  Value (*run)(Evaluator &, const Value &, const Given &);
};

const std::unordered_map<std::string_view, Filter> &filters() {
  using E = Evaluator;
  using V = const Value;
  using G = const Given;
  static const auto count = [](E &, V &v, G &) { return Value(int64_t(size_of(v))); };
  static const auto otherwise = [](E &, V &v, G &g) {
    const bool gone = v.undefined() || (flag(g[1]) && !truth(v));
    return !gone ? v : g[0] ? *g[0] : Value(Text(std::make_shared<const std::string>()));
  };
  static const std::unordered_map<std::string_view, Filter> all = {
      {"length", {{}, 0, count}},
      {"count", {{}, 0, count}},
      {"default", {{"default_value", "boolean"}, 0, otherwise}},
      {"d", {{"default_value", "boolean"}, 0, otherwise}},
      {"string", {{}, 0, [](E &e, V &v, G &) { return e.budget.text(printed(v, e.budget)); }}},
      {"upper",
       {{},
        0,
        [](E &e, V &v, G &) { return e.budget.text(with_case(printed(v, e.budget), Case::kUpper, Case::kUpper)); }}},
      {"lower",
       {{},
        0,
        [](E &e, V &v, G &) { return e.budget.text(with_case(printed(v, e.budget), Case::kLower, Case::kLower)); }}},
      {"capitalize",
       {{},
        0,
        [](E &e, V &v, G &) { return e.budget.text(with_case(printed(v, e.budget), Case::kTitle, Case::kLower)); }}},
      {"title", {{}, 0, [](E &e, V &v, G &) { return e.budget.text(titled(printed(v, e.budget))); }}},
      {"trim",
       {{"chars"},
        0,
        [](E &e, V &v, G &g) {
          std::optional<std::string_view> which;
          if (g[0] && !std::holds_alternative<None>(g[0]->is)) which = text_of(*g[0], "trim: chars");
          const std::string text = printed(v, e.budget);
          e.budget.spend(which ? text.size() * which->size() : 0);
          return e.budget.text(std::string(stripped(text, true, true, which)));
        }}},
      {"replace",
       {{"old", "new", "count"},
        2,
        [](E &e, V &v, G &g) {
          const bool all = !g[2] || std::holds_alternative<None>(g[2]->is);
          const std::string old = printed(*g[0], e.budget), with = printed(*g[1], e.budget);
          return e.budget.text(
              replaced(printed(v, e.budget), old, with, all ? -1 : integer_of(*g[2], "replace: count"), e.budget));
        }}},
      {"join",
       {{"d", "attribute"},
        0,
        [](E &e, V &v, G &g) {
          auto items = items_of(v, e.budget);
          if (g[1] && !std::holds_alternative<None>(g[1]->is))
            for (Value &item : items) item = by_path(e, item, *g[1], {});
          return e.budget.text(joined(items, or_else(g[0], "", e.budget), e.budget));
        }}},
      {"first",
       {{},
        0,
        [](E &e, V &v, G &) {
          const auto items = items_of(v, e.budget);
          return items.empty() ? missing("no first item") : items.front();
        }}},
      {"last",
       {{},
        0,
        [](E &e, V &v, G &) {
          size_of(v);  // an iterator has none
          const auto items = items_of(v, e.budget);
          return items.empty() ? missing("no last item") : items.back();
        }}},
      {"list", {{}, 0, [](E &e, V &v, G &) { return e.budget.list(items_of(v, e.budget)); }}},
      {"reverse",
       {{},
        0,
        [](E &e, V &v, G &) {
          auto items = items_of(v, e.budget);
          std::ranges::reverse(items);
          return v.text() ? e.budget.text(joined(items, "", e.budget))
                          : e.budget.sequence(Sequence::kIterator, std::move(items));
        }}},
      {"items",
       {{},
        0,
        [](E &e, V &v, G &) {
          if (!v.undefined() && !v.dict())
            throw std::runtime_error(fmt::format("items takes a dict, got {}", kind_of(v)));
          std::vector<Value> items;
          if (v.dict())
            for (auto &[key, held] : v.dict()->items) items.push_back(e.budget.sequence(Sequence::kTuple, {key, held}));
          return e.budget.sequence(Sequence::kIterator, std::move(items));
        }}},
      {"int", {{"default"}, 0, [](E &, V &v, G &g) { return to_integer(v, g[0]); }}},
      {"float", {{"default"}, 0, [](E &, V &v, G &g) { return to_real(v, g[0]); }}},
      {"abs",
       {{},
        0,
        [](E &e, V &v, G &) {
          if (!v.number()) throw std::runtime_error(fmt::format("abs of a {}", kind_of(v)));
          return v.integer() ? *v.integer() < 0 ? arithmetic("-", int64_t(0), v, e.budget) : Value(*v.integer())
                             : Value(std::abs(v.real()));
        }}},
      {"indent",
       {{"width", "first", "blank"},
        0,
        [](E &e, V &v, G &g) { return e.budget.text(indented(text_of(v, "indent"), g, e.budget)); }}},
      {"tojson",
       {{"indent"},
        0,
        [](E &e, V &v, G &g) {
          std::optional<int64_t> indent;
          if (g[0] && !std::holds_alternative<None>(g[0]->is))
            indent = std::max<int64_t>(integer_of(*g[0], "indent"), 0);
          if (indent.value_or(0) > 100) throw std::runtime_error("tojson: indent of more than 100");
          std::string out;
          print_json(v, indent, out, e.budget);
          return e.budget.text(std::move(out));
        }}},
  };
  return all;
}

struct Test {
  size_t arguments;
  bool (*run)(Evaluator &, const Value &, const Given &);
};

template <class T> bool holds(Evaluator &, const Value &v, const Given &) { return std::holds_alternative<T>(v.is); }

bool iterates(const Value &v) {
  return v.undefined() || v.text() || v.sequence() || v.dict() ||
         std::holds_alternative<std::shared_ptr<const Loop>>(v.is);
}

// Texts of one case, with a letter.
bool is_case(Evaluator &e, const Value &v, bool upper) {
  const std::string text = printed(v, e.budget);
  bool letter = false;
  for (char c : text) {
    if (c & 0x80) throw std::runtime_error("the case of a text that is not ASCII is not known here");
    if (upper ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z') return false;
    letter = letter || isalpha(c);
  }
  return letter;
}

int64_t remainder(Evaluator &e, const Value &v, const Value &by) {
  return *arithmetic("%", int64_t(integer_of(v, "the number")), int64_t(integer_of(by, "the divisor")), e.budget)
              .integer();
}

const std::unordered_map<std::string_view, Test> &tests() {
  using E = Evaluator;
  using V = const Value;
  using G = const Given;
  static const std::unordered_map<std::string_view, Test> all = [] {
    std::unordered_map<std::string_view, Test> made = {
        {"defined", {0, [](E &, V &v, G &) { return !v.undefined(); }}},
        {"undefined", {0, holds<Undefined>}},
        {"none", {0, holds<None>}},
        {"boolean", {0, holds<bool>}},
        {"true", {0, [](E &, V &v, G &) { return std::holds_alternative<bool>(v.is) && truth(v); }}},
        {"false", {0, [](E &, V &v, G &) { return std::holds_alternative<bool>(v.is) && !truth(v); }}},
        {"integer", {0, holds<int64_t>}},
        {"float", {0, holds<double>}},
        {"number", {0, [](E &, V &v, G &) { return v.number(); }}},
        {"string", {0, holds<Text>}},
        {"mapping", {0, holds<std::shared_ptr<const Dict>>}},
        {"iterable", {0, [](E &, V &v, G &) { return iterates(v); }}},
        {"sequence",
         {0,
          [](E &, V &v, G &) {
            return v.undefined() || v.text() || v.dict() || (v.sequence() && v.sequence()->kind <= Sequence::kRange);
          }}},
        {"callable", {0, holds<const Statement *>}},
        {"lower", {0, [](E &e, V &v, G &) { return is_case(e, v, false); }}},
        {"upper", {0, [](E &e, V &v, G &) { return is_case(e, v, true); }}},
        {"odd", {0, [](E &e, V &v, G &) { return remainder(e, v, int64_t(2)) == 1; }}},
        {"even", {0, [](E &e, V &v, G &) { return remainder(e, v, int64_t(2)) == 0; }}},
        {"divisibleby", {1, [](E &e, V &v, G &g) { return remainder(e, v, *g[0]) == 0; }}},
        {"in", {1, [](E &e, V &v, G &g) { return compared("in", v, *g[0], e.budget); }}},
    };
    const std::pair<Test, std::vector<std::string_view>> comparisons[] = {
        {{1, [](E &e, V &v, G &g) { return compared("==", v, *g[0], e.budget); }}, {"==", "eq", "equalto"}},
        {{1, [](E &e, V &v, G &g) { return compared("!=", v, *g[0], e.budget); }}, {"!=", "ne"}},
        {{1, [](E &e, V &v, G &g) { return compared("<", v, *g[0], e.budget); }}, {"<", "lt", "lessthan"}},
        {{1, [](E &e, V &v, G &g) { return compared("<=", v, *g[0], e.budget); }}, {"<=", "le"}},
        {{1, [](E &e, V &v, G &g) { return compared(">", v, *g[0], e.budget); }}, {">", "gt", "greaterthan"}},
        {{1, [](E &e, V &v, G &g) { return compared(">=", v, *g[0], e.budget); }}, {">=", "ge"}}};
    for (auto &[test, names] : comparisons)
      for (std::string_view name : names) made.emplace(name, test);
    return made;
  }();
  return all;
}

}  // namespace

Value Evaluator::filter(std::string_view name, const Value &of, Arguments given) {
  const Deeper deeper(*this);
  if (name == "map") return map(*this, of, std::move(given));
  if (name == "select" || name == "reject") return select(*this, of, given, name == "select", false);
  if (name == "selectattr" || name == "rejectattr") return select(*this, of, given, name == "selectattr", true);
  const auto found = filters().find(name);
  if (found == filters().end()) throw std::runtime_error(fmt::format("the filter '{}' is not known here", name));
  budget.spend(1);
  return found->second.run(*this, of, bound(name, std::move(given), found->second.names, found->second.least));
}

bool Evaluator::test(std::string_view name, const Value &of, Arguments given) {
  const auto found = tests().find(name);
  if (found == tests().end()) throw std::runtime_error(fmt::format("the test '{}' is not known here", name));
  const size_t n = found->second.arguments;
  return found->second.run(*this, of, bound(name, std::move(given), std::vector<std::string_view>(n), n));
}

}  // namespace opgraft::llama
