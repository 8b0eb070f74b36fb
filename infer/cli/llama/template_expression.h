// Expressions of a chat template, evaluated as Jinja does in its immutable sandbox.
#pragma once

#include <deque>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "infer/cli/llama/template_parser.h"

namespace opgraft::llama {

// What a template says with raise_exception.
struct Raised : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Scope {
  Scope *outer = nullptr;
  std::unordered_map<std::string_view, Value> names;
};

struct Arguments {
  std::vector<Value> list;
  std::vector<std::pair<std::string_view, Value>> named;
};

class Evaluator {
 public:
  Evaluator(size_t work, std::function<Value(const Statement &, Arguments)> macro)
      : budget(work), macro_(std::move(macro)) {}

  Value value(const Expression &e);
  Value name(const std::string &name);
  // By name; throws where there is none, or none here.
  Value filter(std::string_view name, const Value &of, Arguments given);
  bool test(std::string_view name, const Value &of, Arguments given);
  Value item(const Value &of, const Value &key);

  // Counts what is nested at run time.
  struct Deeper {
    explicit Deeper(Evaluator &evaluator);
    ~Deeper() { --depth; }
    int &depth;
  };

  Budget budget;
  Scope *scope = nullptr;
  int line = 1;    // of what was evaluated last
  int macros = 0;  // that are running
  int depth = 0;

 private:
  Value attribute(const Value &of, const std::string &name);
  Value slice(const Expression &e);
  Value call(const Expression &e);
  Value call(const Value &function, const Expression &e);
  Value make_namespace(Arguments given);
  Value compare(const Expression &e);
  Arguments arguments(const Expression &e);

  std::function<Value(const Statement &, Arguments)> macro_;
  std::deque<Namespace> namespaces_;
};

// --- template_operators.cc ---
Value arithmetic(std::string_view op, const Value &a, const Value &b, Budget &budget);
bool compared(std::string_view op, const Value &a, const Value &b, Budget &budget);

// --- template_methods.cc ---
// What a method of a text or a dict gives; `name` must be one.
Value called_method(Evaluator &evaluator, const Value &of, const std::string &name, Arguments given);
// Whether Python's values have such an attribute, known here or not.
bool has_attribute(const Value &of, std::string_view name);
enum class Case { kUpper, kLower, kTitle };
std::string with_case(std::string_view text, Case first, Case rest);  // first: of the first character
std::string replaced(std::string_view text, std::string_view old, std::string_view with, int64_t count, Budget &budget);
// Texts between `by`.
std::string joined(const std::vector<Value> &items, std::string_view by, Budget &budget);

// Arguments of a function in the order of `names` (those before `least` must be given); throws for others.
std::vector<std::optional<Value>> bound(std::string_view function, Arguments given,
                                        const std::vector<std::string_view> &names, size_t least);
const std::string &text_of(const Value &value, std::string_view what);
int64_t integer_of(const Value &value, std::string_view what);

}  // namespace opgraft::llama
