// Patterns of `replaces:`: small programs in primitive names, and their matching.
//
//   What stands in braces, "{" text { "|" text } "}", is one of these texts, whatever they are parts of; settings at
//   the end of one go behind those of the program. spellings() writes every choice out. program := { name "=" call
//   newline } result { "," result } [ "->" setting { "," setting } ]
//              a further result stands on the way to the first, or takes an input that the first takes, too
//   call    := Primitive "(" arg { "," arg } { "," attr "=" want } ")"
//            | Primitive "(" arg "*" { "," attr "=" want } ")"   of any number of inputs, all of them this one
//   arg     := name [output] | number | "_" | call [output]
//   output  := "[" i "]", of several
//   want    := literal | "_" | name of an attribute of the op; where that is a number, of a list of one as well
//   setting := attr "=" literal | attr "=" name | attr "=" "1/" name [ "/" name ] | attr "=" name "*" name
//            | attr "=" "dim(" name "," i ")"
//            | input "=bools(" b ")"                    the op's input is b, a constant of 0 and 1, as bools
//            | attr "=" ["-"] "off(" c "," b ")"        the number that the constant c is where b is 0; else it is 0
//            | "rank(" name ")=" n | "dim(" name "," i ")=dim(" name "," j ")", conditions
//            | "dim(" name "," i ")=" n                 this dimension is the number
//            | "part(" a "," x "," axis ")=" i "/" n    a is the i-th of n equal parts of x along the axis
//            | "every(" a "," x "," axis ")=" i "/" n   a is the elements i, i + n, i + 2n, ... of x
//            | "first(" a "," x "," axis ")"            a is the first elements of x along the axis, however many
//            | "last(" a "," x "," axis ")"             a is the last ones
//            | "repeats(" a "," x "," axis ")"          a is x with each element several times, one after another, or
//                                                       in a dimension of their own behind the axis
//                                                       of these five an x that no call takes is looked for, among
//                                                       what a is made of by operators that only move values
//            | "shared(" label ")"                      others may use it as well: then it stays for them
//            | "dtype(" name ")=" dtype { "/" dtype }   one of these
//            | "shape(" name ")=shape(" name ")"        as far as they are known
//            | "density(" weight ")<" number            a constant of which less than this share is not 0
//            | "row(" name ")"                          all its dimensions but the last are 1
//            | "rows(" name ")>=" n                     at least so many: of all dimensions but the last
//            | "columns(" name ")>=" n                  the last dimension
//            | "columns(" name ")=" ["1/"] number       it is the constant, or 1 over it
//            | "open(" name ")"                         a dimension of it is not known
//            | "along(" a "," x [ "," axis ] ")"        one number for each index of this axis of x, or of any one:
//                                                       that many, and 1 in a's other dimensions
//            | "fixed(" name ")"                        it is made of constants and Parameters alone
//            | "causal(" mask ")"                       a constant: 0 where query s of S sees one of T - S + 1 + s keys
//            | "causal(" ["-"] mask "," fill ")"        the same of bools, true there, or false, and of their fill
//            | "late"                                   after the other rules, which may make more of what it takes
//            | "turns(" m ")=" ["-"] "halves" | "pairs" a constant: x m is (-b, a) of x's halves a and b, or of every
//                                                       second element; with a minus (b, -a)
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "infer/graph.h"

