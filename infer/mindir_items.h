// The named values of a file while it is read: graph values, constants not yet placed, tuples of both.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "infer/graph.h"
#include "infer/mindir_updates.h"
#include "infer/mindir_wire.h"

namespace opgraft::mindir {

constexpr size_t kMostFlat = 1 << 16;  // elements of a flattened tuple

struct Item {
  enum Kind { kValue, kLiteral, kTuple } kind = kLiteral;
  ValueId id = kNone;  // kValue; else the value it was made into, once it was
  Literal literal;
  std::vector<size_t> items;
  std::string name;
  Past past;            // the graph's updates that come before it
  bool loaded = false;  // the value as it was then; else it is what there is when it is used
};

// Items by position, and positions by the file's names. Refuses by std::runtime_error.
class Items {
 public:
  Items(Graph &graph, const Registry &registry) : updates(graph, registry), graph_(graph), registry_(registry) {}

  const Item &operator[](size_t item) const { return items_[item]; }
  size_t value(ValueId id);
  size_t literal(Literal literal, std::string_view name = "");
  size_t tuple(std::vector<size_t> items, std::string name);
  size_t monad(Past past);
  bool is_monad(size_t item) const;
  // The value as it is after these updates.
  size_t loaded(size_t item, const Past &past);
  // The same item, which comes after these updates.
  size_t later(size_t item, const Past &past);

  void define(std::string_view name, size_t item);
  size_t lookup(std::string_view name) const;

  // The elements of nested tuples, or the item itself.
  std::vector<size_t> flatten(size_t item) const;
  // The literal behind an item; false where it holds a computed value.
  bool literal_of(size_t item, Literal &out) const;
  // The item as one graph value: constants are placed, a tuple of shape scalars becomes a MakeTuple.
  ValueId value_of(size_t item);
  // One element of a tuple, a constant tuple, or a value that holds a shape.
  size_t element(size_t from, size_t index, const std::string &name);
  // A MakeTuple node of the tuple's elements.
  ValueId make_node(size_t tuple);
  // Whether the constant's value was asked for as such.
  bool taken(ValueId v) const { return taken_.count(v) != 0; }

  Updates updates;

 private:
  size_t add(Item item) { return items_.push_back(std::move(item)), items_.size() - 1; }
  void flatten(size_t item, std::vector<size_t> &out, int depth, size_t &budget) const;
  bool literal_of(size_t item, Literal &out, int depth, size_t &budget) const;

  Graph &graph_;
  const Registry &registry_;
  std::vector<Item> items_;
  mutable std::set<ValueId> taken_;
  std::map<std::string, size_t, std::less<>> names_;
};

}  // namespace opgraft::mindir
