// The host side of product-inl.h: packing, partition and threads. Include it in the HWY_ONCE part of an op's source,
// after product-inl.h and skinny-inl.h.
#pragma once

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "aot_ops/common/gemm-host.h"
#include "aot_ops/common/product-rows.h"
#include "aot_ops/common/scratch.h"
#include "aot_ops/common/tiles.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(GemmPanels)
OPGRAFT_SIMD_FLOATS(PackPanels)
OPGRAFT_SIMD_FLOATS(PanelElement)
OPGRAFT_SIMD_FLOATS(Skinny)
OPGRAFT_SIMD_FLOATS(SkinnySum)

// The functions of one storage type.
struct ProductKernels {
  decltype(GemmPanels_simd(0)) gemm;
  decltype(PackPanels_simd(0)) pack;
  decltype(Skinny_simd(0)) skinny;  // null: B is never read in place
  decltype(SkinnySum_simd(0)) skinny_sum;
  int64_t element;     // bytes of an element of B in a panel, or of a pair
  int64_t c_element;   // bytes of an element of C, and of the residual
  bool pairs = false;  // B is packed in pairs of its rows
  int64_t packed_floats(const GemmProblem &p) const {
    return ::opgraft::packed_floats(pairs ? simd::pair_words(p.k) : p.k, p.n);
  }
};
inline ProductKernels product_kernels(int32_t dtype) {
  return {GemmPanels_simd(dtype),
          PackPanels_simd(dtype),
          Skinny_simd(dtype),
          SkinnySum_simd(dtype),
          PanelElement_simd(dtype)(),
          int64_t(dtype_size(dtype)),
          dtype == OPGRAFT_BFLOAT16 && simd::bf16_pairs()};
}

// Packing goes by pieces of up to 16 panels and 128 rows: long runs of B's rows, and every line of a panel written at
// once. In stripes: of the panels, one after another, as PackedUnits has them.
constexpr int64_t kPackPanels = 16, kPackRows = 128;
struct PackUnits {
  int64_t panels, stripes, at_once, groups, pieces;
  PackUnits(int64_t k, int64_t n, int64_t stripes_ = 1)
      : panels(panel_count(n)),
        stripes(stripes_),
        at_once(std::clamp<int64_t>((panels + stripes - 1) / stripes, 1, kPackPanels)),
        groups((panels + at_once - 1) / at_once),
        pieces((k + kPackRows - 1) / kPackRows) {}
  int64_t count() const { return groups * pieces; }
  template <class Pack>
  void pack(const Pack &f, const MatrixRef &b, int64_t k, int64_t n, int64_t unit, void *dst) const {
    const int64_t p = (stripes > 1 ? unit / pieces : unit % groups) * at_once;
    const int64_t row = (stripes > 1 ? unit % pieces : unit / groups) * kPackRows;
    f(b, k, n, p, std::min(p + at_once, panels), row, std::min(row + kPackRows, k), dst);
  }
};

// Bytes of an element of B, of one matrix B, in memory.
inline int64_t b_element(const GemmProblem &p) { return p.int8 ? 1 : int64_t(dtype_size(p.dtype)); }
inline int64_t b_bytes(const GemmProblem &p) { return p.k * p.n * b_element(p); }
// Bytes of all of packed B.
inline uint64_t packed_bytes(const GemmProblem &p, const ProductKernels &f) {
  return uint64_t(p.b_count * f.packed_floats(p)) * uint64_t(f.element);
}
// Packs a constant B, for GemmProblem::packed.
inline void pack_b(const GemmProblem &p, const ProductKernels &f, void *dst) {
  const PackUnits units(p.k, p.n);
  for (int64_t i = 0; i < p.b_count; ++i) {
    MatrixRef b = p.b;
    b.data = static_cast<const char *>(b.data) + i * b_bytes(p);
    for (int64_t u = 0; u < units.count(); ++u)
      units.pack(f.pack, b, p.k, p.n, u, static_cast<char *>(dst) + i * f.packed_floats(p) * f.element);
  }
}

inline bool in_place(const GemmProblem &p, const ProductKernels &f) {
  return f.skinny && p.m <= kSkinnyRows && (p.b.column_stride == 1 || p.b.row_stride == 1);
}

