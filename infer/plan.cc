#include "infer/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "infer/choose.h"
#include "infer/memory.h"
#include "registry/choice.h"

namespace opgraft {

namespace {

constexpr int kMostRefusals = 32;  // one by one: each takes a plan of the whole graph
class Planner {
 public:
  Planner(const Graph &graph, const NodeAttrs &attrs, const Derived &derived, PackedWeights &weights)
      : g_(graph),
        attrs_(attrs),
        derived_(derived),
        weights_(weights),
        plan_(std::make_shared<Plan>()),
        v_(graph.value_count()) {}

  std::shared_ptr<Plan> make(const std::vector<Shape> &input_shapes) {
    bind_inputs(input_shapes);
    infer_all();
    alias_and_live();
    place();
    emit();
    return plan_;
  }

 private:
  // What the planner knows of one value.
  struct Info {
    TensorType type;
    std::optional<std::vector<int64_t>> known;
    const Tensor *constant = nullptr;  // its bytes, when they are known now
    ValueId root = kNone;              // whose buffer it lies in
    int32_t last_use = -1;             // of a root: step after which its bytes are free
    Place place;
    bool placed = false;
  };
  struct Step {
    NodeId node;
    OpPtr op;           // the node's, or a faster implementation of it
    bool view = false;  // nothing runs: the output is the input's buffer
    size_t workspace = 0, workspace_offset = 0;
  };

  Info &info(ValueId v) { return v_[size_t(v)]; }
  // As an operator sees it before it runs: of a constant, if it may, with its bytes.
  opgraft_tensor view(ValueId v, bool may_read) {
    const Info &x = info(v);
    return {may_read && x.constant ? x.constant->data() : nullptr, x.type.dims.data(), int32_t(x.type.dims.size()),
            x.type.dtype, element_count(x.type.dims)};
  }

  void bind_inputs(const std::vector<Shape> &shapes) {
    if (shapes.size() != g_.inputs.size())
      throw GraphError(OPGRAFT_INVALID_VALUE,
                       fmt::format("model: takes {} inputs, got {}", g_.inputs.size(), shapes.size()));
    plan_->input_shapes = shapes;
    std::vector<int64_t> bound(g_.symbols.free_count(), -1);
    auto bad = [&](size_t i) {
      const Value &in = g_.value(g_.inputs[i]);
      std::string want;
      for (int64_t d : in.type.dims) want += (want.empty() ? "" : ", ") + g_.symbols.text(d);
      throw GraphError(OPGRAFT_INVALID_VALUE, fmt::format("model: input {}.shape must be ({}{}), got {}", in.name, want,
                                                          in.type.dims.size() == 1 ? "," : "", to_string(shapes[i])));
    };
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Value &in = g_.value(g_.inputs[i]);
      if (in.type.dims.size() != shapes[i].size()) bad(i);
      for (size_t k = 0; k < shapes[i].size(); ++k) {
        int64_t want = in.type.dims[k], got = shapes[i][k];
        if (got < 0 || (want >= 0 && want != got)) bad(i);
        if (int f = g_.symbols.free_index(want); f >= 0) {
          int64_t &slot = bound[size_t(f)];
          if (slot >= 0 && slot != got) bad(i);
          slot = got;
        }
      }
      info(g_.inputs[i]).type = {in.type.dtype, shapes[i], true};
    }
    // Formulas of symbols, where all of those are bound.
    for (size_t i = 0; i < shapes.size(); ++i)
      for (size_t k = 0; k < shapes[i].size(); ++k)
        if (int64_t want = g_.symbols.evaluate(g_.value(g_.inputs[i]).type.dims[k], bound);
            want >= 0 && want != shapes[i][k])
          bad(i);
  }

