// Patterns of `replaces:`: small programs in primitive names, and their matching.
//
//   program := { name "=" call newline } result { "," result } [ "->" setting { "," setting } ]
//   call    := Primitive "(" arg { "," arg } { "," attr "=" want } ")"
//   arg     := name | number | "_" | call
//   want    := literal | "_" | name of an attribute of the op
//   setting := attr "=" literal | attr "=" name | attr "=" "1/" name | attr "=" "dim(" name "," i ")"
#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "infer/graph.h"

namespace opgraft::passes {

struct Pattern {
  struct Arg {
    enum Kind { kAny, kVariable, kNumber, kNode } kind = kAny;
    std::string name;  // kVariable
    double number = 0;
    int node = -1;
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
  };
  struct Setting {
    enum Kind { kLiteral, kName, kInverse, kDim } kind = kLiteral;
    std::string attr, name;
    AttrValue literal;
    int64_t index = 0;
  };
  std::vector<Call> calls;
  std::vector<Arg> results;  // the first is a call
  std::vector<Setting> settings;
  std::map<std::string, Arg> labels;
};

// Throws Error naming `origin` and what was expected where.
Pattern parse_pattern(const std::string &program, const std::string &origin);
// A traced graph as a pattern; its inputs become variables by name.
Pattern pattern_of(const Graph &graph);

struct Match {
  std::vector<NodeId> nodes;               // by call
  std::map<std::string, ValueId> values;   // variable -> value
  std::map<std::string, AttrValue> attrs;  // attribute name -> value bound
  std::vector<ValueId> results;
};

// Matches with the first result at output 0 of `root`. Names in `attributes` (of the op that goes in)
// bind scalar constants or attributes; all other names bind values.
bool match(const Graph &graph, const Pattern &pattern, const Manifest *target, NodeId root, Match &out);

}  // namespace opgraft::passes
