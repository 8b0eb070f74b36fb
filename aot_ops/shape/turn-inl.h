// Per SIMD target: matrices turned in blocks of vectors, and rows copied past the caches.
#include "transpose.h"

#if defined(OPGRAFT_SHAPE_TURN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_SHAPE_TURN_INL_H_
#undef OPGRAFT_SHAPE_TURN_INL_H_
#else
#define OPGRAFT_SHAPE_TURN_INL_H_
#endif

#include "aot_ops/common/turn-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Tiles [begin, end), those of a matrix one after another, along y's rows.
template <class U> void TurnTilesOf(const Turning &t, const U *x, U *y, int64_t begin, int64_t end) {
  constexpr int64_t kAcross = kTileBytes / sizeof(U);
  const int64_t columns = t.by_lines ? int64_t(64 / sizeof(U)) : kTileDown, each = t.tiles_down * t.tiles_across;
  const auto turn = t.past ? Turn<true, U, U> : Turn<false, U, U>;
  const auto tiles = [&](const int64_t(&at)[2], int64_t matrix, int64_t) HWY_ATTR {
    for (const int64_t last = std::min(end, (matrix + 1) * each); begin < last; ++begin) {
      const int64_t tile = begin - matrix * each;
      const int64_t j = tile / t.tiles_across * kTileDown, i = tile % t.tiles_across * kAcross;
      turn(x + at[0] + i * t.x_step + j, t.x_step, y + at[1] + j * t.y_step + i, t.y_step,
           std::min(kTileDown, t.down - j), std::min(kAcross, t.across - i), columns);
    }
  };
  t.matrices.walk(begin / each, (end + each - 1) / each, tiles);
  if (t.past) hwy::FlushStream();
}

void TurnTiles(const Turning &t, const void *x, void *y, int64_t begin, int64_t end) {
  const auto of = [&](auto zero) {
    using U = decltype(zero);
    TurnTilesOf(t, static_cast<const U *>(x), static_cast<U *>(y), begin, end);
  };
  switch (t.bytes) {
    case 1: return of(uint8_t());
    case 2: return of(uint16_t());
    case 4: return of(uint32_t());
    default: return of(uint64_t());
  }
}

// Rows [begin, end) of `length` bytes, a vector at least, from the places in x to those in y, which count elements of
// `bytes`.
void MoveRows(const Strided<2> &rows, int64_t bytes, int64_t length, const void *x, void *y, int64_t begin,
              int64_t end) {
  const hn::ScalableTag<uint8_t> d;
  constexpr int64_t kLanes = int64_t(hn::MaxLanes(d));
  const int64_t x_step = rows.step[0] * bytes, y_step = rows.step[1] * bytes;
  rows.walk(begin, end, [&](const int64_t(&at)[2], int64_t, int64_t n) HWY_ATTR {
    const auto *from = static_cast<const uint8_t *>(x) + at[0] * bytes;
    auto *to = static_cast<uint8_t *>(y) + at[1] * bytes;
    for (int64_t r = 0; r < n; ++r, from += x_step, to += y_step) {
      for (int64_t i = 0; i + kLanes <= length; i += kLanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
      if (length % kLanes) hn::StoreU(hn::LoadU(d, from + length - kLanes), d, to + length - kLanes);
    }
  });
}

// Elements [begin, end) of y, of `bytes` each, in rows that are contiguous in x too, past the caches.
void CopyPast(const Strided<1> &walk, int64_t bytes, const void *x, void *y, int64_t begin, int64_t end) {
  const hn::ScalableTag<uint8_t> d;
  constexpr int64_t kLanes = int64_t(hn::MaxLanes(d)), kLine = 64;
  const int64_t next = walk.dims ? walk.stride[0][walk.dims - 1] * bytes : 0;
  walk.walk(begin, end, [&](const int64_t(&at)[1], int64_t out, int64_t n) HWY_ATTR {
    const auto *from = static_cast<const uint8_t *>(x) + at[0] * bytes;
    auto *to = static_cast<uint8_t *>(y) + out * bytes;
    n *= bytes;
    int64_t i = std::min(-int64_t(reinterpret_cast<uintptr_t>(to)) & (kLanes - 1), n);
    std::memcpy(to, from, size_t(i));
    for (; i + kLanes <= n; i += kLanes) {
      if ((i & (kLine - 1)) < kLanes) __builtin_prefetch(from + next + i);
      hn::Stream(hn::LoadU(d, from + i), d, to + i);
    }
    std::memcpy(to + i, from + i, size_t(n - i));
  });
  hwy::FlushStream();
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