namespace opgraft::passes {

struct Pattern {
  struct Arg {
    enum Kind { kAny, kVariable, kNumber, kNode, kConstant, kKnown } kind = kAny;
    std::string name{};  // kVariable
    double number = 0;
    int node = -1, output = 0;     // kNode
    Tensor constant{};             // kConstant: the same elements
    std::vector<int64_t> known{};  // kKnown: the same numbers, symbols included
  };
  struct Want {
    enum Kind { kAnything, kLiteral, kBind } kind = kAnything;
    AttrValue literal;
    std::string name;  // kBind
  };
  struct Call {
    std::string op, label;  // label: the name the program gives it, or empty
    std::vector<Arg> args;
    std::vector<std::pair<std::string, Want>> attrs;
    bool all = false;                // its one argument is every input
    std::optional<TensorType> type;  // of the first output, where it must be this one
  };
  struct Setting {
    enum Kind {
      kLiteral,
      kName,
      kInverse,
      kProduct,
      kDim,
      kBools,
      kOff,
      kRank,
      kSameDim,
      kShared,
      kDtype,
      kSameShape,
      kDensity,
      kSize,
      kRow,
      kRows,
      kColumns,
      kCount,
      kOpen,
      kAlong,
      kFixed,
      kCausal,
      kTurns,
      kPart,
      kEvery,
      kFirst,
      kLast,
      kRepeats
    } kind = kLiteral;
    std::string attr, name;
    AttrValue literal;    // kDtype: their numbers; kDensity: the share
    int64_t index = 0;    // of a dimension; kRows, kColumns: the least number
    std::string other{};  // kSameDim, kSameShape, kProduct, kInverse, kCount, kOff, kCausal
    int64_t other_index = 0;
    int64_t part = 0, count = 0;  // kPart, kEvery; kSize
    bool inverse = false;         // kCount; kTurns, kCausal: the other way round; kOff: minus that number
    bool pairs = false;           // kTurns
    bool any_axis = false;        // kAlong: no axis is given
    bool condition() const { return kind >= kRank; }
    bool arranged() const { return kind >= kPart; }
    bool silent() const { return kind >= kDtype && kind <= kTurns; }  // see applies
    std::string text() const;                                         // of one that is arranged, shared, or silent
    // A condition that is a name and what is in its brackets.
    static std::optional<Kind> named(const std::string &name);
  };
  std::vector<Call> calls;
  std::vector<Arg> results;  // the first is a call
  std::vector<Setting> settings;
  std::map<std::string, Arg> labels;
  bool late = false;
  bool siblings() const;                // whether the first result does not lead to every other
  bool sought(const Setting &s) const;  // whether what its value is made of is not matched, but looked for
};

// Throws Error naming `origin` and what was expected where.
Pattern parse_pattern(const std::string &program, const std::string &origin);
// An op's manifest by its name; null where there is none.
using FindOp = std::function<const Manifest *(const std::string &name)>;
FindOp find_in(const Registry &registry);
// One of the op's `replaces:`. Throws as well where the op cannot be made of what it binds, or where a name in it is
// nothing of the op's: it would match anything and be dropped. strict: also where a call can match no registered op.
Pattern op_pattern(const std::string &program, const Manifest &op, const FindOp &find, bool strict = false);
std::string quoted(const std::string &program);  // on one line
// The programs that one with alternatives stands for: Mul(x, {a|b}) is Mul(x, a) and Mul(x, b). At most kMostSpellings.
constexpr size_t kMostSpellings = 1024;
std::vector<std::string> spellings(const std::string &program, const std::string &origin);
// A graph as a pattern; its inputs become variables by name.
enum class Fit {
  kShape,  // operators and how they hang together: what can be said before dtypes and ranks are known
  kGiven,  // and attributes and constants as they stand
  kExact,  // and the types of results: the graph was traced for the very values it is matched with
};
Pattern pattern_of(const Graph &graph, Fit fit = Fit::kGiven);

struct Match {
  std::vector<NodeId> nodes;               // by call; behind them those that lead to what is looked for
  std::map<std::string, ValueId> values;   // variable -> value
  std::map<std::string, AttrValue> attrs;  // attribute name -> value bound
  std::vector<ValueId> results;
};

using Users = std::vector<std::vector<NodeId>>;  // by value, as Graph::users gives them
// Matches with the first result at output 0 of `root`. Names in `attributes` (of the op that goes in)
// bind scalar constants or attributes; all other names bind values.
bool match(const Graph &graph, const Users &users, const Pattern &pattern, const Manifest *target, NodeId root,
           Match &out);
// Binds what conditions look for: the smallest value of a shape that fits. The nodes that lead from it become part of
// the match; whether they move the elements so is asked after that: see check_arranged.
bool find_sources(const Graph &graph, const Pattern &pattern, Match &m);
// Whether ranks, dtypes, shapes, densities and masks are what the pattern asks for. Where not, it is meant for other
// graphs: no more is said than of what does not match.
bool applies(const Graph &graph, const Pattern &pattern, const Match &m);
// The attributes of `op` in place of the match: those bound and those the program sets. Throws Error where one is
// not known, or a condition on a rank does not hold.
Attrs attributes(const Graph &graph, const Pattern &pattern, const Match &m, const Op &op);
// Binds the op's inputs that are made of constants.
void make_inputs(Graph &graph, const Pattern &pattern, Match &m);

// A constant of one element as a number; false: it is none, or may change.
bool scalar(const Value &v, double &out);
// Query s of S, at least two, sees the first T - S + 1 + s keys of the constant: 0 there, and what leaves no weight
// elsewhere.
bool causal(const Value &mask);
// The same of bools, `sees` where it does, and of what hidden scores become.
bool causal(const Value &mask, bool sees, double fill);
// A constant of 0 and 1 as bools; empty: it is none, or may change.
Tensor bools(const Value &v);
// The number that the constant c is where b, of 0 and 1, is 0; nothing where it is not 0 elsewhere, or several.
std::optional<double> off(const Value &c, const Value &b);
// The constant is the square matrix m by which x m is (-b, a) of x's halves a and b, or, where they are pairs, of its
// even and odd elements; back: (b, -a).
bool turns(const Value &m, bool pairs, bool back);
// Throws Error where `of` is not made of `from` as the condition says.
void check_arranged(const Graph &graph, ValueId of, ValueId from, const Pattern::Setting &condition);

}  // namespace opgraft::passes
