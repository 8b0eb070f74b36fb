#include "infer/choose.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "infer/native_call.h"
#include "registry/choice.h"

namespace opgraft {
namespace {

constexpr int kRuns = 5;

// Seconds of the fastest of a few calls as a plan would make them: packed constants, state, workspace.
double measure(const Op &op, const std::vector<opgraft_tensor> &in, const FlatAttrs &attrs,
               const std::vector<opgraft_tensor> &out) {
  const opgraft_op &native = *op.native;
  NativeCall made(op, in, out, attrs);
  opgraft_call &call = made.call;
  std::vector<std::shared_ptr<void>> blobs;
  std::vector<const void *> packed(in.size());
  for (size_t i = 0; native.prepare && i < in.size(); ++i) {
    uint64_t bytes = 0;
    if (!in[i].data) continue;
    made.check(native.prepare(&made.args, int32_t(i), nullptr, &bytes));
    if (!bytes) continue;
    blobs.push_back(allocate(bytes));
    made.check(native.prepare(&made.args, int32_t(i), blobs.back().get(), &bytes));
    packed[i] = blobs.back().get();
  }
  call.packed = packed.data();
  // Inputs that the plan does not know yet.
  std::vector<opgraft_tensor> inputs = in;
  for (auto &t : inputs)
    if (!t.data) {
      const size_t bytes = size_t(t.elements) * dtype_size(t.dtype);
      blobs.push_back(allocate(std::max<size_t>(bytes, 1)));
      std::memset(blobs.back().get(), 0, bytes);
      t.data = blobs.back().get();
    }
  call.inputs = inputs.data();
  double best = 1e300;
  for (int i = 0; i < kRuns; ++i) {
    const auto start = std::chrono::steady_clock::now();
    made.check(native.kernel(&call));
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

OpPtr fastest(const OpPtr &op, const std::vector<opgraft_tensor> &inputs, const FlatAttrs &attrs,
              const std::vector<TensorType> &outputs) {
  // A state would change with every call that is measured.
  const auto &declared = op->manifest.inputs;
  if (std::any_of(declared.begin(), declared.end(), [](auto &t) { return t.state; })) return op;
  Signature signature;
  for (auto &t : inputs) {
    signature.dtypes.push_back(t.dtype);
    signature.shapes.emplace_back(t.shape, t.shape + t.ndim);
  }
  if (!op->family) return op;
  auto chosen = op->family->choose(signature, [&](const OpPtr &candidate) {
    std::vector<Tensor> room;
    std::vector<opgraft_tensor> out;
    for (auto &t : outputs) room.emplace_back(t.dtype, t.dims);
    for (auto &t : room) out.push_back(t.view());
    return measure(*candidate, inputs, attrs, out);
  });
  return chosen ? chosen : op;
}

}  // namespace opgraft
