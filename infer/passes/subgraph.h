// Parts of a graph: cut out as a graph of their own, and put in order again.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "infer/graph.h"
#include "infer/passes/pattern.h"

namespace opgraft::passes {

// `nodes`, in an order in which they can run, as a graph over `inputs`, one for one, that gives `results`. A node that
// replaced a subgraph is written as that subgraph. Throws Error where the nodes need a value that is no input.
std::shared_ptr<Graph> extract(const Graph &g, const std::vector<NodeId> &nodes, const std::vector<ValueId> &inputs,
                               const std::vector<ValueId> &results, const Registry &registry);

// Puts a node's fallback into `out` in place of the node, whose inputs `inputs` are. Gives the values of the fallback's
// outputs; throws Error where the inputs do not do.
std::vector<ValueId> expand(const Graph &fallback, const std::vector<ValueId> &inputs, Graph &out,
                            const Registry &registry);

// How many nodes that makes, those of fallbacks within it counted wherever they stand.
size_t expanded_size(const Graph &fallback);

// Topological order that keeps the preferred one where it can. False on a cycle.
bool sort(Graph &g, const std::vector<NodeId> &preferred);

// What of a match, its results and what the pattern shares apart, others use: a sentence, empty where there is none.
std::string used_outside(const Graph &graph, const Users &users, const Pattern &pattern, const Match &m);
// The matched nodes that others need all the same: what is shared with them, and what that is made of.
std::set<NodeId> needed_outside(const Graph &graph, const Users &users, const Match &m);

}  // namespace opgraft::passes
