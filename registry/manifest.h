// op.yaml: what a machine must know of an operator and nothing that is code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace opgraft {

using AttrValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::vector<int64_t>>, std::vector<std::vector<double>>>;

struct ManifestTensor {
  std::string name;
  std::string dtype;      // a type variable of `dtypes`, or a dtype name
  bool optional = false;  // trailing input that may be left out
  bool variadic = false;  // one or more tensors (last input only)
  bool value = false;     // a shape-like input whose values infer looks at
  bool state = false;     // updated in place by the op
};

struct ManifestAttr {
  std::string name;
  int32_t kind = 0;  // opgraft_attr_kind
  std::optional<AttrValue> fallback;
  bool ours = false;      // other values than the default are not MindSpore's: a node with one is no such primitive
  std::string axis_of{};  // it counts dimensions of this input: -1 is the last one
  bool tuple = false;     // an int for which MindSpore's primitive takes a tuple
};

// Another primitive of MindSpore that is this operator. `mindir` is its operands by position: inputs and attributes,
// `none` for one that must be None, a whole number for one that must have this value; empty: the operator's own.
struct ManifestName {
  std::string name;
  std::vector<std::string> mindir;
};

struct Manifest {
  std::string name, version, doc;
  std::string implementation;  // tells files apart that hold the same version (registry/choice.h)
  std::vector<ManifestTensor> inputs, outputs;
  std::vector<ManifestAttr> attrs;
  std::vector<std::pair<std::string, std::vector<int32_t>>> dtypes;  // type variable -> dtypes
  std::vector<std::pair<int, int>> inplace;                          // output, input
  std::vector<std::pair<int, int>> view;                             // output is input's buffer, unchanged
  bool deterministic = true;
  bool commutative = false;               // the first two inputs may be exchanged
  bool moves_values = false;              // only moves elements: may run on symbolic values
  bool custom = false;                    // MindSpore has no such primitive: files hold a Custom
  std::optional<int64_t> primitive_rank;  // or it takes inputs of at most so many dimensions
  std::string backward;
  // Positional order of a MindIR node's operands: input and attribute names. Default: the inputs.
  std::vector<std::string> mindir;
  std::vector<ManifestName> names;
  std::vector<std::string> replaces;

  const ManifestAttr *attr(std::string_view name) const;
  int input_index(std::string_view name) const;  // -1 where there is none
  // The order of a primitive's operands, `name` being the operator's own or one of `names`.
  const std::vector<std::string> &operands_of(std::string_view name) const;
  bool variadic() const { return !inputs.empty() && inputs.back().variadic; }
  // What is declared of input i, of several the variadic one; null where nothing is.
  const ManifestTensor *input(size_t i) const {
    return inputs.empty() ? nullptr : &inputs[std::min(i, inputs.size() - 1)];
  }
  // Whether the op updates input i in place, or may: of a function made for MindSpore, of whose variadic inputs nobody
  // says it.
  bool may_update(size_t i) const { return input(i) && input(i)->state; }
  bool updates(size_t i) const { return may_update(i) && !input(i)->variadic; }
  int least_inputs() const;
};

// Whether all of the text is a whole number.
bool whole_number(std::string_view text, int64_t &value);

// What is wrong with an op.yaml, with line and field.
struct ManifestError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads a stream of YAML documents, one op each. `origin` is named in errors.
std::vector<Manifest> parse_manifests(std::string_view yaml, std::string_view origin);

// "1.2.3" -> {1, 2, 3}; throws ManifestError.
struct Version {
  int major = 0, minor = 0, patch = 0;
  static Version parse(std::string_view text, std::string_view origin);
  auto operator<=>(const Version &) const = default;
};

}  // namespace opgraft
