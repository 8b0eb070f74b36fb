// The gradients of the tables, per SIMD target.
#include "rope.h"

#if defined(OPGRAFT_ROPE_TABLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_ROPE_TABLES_INL_H_
#undef OPGRAFT_ROPE_TABLES_INL_H_
#else
#define OPGRAFT_ROPE_TABLES_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Of n pairs: c += dy x, s += dy times the pair's other element, at the first and the second elements; those of
// halves kPiece apart. Products of float32 are exact in double.
template <bool kInterleaved, class T>
HWY_INLINE void AddProducts(const T *dy, const T *x, int64_t apart, int64_t n, double *c, double *s) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> f;
  const int64_t lanes = int64_t(hn::Lanes(d)), elements = kInterleaved ? 2 * n : n;
  auto add = [&](auto a, auto b, double *to) HWY_ATTR { hn::Store(hn::MulAdd(a, b, hn::Load(d, to)), d, to); };
  auto some = [&](int64_t i, const auto &load) HWY_ATTR {
    const auto g = load(dy + i), v = load(x + i);
    add(g, v, c + i);
    if constexpr (kInterleaved) {
      add(g, hn::Reverse2(d, v), s + i);
    } else {
      const auto g2 = load(dy + apart + i), v2 = load(x + apart + i);
      add(g, v2, s + i);
      add(g2, v2, c + kPiece + i);
      add(g2, v, s + kPiece + i);
    }
  };
  int64_t i = 0;
  for (; i + lanes <= elements; i += lanes)
    some(i, [&](const T *p) HWY_ATTR { return hn::PromoteTo(d, LoadF32(f, p)); });
  if (const size_t rest = size_t(elements - i))
    some(i, [&](const T *p) HWY_ATTR { return hn::PromoteTo(d, LoadF32N(f, p, rest)); });
}

// Units [begin, end): (row of the tables, piece of its pairs). The rows of a sum are added in one order, however the
// units are shared out.
template <class T, class Table>
HWY_INLINE void SumTables(const Rotation &r, const TableGradient &g, int64_t begin, int64_t end) {
  HWY_ALIGN double c[2 * kPiece], s[2 * kPiece];
  const T *dy = static_cast<const T *>(g.dy), *x = static_cast<const T *>(g.x);
  const int64_t pieces = g.pieces(r), rows = g.shared.size();
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t pair = unit % pieces * g.pairs, n = r.pairs - pair < g.pairs ? r.pairs - pair : g.pairs;
    int64_t base, table, offset, none;
    g.own.locate(unit / pieces, base, table);
    std::memset(c, 0, sizeof c);
    std::memset(s, 0, sizeof s);
    for (int64_t row = 0; row < rows; ++row) {
      g.shared.locate(row, offset, none);
      const int64_t at = base + offset + r.first(pair);
      (r.interleaved ? AddProducts<true, T> : AddProducts<false, T>)(dy + at, x + at, r.pairs, n, c, s);
    }
    Table *dcos = static_cast<Table *>(g.dcos) + table, *dsin = static_cast<Table *>(g.dsin) + table;
    for (int64_t p = 0; p < n; ++p) {
      const int64_t i = r.interleaved ? 2 * p : p, k = r.interleaved ? 2 * p + 1 : p + kPiece, at = pair + p;
      if (r.full) {
        dcos[r.first(at)] = Table(float(c[i])), dcos[r.second(at)] = Table(float(c[k]));
        dsin[r.first(at)] = Table(float(-s[i])), dsin[r.second(at)] = Table(float(s[k]));
      } else {
        dcos[at] = Table(float(c[i] + c[k])), dsin[at] = Table(float(s[k] - s[i]));
      }
    }
  }
}

template <class T> void TableSums(const Rotation &r, const TableGradient &g, int64_t begin, int64_t end) {
  (r.wide ? SumTables<T, float> : SumTables<T, T>)(r, g, begin, end);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
