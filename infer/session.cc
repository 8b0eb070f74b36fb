#include "infer/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <list>
#include <mutex>
#include <utility>

#include "aot_ops/common/threads.h"
#include "infer/native_call.h"
#include "infer/plan.h"
#include "infer/results.h"
#include "infer/state.h"
#include "registry/choice.h"

namespace opgraft {
namespace {

constexpr size_t kMostPlans = 16;  // of one model
constexpr size_t kMostBound = 4;   // of one session

bool same_shapes(const std::vector<Shape> &a, const std::vector<Tensor> &b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i].dims()) return false;
  return true;
}

// The kernel has failed: another implementation, then the reference takes over, loudly, where nothing was
// written; else the run fails.
void run_other(const Op &op, const opgraft_call &call, int status, const std::string *node) {
  auto r = recover(op, call, status, [](const std::string &text) { host()->log(host()->context, 1, text.c_str()); });
  if (r.status != OPGRAFT_OK) throw Error(r.status & 0xff, node ? fmt::format("node {}: {}", *node, r.cause) : r.cause);
}
void run_kernel(const Op &op, const opgraft_call &call, const std::string *node) {
  if (int status = op.native->kernel(&call)) run_other(op, call, status, node);
}

}  // namespace

const opgraft_host *host() { return opgraft_shared_host(); }

struct Model::Cache {
  std::mutex mutex;
  NodeAttrs attrs;
  std::optional<Derived> derived;  // made for the first plan
  PackedWeights weights;
  std::list<std::shared_ptr<const Plan>> plans;  // used last first
  ModelStats stats;
  std::vector<Tensor> initial;  // of the graph's states; without data where it is zeros
  std::vector<size_t> updated;  // the graph's inputs that its operators update in place
  std::shared_ptr<StateBudget> budget = std::make_shared<StateBudget>();
};

namespace {

void refuse_fixed(const std::string &what, const Tensor &t) {
  if (t.is_fixed())
    throw Error(OPGRAFT_INVALID_VALUE, what +
                                           " is updated in place and must be writable, contiguous, aligned and of "
                                           "native byte order, got an array that is not");
}

}  // namespace

// A copy, which shares the constants' bytes: passes may change the caller's graph later.
Model::Model(std::shared_ptr<const Graph> graph) : graph_(graph->clone()), cache_(std::make_unique<Cache>()) {
  cache_->attrs = flat_attrs(*graph_);
  for (ValueId id : graph_->states()) {
    const Tensor &t = graph_->value(id).constant;
    const bool zeros = all_zeros(t);
    t.rest();
    cache_->initial.push_back(zeros ? Tensor(t.dtype(), t.dims(), nullptr, nullptr) : t);
  }
  for (NodeId id : graph_->order()) {
    const Node &n = graph_->node(id);
    for (size_t i = 0; i < n.inputs.size(); ++i)
      for (size_t k = 0; k < graph_->inputs.size() && n.impl->manifest.updates(i); ++k)
        if (graph_->inputs[k] == n.inputs[i]) cache_->updated.push_back(k);
  }
}
Model::~Model() = default;

std::shared_ptr<const Plan> Model::plan(const std::vector<Shape> &shapes) {
  std::lock_guard lock(cache_->mutex);
  auto &plans = cache_->plans;
  auto it = std::find_if(plans.begin(), plans.end(), [&](auto &p) { return p->input_shapes == shapes; });
  if (it != plans.end()) {
    plans.splice(plans.begin(), plans, it);
    return plans.front();
  }
  if (!cache_->derived) cache_->derived.emplace(*graph_);
  plans.push_front(make_plan(*graph_, cache_->attrs, *cache_->derived, cache_->weights, shapes));
  ++cache_->stats.plans_made;
  if (plans.size() > kMostPlans) plans.pop_back();
  return plans.front();
}

void Model::limit_state(size_t bytes) { cache_->budget->most = bytes; }
size_t Model::state_bytes() const { return cache_->budget->used; }

ModelStats Model::stats() const {
  std::lock_guard lock(cache_->mutex);
  ModelStats s = cache_->stats;
  s.plans_cached = cache_->plans.size();
  s.packed_bytes = cache_->weights.bytes() + (cache_->derived ? cache_->derived->bytes() : 0);
  return s;
}

