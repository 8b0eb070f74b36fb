// x, after 64 pieces of work of so many microseconds each, and which threads were at it.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "opgraft/op.h"
using namespace opgraft;
namespace {
std::atomic<int> at_work{0}, calling{0}, most_calling{0}, chunks{0}, crowded{0};

void raise(std::atomic<int> &to, int value) {
  for (int old = to; old < value && !to.compare_exchange_weak(old, value);) {
  }
}

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32});
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void Kernel(Context &c) {
  const std::chrono::microseconds each(c.attr_int("microseconds", 100));
  const int threads = c.threads();
  raise(most_calling, ++calling);
  c.parallel_for(64, 1, [&](int64_t begin, int64_t end, int worker) {
    const int now = ++at_work;
    if (worker) ++chunks, crowded += now > threads;
    const auto until = std::chrono::steady_clock::now() + (end - begin) * each;
    while (std::chrono::steady_clock::now() < until) {
    }
    --at_work;
  });
  --calling;
  std::copy_n(c.input(0).data<float>(), c.input(0).size(), c.output(0).data<float>());
}
}  // namespace

// Since the last call: how many threads called at once; how many chunks workers took; and of these how many they began
// beside as many threads as there may be.
extern "C" __attribute__((visibility("default"))) void threads_at_work(int *together, int *of_workers, int *beside) {
  *together = most_calling.exchange(0);
  *of_workers = chunks.exchange(0);
  *beside = crowded.exchange(0);
}

OPGRAFT_OP(AtWork, .inputs = 1, .infer = Infer, .kernel = Kernel)
