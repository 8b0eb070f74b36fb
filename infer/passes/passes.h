// Graph passes: each returns whether it changed the graph.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "infer/graph.h"

namespace opgraft::passes {

bool fold_constants(Graph &graph, const Registry &registry);
bool remove_dead_code(Graph &graph, const Registry &registry);
bool merge_common(Graph &graph, const Registry &registry);
// A size that is asked of a computed value, and that an input has, is asked of the input: the value is free then.
bool ask_inputs_for_sizes(Graph &graph, const Registry &registry);

// A pattern: a small program in primitive names (docs/adding_an_op.md, "replaces") bound to the op
// that computes it, or any graph with free inputs and a replacement graph with the same inputs.
// A rule may come from functions instead of graphs: then `pattern` only says where to look, and both sides are
// traced for the dtypes and shapes found there.
struct Pattern;
struct Rule {
  // Gets a graph with the inputs, adds nodes and sets the outputs. Throws where the function does not take them.
  using Trace = std::function<void(const std::shared_ptr<Graph> &)>;
  std::string name;     // for reports: "SwiGLU@1.0.0"
  std::string op;       // op to put in place (else `replacement`)
  std::string program;  // pattern text; empty where `pattern` is given
  std::shared_ptr<const Graph> pattern, replacement;
  Trace trace_pattern{}, trace_replacement{};  // both or neither
  std::shared_ptr<const Pattern> parsed{};     // the program, where it was read already
};

struct Swap {
  std::string op, node;  // op put in, name of the new node
  NodeId id = kNone;
  double max_abs = -1, mean_abs = -1, ms_before = -1, ms_after = -1;  // -1: not proven
  std::string root{};                                                 // name of the node whose place it took
  // For the proof: both sides over `inputs`, values of the graph as it was.
  std::shared_ptr<const Graph> was{}, now{};
  std::vector<ValueId> inputs{};
};
struct Left {
  std::string op, node, why;
};
struct Report {
  int matched = 0;  // = swapped + merged + left
  int merged = 0;   // swapped, and then part of what a larger swap replaced
  std::vector<Swap> swapped;
  std::vector<Left> left;
  std::string note{};  // of the proof of the whole model; mostly empty
  std::string json() const;
};

struct ProofOptions {
  // Input sets for the whole model; one set, sizes of every symbolic dimension are varied by the caller.
  std::vector<std::vector<Tensor>> inputs;
  bool only_faster = false;  // keep a swap only when at least 5 % faster, in interleaved runs
  std::function<void(size_t done, size_t total)> progress{};  // after each comparison
};

// Rules of every registered op's `replaces:`, larger patterns first. One that is wrong is left out with a line on
// stderr, once.
std::vector<Rule> rules_of(const Registry &registry);
// Step "replaces" of `opgraft doctor`, for a file that loads: each pattern is right and can match registered ops.
Check examine_replaces(const std::filesystem::path &file, const Registry &registry);

// Puts ops in place of the subgraphs that the rules match. With `proof`, each swap and then the whole
// model is compared with what it replaces; a swap that disagrees is undone and reported.
Report substitute(Graph &graph, const Registry &registry, const std::vector<Rule> &rules,
                  const ProofOptions *proof = nullptr);

}  // namespace opgraft::passes