// A plan with addresses: what the loop of a run walks over.
struct Bound {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<void> arena;
  std::vector<opgraft_tensor> tensors;
  std::vector<opgraft_call> calls;
  struct Patch {
    int32_t tensor, index;
  };
  std::vector<Patch> inputs, outputs;  // tensors whose data is the caller's
  struct OpState {                     // what an op's init has made
    const Op *op;
    void *state;
    OpState(const Op *op, void *state) : op(op), state(state) {}
    OpState(OpState &&other) noexcept : op(other.op), state(std::exchange(other.state, nullptr)) {}
    ~OpState() {
      if (state) op->native->release(state);
    }
  };
  std::vector<OpState> op_states;

  Bound(std::shared_ptr<const Plan> p, const std::vector<void *> &states, const opgraft_host *services)
      : plan(std::move(p)), arena(allocate(plan->arena_bytes)) {
    for (size_t i = 0; i < plan->tensors.size(); ++i) {
      auto &t = plan->tensors[i];
      void *data = t.place.data;
      if (t.place.kind == Place::kArena) data = static_cast<char *>(arena.get()) + t.place.offset;
      if (t.place.kind == Place::kState) data = states[size_t(t.place.index)];
      if (t.place.kind == Place::kInput) inputs.push_back({int32_t(i), t.place.index});
      if (t.place.kind == Place::kOutput) outputs.push_back({int32_t(i), t.place.index});
      tensors.push_back(
          {data, t.type.dims.data(), int32_t(t.type.dims.size()), t.type.dtype, element_count(t.type.dims)});
    }
    std::vector<int64_t> last_reader(plan->outputs.size(), -1);  // of outputs' memory: the instruction's number
    const auto number = [&](const Instruction &ins) { return &ins - plan->instructions.data(); };
    for (auto &ins : plan->instructions)
      for (int32_t i = 0; i < ins.n_inputs; ++i)
        if (auto &place = plan->tensors[size_t(ins.first_tensor + i)].place; place.kind == Place::kOutput)
          last_reader[size_t(place.index)] = number(ins);
    for (auto &ins : plan->instructions) {
      opgraft_tensor *first = tensors.data() + ins.first_tensor;
      opgraft_call call{sizeof(opgraft_call),
                        ins.n_inputs,
                        ins.n_outputs,
                        ins.attrs->size(),
                        first,
                        first + ins.n_inputs,
                        ins.attrs->data(),
                        nullptr,
                        ins.workspace_bytes ? static_cast<char *>(arena.get()) + ins.workspace_offset : nullptr,
                        ins.workspace_bytes,
                        services,
                        ins.packed.empty() ? nullptr : ins.packed.data(),
                        0};
      for (int32_t i = 0; i < std::min(ins.n_outputs, 64); ++i)
        if (auto &place = plan->tensors[size_t(ins.first_tensor + ins.n_inputs + i)].place;
            place.kind == Place::kOutput && last_reader[size_t(place.index)] <= number(ins))
          call.unread |= uint64_t(1) << i;
      if (ins.op->native->init) {
        std::vector<opgraft_tensor> known(first, first + ins.n_inputs);  // values of constants only
        for (int32_t i = 0; i < ins.n_inputs; ++i)
          if (plan->tensors[size_t(ins.first_tensor + i)].place.kind != Place::kConstant)
            known[size_t(i)].data = nullptr;
        opgraft_infer_args args{sizeof args,       ins.n_inputs, ins.attrs->size(), 0,      known.data(),
                                ins.attrs->data(), nullptr,      nullptr,           nullptr};
        if (int status = ins.op->native->init(&args, &call.state))
          throw Error(status & 0xff, last_error(*ins.op, status));
        if (call.state && ins.op->native->release) op_states.emplace_back(ins.op, call.state);
      }
      calls.push_back(call);
    }
  }
  Bound(const Bound &) = delete;
};

struct Session::State {
  std::unique_ptr<StateMemory> memory;  // of own states
  std::vector<void *> states;
  opgraft_host services{};
  bool broken = false;                      // a run failed between two updates
  std::list<std::unique_ptr<Bound>> bound;  // used last first
  Observer observer;
  Results results;

