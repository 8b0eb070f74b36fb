// Fails in the function and in the way its attributes name; else adds 1.
#include "opgraft/op.h"

namespace opgraft {
namespace {

void fail(const Arguments &a, std::string_view here) {
  if (a.attr_string("where", "") != here) return;
  auto what = a.attr_string("what", "");
  if (what == "error") a.fail(OPGRAFT_INVALID_VALUE, "x must be right, got wrong");
  if (what == "nothing_written") a.fail(OPGRAFT_UNSUPPORTED | OPGRAFT_NOTHING_WRITTEN, "not here");
  if (what == "runtime_error") throw std::runtime_error("a runtime error");
  if (what == "bad_alloc") throw std::bad_alloc();
  throw 42;
}

void Infer(InferContext &c) {
  fail(c, "infer");
  c.output(c.input(0).dtype(), c.input(0).shape());
}
uint64_t Workspace(InferContext &c) {
  fail(c, "workspace");
  return 64;
}
void *Init(InferContext &c) {
  fail(c, "init");
  return new int(1);
}
void Release(void *state) { delete static_cast<int *>(state); }

void add_one(Context &c, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) c.output(0).data<float>()[i] = c.input(0).data<float>()[i] + 1;
}
void Kernel(Context &c) {
  fail(c, "kernel");
  c.check(*c.state<int>() == 1, "state must come from init");
  c.parallel_for(c.input(0).size(), 1, [&](int64_t begin, int64_t end) {
    fail(c, "body");
    add_one(c, begin, end);
  });
}
void Reference(Context &c) {
  fail(c, "reference");
  add_one(c, 0, c.input(0).size());
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Thrower, .inputs = 1, .infer = Infer, .kernel = Kernel, .reference = Reference, .workspace = Workspace,
           .init = Init, .release = Release)