// How B in place is shared among threads: strips of columns and, where its rows are contiguous, pieces of K, so that
// memory is read in long runs. By sizes alone: the sums do not depend on the number of threads.
struct SkinnyUnits {
  int64_t strip, strips, pieces = 1, rows;
  SkinnyUnits(const GemmProblem &p, const ProductKernels &f) : rows(p.k) {
    constexpr int64_t kUnit = 256 << 10, kMostPieces = 16;  // bytes of a unit at least: about 10 us
    const int64_t panel = PanelWidth_simd()(), element = b_element(p);
    strip = (p.m <= 2 ? kSkinnyFloats : 4096) / std::max<int64_t>(p.m, 1) / panel * panel;
    if (p.b.column_stride != 1)
      strip = std::clamp(kUnit / std::max<int64_t>(p.k * element, 1) / panel * panel, panel, strip);
    else if (p.batch > 0)
      pieces = std::clamp<int64_t>(p.k * p.n * element / kUnit, 1, std::max<int64_t>(kMostPieces / p.batch, 1));
    rows = ((p.k + pieces - 1) / pieces + 7) / 8 * 8;
    pieces = std::max<int64_t>((p.k + rows - 1) / std::max<int64_t>(rows, 1), 1);
    strips = (p.n + strip - 1) / strip;
  }
  uint64_t partial_bytes(const GemmProblem &p) const {
    return pieces > 1 ? uint64_t(p.batch * pieces * p.m * p.n) * 4 : 0;
  }
};

inline Tiles tiles_of(const GemmProblem &p, int64_t n, const ProductKernels &f, int threads) {
  const int64_t rows = p.pairs && simd::by_amx(p.m) ? simd::kAmxRows : TileRows_simd()();
  return choose_tiles(p.m, n, p.steps(), rows, PanelWidth_simd()(), f.element, threads);
}
// Of as many rows as the tiles have, which follow from p.m.
inline OwnRows own_rows(const GemmProblem &p, const ProductKernels &f, int64_t threads) {
  return {p, tiles_of(p, p.n, f, 1).rows, threads};
}

// Workspace that run_product asks for; `constant`: B will come packed. threads: 0 while they are not known.
inline uint64_t product_workspace(GemmProblem p, const ProductKernels &f, bool constant, int64_t threads = 0) {
  if (p.m <= 0 || p.n <= 0 || p.k < 0 || p.a_count < 0 || p.b_count < 0) return 0;
  p.pairs = f.pairs && (constant || !in_place(p, f));
  const uint64_t offsets = p.has_offset ? uint64_t(p.a_count * p.m) : 0;
  const uint64_t a = 4 * (own_rows(p, f, threads).floats + offsets) + 128;
  if (constant) return a;
  return a + (in_place(p, f) ? SkinnyUnits(p, f).partial_bytes(p) : packed_bytes(p, f));
}

// The first product, by rows of A and packed B.
inline GemmTile first_tile(const GemmProblem &p, const float *a, const void *b, int64_t kc) {
  return {a, p.lda(), b, p.c, p.n, p.bias, p.residual, p.m, p.n, p.steps(), p.activation, kc, p.scale, p.offset};
}

// Units of work over packed B: a block of rows times a few panels; row by row of blocks, or in stripes of the panels,
// each for all rows.
struct PackedUnits {
  Tiles t;
  int64_t m, k, panels, blocks, groups, stripes;
  bool amx;
  PackedUnits(const GemmProblem &p, const Tiles &t, int64_t stripes_ = 1)
      : t(t),
        m(p.m),
        k(p.steps()),
        panels(panel_count(p.n)),
        blocks((p.m + t.rows - 1) / t.rows),
        groups((panels + t.panels - 1) / t.panels),
        stripes(std::min(stripes_, groups)),
        amx(p.pairs && simd::by_amx(p.m)) {}
  int64_t count() const { return blocks * groups; }
  // About 4 us of work are worth a hand-over to another thread.
  int64_t grain() const {
    const int64_t rows = std::min(t.rows, amx ? std::max(m, simd::kAmxRows) : m), flops = 200000 * (amx ? kAmxGain : 1);
    const int64_t unit = 2 * rows * k * PanelWidth_simd()() * t.panels;
    const int64_t least = std::max<int64_t>(1, flops / std::max<int64_t>(unit, 1));
    // One of about 6 us stays whole: another thread would save no more than it costs.
    return count() * unit < 3 * flops ? std::max(least, count()) : least;
  }
  // run(p0, p1, m0, m1): panels and rows of a unit.
  template <class Run> void at(int64_t unit, const Run &run) const {
    int64_t stripe = stripes - 1;
    while (unit < blocks * first_of(stripe)) --stripe;
    const int64_t first = first_of(stripe), wide = first_of(stripe + 1) - first, in_stripe = unit - blocks * first;
    const int64_t panel = (first + in_stripe % wide) * t.panels, row = in_stripe / wide * t.rows;
    run(panel, std::min(panel + t.panels, panels), row, std::min(row + t.rows, m));
  }

 private:
  int64_t first_of(int64_t stripe) const { return stripe * groups / stripes; }
};