  // Shapes of every node again, now concrete; values that follow from shapes become constants.
  void infer_all() {
    for (size_t i = 0; i < v_.size(); ++i)
      if (const Value &x = g_.value(ValueId(i)); x.kind == Value::kConstant) {
        v_[i].type = x.type;
        v_[i].constant = &x.constant;
      }
    states_ = g_.states();
    for (ValueId v : states_) info(v).constant = nullptr;
    for (NodeId id : g_.order()) {
      const Node &n = g_.node(id);
      if (derived_.has(id)) {
        for (ValueId o : n.outputs) info(o).type = g_.value(o).type, info(o).constant = derived_.find(o);
        continue;
      }
      in_.clear();
      for (ValueId x : n.inputs) in_.push_back(view(x, !g_.value(x).state));
      Step step{id, n.impl};
      try {
        refuse_constant_state(n);
        Inferred r = infer_native(*n.impl, in_, *attrs_[size_t(id)], nullptr);
        bool all_known = true;
        for (size_t i = 0; i < n.outputs.size(); ++i) {
          Info &o = info(n.outputs[i]);
          o.type = std::move(r.types.at(i));
          if (!o.type.concrete())
            throw Error(OPGRAFT_INVALID_VALUE,
                        fmt::format("{}: output {} depends on values that are not known at plan time, got shape {}",
                                    n.op, i, to_string(o.type.dims)));
          bool known = r.values[i] && std::none_of(r.values[i]->begin(), r.values[i]->end(), is_symbol);
          if (!known) {
            all_known = false;
            continue;
          }
          Tensor t(OPGRAFT_INT64, o.type.dims);
          if (size_t(t.size()) != r.values[i]->size())
            throw Error(OPGRAFT_INTERNAL, n.op + ": infer stated values that do not fit its shape");
          std::copy(r.values[i]->begin(), r.values[i]->end(), t.data<int64_t>());
          made_.push_back(std::make_unique<Tensor>(std::move(t)));
          o.constant = made_.back().get();
        }
        if (all_known) continue;  // folded: nothing to run
        choose(step);
      } catch (const Error &e) {
        std::string shapes;
        for (ValueId x : n.inputs) shapes += (shapes.empty() ? "" : ", ") + info(x).type.text();
        throw NodeError({e.status, fmt::format("node {}: {} [inputs: {}]", n.name, e.what(), shapes)}, id);
      }
      for (auto [o, i] : step.op->manifest.view)
        if (n.outputs.size() == 1 && o == 0 && size_t(i) < n.inputs.size() && !is_state(n.inputs[size_t(i)]) &&
            bytes_of(info(n.outputs[0])) == bytes_of(info(n.inputs[size_t(i)])))
          step.view = true;
      steps_.push_back(step);
    }
  }

  // The step's implementation, and the workspace that it asks for. One that was the fastest at about this size may
  // refuse this very one: then the next serves.
  void choose(Step &step) {
    if (!step.op->family || step.op->family->added() < 2) {
      step.workspace = workspace(step);
      return;
    }
    std::vector<TensorType> types;
    for (ValueId o : g_.node(step.node).outputs) types.push_back(info(o).type);
    auto candidates = implementations(step.op);
    candidates.insert(candidates.begin(), fastest(step.op, in_, *attrs_[size_t(step.node)], types));
    for (size_t i = 0;; ++i) try {
        step.op = candidates[i];
        step.workspace = workspace(step);
        return;
      } catch (const Error &) {
        if (i + 1 == candidates.size()) throw;
      }
  }
  uint64_t workspace(const Step &step) {
    opgraft_infer_args args = infer_args(step.node);
    auto check = [&](int status) {
      if (status) throw Error(status & 0xff, last_error(*step.op, status));
    };
    uint64_t bytes = 0, packed = 0;
    if (step.op->native->workspace) check(step.op->native->workspace(&args, &bytes));
    for (size_t i = 0; step.op->native->prepare && i < in_.size(); ++i)
      if (in_[i].data) check(step.op->native->prepare(&args, int32_t(i), nullptr, &packed));
    return bytes;
  }
  // A constant is shared by all sessions, and its bytes may be a file's; a computed value may be a view of one. (A
  // Parameter that is a state has none here.) Of a function made for MindSpore nobody says which inputs it updates.
  void refuse_constant_state(const Node &n) {
    auto &m = n.impl->manifest;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      const bool computed = g_.value(n.inputs[i]).kind == Value::kResult;
      if (m.updates(i) && (computed || info(n.inputs[i]).constant))
        throw Error(OPGRAFT_INVALID_VALUE,
                    fmt::format("{}: {} is updated in place and must be a Parameter or an input of the model, got a {}",
                                n.op, m.input(i)->name, computed ? "computed value" : "constant"));
    }
  }
  // What reads a state has what it was then, whatever is written later: no view.
  bool is_state(ValueId v) const { return std::find(states_.begin(), states_.end(), v) != states_.end(); }
  static size_t bytes_of(const Info &x) { return size_t(element_count(x.type.dims)) * dtype_size(x.type.dtype); }

  opgraft_infer_args infer_args(NodeId id) {
    auto &a = *attrs_[size_t(id)];
    return {
        sizeof(opgraft_infer_args), int32_t(in_.size()), a.size(), 0, in_.data(), a.data(), nullptr, nullptr, nullptr};
  }

