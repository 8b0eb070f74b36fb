// An input that is updated in place, and a state that counts how many of its kind there are.
#include "opgraft/op.h"

extern "C" {
__attribute__((visibility("default"))) int opgraft_live_accumulators = 0;
}

namespace opgraft {
namespace {

void Infer(InferContext &c) { c.output(c.input(0).dtype(), c.input(0).shape()); }
void *Init(InferContext &c) {
  for (int i = 0; i < 2; ++i) c.check(!c.input(i).known(), "the value of input ", i, " is no constant");
  return __atomic_add_fetch(&opgraft_live_accumulators, 1, __ATOMIC_RELAXED), new int(1);
}
void Release(void *state) {
  __atomic_sub_fetch(&opgraft_live_accumulators, 1, __ATOMIC_RELAXED), delete static_cast<int *>(state);
}
void Kernel(Context &c) {
  float *total = c.input(1).data<float>();
  c.touch(total, uint64_t(c.input(0).size()) * 4);
  for (int64_t i = 0; i < c.input(0).size(); ++i)
    if (!(c.input(0).data<float>()[i] >= 0)) c.fail(OPGRAFT_INTERNAL, "x must be at least 0");
  for (int64_t i = 0; i < c.input(0).size(); ++i) {
    total[i] += c.input(0).data<float>()[i];
    c.output(0).data<float>()[i] = total[i];
  }
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Accumulator, .inputs = 2, .infer = Infer, .kernel = Kernel, .init = Init, .release = Release)
