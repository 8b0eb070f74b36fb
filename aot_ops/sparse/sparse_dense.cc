// SparseDense: act(x W^T + bias) of a weight that is mostly zeros, a pruned layer. Bias and activation are applied to
// float32 sums, where y is written.
#include "aot_ops/common/layer.h"
#include "aot_ops/sparse/operands.h"

namespace opgraft {
namespace {
using namespace opgraft::sparse;

enum { kX, kWeight, kBias };

Operands layer(const Arguments &c) {
  Operands o = operands(c, false, false, transposed(c));
  if (c.inputs() > kBias) o.product.bias = c.input(kBias).raw();
  o.product.activation = activation_from_name(c, c.attr_string("activation", "none"));
  return o;
}

uint64_t Workspace(InferContext &c) {
  if (c.input(kX).size() < 0 || c.input(kWeight).size() < 0) return 0;
  return product_workspace(c, layer(c));
}
uint64_t PackedBytes(InferContext &c, int input) { return product_packed_bytes(c, layer(c), input); }
void Pack(InferContext &c, int, void *to) { pack_product(c, layer(c), to); }
void Kernel(Context &c) { run_product(c, layer(c)); }
void Reference(Context &c) { reference_product(c, layer(c)); }

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(SparseDense, .inputs = -1, .infer = infer_dense, .kernel = Kernel, .reference = Reference,
           .workspace = Workspace, .packed_bytes = PackedBytes, .pack = Pack)
