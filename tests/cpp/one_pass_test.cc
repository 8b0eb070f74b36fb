// Kernels of rows go over memory once: of a tensor many times the caches only the pages touched last can be touched
// again. All others are taken away from the process, and what comes back to one of them is counted.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "aot_ops/common/threads.h"
#include "engine_test_util.h"
#include "infer/native_call.h"

namespace opgraft {
namespace {
using namespace test;

// Rows of whole pages, of which the kWindow that were come to last can be touched: four rows.
class Guarded {
 public:
  static constexpr size_t kPages = 4, kRows = 64, kWindow = 4 * kPages;

  Guarded() : page_(size_t(sysconf(_SC_PAGESIZE))) {
    base_ = static_cast<char *>(mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    dims_ = {int64_t(kRows), int64_t(kPages * page_ / sizeof(float))};
    for (int64_t i = 0; i < element_count(dims_); ++i) data()[i] = float(i % 2001) / 500 - 2;
  }
  ~Guarded() { munmap(base_, bytes()); }
  Guarded(const Guarded &) = delete;
  void operator=(const Guarded &) = delete;

  float *data() { return reinterpret_cast<float *>(base_); }
  int64_t columns() const { return dims_[1]; }
  opgraft_tensor tensor() { return {data(), dims_.data(), 2, OPGRAFT_FLOAT32, element_count(dims_)}; }
  size_t come_to() const { return come_to_; }
  static constexpr size_t pages() { return kPages * kRows; }

  void close() { mprotect(base_, bytes(), PROT_NONE); }
  void open() { mprotect(base_, bytes(), PROT_READ | PROT_WRITE); }
  bool holds(const void *at) const { return at >= base_ && at < base_ + bytes(); }
  // Within the signal's handler: system calls and plain numbers only.
  void come(const void *at) {
    char *page = base_ + (static_cast<const char *>(at) - base_) / ptrdiff_t(page_) * ptrdiff_t(page_);
    char *&oldest = last_[come_to_++ % kWindow];
    if (oldest) mprotect(oldest, page_, PROT_NONE);
    mprotect(oldest = page, page_, PROT_READ | PROT_WRITE);
  }

 private:
  size_t bytes() const { return pages() * page_; }
  size_t page_, come_to_ = 0;
  char *base_;
  std::array<char *, kWindow> last_{};
  Shape dims_;
};

std::vector<std::unique_ptr<Guarded>> *watched;
struct sigaction before;

void come(int signal, siginfo_t *info, void *) {
  for (auto &one : *watched)
    if (one->holds(info->si_addr)) return one->come(info->si_addr);
  sigaction(signal, &before, nullptr);  // not of ours: it comes again, to whom it came before
}

struct Rows {
  const char *op;
  int wide, rows, outputs, sums;  // inputs: as wide as x, then rows of parameters; outputs so wide, then sums by column
  friend void PrintTo(const Rows &rows, std::ostream *out) { *out << rows.op; }
};

class OnePass : public testing::TestWithParam<Rows> {
  void SetUp() override { opgraft_set_threads(1); }
  void TearDown() override { opgraft_set_threads(0); }
};

TEST_P(OnePass, ComesToAPageOnce) {
  const auto [name, wide, rows, outputs, sums] = GetParam();
  std::vector<std::unique_ptr<Guarded>> tensors;
  for (int i = 0; i < wide + outputs; ++i) tensors.push_back(std::make_unique<Guarded>());
  const int64_t columns = tensors[0]->columns();
  std::vector<Tensor> small;
  for (int i = 0; i < rows + sums; ++i) small.push_back(floats({columns}, 0.5f));
  std::vector<opgraft_tensor> x, y;
  const auto by_column = [&](int i) -> opgraft_tensor {
    return {small[size_t(i)].data<float>(), small[size_t(i)].dims().data(), 1, OPGRAFT_FLOAT32, columns};
  };
  for (int i = 0; i < wide + outputs; ++i) (i < wide ? x : y).push_back(tensors[size_t(i)]->tensor());
  for (int i = 0; i < rows + sums; ++i) (i < rows ? x : y).push_back(by_column(i));
  const auto found = ops().resolve(name);
  const FlatAttrs flat(complete_attrs(found->manifest, {}));
  NativeCall call(*found, x, y, flat);

  watched = &tensors;
  struct sigaction ours {};
  ours.sa_sigaction = come, ours.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &ours, &before);
  for (auto &one : tensors) one->close();
  const int error = found->native->kernel(&call.call);
  for (auto &one : tensors) one->open();
  sigaction(SIGSEGV, &before, nullptr);
  call.check(error);
  for (size_t i = 0; i < tensors.size(); ++i)
    EXPECT_EQ(tensors[i]->come_to(), Guarded::pages()) << (int(i) < wide ? "input " : "output ") << i;
}

INSTANTIATE_TEST_SUITE_P(Kernels, OnePass,
                         testing::Values(Rows{"Add", 2, 0, 1, 0}, Rows{"FusedRmsNorm", 1, 1, 1, 0},
                                         Rows{"FusedAddRmsNorm", 2, 1, 2, 0}, Rows{"FusedLayerNorm", 1, 2, 1, 0},
                                         Rows{"AddLayerNorm", 2, 2, 2, 0}, Rows{"FusedRmsNormGrad", 2, 1, 1, 1},
                                         Rows{"FusedAddRmsNormGrad", 3, 1, 1, 1},
                                         Rows{"FusedLayerNormGrad", 2, 1, 1, 2}, Rows{"AddLayerNormGrad", 3, 1, 1, 2},
                                         Rows{"Softmax", 1, 0, 1, 0}, Rows{"SoftmaxBackward", 2, 0, 1, 0},
                                         Rows{"LogSoftmax", 1, 0, 1, 0}),
                         [](const auto &info) { return std::string(info.param.op); });

}  // namespace
}  // namespace opgraft
