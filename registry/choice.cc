#include "registry/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace opgraft {

std::string Signature::bucket() const {
  std::string key;
  for (size_t i = 0; i < shapes.size(); ++i) {
    key += fmt::format("{}:", i < dtypes.size() ? dtypes[i] : 0);
    for (int64_t d : shapes[i]) key += fmt::format("{},", d > 0 ? int64_t(std::bit_ceil(uint64_t(d))) : d);
    key += ';';
  }
  return key;
}

void Family::add(const OpPtr &op) {
  std::lock_guard lock(mutex_);
  members_.push_back(op);
  ++added_;
  chosen_.clear();
}

std::vector<OpPtr> Family::members() const {
  std::vector<OpPtr> all;
  {
    std::lock_guard lock(mutex_);
    for (auto &m : members_)
      if (auto op = m.lock()) all.push_back(std::move(op));
  }
  std::stable_sort(all.begin(), all.end(), [](auto &a, auto &b) { return a->score > b->score; });
  return all;
}

OpPtr Family::choose(const Signature &signature, const Measure &seconds) {
  std::shared_ptr<Choice> choice;
  {
    std::lock_guard lock(mutex_);
    auto &slot = chosen_[signature.bucket()];
    if (!slot) slot = std::make_shared<Choice>();
    choice = slot;
  }
  std::call_once(choice->once, [&] {
    double best = 0;
    OpPtr fastest;
    for (auto &op : members()) try {
        const double s = seconds(op);
        if (!fastest || s < best) best = s, fastest = op;
      } catch (const std::exception &) {  // it does not serve these arguments
      }
    choice->op = fastest;
  });
  return choice->op.lock();
}

std::vector<OpPtr> implementations(const OpPtr &op) {
  if (!op->family) return {op};
  auto all = op->family->members();
  return all.empty() ? std::vector<OpPtr>{op} : all;
}

namespace {

std::string message(const Op &op, int status) {
  const char *text = op.native->last_error ? op.native->last_error() : nullptr;
  return text && *text ? text : fmt::format("{}: failed with status {}", op.name(), status & 0xff);
}

// The plan may have put an output into an input's buffer, which `op` allows: whether `other` does, too.
bool may_run(const Op &other, const opgraft_call &call) {
  auto &inplace = other.manifest.inplace;
  for (int o = 0; o < call.n_outputs; ++o)
    for (int i = 0; i < call.n_inputs; ++i)
      if (call.outputs[o].elements > 0 && call.outputs[o].data == call.inputs[i].data &&
          std::find(inplace.begin(), inplace.end(), std::pair(o, i)) == inplace.end())
        return false;
  return true;
}

// Runs another implementation's kernel on a call that was prepared for `op`: with a state and a workspace
// of its own, without packed inputs.
int run_other(const Op &other, opgraft_call call) {
  const opgraft_op &native = *other.native;
  opgraft_infer_args args{sizeof args, call.n_inputs, call.n_attrs, 0,      call.inputs,
                          call.attrs,  nullptr,       nullptr,      nullptr};
  std::unique_ptr<void, void (*)(void *)> workspace(nullptr, std::free);
  call.packed = nullptr;
  call.workspace = call.state = nullptr;
  call.workspace_bytes = 0;
  const auto nothing = [](int s) { return s | OPGRAFT_NOTHING_WRITTEN; };
  if (native.workspace)
    if (int s = native.workspace(&args, &call.workspace_bytes)) return nothing(s);
  if (call.workspace_bytes) {
    workspace.reset(std::aligned_alloc(64, (call.workspace_bytes + 63) / 64 * 64));
    if (!workspace) return nothing(OPGRAFT_OUT_OF_MEMORY);
    call.workspace = workspace.get();
  }
  if (native.init)
    if (int s = native.init(&args, &call.state)) return nothing(s);
  const int status = native.kernel(&call);
  if (call.state && native.release) native.release(call.state);
  return status;
}

}  // namespace

Recovery recover(const Op &op, const opgraft_call &call, int status,
                 const std::function<void(const std::string &)> &log) {
  Recovery r{status, message(op, status), ""};
  auto others = op.family ? op.family->members() : std::vector<OpPtr>{};
  const Op *failed = &op;
  auto takes_over = [&](const std::string &who) {
    failed->failures.fetch_add(1);
    r.by = who;
    log(fmt::format("{}: {}; {} takes over", failed->title(), r.cause, who));
  };
  for (auto &other : others) {
    if (other.get() == &op || !(r.status & OPGRAFT_NOTHING_WRITTEN) || !may_run(*other, call)) continue;
    takes_over(other->title());
    r.status = run_other(*other, call);
    if (r.status == OPGRAFT_OK) return r;
    r.cause = message(*other, r.status);
    failed = other.get();
  }
  if ((r.status & OPGRAFT_NOTHING_WRITTEN) && op.native->reference) {
    takes_over("the reference");
    r.status = op.native->reference(&call);
    if (r.status != OPGRAFT_OK) r.cause = message(op, r.status);
  }
  return r;
}

}  // namespace opgraft
