// KVCacheAppend: rows of new tokens into caches of keys and values, which are states: nothing else of them is touched.
#include <cstring>
#include <string>

#include "opgraft/op.h"

namespace {
using namespace opgraft;

enum { kKeys, kValues, kKey, kValue, kPositions };

void Infer(InferContext &c) {
  c.check_dtype(kKeys, "k_cache", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(kValues, "v_cache", kKeys, "k_cache");
  c.check_same_dtype(kKey, "key", kKeys, "k_cache");
  c.check_same_dtype(kValue, "value", kKeys, "k_cache");
  c.check_dtype(kPositions, "position_ids", {OPGRAFT_INT32, OPGRAFT_INT64});
  static constexpr const char *kNames[] = {"k_cache", "v_cache", "key", "value"};
  auto same = [](int64_t a, int64_t b) { return a == b || a < 0 || b < 0; };
  for (int i = 0; i < 4; ++i)
    c.check(c.input(i).rank() == 4, kNames[i], ".shape must have 4 dimensions, got ", c.input(i).shape());
  auto k = c.input(kKey).shape();
  for (int i : {kKeys, kValues, kValue})
    for (int a = 0; a < 4; ++a) {
      const bool rows = a == 2, cache = i != kValue;
      if ((rows && cache) || (a == 3 && i != kKeys)) continue;
      c.check(same(c.input(i).dim(a), k[size_t(a)]), kNames[i], ".shape must fit key.shape ", k, ", got ",
              c.input(i).shape());
    }
  c.check(same(c.input(kKeys).dim(2), c.input(kValues).dim(2)),
          "v_cache.shape must have as many rows as k_cache.shape ", c.input(kKeys).shape(), ", got ",
          c.input(kValues).shape());
  c.check(same(c.input(kValues).dim(3), c.input(kValue).dim(3)), "value.shape must end as v_cache.shape ",
          c.input(kValues).shape(), ", got ", c.input(kValue).shape());
  auto p = c.input(kPositions).shape();
  c.check((p.size() == 1 || p.size() == 2) && same(p.back(), k[2]) && (p.size() == 1 || same(p[0], k[0])),
          "position_ids.shape must be (S,) or (B, S) of key.shape ", k, ", got ", p);
  const int64_t batches[] = {k[0]};
  c.output(c.input(kPositions).dtype(), batches);
}

template <class I> void Append(Context &c) {
  const TensorView key = c.input(kKey);
  const int64_t batches = key.dim(0), heads = key.dim(1), rows = key.dim(2), room = c.input(kKeys).dim(2);
  const I *positions = c.input(kPositions).data<I>();
  const bool shared = c.input(kPositions).rank() == 1;
  auto first = [&](int64_t b) { return rows ? int64_t(positions[shared ? 0 : b * rows]) : 0; };
  // Texts are made where they are needed: a step of decoding allocates nothing.
  for (int64_t b = 0; b < batches; ++b) {
    const I *row = positions + (shared ? 0 : b * rows);
    for (int64_t s = 0; s < rows; ++s)
      if (int64_t(row[s]) != first(b) + s)
        c.fail(OPGRAFT_INVALID_VALUE, "position_ids must count on by 1, got ", row[s], " at ", s, " after ", first(b));
    if (first(b) < 0 || first(b) > room - rows)
      c.fail(OPGRAFT_INVALID_VALUE, "position_ids must be in [0, ", room, "), got ", first(b), " to ",
             first(b) + rows - 1);
  }
  auto each = [&](int cache, int from, auto &&f) {  // (place in the cache, source, bytes) of each head's rows
    const int64_t width = c.input(from).dim(3) * int64_t(dtype_size(key.dtype()));
    for (int64_t i = 0; i < batches * heads; ++i)
      f(static_cast<char *>(c.input(cache).raw()) + (i * room + first(i / heads)) * width,
        static_cast<const char *>(c.input(from).raw()) + i * rows * width, size_t(rows * width));
  };
  auto touch = [&](char *to, const char *, size_t n) { c.touch(to, n); };
  auto copy = [](char *to, const char *from, size_t n) {
    if (n) std::memcpy(to, from, n);
  };
  each(kKeys, kKey, touch), each(kValues, kValue, touch);
  each(kKeys, kKey, copy), each(kValues, kValue, copy);
  for (int64_t b = 0; b < batches; ++b) c.output(0).data<I>()[b] = I(first(b) + rows);
}

void Kernel(Context &c) {
  dispatch<int32_t, int64_t>(c, c.input(kPositions).dtype(), [&](auto zero) { Append<decltype(zero)>(c); });
}

}  // namespace

OPGRAFT_OP(KVCacheAppend, .inputs = 5, .infer = Infer, .kernel = Kernel, .reference = Kernel)
