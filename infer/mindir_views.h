// Primitives of MindSpore that are others with arguments of another kind: mint's views.
#pragma once

#include <string>
#include <vector>

#include "infer/mindir_items.h"

namespace opgraft::mindir {

bool is_view(const std::string &op);
// Whether its result is a tuple, be it of one.
bool gives_parts(const std::string &op);
// The nodes that stand for the view `op`: of operators that patterns are made of, where there is one. Refuses where
// the operands do not tell which.
std::vector<ValueId> add_view(const std::string &op, const std::string &name, const std::vector<size_t> &operands,
                              Items &items, Graph &graph, const Registry &registry, size_t &budget);

}  // namespace opgraft::mindir
