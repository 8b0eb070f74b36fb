#include "infer/mindir_items.h"

#include <fmt/format.h>

#include <algorithm>

#include "infer/mindir_data.h"

namespace opgraft::mindir {

size_t Items::value(ValueId id) {
  Item i;
  i.kind = Item::kValue, i.id = id;
  return add(std::move(i));
}

size_t Items::literal(Literal literal, std::string_view name) {
  Item i;
  i.literal = std::move(literal), i.name = name;
  return add(std::move(i));
}

size_t Items::tuple(std::vector<size_t> items, std::string name) {
  Item i;
  for (size_t k : items) i.past.join(items_[k].past);
  i.kind = Item::kTuple, i.items = std::move(items), i.name = std::move(name);
  return add(std::move(i));
}

size_t Items::monad(Past past) {
  Item i;
  i.literal.kind = Literal::kMonad, i.past = std::move(past);
  return add(std::move(i));
}

bool Items::is_monad(size_t item) const {
  return items_[item].kind == Item::kLiteral && items_[item].literal.kind == Literal::kMonad;
}

size_t Items::loaded(size_t item, const Past &past) {
  if (items_[item].kind != Item::kValue || items_[item].loaded) return later(item, past);
  Item i = items_[item];
  i.loaded = true, i.past.join(past);
  return add(std::move(i));
}

size_t Items::later(size_t item, const Past &past) {
  // What was loaded has its past for good.
  if (items_[item].kind != Item::kValue || items_[item].loaded) return item;
  Past joined = items_[item].past;
  joined.join(past);
  if (joined == items_[item].past) return item;
  Item i = items_[item];
  i.past = std::move(joined);
  return add(std::move(i));
}

void Items::define(std::string_view name, size_t item) {
  if (name.empty()) refuse("a value without a name");
  if (!names_.emplace(name, item).second) refuse(fmt::format("'{}' is defined twice", name));
}

size_t Items::lookup(std::string_view name) const {
  auto it = names_.find(name);
  if (it == names_.end()) refuse(fmt::format("'{}' is used but not defined before", name));
  return it->second;
}

void Items::flatten(size_t item, std::vector<size_t> &out, int depth, size_t &budget) const {
  if (depth > kMostNesting) refuse("tuples nested too deep");
  if (budget-- == 0) refuse("a tuple of too many elements");
  const Item &i = items_[item];
  if (i.kind != Item::kTuple) return out.push_back(item);
  for (size_t k : i.items) flatten(k, out, depth + 1, budget);
}

std::vector<size_t> Items::flatten(size_t item) const {
  std::vector<size_t> out;
  size_t budget = kMostFlat;
  flatten(item, out, 0, budget);
  return out;
}

namespace {
size_t size_of(const Literal &l, int depth) {
  if (depth > kMostNesting) refuse("tuples nested too deep");
  size_t n = l.items.size();
  for (auto &i : l.items) n += size_of(i, depth + 1);
  return n;
}
}  // namespace

bool Items::literal_of(size_t item, Literal &out, int depth, size_t &budget) const {
  const Item &i = items_[item];
  if (depth > kMostNesting || budget-- == 0) refuse("tuples nested too deep");
  if (i.kind == Item::kValue) {
    const Value &v = graph_.value(i.id);
    if (v.kind != Value::kConstant || updates.any(i.id)) return false;
    if (v.parameter) taken_.insert(i.id);
    out.kind = Literal::kTensor, out.tensor = v.constant;
    return true;
  }
  if (i.kind == Item::kLiteral) {
    const size_t copied = depth ? size_of(i.literal, 0) : 0;  // a tuple may name one literal many times
    if (copied > budget) refuse("a tuple of too many elements");
    budget -= copied;
    return out = i.literal, true;
  }
  out.kind = Literal::kTuple;
  for (size_t k : i.items) {
    out.items.emplace_back();
    if (!literal_of(k, out.items.back(), depth + 1, budget)) return false;
  }
  return true;
}

bool Items::literal_of(size_t item, Literal &out) const {
  size_t budget = kMostFlat;
  return literal_of(item, out, 0, budget);
}

ValueId Items::value_of(size_t item) {
  if (items_[item].loaded) return updates.at(items_[item].id, items_[item].past);
  if (items_[item].id != kNone) return items_[item].id;
  Literal l;
  if (literal_of(item, l)) {
    Tensor t;
    if (!to_tensor(l, t))
      refuse(fmt::format("constant '{}' is no tensor, number or tuple of numbers", items_[item].name));
    return items_[item].id = graph_.add_constant(std::move(t), items_[item].name);
  }
  for (size_t k : items_[item].items)
    if (items_[k].kind == Item::kTuple) refuse("a tuple of tuples where a tensor or a shape is expected");
  return items_[item].id = make_node(item);
}

ValueId Items::make_node(size_t tuple) {
  std::vector<ValueId> in;
  for (size_t k : std::vector<size_t>(items_[tuple].items)) in.push_back(value_of(k));
  NodeId node = graph_.add_node(registry_, "MakeTuple", in, {}, items_[tuple].name);
  return graph_.node(node).outputs.at(0);
}

size_t Items::element(size_t from, size_t index, const std::string &name) {
  Literal l;
  AttrValue v;
  if (!literal_of(index, l) || !to_attr(l, OPGRAFT_ATTR_INT, v)) refuse("the index must be a constant int");
  int64_t i = std::get<int64_t>(v);
  const Item &item = items_[from];
  if (item.kind == Item::kValue) {
    const TensorType &t = graph_.value(item.id).type;
    if (t.dtype == OPGRAFT_INT64 && t.dims.size() == 1) {
      NodeId node = graph_.add_node(registry_, "TupleGetItem", {item.id}, {{"index", i}}, name);
      return value(graph_.node(node).outputs.at(0));
    }
    if (i != 0 && i != -1) refuse(fmt::format("element {} of a single tensor", i));
    return from;
  }
  bool tuple = item.kind == Item::kTuple;
  int64_t n = int64_t(tuple ? item.items.size() : item.literal.items.size());
  if (i < -n || i >= n) refuse(fmt::format("element {} of a tuple of {}", i, n));
  size_t k = size_t(i < 0 ? i + n : i);
  return tuple ? item.items[k] : literal(Literal(item.literal.items[k]), name);
}

}  // namespace opgraft::mindir
