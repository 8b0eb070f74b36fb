// Primitives of MindSpore that are read as nodes of other operators.
#pragma once

#include <string>
#include <vector>

#include "infer/mindir_custom.h"
#include "infer/mindir_items.h"

namespace opgraft::mindir {

// One such primitive of a file: what it is given, and the nodes that come of it. Refuses by std::runtime_error.
class Form {
 public:
  Form(const std::string &name, const std::vector<size_t> &operands, const Literals &attrs, Items &items, Graph &graph,
       const Registry &registry)
      : name_(name), operands_(operands), attrs_(attrs), items_(items), graph_(graph), registry_(registry) {}

  void takes(size_t least, size_t most) const;
  ValueId x();  // the first operand, of a known rank
  const Shape &dims() { return graph_.value(x()).type.dims; }

  bool given(size_t i) const;  // operand i is there, and not None
  // Operand i as a constant.
  int64_t number(size_t i) const { return std::get<int64_t>(attr(i, OPGRAFT_ATTR_INT)); }
  bool flag(size_t i) const { return std::get<bool>(attr(i, OPGRAFT_ATTR_BOOL)); }
  std::string word(size_t i) const { return std::get<std::string>(attr(i, OPGRAFT_ATTR_STRING)); }
  std::vector<int64_t> numbers(size_t i) const { return std::get<std::vector<int64_t>>(attr(i, OPGRAFT_ATTR_INTS)); }
  size_t axis(size_t i);  // counted from the first
  // An attribute of the primitive.
  std::vector<int64_t> numbers(const std::string &name) const;
  int64_t number(const std::string &name, int64_t fallback) const;

  std::vector<ValueId> node(const std::string &op, const std::vector<ValueId> &in, const Attrs &attrs,
                            const std::string &name);
  ValueId one(const std::string &op, const std::vector<ValueId> &in, const Attrs &attrs = {}) {
    return node(op, in, attrs, name_).at(0);
  }
  ValueId constant(const std::vector<int64_t> &values);
  ValueId exchanged(ValueId v, size_t a, size_t b);  // two dimensions
  const std::string &name() const { return name_; }

 private:
  AttrValue attr(size_t i, int32_t kind) const;

  const std::string &name_;
  const std::vector<size_t> &operands_;
  const Literals &attrs_;
  Items &items_;
  Graph &graph_;
  const Registry &registry_;
};

bool is_form(const std::string &op);
// The values that it gives, which are a tuple where they are several.
std::vector<ValueId> add_form(const std::string &op, Form form);
// Leaves out those of the nodes, in the order they were made, of which nothing is read.
void drop_unread(Graph &graph, const std::vector<NodeId> &made);

}  // namespace opgraft::mindir
