#include "infer/tensor.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace opgraft {

void *try_memory(size_t bytes) noexcept {
  constexpr size_t kPage = 4096;
  const size_t alignment = bytes >= 2 * kLargePage ? kLargePage : bytes >= 32 * kPage ? kPage : 64;
  // Not rounded up, so that AddressSanitizer sees a kernel read past the end.
  void *p = nullptr;
  if (posix_memalign(&p, alignment, bytes == 0 ? 1 : bytes) != 0) return nullptr;
  if (alignment == kLargePage) madvise(p, bytes, MADV_HUGEPAGE);  // where there are none, it does without
  return p;
}

void *take_memory(size_t bytes) {
  void *p = try_memory(bytes);
  if (!p) throw OutOfMemory(fmt::format("no memory for {} bytes", bytes));
  return p;
}

void *take_memory(const TensorType &type, size_t bytes) {
  void *p = try_memory(bytes);
  if (!p) throw OutOfMemory(fmt::format("no memory for {}, {} bytes", type.text(), bytes));
  return p;
}

std::shared_ptr<void> allocate(size_t bytes) { return {take_memory(bytes), std::free}; }

void forget_pages(const void *data, size_t bytes) {
  const auto page = uintptr_t(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + page - 1) / page * page, last = (begin + bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED);
}

size_t byte_count(int32_t dtype, const Shape &dims) {
  size_t bytes = dtype_size(dtype);
  if (bytes == 0) throw Error(OPGRAFT_INVALID_TYPE, "Tensor: unknown dtype");
  for (int64_t d : dims)
    if (d < 0 || __builtin_mul_overflow(bytes, size_t(d), &bytes))
      throw Error(OPGRAFT_INVALID_VALUE, "Tensor: shape " + to_string(dims) + " cannot be allocated");
  return bytes;
}

Tensor::Tensor(int32_t dtype, Shape dims) : dtype_(dtype), dims_(std::move(dims)) {
  const size_t bytes = byte_count(dtype, dims_);
  void *p = try_memory(bytes);
  owner_ = {p ? p : take_memory(type(), bytes), std::free};
  data_ = owner_.get();
}

bool all_zeros(const Tensor &t) {
  auto *p = t.data<char>();
  return t.bytes() == 0 || (*p == 0 && std::memcmp(p, p + 1, t.bytes() - 1) == 0);
}

Tensor Tensor::of(std::initializer_list<int64_t> values) {
  Tensor t(OPGRAFT_INT64, {int64_t(values.size())});
  std::copy(values.begin(), values.end(), t.data<int64_t>());
  return t;
}

Tensor Tensor::scalar(float value) {
  Tensor t(OPGRAFT_FLOAT32, {});
  *t.data<float>() = value;
  return t;
}

}  // namespace opgraft