  State() {  // the pool's, which may be of another minor version
    std::memcpy(&services, host(), std::min<size_t>(host()->struct_size, sizeof services));
    services.struct_size = sizeof services;
  }
  void own(std::unique_ptr<StateMemory> m, size_t n) {
    memory = std::move(m);
    for (size_t i = 0; i < n; ++i) states.push_back(memory->data(i));
    services.state_context = memory.get();
    services.touch = [](void *context, void *data, uint64_t bytes) -> int {
      return static_cast<StateMemory *>(context)->touch(data, bytes) ? OPGRAFT_OK : OPGRAFT_OUT_OF_MEMORY;
    };
  }
};

Session::Session(std::shared_ptr<Model> model, States states)
    : model_(std::move(model)), state_(std::make_unique<State>()) {
  const auto &initial = model_->cache_->initial;
  if (states == States::kParameters)
    for (ValueId id : model_->graph().states()) {
      const Value &x = model_->graph().value(id);
      refuse_fixed("model: Parameter " + x.name, x.constant);
      state_->states.push_back(x.constant.data());
    }
  else if (!initial.empty())
    state_->own(std::make_unique<StateMemory>(initial, model_->cache_->budget), initial.size());
}

void Session::reset() {
  if (!state_->memory && !state_->states.empty())
    throw Error(OPGRAFT_INVALID_VALUE, "session: its states are the Parameters' own: it cannot reset them");
  if (state_->memory) state_->memory->reset();
  state_->broken = false;
}

std::unique_ptr<Session> Session::fork() {
  if (!state_->memory && !state_->states.empty())
    throw Error(OPGRAFT_INVALID_VALUE, "session: its states are the Parameters' own: it cannot be forked");
  refuse_broken();
  auto other = std::unique_ptr<Session>(new Session(model_, States::kParameters));
  other->state_->states.clear();
  if (state_->memory) other->state_->own(state_->memory->fork(), state_->states.size());
  return other;
}

size_t Session::state_bytes() const { return state_->memory ? state_->memory->bytes() : 0; }

void Session::refuse_broken() const {
  if (state_->broken) throw Error(OPGRAFT_INVALID_VALUE, "session: a run failed while states were updated: reset it");
}

Session::~Session() = default;
void Session::set_observer(Observer observer) { state_->observer = std::move(observer); }

const Graph &Session::graph() const {
  const bool restored = !state_->bound.empty() && state_->bound.front()->plan->graph;
  return restored ? *state_->bound.front()->plan->graph : model_->graph();
}
size_t Session::arena_bytes() const { return state_->bound.empty() ? 0 : state_->bound.front()->plan->arena_bytes; }
size_t Session::intermediate_bytes() const {
  return state_->bound.empty() ? 0 : state_->bound.front()->plan->intermediate_bytes;
}

namespace {

void check_inputs(const Graph &g, const std::vector<Tensor> &inputs) {
  if (inputs.size() != g.inputs.size())
    throw Error(OPGRAFT_INVALID_VALUE, fmt::format("model: takes {} inputs, got {}", g.inputs.size(), inputs.size()));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value &v = g.value(g.inputs[i]);
    if (v.type.dtype != inputs[i].dtype())
      throw Error(OPGRAFT_INVALID_TYPE, fmt::format("model: input {}.dtype must be {}, got {}", v.name,
                                                    dtype_name(v.type.dtype), dtype_name(inputs[i].dtype())));
  }
}

}  // namespace

void Session::execute(Bound &b) {
  const Plan &plan = *b.plan;
  const Graph &g = plan.graph ? *plan.graph : model_->graph();
  if (!state_->observer) {
    for (size_t i = 0, n = b.calls.size(); i < n; ++i) {
      const Instruction &ins = plan.instructions[i];
      if (int status = ins.op->native->kernel(&b.calls[i])) [[unlikely]]
        run_other(*ins.op, b.calls[i], status, &g.node(ins.node).name);
    }
  } else {
    for (size_t i = 0; i < b.calls.size(); ++i) {
      const Instruction &ins = plan.instructions[i];
      auto start = std::chrono::steady_clock::now();
      run_kernel(*ins.op, b.calls[i], &g.node(ins.node).name);
      auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
      state_->observer(ins.node, b.calls[i], ns);
    }
  }
}

