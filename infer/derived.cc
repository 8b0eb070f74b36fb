#include "infer/derived.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "infer/session.h"

namespace opgraft {
namespace {

constexpr size_t kAlignment = 64;    // bytes, as of what is allocated
constexpr int64_t kSmall = 1 << 20;  // elements, which are kept though they be more than what they are made of

// Throws Error where sizes overflow.
bool is_worth_keeping(const Graph &g, const Node &n, const std::vector<const Tensor *> &inputs) {
  size_t taken = 0, given = 0;
  for (const Tensor *t : inputs) taken += t->bytes();
  int64_t most = 0;
  for (ValueId o : n.outputs) {
    const TensorType &type = g.value(o).type;
    if (!type.concrete()) return false;
    most = std::max(most, element_count(type.dims));
    given += byte_count(type.dtype, type.dims);
  }
  return most <= kSmall || given <= taken;
}

}  // namespace

Derived::Derived(const Graph &g) {
  const std::vector<ValueId> states = g.states();
  std::vector<int32_t> uses(g.value_count(), 0);
  for (NodeId id : g.order())
    for (ValueId v : g.node(id).inputs) ++uses[size_t(v)];
  for (ValueId v : g.outputs) ++uses[size_t(v)];
  for (NodeId id : g.order()) {
    const Node &n = g.node(id);
    const auto &m = n.impl->manifest;
    std::vector<const Tensor *> inputs;
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      const Value &v = g.value(n.inputs[i]);
      const bool is_state = std::ranges::find(states, n.inputs[i]) != states.end() || m.may_update(i);
      if (const Tensor *t = v.kind == Value::kConstant ? &v.constant : find(n.inputs[i]); t && !is_state)
        inputs.push_back(t);
    }
    if (!m.deterministic || n.inputs.empty() || inputs.size() < n.inputs.size()) continue;
    try {
      if (!is_worth_keeping(g, n, inputs)) continue;
      run(g, n, inputs);
    } catch (const std::exception &) {
      continue;  // says so when it is called
    }
    done_.resize(std::max(done_.size(), size_t(id) + 1));
    done_[size_t(id)] = true;
    for (ValueId v : n.inputs)
      if (--uses[size_t(v)] == 0 && g.value(v).kind == Value::kResult) values_.erase(v);
  }
  std::set<void *> others;
  for (size_t i = 0; i < g.value_count(); ++i) others.insert(g.value(ValueId(i)).constant.owner().get());
  for (auto &[v, t] : values_)
    if (!others.contains(t.owner().get())) bytes_ += t.bytes();
}

void Derived::run(const Graph &g, const Node &n, const std::vector<const Tensor *> &inputs) {
  const Tensor &first = *inputs[0];
  const TensorType &type = g.value(n.outputs[0]).type;
  const auto &view = n.impl->manifest.view;
  if (n.outputs.size() == 1 && view.size() == 1 && view[0] == std::pair(0, 0) &&
      byte_count(type.dtype, type.dims) == first.bytes()) {
    values_[n.outputs[0]] = first.part(type.dtype, type.dims, 0);
    return;
  }
  std::vector<Tensor> given;
  for (const Tensor *t : inputs) given.push_back(*t);
  std::vector<Tensor> made = run_op(n.impl, given, n.attrs);
  size_t at = 0;
  for (size_t i = 0; i < made.size(); ++i) {
    const size_t bytes = made[i].bytes();
    const char *place = first.data<char>() + at;
    const bool is_part = at + bytes <= first.bytes() && uintptr_t(place) % kAlignment == 0 &&
                         std::memcmp(made[i].data(), place, bytes) == 0;
    values_[n.outputs[i]] = is_part ? first.part(made[i].dtype(), made[i].dims(), at) : made[i];
    at += bytes;
  }
}

const Tensor *Derived::find(ValueId v) const {
  auto it = values_.find(v);
  return it == values_.end() ? nullptr : &it->second;
}

}  // namespace opgraft
