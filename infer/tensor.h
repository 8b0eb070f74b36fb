// A tensor that owns or shares its bytes: row-major, contiguous, 64-byte aligned when allocated here.
#pragma once

#include <memory>
#include <new>
#include <string>

#include "opgraft/op.h"

namespace opgraft {

struct TensorType {
  int32_t dtype = OPGRAFT_UNKNOWN;
  Shape dims;          // negative: -1 unknown, else a symbol's id
  bool ranked = true;  // false: not even the rank is known
  bool operator==(const TensorType &) const = default;
  bool concrete() const { return ranked && element_count(dims) >= 0; }
  std::string text() const { return std::string(dtype_name(dtype)) + (ranked ? to_string(dims) : "(*)"); }
};

// Memory that there is not; what() says how much, and for what.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string &text) : text_(std::make_shared<std::string>(text)) {}
  const char *what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<const std::string> text_;
};

// Bytes of a tensor. Throws Error where there is no such dtype, or nothing is as large.
size_t byte_count(int32_t dtype, const Shape &dims);

// The whole pages among these bytes of a mapped file leave memory until they are read again.
void forget_pages(const void *data, size_t bytes);

class Tensor {
 public:
  Tensor() = default;
  // Uninitialised. Throws OutOfMemory, or Error when the byte count overflows.
  Tensor(int32_t dtype, Shape dims);
  // Shares memory that `owner` keeps alive (a NumPy array, a mapped file).
  Tensor(int32_t dtype, Shape dims, void *data, std::shared_ptr<void> owner)
      : dtype_(dtype), dims_(std::move(dims)), data_(data), owner_(std::move(owner)) {}

  // Bytes of a file that is mapped to be read alone.
  static Tensor mapped(int32_t dtype, Shape dims, void *data, std::shared_ptr<void> file) {
    Tensor t(dtype, std::move(dims), data, std::move(file));
    t.mapped_ = true;
    return t;
  }
  // The same bytes, which may not be updated in place: they may only be read, or are a copy of what the caller holds.
  Tensor fixed() const {
    Tensor t = *this;
    t.fixed_ = true;
    return t;
  }
  bool is_fixed() const { return fixed_; }
  // Of the same bytes those from `offset` on, as another type; they are there.
  Tensor part(int32_t dtype, Shape dims, size_t offset) const {
    Tensor t = *this;
    t.dtype_ = dtype, t.dims_ = std::move(dims), t.data_ = data<char>() + offset;
    return t;
  }
  // Nobody reads the bytes soon: of a mapped file they leave memory, and come back when they are read.
  void rest() const {
    if (mapped_) forget_pages(data_, bytes());
  }

  int32_t dtype() const { return dtype_; }
  const Shape &dims() const { return dims_; }
  int64_t size() const { return element_count(dims_); }
  size_t bytes() const { return size_t(size()) * dtype_size(dtype_); }
  void *data() const { return data_; }
  template <class T> T *data() const { return static_cast<T *>(data_); }
  explicit operator bool() const { return dtype_ != OPGRAFT_UNKNOWN; }
  TensorType type() const { return {dtype_, dims_, true}; }
  const std::shared_ptr<void> &owner() const { return owner_; }
  // The view that the ABI takes; valid while this Tensor lives and is not changed.
  opgraft_tensor view() const { return {data_, dims_.data(), int32_t(dims_.size()), dtype_, size()}; }

  static Tensor of(std::initializer_list<int64_t> values);  // int64[n]
  static Tensor scalar(float value);

 private:
  int32_t dtype_ = OPGRAFT_UNKNOWN;
  Shape dims_;
  void *data_ = nullptr;
  std::shared_ptr<void> owner_;
  bool mapped_ = false, fixed_ = false;
};

// Whether every byte is 0.
bool all_zeros(const Tensor &t);

constexpr size_t kLargePage = size_t(2) << 20;  // bytes

// `bytes` of 64-byte aligned memory (never null for 0); take_memory's is freed by std::free. From 128 KiB on it begins
// with a page: what the allocator gives begins 64 bytes into one, NumPy's arrays 16, and a load of theirs that follows
// a store to ours would meet it in the low 12 bits of the address, which is all that a processor compares at first.
// From 4 MiB on it lies on large pages, which cost fewer faults to fill and fewer misses to read.
// Where there is none: null of try_memory; the others throw OutOfMemory.
void *try_memory(size_t bytes) noexcept;
void *take_memory(size_t bytes);
std::shared_ptr<void> allocate(size_t bytes);
// Of a tensor; `type` is named in the error.
void *take_memory(const TensorType &type, size_t bytes);

}  // namespace opgraft
