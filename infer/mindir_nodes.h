// The nodes and primitives of a file while it is written.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "infer/graph.h"

namespace opgraft::mindir {

class Nodes {
 public:
  // The name, or one like it that nothing has yet.
  std::string unique(std::string name);
  // A node "Constant" with this attribute; its wire name.
  std::string constant(const std::string &name, const std::string &attribute);
  // An entry of the primitives table; what a node's op_type says of it.
  std::string primitive(const std::string &op, const std::vector<std::string> &attributes);
  // `wire` is its output's name, `name` the one for people, `shape` the attribute with its abstract or "".
  void add(const std::string &wire, const std::string &name, const std::string &op_type,
           const std::vector<std::string> &inputs, const std::string &shape);

  std::vector<std::string> nodes, primitives;  // as messages

 private:
  std::set<std::string> used_;
};

// The order of reads and updates of a graph's states, as MindSpore's compiler spells it: what updates one takes a
// monad, `UpdateState` makes the next of it, and who reads takes `Load` under the monad of its place.
class Order {
 public:
  Order(const Graph &graph, Nodes &nodes);
  bool any() const { return !states_.empty(); }
  bool is_state(ValueId v) const { return states_.count(v) != 0; }
  // `wire` is v's name; what a node of this place is to read instead.
  std::string read(ValueId v, const std::string &wire);
  // The operand that makes a node come after all that updates or reads states before it.
  std::string monad();
  // The node is there and has updated the inputs at these positions; what updates one that it reads comes after it.
  void added(const Node &node, const std::vector<size_t> &updated, const std::string &wire);
  // A copy of what is in the output of a node that is the variable itself.
  std::string copy(const std::string &wire, const TensorType &type);
  // The value, and all updates before it is there.
  std::string last(const std::string &wire, const TensorType &type);

 private:
  void advance();

  const Graph &graph_;
  Nodes &nodes_;
  std::set<ValueId> states_;              // Parameters and inputs that some node updates
  std::string monad_;                     // "" before the first
  std::vector<std::string> since_;        // nodes since then
  std::set<ValueId> written_;             // so far
  std::map<ValueId, std::string> loads_;  // of the present monad
};

// The attribute of a primitive that updates inputs in place.
constexpr const char *kUpdates = "side_effect_mem";
// The positions of the inputs that the node updates in place, ascending.
std::vector<size_t> updates(const Node &node);

}  // namespace opgraft::mindir
