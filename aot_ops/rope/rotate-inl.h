// Turning the rows of a sheet, per SIMD target.
#include "rope.h"

#if defined(OPGRAFT_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_ROTATE_INL_H_
#undef OPGRAFT_ROTATE_INL_H_
#else
#define OPGRAFT_ROTATE_INL_H_
#endif

#include "hwy/cache_control.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// The factors of one row: of the first elements of the pairs and of the second ones; where pairs are interleaved, c
// and s alternate as the elements do.
struct Factors {
  const float *c, *s, *c2, *s2;
};

template <bool kWhole, class D, class T> HWY_INLINE hn::Vec<D> LoadSome(D d, const T *p, size_t n) {
  if constexpr (kWhole) return LoadF32(d, p);
  else return LoadF32N(d, p, n);
}
template <bool kWhole, bool kStream, class D, class T> HWY_INLINE void StoreSome(hn::Vec<D> v, D d, T *p, size_t n) {
  if constexpr (kWhole && kStream && std::is_same_v<T, float>) hn::Stream(v, d, p);
  else if constexpr (kWhole) StoreF32(v, d, p);
  else StoreF32N(v, d, p, n);
}

// n pairs: y1 = x1 c1 - x2 s1, y2 = x2 c2 + x1 s2; its transpose the other way round.
template <bool kBack, bool kStream, bool kWhole, class D, class T>
HWY_INLINE void TurnHalves(D d, const T *x1, const T *x2, T *y1, T *y2, const Factors &f, int64_t i, size_t n) {
  const auto a = LoadSome<kWhole>(d, x1 + i, n), b = LoadSome<kWhole>(d, x2 + i, n);
  const auto s1 = LoadSome<kWhole>(d, f.s + i, n), s2 = LoadSome<kWhole>(d, f.s2 + i, n);
  const auto ac = hn::Mul(a, LoadSome<kWhole>(d, f.c + i, n)), bc = hn::Mul(b, LoadSome<kWhole>(d, f.c2 + i, n));
  StoreSome<kWhole, kStream>(kBack ? hn::MulAdd(b, s2, ac) : hn::NegMulAdd(b, s1, ac), d, y1 + i, n);
  StoreSome<kWhole, kStream>(kBack ? hn::NegMulAdd(a, s1, bc) : hn::MulAdd(a, s2, bc), d, y2 + i, n);
}

template <bool kBack, bool kStream, bool kWhole, class D, class T>
HWY_INLINE void TurnPairs(D d, const T *x, T *y, const Factors &f, int64_t i, size_t n) {
  const auto v = LoadSome<kWhole>(d, x + i, n);
  auto s = LoadSome<kWhole>(d, f.s + i, n);
  if (kBack) s = hn::Reverse2(d, s);
  s = kBack ? hn::OddEven(hn::Neg(s), s) : hn::OddEven(s, hn::Neg(s));
  StoreSome<kWhole, kStream>(hn::MulAdd(hn::Reverse2(d, v), s, hn::Mul(v, LoadSome<kWhole>(d, f.c + i, n))), d, y + i,
                             n);
}

template <bool kBack, bool kInterleaved, bool kStream, class T>
HWY_INLINE void TurnRow(const Rotation &r, const T *x, T *y, const Factors &f, int64_t pair, int64_t pairs) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  if constexpr (kInterleaved) {
    const T *from = x + 2 * pair;
    T *to = y + 2 * pair;
    for (; i + lanes <= 2 * pairs; i += lanes) TurnPairs<kBack, kStream, true>(d, from, to, f, i, 0);
    if (i < 2 * pairs) TurnPairs<kBack, kStream, false>(d, from, to, f, i, size_t(2 * pairs - i));
  } else {
    const T *x1 = x + pair, *x2 = x + pair + r.pairs;
    T *y1 = y + pair, *y2 = y + pair + r.pairs;
    for (; i + lanes <= pairs; i += lanes) TurnHalves<kBack, kStream, true>(d, x1, x2, y1, y2, f, i, 0);
    if (i < pairs) TurnHalves<kBack, kStream, false>(d, x1, x2, y1, y2, f, i, size_t(pairs - i));
  }
}

// `n` entries of a table as float32; kTwice: each two times. Whole vectors are written, up to kBehind floats behind
// them.
inline constexpr int64_t kBehind = 2 * hn::MaxLanes(hn::ScalableTag<float>());
template <bool kTwice, class T> HWY_INLINE void Widen(const T *table, int64_t n, float *to) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    const auto v = i + lanes <= n ? LoadF32(d, table + i) : LoadF32N(d, table + i, size_t(n - i));
    if constexpr (kTwice) hn::StoreInterleaved2(v, v, d, to + 2 * i);
    else hn::StoreU(v, d, to + i);
  }
}

