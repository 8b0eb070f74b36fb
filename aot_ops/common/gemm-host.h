// The host side of gemm-inl.h: packing, partition and threads. Include it in the HWY_ONCE part of an
// op's source, after gemm-inl.h.
#pragma once

#include <algorithm>
#include <memory>

#include "aot_ops/common/gemm.h"

namespace opgraft {
OPGRAFT_SIMD(PanelWidth)
OPGRAFT_SIMD(TileRows)
OPGRAFT_SIMD_FLOATS(GemmPanel)
OPGRAFT_SIMD_FLOATS(Pack)
OPGRAFT_SIMD_FLOATS(Widen)

// The functions of one storage type.
struct GemmKernels {
  decltype(GemmPanel_simd(0)) gemm;
  decltype(Pack_simd(0)) pack;
  decltype(Widen_simd(0)) widen;
};
inline GemmKernels gemm_kernels(int32_t dtype) { return {GemmPanel_simd(dtype), Pack_simd(dtype), Widen_simd(dtype)}; }

inline int64_t panel_count(int64_t n) { return (n + PanelWidth_simd()() - 1) / PanelWidth_simd()(); }
// Floats of packed B[k, n].
inline int64_t packed_floats(int64_t k, int64_t n) { return panel_count(n) * PanelWidth_simd()() * k; }

// `batch` products; A and B are one of a_count, b_count matrices that lie one after another.
struct GemmProblem {
  int32_t dtype;
  int64_t m, n, k;
  MatrixRef a, b;
  void *c;
  const float *packed = nullptr;  // B as PackPanels made it, or null
  const void *bias = nullptr, *residual = nullptr;
  Activation activation = Activation::kNone;
  int64_t batch = 1, a_count = 1, b_count = 1;

  // A is read in place unless it must be widened or transposed, or its rows, a multiple of 4 KiB apart,
  // would all fall into one set of the L1 cache.
  bool copies_a() const { return dtype != OPGRAFT_FLOAT32 || a.column_stride != 1 || (k * 4 % 4096 == 0 && m > 1); }
  int64_t lda() const { return copies_a() ? (k + 15) / 16 * 16 + 16 : a.row_stride; }
  uint64_t a_floats() const { return copies_a() ? uint64_t(a_count * m * lda()) : 0; }
  uint64_t b_floats() const { return uint64_t(b_count * packed_floats(k, n)); }
};

// a_of(i), b_of(i): which matrix of A and B the product i takes.
template <class AOf, class BOf> void run_gemm(Context &c, const GemmProblem &p, const AOf &a_of, const BOf &b_of) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  const GemmKernels f = gemm_kernels(p.dtype);
  const int64_t element = int64_t(dtype_size(p.dtype)), panels = panel_count(p.n), lda = p.lda();
  const uint64_t need = (p.a_floats() + (p.packed ? 0 : p.b_floats())) * 4 + 64;
  std::unique_ptr<float, void (*)(void *)> own(nullptr, std::free);
  auto *scratch = static_cast<float *>(c.workspace());
  if (need > 64 && (!scratch || c.workspace_bytes() + 64 < need)) {
    own.reset(static_cast<float *>(std::aligned_alloc(64, (need + 63) / 64 * 64)));
    if (!own) throw std::bad_alloc();
    scratch = own.get();
  }
  const float *a = static_cast<const float *>(p.a.data), *b = p.packed;
  if (p.copies_a()) {
    c.parallel_for(p.a_count * p.m, std::max<int64_t>(1, 16384 / std::max<int64_t>(p.k, 1)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end;) {
                       const int64_t matrix = i / p.m, row = i % p.m, rows = std::min(end - i, p.m - row);
                       MatrixRef from = p.a;
                       from.data = static_cast<const char *>(p.a.data) + matrix * p.m * p.k * element;
                       f.widen(from, p.k, row, row + rows, scratch + matrix * p.m * lda, lda);
                       i += rows;
                     }
                   });
    a = scratch;
    scratch += p.a_floats();
  }
  if (!b) {
    c.parallel_for(p.b_count * panels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t matrix = i / panels, panel = i % panels;
        MatrixRef from = p.b;
        from.data = static_cast<const char *>(p.b.data) + matrix * p.k * p.n * element;
        f.pack(from, p.k, p.n, panel, panel + 1, scratch + matrix * packed_floats(p.k, p.n));
      }
    });
    b = scratch;
  }
  // Units of work: a block of rows, small enough that A's rows stay in L2 (384 KiB), times one panel.
  const int64_t tile = TileRows_simd()();
  const int64_t tiles = std::clamp<int64_t>((96 << 10) / std::max<int64_t>(p.k * tile, 1), 2, 96 / tile);
  const int64_t block = tiles * tile, blocks = (p.m + block - 1) / block;
  // About 4 µs of work are worth a hand-over to another thread.
  const int64_t flops = 2 * std::min(block, p.m) * p.k * PanelWidth_simd()();
  const int64_t grain = std::max<int64_t>(1, 200000 / std::max<int64_t>(flops, 1));
  c.parallel_for(p.batch * blocks * panels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t panel = i % panels, m0 = i / panels % blocks * block, product = i / panels / blocks;
      const int64_t am = a_of(product), bm = b_of(product), at = product * p.m * p.n * element;
      GemmTile g{a + am * p.m * (p.copies_a() ? lda : p.k),
                 lda,
                 b + bm * packed_floats(p.k, p.n),
                 static_cast<char *>(p.c) + at,
                 p.n,
                 p.bias,
                 p.residual ? static_cast<const char *>(p.residual) + at : nullptr,
                 p.m,
                 p.n,
                 p.k,
                 p.activation};
      f.gemm(g, panel, m0, std::min(m0 + block, p.m));
    }
  });
}
inline void run_gemm(Context &c, const GemmProblem &p) {
  auto first = [](int64_t) { return int64_t(0); };
  run_gemm(c, p, first, first);
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
        double sum = 0;
        for (int64_t l = 0; l < p.k; ++l)
          sum += double(float(a[i * p.a.row_stride + l * p.a.column_stride])) *
                 double(float(b[l * p.b.row_stride + j * p.b.column_stride]));
        if (bias) sum += double(float(bias[j]));
        sum = activate(p.activation, sum);
        if (residual) sum += double(float(residual[i * p.n + j]));
        out[i * p.n + j] = T(float(sum));
      }
  });
}

}  // namespace opgraft