// Each thread packs a stripe of B's panels, uses it, and writes its columns of C, the same ones with every call: what
// another core has written comes slowly, if it has another L3 above all (MatMul 512 0.92 of the time there). All rows
// of A pass through each stripe: of what does not fit the caches none is below 256 columns, which take longer than
// that; and on Intel's processors, where the pool keeps no shares of it, there is one. Few columns of many rows are
// shared by rows, where all make one copy of A (0.88 to 1.00 of the time) and where two threads would write a line of C
// (0.95 to 1.00).
inline int64_t stripes_of(const GemmProblem &p, const ProductKernels &f, int threads) {
  if (p.batch != 1) return 1;
  const bool narrow = p.n < own_columns(p) * threads && p.m >= 2 * threads * kBlockRows;
  if (narrow && (p.copies_a() || p.n * int64_t(dtype_size(p.dtype)) % 64)) return 1;
  const uint64_t bytes = 4 * uint64_t(p.m * p.k + p.m * p.n) + packed_bytes(p, f);
  if (bytes < own_caches(threads)) return threads;
  return simd::intel() ? 1 : std::clamp<int64_t>(p.n / 256, 1, threads);
}

// The sums of a matrix A's rows, which offsets multiply.
inline void sum_rows(const GemmProblem &p, const float *a, float *sums) {
  for (int64_t i = 0; i < p.m; ++i, a += p.lda()) {
    double sum = 0;
    for (int64_t l = 0; l < p.k; ++l) sum += double(a[l]);
    sums[i] = float(sum);
  }
}

// a_of(i), b_of(i): which matrix of A and B the product i takes.
template <class AOf, class BOf>
void run_product(Context &c, const GemmProblem &problem, const ProductKernels &f, const AOf &a_of, const BOf &b_of) {
  GemmProblem p = problem;
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  const bool skinny = !p.packed && in_place(p, f);
  p.pairs = f.pairs && !skinny;
  const int64_t panels = panel_count(p.n), lda = p.lda();
  const int64_t width = PanelWidth_simd()();
  const Scratch<char> memory(c, product_workspace(p, f, p.packed, c.threads()));
  Pieces pieces(memory.get());
  const OwnRows rows = own_rows(p, f, c.threads());
  const bool own = rows.own && !skinny;
  auto *copies = reinterpret_cast<float *>(pieces.take(4 * rows.floats));
  const float *a = own ? nullptr : float_rows(c, p, copies);
  const int64_t next_a = p.m * (p.copies_a() ? lda : p.steps());
  float *sums = nullptr;
  if (p.has_offset) {
    sums = reinterpret_cast<float *>(pieces.take(uint64_t(p.a_count * p.m) * 4));
    for (int64_t i = 0; i < p.a_count; ++i) sum_rows(p, a + i * next_a, sums + i * p.m);
  }
  const char *b = static_cast<const char *>(p.packed);
  const int64_t stripes = stripes_of(p, f, c.threads());
  if (!b && !skinny) {
    const PackUnits units(p.k, p.n, stripes);
    char *copy = pieces.take(packed_bytes(p, f));
    c.parallel_for(
        p.b_count * units.count(), std::max<int64_t>(1, 65536 * units.count() / std::max<int64_t>(p.k * p.n, 1)),
        [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t matrix = i / units.count();
            MatrixRef from = p.b;
            from.data = static_cast<const char *>(p.b.data) + matrix * b_bytes(p);
            units.pack(f.pack, from, p.k, p.n, i % units.count(), copy + matrix * f.packed_floats(p) * f.element);
          }
        });
    b = copy;
  }
  const Tiles t = tiles_of(p, p.n, f, c.threads());
  const auto tile_of = [&](int64_t product) {
    const int64_t am = a_of(product), at = product * p.m * p.n * f.c_element;
    GemmTile g = first_tile(p, own ? nullptr : a + am * next_a,
                            b ? b + b_of(product) * f.packed_floats(p) * f.element : nullptr, t.kc);
    g.c = static_cast<char *>(p.c) + at;
    if (p.residual) g.residual = static_cast<const char *>(p.residual) + at;
    if (sums) g.row_sums = sums + am * p.m;
    return g;
  };
  if (skinny) {
    const SkinnyUnits u(p, f);
    auto *partial = reinterpret_cast<float *>(pieces.take(u.partial_bytes(p)));
    const int64_t each = u.pieces * u.strips, sums_each = u.pieces * p.m * p.n;
    const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(u.rows * std::min(u.strip, p.n), 1));
    c.parallel_for(p.batch * each, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t product = i / each, n0 = i % u.strips * u.strip, piece = i % each / u.strips;
        MatrixRef from = p.b;
        from.data = static_cast<const char *>(p.b.data) + b_of(product) * b_bytes(p);
        f.skinny(tile_of(product), from, n0, std::min(n0 + u.strip, p.n), piece * u.rows,
                 std::min((piece + 1) * u.rows, p.k),
                 u.pieces > 1 ? partial + product * sums_each + piece * p.m * p.n : nullptr);
      }
    });
    if (u.pieces > 1)
      c.parallel_for(p.batch * panels, std::max<int64_t>(1, 65536 / (u.pieces * p.m * width)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; ++i)
                         f.skinny_sum(tile_of(i / panels), partial + i / panels * sums_each, u.pieces,
                                      i % panels * width, std::min((i % panels + 1) * width, p.n));
                     });
    return;
  }
  const PackedUnits units(p, t, stripes);
  std::vector<int64_t> held(size_t(own ? c.threads() : 0), -1);  // which rows of all matrices each thread has
  c.parallel_for(p.batch * units.count(), units.grain(), [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t product = i / units.count();
      GemmTile g = tile_of(product);
      units.at(i % units.count(), [&](int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
        if (!own) return f.gemm(g, p0, p1, m0, m1);
        float *block = copies + worker * rows.each;
        if (std::exchange(held[size_t(worker)], product * p.m + m0) != product * p.m + m0)
          copy_rows(p, a_of(product), m0, m1 - m0, block);
        g.a = block;
        g.c = static_cast<char *>(g.c) + m0 * g.ldc * f.c_element;
        if (g.residual) g.residual = static_cast<const char *>(g.residual) + m0 * g.ldc * f.c_element;
        f.gemm(g, p0, p1, 0, m1 - m0);
      });
    }
  });
}
inline void run_product(Context &c, const GemmProblem &p, const ProductKernels &f) {
  auto first = [](int64_t) { return int64_t(0); };
  run_product(c, p, f, first, first);
}

