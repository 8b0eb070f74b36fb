// What the expressions of a chat template give: Python's values, as far as templates know them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

namespace opgraft::llama {

struct Value;
class Budget;
struct Dict;
struct Loop;
struct Statement;  // a macro is its statement
using Text = std::shared_ptr<const std::string>;
struct None {};
struct Undefined {
  Text why;
};
struct Sequence {
  // A view is what dict.items() gives; an iterator, as filters give them, holds its items once.
  enum Kind { kList, kTuple, kRange, kView, kIterator } kind;
  std::vector<Value> items;
  int depth;
  bool hashable;
  mutable bool used = false;
};
// Namespaces may hold each other: a run owns them.
using Namespace = std::unordered_map<std::string, Value>;

struct Value {
  using Any = std::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const Sequence>,
                           std::shared_ptr<const Dict>, std::shared_ptr<const Loop>, Namespace *, const Statement *>;
  Any is;

  Value() : is(None()) {}
  template <class T>
  requires std::is_constructible_v<Any, T> Value(T value) : is(std::move(value)) {}
  Value(const char *) = delete;
  const Undefined *undefined() const { return std::get_if<Undefined>(&is); }
  const std::string *text() const;  // these three: null for other kinds
  const Sequence *sequence() const;
  const Dict *dict() const;
  std::optional<int64_t> integer() const;  // bool too, as in Python
  bool number() const { return integer() || std::holds_alternative<double>(is); }
  double real() const;  // of a number
  int depth() const;    // how deep lists and the like are nested; 0 for others
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth;
  const Value *find(const Value &key, Budget &budget) const;
  const Value *find(std::string_view key, Budget &budget) const;
};

struct Loop {
  std::shared_ptr<const Sequence> over;
  mutable size_t at = 0;
};

// What a run may still do, in bytes made or looked at: bounds time and memory.
class Budget {
 public:
  explicit Budget(size_t work) : left_(work) {}
  void spend(size_t work);
  // These check length and depth as well.
  Value text(std::string value);
  Value sequence(Sequence::Kind kind, std::vector<Value> items);
  Value list(std::vector<Value> items) { return sequence(Sequence::kList, std::move(items)); }
  Value dict(std::vector<std::pair<Value, Value>> items);

 private:
  size_t left_;
};

constexpr size_t kMostBytes = 1 << 24;  // of one text
constexpr size_t kMostItems = 1 << 20;  // of one list
constexpr int kDeepestValue = 100;

bool truth(const Value &value);
bool hashable(const Value &value);        // may be a key
std::string kind_of(const Value &value);  // for messages, in Python's words
bool same(const Value &a, const Value &b, Budget &budget);
// <0, 0, >0; unordered for NaN; throws where the two have no order.
std::partial_ordering order(const Value &a, const Value &b, Budget &budget);
// Adds to `out` what Python's str() (or, quoted, repr()) gives.
void print(const Value &value, bool quoted, std::string &out, Budget &budget);
std::string printed(const Value &value, Budget &budget);
// As Python's json.dumps without ensure_ascii.
void print_json(const Value &value, std::optional<int64_t> indent, std::string &out, Budget &budget, int level = 0);
// What a for would go through; throws where there is nothing such.
std::vector<Value> items_of(const Value &value, Budget &budget);
[[noreturn]] void fail_undefined(const Undefined &value);

// --- texts, by characters ---
bool is_space(char32_t c);
size_t length(std::string_view text);
std::vector<std::string_view> characters(std::string_view text);  // throws for more than kMostItems
// Without what stands at either end: white space, or the characters of `which`.
std::string_view stripped(std::string_view text, bool left = true, bool right = true,
                          std::optional<std::string_view> which = {});
// As std::string_view::find, in linear time.
size_t found_at(std::string_view text, std::string_view what, size_t from = 0);

}  // namespace opgraft::llama
