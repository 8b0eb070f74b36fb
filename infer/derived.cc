#include "infer/derived.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "infer/session.h"

namespace opgraft {
namespace {

constexpr size_t kAlignment = 64;  // bytes, as of what is allocated

// Whether its result is the first input's memory.
bool is_view_of(const Node &n, size_t bytes, const Tensor &first) {
  const auto &view = n.impl->manifest.view;
  return n.outputs.size() == 1 && view.size() == 1 && view[0] == std::pair(0, 0) && bytes == first.bytes();
}

// Bytes of the results; nothing where they are not known. Throws Error where sizes overflow.
std::optional<size_t> size_of_results(const Graph &g, const Node &n) {
  size_t given = 0;
  for (ValueId o : n.outputs) {
    const TensorType &type = g.value(o).type;
    if (!type.concrete()) return std::nullopt;
    given += byte_count(type.dtype, type.dims);
  }
  return given;
}

// Values that a node may write to, and those that lie in the same memory: by value.
std::vector<char> written(const Graph &g) {
  std::vector<char> found(g.value_count(), false);
  for (auto it = g.order().rbegin(); it != g.order().rend(); ++it) {
    const Node &n = g.node(*it);
    const auto &m = n.impl->manifest;
    for (size_t i = 0; i < n.inputs.size(); ++i)
      if (m.may_update(i)) found[size_t(n.inputs[i])] = true;
    for (auto [o, i] : m.view)
      if (size_t(o) < n.outputs.size() && size_t(i) < n.inputs.size() && found[size_t(n.outputs[size_t(o)])])
        found[size_t(n.inputs[size_t(i)])] = true;
  }
  return found;
}

}  // namespace

Derived::Derived(const Graph &g) {
  const std::vector<char> is_written = written(g);
  std::vector<int32_t> uses(g.value_count(), 0);
  for (NodeId id : g.order())
    for (ValueId v : g.node(id).inputs) ++uses[size_t(v)];
  for (ValueId v : g.outputs) ++uses[size_t(v)];
  size_t most = 0;
  for (size_t i = 0; i < g.value_count(); ++i)
    if (const Value &v = g.value(ValueId(i)); v.stays()) most += v.constant.bytes();
  for (NodeId id : g.order()) {
    const Node &n = g.node(id);
    std::vector<const Tensor *> inputs;
    size_t taken = 0;
    for (ValueId x : n.inputs) {
      const Value &v = g.value(x);
      const Tensor *t = v.stays() && !is_written[size_t(x)] ? &v.constant : find(x);
      if (t) inputs.push_back(t), taken += t->bytes();
    }
    const auto is_written_to = [&](ValueId v) { return is_written[size_t(v)]; };
    if (!n.impl->manifest.deterministic || n.inputs.empty() || inputs.size() < n.inputs.size() ||
        std::ranges::any_of(n.outputs, is_written_to))
      continue;
    try {
      const auto given = size_of_results(g, n);
      if (!given || *given > taken) continue;
      if (is_view_of(n, *given, *inputs[0])) {
        const TensorType &type = g.value(n.outputs[0]).type;
        values_[n.outputs[0]] = inputs[0]->part(type.dtype, type.dims, 0);
      } else if (bytes_ + *given <= most) {
        run(n, inputs);
      } else {
        continue;
      }
    } catch (const std::exception &) {
      continue;  // says so when it is called
    }
    done_.resize(std::max(done_.size(), size_t(id) + 1));
    done_[size_t(id)] = true;
    for (ValueId v : n.inputs)
      if (--uses[size_t(v)] == 0) drop(v);
  }
}

void Derived::run(const Node &n, const std::vector<const Tensor *> &inputs) {
  const Tensor &first = *inputs[0];
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
    if (!is_part) made_[made[i].owner()] = bytes, bytes_ += bytes;
    at += bytes;
  }
}

const Tensor *Derived::find(ValueId v) const {
  auto it = values_.find(v);
  return it == values_.end() ? nullptr : &it->second;
}

void Derived::drop(ValueId v) {
  const auto value = values_.find(v);
  if (value == values_.end()) return;
  const std::weak_ptr<void> owner = value->second.owner();
  values_.erase(value);
  const auto made = owner.expired() ? made_.find(owner) : made_.end();
  if (made == made_.end()) return;
  bytes_ -= made->second;
  made_.erase(made);
}

}  // namespace opgraft
