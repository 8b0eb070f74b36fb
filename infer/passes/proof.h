// Comparing a substitution with what it replaced, on real inputs.
#pragma once

#include <string>
#include <vector>

#include "infer/graph.h"
#include "infer/passes/passes.h"

namespace opgraft::passes {

struct Difference {
  double max_abs = 0, mean_abs = 0;
  bool agrees = true;
  bool comparable = true;  // alike in dtype and shape, NaN and infinities in the same places
  std::string why;         // where and how far, when it does not agree
};

// |got - want| <= rtol * |want| + atol, where atol is scaled by want's largest finite magnitude; NaN and
// infinities must stand in the same places; integers and bools must be equal.
// float32 1e-4 and 1e-5 (sums in another order over a few thousand terms), float16 1e-2, bfloat16 4e-2.
Difference compare(const Tensor &got, const Tensor &want);

// The given input sets, and where a symbolic dimension has one size only in them, a set of another
// size cut (or, from size 1, repeated) out of the first. Throws Error when there is none.
std::vector<std::vector<Tensor>> vary_sizes(const Graph &graph, const std::vector<std::vector<Tensor>> &given);

// Fills in differences and times of every swap and compares the whole models. Returns the nodes whose
// swap must be undone, with reasons. Where the whole models differ by more than the tolerance, they may still differ by
// kOwn times what the model as it was differs by from itself with its float32 Parameters off by a unit in the last
// place: a model that rounds to few bits in between makes steps of last bits. Each swap has to agree on its own.
constexpr double kOwn = 4;
std::vector<Left> prove(const Graph &before, const Graph &after, Report &report, const ProofOptions &options);

}  // namespace opgraft::passes
