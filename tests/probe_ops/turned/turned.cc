// One of two implementations: it needs x as it was while it writes y.
#include "opgraft/op.h"

namespace opgraft {
namespace {

void Infer(InferContext &c) { c.output(c.input(0).dtype(), c.input(0).shape()); }
void Kernel(Context &c) {
  const int64_t n = c.input(0).size();
  for (int64_t i = 0; i < n; ++i) c.output(0).data<float>()[i] = c.input(0).data<float>()[n - 1 - i];
}
int Score() { return 1; }

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Turned, .inputs = 1, .infer = Infer, .kernel = Kernel, .score = Score)