  // Views and in-place results share their input's buffer; a buffer lives to its last use.
  void alias_and_live() {
    std::vector<int32_t> uses(v_.size(), 0);  // remaining uses per root
    for (size_t i = 0; i < v_.size(); ++i) v_[i].root = ValueId(i);
    std::vector<ValueId> view_root(v_.size());
    for (size_t i = 0; i < v_.size(); ++i) view_root[i] = ValueId(i);
    for (auto &s : steps_) {
      const Node &n = g_.node(s.node);
      if (s.view) view_root[size_t(n.outputs[0])] = view_root[size_t(n.inputs[size_t(s.op->manifest.view[0].second)])];
      else
        for (ValueId x : n.inputs) ++uses[size_t(view_root[size_t(x)])];
    }
    for (ValueId o : g_.outputs) uses[size_t(view_root[size_t(o)])] += 1 << 20;  // never dies
    for (size_t k = 0; k < steps_.size(); ++k) {
      const Node &n = g_.node(steps_[k].node);
      if (steps_[k].view) {
        info(n.outputs[0]).root = info(n.inputs[size_t(steps_[k].op->manifest.view[0].second)]).root;
        continue;
      }
      for (ValueId x : n.inputs) {
        Info &r = info(info(x).root);
        r.last_use = std::max(r.last_use, int32_t(k));
        --uses[size_t(view_root[size_t(x)])];
      }
      for (ValueId o : n.outputs) info(o).last_use = std::max(info(o).last_use, int32_t(k));
      for (auto [o, i] : steps_[k].op->manifest.inplace) {
        if (size_t(o) >= n.outputs.size() || size_t(i) >= n.inputs.size()) continue;
        ValueId in = n.inputs[size_t(i)], out = n.outputs[size_t(o)];
        Info &root = info(info(in).root);
        bool intermediate = g_.value(info(in).root).kind == Value::kResult && !root.constant;
        if (info(out).root != out || !intermediate || uses[size_t(view_root[size_t(in)])] != 0 ||
            bytes_of(info(out)) != bytes_of(info(in)) || shared_root(n, in, i) || !all_in_place(steps_[k].op, {o, i}))
          continue;
        info(out).root = info(in).root;
        root.last_use = std::max(root.last_use, int32_t(k));
        view_root_alias_.push_back({out, info(in).root});
        break;
      }
    }
    for (ValueId o : g_.outputs) info(info(o).root).last_use = int32_t(steps_.size());
  }
  // Another implementation may have to take over.
  static bool all_in_place(const OpPtr &op, std::pair<int, int> pair) {
    if (!op->family || op->family->added() < 2) return true;
    const auto all = implementations(op);
    return std::all_of(all.begin(), all.end(), [&](const OpPtr &other) {
      auto &declared = other->manifest.inplace;
      return std::find(declared.begin(), declared.end(), pair) != declared.end();
    });
  }
  // Another input of the node lies in the same buffer: writing in place would change it.
  bool shared_root(const Node &n, ValueId in, int except) {
    for (size_t j = 0; j < n.inputs.size(); ++j)
      if (int(j) != except && info(n.inputs[j]).root == info(in).root) return true;
    for (ValueId o : n.outputs)
      if (info(o).root == info(in).root) return true;
    return false;
  }

  void place() {
    for (size_t i = 0; i < g_.inputs.size(); ++i) fix(g_.inputs[i], {Place::kInput, int32_t(i), 0, nullptr});
    for (size_t i = 0; i < states_.size(); ++i) fix(states_[i], {Place::kState, int32_t(i), 0, nullptr});
    for (size_t i = 0; i < v_.size(); ++i)
      if (v_[i].constant) fix(ValueId(i), {Place::kConstant, 0, 0, v_[i].constant->data()});
    // An output's buffer is the caller's, when a step makes it.
    for (size_t i = 0; i < g_.outputs.size(); ++i) {
      Info &o = info(g_.outputs[i]);
      plan_->outputs.push_back(o.type);
      Info &root = info(o.root);
      if (!root.placed && g_.value(o.root).kind == Value::kResult && bytes_of(root) == bytes_of(o))
        fix(o.root, {Place::kOutput, int32_t(i), 0, nullptr});
    }
    Arena arena;
    std::vector<std::vector<ValueId>> dying(steps_.size() + 1);
    for (size_t k = 0; k < steps_.size(); ++k) {
      if (steps_[k].view) continue;
      for (ValueId o : g_.node(steps_[k].node).outputs) {
        Info &root = info(info(o).root);
        if (root.placed) continue;
        fix(info(o).root, {Place::kArena, 0, arena.take(bytes_of(root)), nullptr});
        plan_->intermediate_bytes += bytes_of(root);
        dying[size_t(root.last_use)].push_back(info(o).root);
      }
      if (steps_[k].workspace) {
        steps_[k].workspace_offset = arena.take(steps_[k].workspace);
        plan_->intermediate_bytes += steps_[k].workspace;
        arena.give(steps_[k].workspace_offset, steps_[k].workspace);
      }
      for (ValueId v : dying[k]) arena.give(info(v).place.offset, bytes_of(info(v)));
    }
    // What sharing in place saved counts as an intermediate, too.
    for (auto [out, root] : view_root_alias_) plan_->intermediate_bytes += bytes_of(info(out));
    plan_->arena_bytes = arena.size();
  }
  void fix(ValueId v, Place p) {
    info(v).place = p;
    info(v).placed = true;
  }

