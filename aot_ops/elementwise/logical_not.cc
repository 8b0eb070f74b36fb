// LogicalNot: what a bool is not.
#include "opgraft/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "logical_not.cc"
#include "hwy/foreach_target.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// So plain that the compiler vectorises it for the target. As bytes: another library's true may be any but 0.
void Negate(const uint8_t *x, uint8_t *y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] == 0;
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD(Negate)

namespace {

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_BOOL});
  c.output(OPGRAFT_BOOL, c.input(0).shape());
}

void Kernel(Context &c) {
  const uint8_t *x = c.input(0).data<uint8_t>();
  uint8_t *y = c.output(0).data<uint8_t>();
  const auto negate = Negate_simd();
  c.parallel_for(c.output(0).size(), 65536, [&](int64_t b, int64_t e) { negate(x + b, y + b, e - b); });
}

void Reference(Context &c) {
  for (int64_t i = 0; i < c.output(0).size(); ++i) c.output(0).data<bool>()[i] = !c.input(0).data<bool>()[i];
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(LogicalNot, .inputs = 1, .infer = Infer, .kernel = Kernel, .reference = Reference)
#endif
