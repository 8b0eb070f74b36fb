// mint's views: primitives of MindSpore that are others with arguments of another kind.
#pragma once

#include <string>
#include <vector>

#include "infer/mindir_forms.h"

namespace opgraft::mindir {

bool is_view(const std::string &op);
// Whether its result is a tuple, be it of one.
bool gives_parts(const std::string &op);
// The nodes that stand for the view `op`: of operators that patterns are made of, where there is one. Refuses where
// the operands do not tell which.
std::vector<ValueId> add_view(const std::string &op, Form form, size_t &budget);

}  // namespace opgraft::mindir