  PlannedTensor planned(ValueId v) { return {info(info(v).constant ? v : info(v).root).place, info(v).type}; }

  void emit() {
    for (auto &s : steps_) {
      if (s.view) continue;
      const Node &n = g_.node(s.node);
      Instruction ins{s.node,
                      s.op.get(),
                      attrs_[size_t(s.node)].get(),
                      int32_t(plan_->tensors.size()),
                      int32_t(n.inputs.size()),
                      int32_t(n.outputs.size()),
                      s.workspace_offset,
                      s.workspace,
                      {}};
      for (ValueId x : n.inputs) plan_->tensors.push_back(planned(x));
      for (ValueId x : n.outputs) plan_->tensors.push_back(planned(x));
      if (s.op->native->prepare) ask(n, s.node, *s.op);
      if (s.op != n.impl) plan_->ops.push_back(s.op);
      plan_->instructions.push_back(std::move(ins));
    }
    for (size_t i = 0; i < g_.outputs.size(); ++i) {
      PlannedTensor from = planned(g_.outputs[i]);
      if (from.place.kind != Place::kOutput || from.place.index != int32_t(i))
        plan_->copies.push_back({from, int32_t(i)});
    }
    for (auto &t : made_) plan_->constants.push_back(*t);
    weights_.answer(requests_);
    for (size_t i = 0; i < requests_.size(); ++i) {
      Instruction &ins = plan_->instructions[size_t(asked_by_[i])];
      if (!requests_[i].packed) continue;
      ins.packed.resize(size_t(ins.n_inputs));
      ins.packed[size_t(requests_[i].input)] = requests_[i].packed;
    }
  }

  // What the instruction that comes next may want packed.
  void ask(const Node &n, NodeId id, const Op &op) {
    std::string text;
    for (auto &[k, v] : n.attrs) text += k + "=" + attr_text(v) + ";";
    std::vector<opgraft_tensor> inputs;  // those that stay with the model, as what is packed does, with their bytes
    for (ValueId x : n.inputs) inputs.push_back(view(x, g_.value(x).stays() || derived_.find(x)));
    const std::span attrs(attrs_[size_t(id)]->data(), size_t(attrs_[size_t(id)]->size()));
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      if (!inputs[i].data) continue;
      requests_.push_back({&op, inputs, attrs, text, int32_t(i), info(n.inputs[i]).constant});
      asked_by_.push_back(int32_t(plan_->instructions.size()));
    }
  }

  const Graph &g_;
  const NodeAttrs &attrs_;
  const Derived &derived_;
  PackedWeights &weights_;
  std::shared_ptr<Plan> plan_;
  std::vector<Info> v_;
  std::vector<ValueId> states_;
  std::vector<Step> steps_;
  std::vector<std::unique_ptr<Tensor>> made_;
  std::vector<opgraft_tensor> in_;
  std::vector<PackRequest> requests_;
  std::vector<int32_t> asked_by_;  // by request: the instruction
  std::vector<std::pair<ValueId, ValueId>> view_root_alias_;
};

}  // namespace

std::shared_ptr<const Plan> make_plan(const Graph &graph, const NodeAttrs &attrs, const Derived &derived,
                                      PackedWeights &weights, const std::vector<Shape> &input_shapes) {
  NodeId refuses;
  std::exception_ptr first;
  try {
    return Planner(graph, attrs, derived, weights).make(input_shapes);
  } catch (const NodeError &e) {
    refuses = e.node;
    first = std::current_exception();
  }
  const std::shared_ptr<Graph> restored = graph.clone();
  for (int n = 1; restored->restore(refuses); ++n) try {
      if (n == kMostRefusals)
        for (NodeId id : std::vector(restored->order())) restored->restore(id);
      NodeAttrs own = flat_attrs(*restored);
      auto plan = Planner(*restored, own, Derived(), weights).make(input_shapes);
      plan->graph = restored;
      plan->attrs = std::move(own);
      return plan;
    } catch (const NodeError &e) {
      refuses = e.node;
    }
  std::rethrow_exception(first);
}

}  // namespace opgraft
