// One of two implementations: it swaps, so that y may be x, and refuses what its op.yaml tells.
#include <utility>

#include "opgraft/op.h"

namespace opgraft {
namespace {

void Infer(InferContext &c) { c.output(c.input(0).dtype(), c.input(0).shape()); }
uint64_t Workspace(InferContext &c) {
  c.check(c.input(0).size() % 2 == 0, "the number of elements must be even, got ", c.input(0).size());
  return 0;
}
void Kernel(Context &c) {
  const float *x = c.input(0).data<float>();
  float *y = c.output(0).data<float>();
  const int64_t n = c.input(0).size();
  if (n > 0 && x[0] == 42) c.fail(OPGRAFT_UNSUPPORTED | OPGRAFT_NOTHING_WRITTEN, "the first element must not be 42");
  for (int64_t i = 0; i < n / 2; ++i) {
    const float first = x[i], last = x[n - 1 - i];
    y[i] = last, y[n - 1 - i] = first;
  }
}
int Score() { return 9; }

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Turned, .inputs = 1, .infer = Infer, .kernel = Kernel, .score = Score, .workspace = Workspace)
