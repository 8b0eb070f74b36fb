// An operator and its gradient.
#include "opgraft/op.h"

namespace opgraft {
namespace {

void Infer(InferContext &c) { c.output(c.input(0).dtype(), c.input(0).shape()); }
void InferGrad(InferContext &c) {
  c.check_same_shape(1, "dy", 0, "x");
  Infer(c);
}
void Kernel(Context &c) {
  const float *x = c.input(0).data<float>();
  for (int64_t i = 0; i < c.input(0).size(); ++i) c.output(0).data<float>()[i] = x[i] * x[i] * x[i];
}
void KernelGrad(Context &c) {
  const float *x = c.input(0).data<float>(), *dy = c.input(1).data<float>();
  for (int64_t i = 0; i < c.input(0).size(); ++i) c.output(0).data<float>()[i] = 3 * x[i] * x[i] * dy[i];
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Cube, .inputs = 1, .infer = Infer, .kernel = Kernel, .backward = "CubeGrad")
OPGRAFT_OP(CubeGrad, .inputs = 2, .infer = InferGrad, .kernel = KernelGrad)
