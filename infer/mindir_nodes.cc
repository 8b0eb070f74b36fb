#include "infer/mindir_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <protozero/pbf_writer.hpp>

#include "infer/mindir_encode.h"

namespace opgraft::mindir {

using protozero::pbf_writer;

std::string Nodes::unique(std::string name) {
  if (name.empty()) name = "value";
  std::string tried = name;
  for (int k = 1; !used_.insert(tried).second; ++k) tried = fmt::format("{}_{}", name, k);
  return tried;
}

std::string Nodes::constant(const std::string &name, const std::string &attribute) {
  std::string out, wire = unique(name);
  pbf_writer n(out);
  n.add_string(2, wire);
  n.add_string(3, wire);
  n.add_string(4, "Constant");
  n.add_message(5, attribute);
  nodes.push_back(std::move(out));
  return wire;
}

std::string Nodes::primitive(const std::string &op, const std::vector<std::string> &attributes) {
  std::string name = fmt::format("{}:{}", op, primitives.size()), out;
  pbf_writer p(out);
  p.add_string(1, name);
  p.add_string(2, op);
  for (auto &a : attributes) p.add_message(3, a);
  primitives.push_back(std::move(out));
  return "REF::" + name;
}

void Nodes::add(const std::string &wire, const std::string &name, const std::string &op_type,
                const std::vector<std::string> &inputs, const std::string &shape) {
  std::string out;
  pbf_writer n(out);
  for (auto &i : inputs) n.add_string(1, i);
  n.add_string(2, wire);
  n.add_string(3, wire);
  n.add_string(4, op_type);
  if (!shape.empty()) n.add_message(5, shape);
  n.add_string(7, name);
  nodes.push_back(std::move(out));
}

std::vector<size_t> updates(const Node &node) {
  std::vector<size_t> out;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.impl->manifest.may_update(i)) out.push_back(i);
  return out;
}

Order::Order(const Graph &graph, Nodes &nodes) : graph_(graph), nodes_(nodes) {
  for (NodeId id : graph.order())
    for (size_t i : updates(graph.node(id))) {
      const ValueId v = graph.node(id).inputs[i];
      if (graph.value(v).parameter || graph.value(v).kind == Value::kInput) states_.insert(v);
    }
}

std::string Order::read(ValueId v, const std::string &wire) {
  if (!is_state(v)) return wire;
  auto [it, added] = loads_.try_emplace(v, wire);
  if (!added) return it->second;
  const Value &x = graph_.value(v);
  const bool load = x.parameter;  // of other values there is none
  if (!load && !written_.count(v)) return wire;
  if (monad_.empty()) monad_ = nodes_.constant("monad", encode_monad("value"));
  it->second = nodes_.unique(x.name + (load ? ".load" : ".updated"));
  nodes_.add(it->second, it->second, nodes_.primitive(load ? "Load" : "Depend", {}), {wire, monad_},
             encode_abstract({x.type}));
  if (load) since_.push_back(it->second);
  return it->second;
}

std::string Order::monad() {
  if (!since_.empty()) advance();
  if (monad_.empty()) monad_ = nodes_.constant("monad", encode_monad("value"));
  return monad_;
}

void Order::advance() {
  std::vector<std::string> operands = {monad_.empty() ? nodes_.constant("monad", encode_monad("value")) : monad_};
  operands.insert(operands.end(), since_.begin(), since_.end());
  since_.clear();
  loads_.clear();
  monad_ = nodes_.unique("state");
  nodes_.add(monad_, monad_, nodes_.primitive("UpdateState", {}), operands, encode_monad("shape"));
}

void Order::added(const Node &node, const std::vector<size_t> &updated, const std::string &wire) {
  for (size_t i : updated) written_.insert(node.inputs[i]);
  if (!updated.empty() || std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return is_state(v); }))
    since_.push_back(wire);
  if (!updated.empty()) advance();
}

std::string Order::copy(const std::string &wire, const TensorType &type) {
  std::string load = nodes_.unique(wire + ".load"), copy = nodes_.unique(wire + ".copy");
  nodes_.add(load, load, nodes_.primitive("Load", {}), {wire, monad_}, encode_abstract({type}));
  nodes_.add(copy, copy, nodes_.primitive("TensorMove", {}), {load}, encode_abstract({type}));
  since_.push_back(copy);
  return copy;
}

std::string Order::last(const std::string &wire, const TensorType &type) {
  if (!since_.empty()) advance();
  if (monad_.empty()) return wire;
  std::string name = nodes_.unique("last");
  nodes_.add(name, name, nodes_.primitive("Depend", {encode_attribute("side_effect_propagate", int64_t(1))}),
             {wire, monad_}, encode_abstract({type}));
  return name;
}

}  // namespace opgraft::mindir
