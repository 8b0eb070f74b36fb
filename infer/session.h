// Plan (immutable, one per shape signature), Model (graph, packed weights, plan cache; shared) and
// Session (buffers; one per thread).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "infer/graph.h"

namespace opgraft {

struct Plan;  // infer/plan.h

struct ModelStats {
  size_t plans_made = 0, plans_cached = 0;
  size_t packed_bytes = 0;  // of weights in other forms: packed by operators, or derived (infer/derived.h)
};

class Model {
 public:
  // Takes the graph as it is (run passes first). Nodes must have been inferred.
  explicit Model(std::shared_ptr<const Graph> graph);
  ~Model();
  const Graph &graph() const { return *graph_; }
  // The plan for concrete input shapes; made once per signature, thread-safe, LRU-bounded.
  std::shared_ptr<const Plan> plan(const std::vector<Shape> &input_shapes);
  ModelStats stats() const;
  // Bytes of state that all sessions may have; what they have is counted by pages. More fails the run that asks.
  void limit_state(size_t bytes);
  size_t state_bytes() const;  // of all sessions

 private:
  friend class Session;
  std::shared_ptr<const Graph> graph_;
  struct Cache;
  std::unique_ptr<Cache> cache_;
};

// Sees every instruction as it has run: node id in Session::graph, outputs, nanoseconds.
using Observer = std::function<void(NodeId, const opgraft_call &, int64_t ns)>;

// States are the Parameters that nodes update in place: a session's own, which begin with the Parameters' values, or
// the Parameters' own memory, as for a Cell that is called.
enum class States { kOwn, kParameters };

class Session {
 public:
  explicit Session(std::shared_ptr<Model> model, States states = States::kOwn);
  ~Session();
  // Runs on inputs in graph order (dtype and shape are checked). The result tensors are the caller's, in memory that
  // nobody else holds. Throws Error or GraphError naming input or node.
  std::vector<Tensor> run(const std::vector<Tensor> &inputs);
  // The same into caller's outputs of the right types, which share no memory with inputs, Parameters or one another:
  // allocates nothing in a steady state.
  void run_into(const std::vector<Tensor> &inputs, std::vector<Tensor> &outputs);
  void set_observer(Observer observer);  // empty: none
  // Own states back to what they began with. Needed after a run that failed with states half updated.
  void reset();
  // A session with the same states, which neither changes for the other: what is written so far is shared.
  std::unique_ptr<Session> fork();
  size_t state_bytes() const;         // of own states, by pages; 0 without such
  size_t arena_bytes() const;         // of the plan used last
  size_t intermediate_bytes() const;  // sum of all its intermediates, unshared
  const Model &model() const { return *model_; }
  // What the last run ran, by which nodes are counted: the model's graph, or, where operators that replaced others
  // refused the sizes, one with those in their place.
  const Graph &graph() const;

 private:
  void refuse_broken() const;
  void execute(struct Bound &bound);
  struct State;
  std::shared_ptr<Model> model_;
  std::unique_ptr<State> state_;
};

// Runs one op eagerly: infer, allocate, kernel. Constant inputs' values are shown to infer.
std::vector<Tensor> run_op(const OpPtr &op, const std::vector<Tensor> &inputs, const Attrs &attrs);

// Cost and shares of each node over `runs` runs, as JSON (docs/engine.md gives the fields).
std::string profile_json(Session &session, const std::vector<Tensor> &inputs, int runs);

}  // namespace opgraft