void Session::run_into(const std::vector<Tensor> &inputs, std::vector<Tensor> &outputs) {
  check_inputs(model_->graph(), inputs);
  for (size_t i : model_->cache_->updated)
    refuse_fixed("model: input " + model_->graph().value(model_->graph().inputs[i]).name, inputs[i]);
  refuse_broken();
  auto &all = state_->bound;
  auto it = std::find_if(all.begin(), all.end(), [&](auto &b) { return same_shapes(b->plan->input_shapes, inputs); });
  if (it == all.end()) {
    std::vector<Shape> shapes;
    for (auto &t : inputs) shapes.push_back(t.dims());
    all.push_front(std::make_unique<Bound>(model_->plan(shapes), state_->states, &state_->services));
    if (all.size() > kMostBound) all.pop_back();
  } else if (it != all.begin()) {
    all.splice(all.begin(), all, it);
  }
  Bound &b = *all.front();
  const Plan &plan = *b.plan;
  if (outputs.empty()) outputs = state_->results.make(plan.outputs);
  if (outputs.size() != plan.outputs.size())
    throw Error(OPGRAFT_INVALID_VALUE,
                fmt::format("model: gives {} outputs, got room for {}", plan.outputs.size(), outputs.size()));
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].dtype() != plan.outputs[i].dtype || outputs[i].dims() != plan.outputs[i].dims)
      throw Error(OPGRAFT_INVALID_VALUE, fmt::format("model: output {} must be {}, got {}", i, plan.outputs[i].text(),
                                                     outputs[i].type().text()));

  for (auto p : b.inputs) b.tensors[size_t(p.tensor)].data = inputs[size_t(p.index)].data();
  for (auto p : b.outputs) b.tensors[size_t(p.tensor)].data = outputs[size_t(p.index)].data();
  try {
    execute(b);
  } catch (...) {
    state_->broken = !state_->states.empty();
    throw;
  }
  for (auto &c : plan.copies) {
    const void *from = c.from.place.kind == Place::kInput    ? inputs[size_t(c.from.place.index)].data()
                       : c.from.place.kind == Place::kOutput ? outputs[size_t(c.from.place.index)].data()
                       : c.from.place.kind == Place::kState  ? state_->states[size_t(c.from.place.index)]
                       : c.from.place.kind == Place::kArena  ? static_cast<char *>(b.arena.get()) + c.from.place.offset
                                                             : c.from.place.data;
    Tensor &to = outputs[size_t(c.output)];
    if (to.bytes()) std::memcpy(to.data(), from, to.bytes());
  }
}

std::vector<Tensor> Session::run(const std::vector<Tensor> &inputs) {
  std::vector<Tensor> outputs;
  run_into(inputs, outputs);
  return outputs;
}

std::vector<Tensor> run_op(const OpPtr &op, const std::vector<Tensor> &inputs, const Attrs &given) try {
  std::vector<opgraft_tensor> in;
  std::vector<int32_t> dtypes;
  for (auto &t : inputs) {
    in.push_back(t.view());
    dtypes.push_back(t.dtype());
  }
  check_arguments(op->manifest, dtypes);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (op->manifest.updates(i)) refuse_fixed(op->name() + ": input " + std::to_string(i), inputs[i]);
  FlatAttrs attrs(complete_attrs(op->manifest, given));
  Inferred r = infer_native(*op, in, attrs, nullptr);
  std::vector<Tensor> outputs;
  std::vector<opgraft_tensor> out;
  for (auto &t : r.types) {
    if (!t.concrete())
      throw Error(OPGRAFT_INVALID_VALUE,
                  fmt::format("{}: output shape {} is not known", op->name(), to_string(t.dims)));
    outputs.emplace_back(t.dtype, t.dims);
  }
  for (auto &t : outputs) out.push_back(t.view());
  NativeCall made(*op, in, out, attrs);
  run_kernel(*op, made.call, nullptr);
  return outputs;
} catch (const std::bad_alloc &e) {
  throw OutOfMemory(fmt::format("{}: {}", op->name(), e.what()));
}

}  // namespace opgraft