// The factors of the pairs [pair, pair + pairs) of a row whose table entries begin at `row`: read where they lie, or
// brought into the form that TurnRow reads in `c` and `s`, 2 * pairs entries each; what lies behind them is next.
template <class Table>
HWY_INLINE Factors FactorsOf(const Rotation &r, int64_t row, int64_t pair, int64_t pairs, float *c, float *s) {
  const Table *cos = static_cast<const Table *>(r.cos) + row, *sin = static_cast<const Table *>(r.sin) + row;
  if (r.interleaved && !r.full) {
    Widen<true>(cos + pair, pairs, c);
    Widen<true>(sin + pair, pairs, s);
    return {c, s, nullptr, nullptr};
  }
  const int64_t first = r.interleaved ? 2 * pair : pair, second = pair + (r.full ? r.pairs : 0);
  if constexpr (std::is_same_v<Table, float>) {
    return {cos + first, sin + first, cos + second, sin + second};
  } else {
    Widen<false>(cos + first, r.interleaved ? 2 * pairs : pairs, c);
    Widen<false>(sin + first, r.interleaved ? 2 * pairs : pairs, s);
    if (r.interleaved || !r.full) return {c, s, c, s};
    Widen<false>(cos + second, pairs, c + pairs);
    Widen<false>(sin + second, pairs, s + pairs);
    return {c, s, c + pairs, s + pairs};
  }
}

template <bool kBack, bool kInterleaved, bool kStream, class T>
HWY_INLINE void RotateUnits(const Rotation &r, const Sheet &sheet, int64_t begin, int64_t end) {
  HWY_ALIGN float c[2 * kTable + kBehind], s[2 * kTable + kBehind];
  Factors factors[kRows];
  const int64_t block = block_of(r), blocks = (sheet.rows + block - 1) / block, parts = head_blocks(sheet);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t head0 = unit % parts * kHeads, row0 = unit / parts % blocks * block;
    const int64_t heads = sheet.heads - head0 < kHeads ? sheet.heads - head0 : kHeads;
    const int64_t rows = sheet.rows - row0 < block ? sheet.rows - row0 : block;
    int64_t element, table;
    sheet.outer.locate(unit / parts / blocks, element, table);
    element += head0 * sheet.head_step + row0 * sheet.row_step;
    const T *x = static_cast<const T *>(sheet.x) + element;
    T *y = static_cast<T *>(sheet.y) + element;
    for (int64_t pair = 0; pair < r.pairs; pair += kTable) {
      const int64_t pairs = r.pairs - pair < kTable ? r.pairs - pair : kTable;
      for (int64_t row = 0; row < rows; ++row)
        factors[row] = (r.wide ? FactorsOf<float> : FactorsOf<T>)(r, sheet.table_at(table, row0 + row), pair, pairs,
                                                                  c + row * 2 * pairs, s + row * 2 * pairs);
      auto turn = [&](int64_t head, int64_t row) HWY_ATTR {
        const int64_t at = head * sheet.head_step + row * sheet.row_step;
        if constexpr (kStream)  // the next head's row: no prefetcher of the processor's foresees where that lies
          for (int64_t i = 0; i < r.dim; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(x + at + sheet.head_step + i);
        TurnRow<kBack, kInterleaved, kStream>(r, x + at, y + at, factors[row], pair, pairs);
      };
      if (sheet.head_step > sheet.row_step) {  // in the order of memory
        for (int64_t head = 0; head < heads; ++head)
          for (int64_t row = 0; row < rows; ++row) turn(head, row);
      } else {
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t head = 0; head < heads; ++head) turn(head, row);
      }
    }
    const size_t rest = size_t(r.dim - 2 * r.pairs);
    if (rest == 0 || sheet.x == sheet.y) continue;
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = head * sheet.head_step + row * sheet.row_step + 2 * r.pairs;
        std::memcpy(y + at, x + at, rest * sizeof(T));
      }
  }
}

template <bool kBack, bool kInterleaved, class T>
HWY_INLINE void RotateUnits(const Rotation &r, const Sheet &sheet, int64_t begin, int64_t end) {
  if (r.stream) {
    RotateUnits<kBack, kInterleaved, true, T>(r, sheet, begin, end);
    hwy::FlushStream();
  } else {
    RotateUnits<kBack, kInterleaved, false, T>(r, sheet, begin, end);
  }
}

// Units [begin, end) of the sheet: (outer index, block of rows, block of heads).
template <class T> void Rotate(const Rotation &r, const Sheet &sheet, int64_t begin, int64_t end) {
  if (r.back)
    r.interleaved ? RotateUnits<true, true, T>(r, sheet, begin, end)
                  : RotateUnits<true, false, T>(r, sheet, begin, end);
  else
    r.interleaved ? RotateUnits<false, true, T>(r, sheet, begin, end)
                  : RotateUnits<false, false, T>(r, sheet, begin, end);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
