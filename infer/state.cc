#include "infer/state.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace opgraft {
namespace {

const size_t kPage = size_t(sysconf(_SC_PAGESIZE));
constexpr size_t kMost = size_t(1) << 46;

size_t up(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

[[noreturn]] void fail(const char *what, size_t bytes) {
  throw Error(OPGRAFT_OUT_OF_MEMORY, fmt::format("state: {} of {} bytes: {}", what, bytes, std::strerror(errno)));
}

}  // namespace

bool StateBudget::take(size_t bytes) {
  size_t now = used.load();
  do {
    if (bytes > most || now > most - bytes) return false;
  } while (!used.compare_exchange_weak(now, now + bytes));
  return true;
}

struct StateMemory::File {
  int fd;
  std::shared_ptr<StateBudget> budget;
  size_t pages = 0;
  std::vector<bool> written;  // set when it is shared

  File(size_t bytes, std::shared_ptr<StateBudget> b)
      : fd(memfd_create("opgraft_state", MFD_CLOEXEC)), budget(std::move(b)) {
    if (fd < 0 || ftruncate(fd, off_t(bytes)) != 0) {
      const int error = errno;
      if (fd >= 0) close(fd);
      errno = error;
      fail("a file", bytes);
    }
  }
  ~File() {
    close(fd);
    budget->give(pages * kPage);
  }
  File(const File &) = delete;
};

StateMemory::StateMemory(std::vector<Tensor> initial, std::shared_ptr<StateBudget> budget)
    : initial_(std::move(initial)), budget_(std::move(budget)) {
  for (auto &t : initial_) {
    offsets_.push_back(size_);
    if (t.bytes() > kMost || size_ > kMost) throw Error(OPGRAFT_OUT_OF_MEMORY, "state: more than can be addressed");
    size_ += up(t.bytes());
  }
  size_ = std::max(size_, kPage);
  written_.resize(size_ / kPage);
  file_ = std::make_shared<File>(size_, budget_);
  map(MAP_SHARED);
  try {
    fill();
  } catch (...) {
    munmap(base_, size_);
    throw;
  }
}

// A fork: over the file that `from` has become private of.
StateMemory::StateMemory(const StateMemory *from)
    : initial_(from->initial_),
      budget_(from->budget_),
      offsets_(from->offsets_),
      size_(from->size_),
      file_(from->file_),
      forked_(true),
      written_(size_ / kPage) {
  map(MAP_PRIVATE);
}

StateMemory::~StateMemory() {
  munmap(base_, size_);
  forget();
}

void StateMemory::map(int flags) {
  void *p = mmap(base_, size_, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE | (base_ ? MAP_FIXED : 0), file_->fd, 0);
  if (p == MAP_FAILED) fail("address space", size_);
  base_ = static_cast<char *>(p);
}

// Pages of its own are given back.
void StateMemory::forget() {
  if (forked_) budget_->give(pages_ * kPage);
  std::fill(written_.begin(), written_.end(), false);
  pages_ = 0;
}

void StateMemory::fill() {
  for (size_t i = 0; i < initial_.size(); ++i) {
    const Tensor &t = initial_[i];
    if (!t.data()) continue;
    if (!touch(data(i), t.bytes()))
      throw Error(OPGRAFT_OUT_OF_MEMORY,
                  fmt::format("state: the initial contents need more than the {} bytes allowed", budget_->most.load()));
    std::memcpy(data(i), t.data(), t.bytes());
  }
}

bool StateMemory::touch(const void *data, size_t bytes) {
  const size_t at = size_t(static_cast<const char *>(data) - base_);
  if (bytes == 0 || at >= size_) return true;  // an input's memory is the caller's
  const size_t first = at / kPage, last = (std::min(at + bytes, size_) - 1) / kPage;
  size_t more = 0;
  for (size_t p = first; p <= last; ++p) more += !written_[p];
  if (more == 0) return true;
  if (!budget_->take(more * kPage)) return false;
  for (size_t p = first; p <= last; ++p) written_[p] = true;
  pages_ += more;
  if (!forked_) file_->pages += more;
  return true;
}

size_t StateMemory::bytes() const {
  if (!forked_) return pages_ * kPage;
  size_t copied = 0;  // pages of the file that this session has replaced
  for (size_t p = 0; p < written_.size(); ++p) copied += written_[p] && file_->written[p];
  return (file_->pages + pages_ - copied) * kPage;
}

void StateMemory::reset() {
  auto file = std::make_shared<File>(size_, budget_);
  forget();
  file_ = std::move(file);
  forked_ = false;
  map(MAP_SHARED);
  fill();
}

std::unique_ptr<StateMemory> StateMemory::fork() {
  if (forked_ && pages_ > 0) {  // a file of its own, of what it shares and what it has written
    auto file = std::make_shared<File>(size_, budget_);
    std::vector<bool> all = file_->written;
    for (size_t p = 0; p < all.size(); ++p) all[p] = all[p] || written_[p];
    const size_t pages = size_t(std::count(all.begin(), all.end(), true));
    if (!budget_->take(pages * kPage))
      throw Error(OPGRAFT_OUT_OF_MEMORY,
                  fmt::format("state: a fork needs {} bytes more than the {} allowed",
                              budget_->used + pages * kPage - budget_->most, budget_->most.load()));
    file->pages = pages;
    for (size_t p = 0; p < all.size(); ++p)
      for (size_t done = 0; all[p] && done < kPage;) {
        const ssize_t n = pwrite(file->fd, base_ + p * kPage + done, kPage - done, off_t(p * kPage + done));
        if (n <= 0) fail("a copy", kPage);
        done += size_t(n);
      }
    file->written = std::move(all);
    forget();
    file_ = std::move(file);
    map(MAP_PRIVATE);
  } else if (!forked_) {
    file_->written = written_;
    std::fill(written_.begin(), written_.end(), false);
    pages_ = 0;
    forked_ = true;
    map(MAP_PRIVATE);
  }
  return std::unique_ptr<StateMemory>(new StateMemory(this));
}

}  // namespace opgraft