// Products of one A, each by a B of its own: the bits of run_product. Where every B is packed A is widened once and
// the threads are called once.
template <size_t kCount>
void run_products(Context &c, std::array<GemmProblem, kCount> products, const ProductKernels &f) {
  const GemmProblem &p = products[0];
  if (!std::ranges::all_of(products, [](auto &of) { return of.packed; })) {
    for (auto &of : products) run_product(c, of, f);
    return;
  }
  if (p.m == 0) return;
  for (auto &of : products) of.pairs = f.pairs;
  const Scratch<char> memory(c, product_workspace(p, f, true));
  const float *a = float_rows(c, p, memory.get());
  int64_t n = 0;
  for (auto &of : products) n += of.n;
  const Tiles t = tiles_of(p, n, f, c.threads());
  std::array<int64_t, kCount + 1> first{};  // unit of each product, of all together
  for (size_t i = 0; i < kCount; ++i) first[i + 1] = first[i] + PackedUnits(products[i], t).count();
  c.parallel_for(first[kCount], PackedUnits(p, t).grain(), [&](int64_t begin, int64_t end) {
    for (size_t i = 0; i < kCount; ++i) {
      const PackedUnits units(products[i], t);
      const GemmTile g = first_tile(products[i], a, products[i].packed, t.kc);
      for (int64_t u = std::max(begin, first[i]); u < std::min(end, first[i + 1]); ++u)
        units.at(u - first[i], [&](int64_t p0, int64_t p1, int64_t m0, int64_t m1) { f.gemm(g, p0, p1, m0, m1); });
    }
  });
}

// Row i of A times column j of B, in double.
template <class T> double reference_sum(const GemmProblem &p, const T *a, const T *b, int64_t i, int64_t j) {
  double sum = 0;
  for (int64_t l = 0; l < p.k; ++l)
    sum += double(float(a[i * p.a.row_stride + l * p.a.column_stride])) *
           double(float(b[l * p.b.row_stride + j * p.b.column_stride]));
  return sum;
}

// The scalar twin of one product: sums in double, rounds once.
inline void reference_gemm(const Context &c, const GemmProblem &p, int64_t a_matrix = 0, int64_t b_matrix = 0,
                           int64_t product = 0) {
  dispatch<float, float16, bfloat16>(c, p.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *a = static_cast<const T *>(p.a.data) + a_matrix * p.m * p.k,
            *b = static_cast<const T *>(p.b.data) + b_matrix * p.k * p.n;
    const T *bias = static_cast<const T *>(p.bias), *residual = static_cast<const T *>(p.residual);
    T *out = static_cast<T *>(p.c) + product * p.m * p.n;
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = reference_sum(p, a, b, i, j);
        if (bias) sum += double(float(bias[j]));
        sum = activate(p.activation, sum);
        if (residual) sum += double(float(residual[i * p.n + j]));
        out[i * p.n + j] = T(float(sum));
      }
  });
}

}  // namespace opgraft
