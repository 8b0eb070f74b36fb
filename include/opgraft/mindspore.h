// MindSpore's AOT Custom contract on CPU, seen from an operator: the AotExtra object, and how its
// getters are called whatever std::string ABI the host was built with.
//
//   int Op(int nparam, void **params, int *ndims, int64_t **shapes, const char **dtypes,
//          void *stream, void *extra)
//
// params = inputs, outputs, workspaces; ndims, shapes and dtypes cover inputs and outputs only.
// Return 0 for success. OpInit, OpInferShape and OpInferType are found by suffix.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

namespace opgraft::mindspore {

static_assert(sizeof(std::vector<int64_t>) == 3 * sizeof(void *),
              "MindSpore's std::vector is of three pointers: build operators without _GLIBCXX_DEBUG");

// AotExtra: vptr, workspace list, kernel data; 40 bytes. Never built here, only read.
struct AotExtra {
  void **vtable;
  std::vector<size_t> workspace;
  void *kernel_data;
};
enum Slot { kHasAttr = 2, kBool, kInt, kFloat, kString, kInts, kFloats, kInts2D, kFloats2D };

// A string argument that both libstdc++ string ABIs read alike. The old ABI sees one pointer to
// characters with {length, capacity, reference count} before them; the new ABI sees pointer, length
// and an inline buffer. Placing the characters in the new ABI's inline buffer makes both true: the
// word before the object is the old length, the pointer itself serves as the (large) capacity, and
// the new length as the reference count, which is positive, so a copy shares and never frees.
// The new ABI's buffer ends after 15 characters, but only a move looks at that; a host's getters read
// and copy by pointer and length, so longer names hold as well.
class Name {
 public:
  static constexpr size_t kMost = 63;
  explicit Name(const char *name) {
    size_t n = std::strlen(name);
    if (n > kMost) n = kMost;                            // the build refuses such names
    words_[0] = n;                                       // old: length
    words_[1] = reinterpret_cast<uint64_t>(&words_[3]);  // both: characters; old: capacity
    words_[2] = n;                                       // new: length; old: reference count
    std::memcpy(&words_[3], name, n);
  }
  void *get() { return &words_[1]; }
  Name(const Name &) = delete;

 private:
  uint64_t words_[3 + (kMost + 1) / 8] = {};
};

// Calls getter `slot`; a class result comes back through a hidden pointer, as the Itanium ABI has it
// for any type that is not trivially copyable.
template <class R> R get(AotExtra *extra, Slot slot, const char *name) {
  Name n(name);
  return reinterpret_cast<R (*)(AotExtra *, void *)>(extra->vtable[slot])(extra, n.get());
}

inline bool has_attr(AotExtra *extra, const char *name) { return extra && get<bool>(extra, kHasAttr, name); }

// The string result under either ABI: the old one writes one word, the new one four. So the memory it
// is returned into is marked before, by stores that the compiler must not take for dead.
inline std::string get_string(AotExtra *extra, const char *name) {
  struct Result {
    uint64_t w[4];
    Result(const Result &) = delete;
    ~Result() {}  // not trivial: returned through a pointer
  };
  constexpr uint64_t kMark = ~0ull;  // neither a length nor part of an address
  alignas(Result) unsigned char room[sizeof(Result)];
  auto *words = reinterpret_cast<volatile uint64_t *>(room);
  for (int i = 0; i < 4; ++i) words[i] = kMark;
  Name n(name);
  ::new (static_cast<void *>(room))
      Result(reinterpret_cast<Result (*)(AotExtra *, void *)>(extra->vtable[kString])(extra, n.get()));
  auto *chars = reinterpret_cast<const char *>(words[0]);
  const bool new_abi = words[1] != kMark;
  const uint64_t length = new_abi ? words[1] : reinterpret_cast<const uint64_t *>(chars)[-3];
  std::string s(chars, length);
  // What std::string's destructor would do: free a long new one, give up a share of an old one, whose empty
  // strings all share a static block.
  if (new_abi && chars != reinterpret_cast<const char *>(room + 16)) ::operator delete(const_cast<char *>(chars));
  if (!new_abi && length) {
    auto *others = reinterpret_cast<int *>(const_cast<char *>(chars) - 8);
    if (__atomic_fetch_sub(others, 1, __ATOMIC_ACQ_REL) <= 0) ::operator delete(const_cast<char *>(chars) - 24);
  }
  return s;
}

}  // namespace opgraft::mindspore
