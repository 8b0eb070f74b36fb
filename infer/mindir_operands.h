// A node's operands by position, as the inputs and attributes of the operator that it names.
#pragma once

#include <string>
#include <vector>

#include "infer/mindir_items.h"
#include "registry/manifest.h"

namespace opgraft::mindir {

// Refuses by std::runtime_error.
class Operands {
 public:
  Operands(Graph &graph, Items &items) : graph_(graph), items_(items) {}

  // Operands by position: op.yaml's `mindir`, or all inputs followed by attributes in their order.
  std::vector<ValueId> inputs(const Manifest &m, std::vector<std::string> order, const std::vector<size_t> &operands,
                              Attrs &given);
  // A primitive's attribute as the operator's.
  void attribute(const Manifest &m, const std::string &name, const Literal &l, Attrs &out) const;

 private:
  void expect(const std::string &word, size_t position, size_t item) const;
  ValueId as_its_peer(const Manifest &m, const std::vector<ValueId> &in, size_t at, const Literal &number);

  Graph &graph_;
  Items &items_;
};

}  // namespace opgraft::mindir
