// A chat template as a tree.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "infer/cli/llama/template_value.h"

namespace opgraft::llama {

struct Expression {
  // What `parts` hold: kCall the function, then arguments; kFilter and kTest the value, then arguments; kCompare the
  // values between `operators`; kSlice the value and three bounds that may be null; kDict keys and values in turn; kIf
  // the test, the value, and the other one if there is one.
  enum Kind {
    kConstant,
    kName,
    kList,
    kTuple,
    kDict,
    kAttribute,
    kItem,
    kSlice,
    kCall,
    kFilter,
    kTest,
    kNot,
    kNegative,
    kPositive,
    kArithmetic,
    kCompare,
    kAnd,
    kOr,
    kConcat,
    kIf
  } kind;
  int line, depth = 1;
  std::string name;  // of a name, attribute, filter, test or operator
  Value constant;
  std::vector<std::unique_ptr<Expression>> parts;
  std::vector<std::string> operators;                                      // of comparisons
  std::vector<std::pair<std::string, std::unique_ptr<Expression>>> named;  // arguments
};
using ExpressionPtr = std::unique_ptr<Expression>;

struct Statement {
  // What `expressions` and `bodies` hold: kIf its tests and what follows each, then what follows else; kFor what it
  // goes through, and its test or null, its body and else's; kSet the value; kSetBlock and kFilter the filters around
  // an empty name, or null, and the body; kMacro the defaults, of the last arguments, and the body.
  enum Kind { kData, kPrint, kIf, kFor, kSet, kSetBlock, kFilter, kMacro } kind;
  int line = 0;
  std::string text = {};                  // data; the name of a macro; of what namespace an attribute is set
  std::vector<std::string> targets = {};  // of for and set, arguments of a macro
  bool unpacks = false;                   // the targets are a tuple
  std::vector<ExpressionPtr> expressions = {};
  std::vector<std::vector<Statement>> bodies = {};
};

constexpr size_t kMostSource = 1 << 18;  // bytes
constexpr int kDeepestTree = 150;

// `source` must be UTF-8. Throws std::runtime_error with the line.
std::vector<Statement> parsed(std::string_view source);

}  // namespace opgraft::llama
