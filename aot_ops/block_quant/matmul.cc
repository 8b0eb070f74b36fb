// BlockQuantMatMul: x[..., K] times the transpose of weight[N, K], whose rows are blocks of 4 or 8 bits. x is turned
// into eight bits by blocks, so that the products are of integers.
#include "opgraft/op.h"

#include <algorithm>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "matmul.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/block_quant/dot-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/scratch.h"

namespace opgraft {
OPGRAFT_SIMD(BlockPanel)
OPGRAFT_SIMD(PackBlocks)
OPGRAFT_SIMD_FLOATS(BlockDot)
OPGRAFT_SIMD_FLOATS(QuantiseRow)

namespace {

enum { kX, kWeight };
constexpr int64_t kRowsAtOnce = 32;      // of x, which a panel meets while it is in L1
constexpr int64_t kUnitBytes = 1 << 16;  // of weights that a chunk of work reads: a few microseconds

void Infer(InferContext &c) {
  c.check_dtype(kX, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  const auto x = c.input(kX).shape();
  c.check(x.size() >= 1, "x must have at least 1 dimension, got shape " + to_string(x));
  check_rows(c, kWeight, format_of(c), x.back());
  Shape out(x.begin(), x.end());
  out.back() = c.input(kWeight).dim(0);
  c.output(c.input(kX).dtype(), out);
}

struct Problem {
  const BlockFormat &f;
  int64_t m, n, k;
  int64_t blocks() const { return k / kBlock; }
  int64_t panels() const { return (n + BlockPanel_simd()() - 1) / BlockPanel_simd()(); }
  uint64_t panel_bytes() const { return uint64_t(blocks() * f.bytes() * BlockPanel_simd()()); }
  uint64_t packed_bytes() const { return uint64_t(panels()) * panel_bytes(); }
  uint64_t row_bytes() const { return uint64_t(k + 8 * blocks()); }
};

Problem problem(const Arguments &c) {
  const auto x = c.input(kX).shape();
  const BlockFormat &f = format_of(c);
  const int64_t k = c.input(kWeight).dim(1) / f.bytes() * kBlock;
  return {f, element_count(x.first(x.size() - 1)), c.input(kWeight).dim(0), k};
}

uint64_t Workspace(InferContext &c) {
  const Problem p = problem(c);
  return p.m < 0 || p.k < 0 ? 0 : uint64_t(p.m) * p.row_bytes();
}
uint64_t PackedBytes(InferContext &c, int input) { return input == kWeight ? problem(c).packed_bytes() : 0; }
void PackWeight(InferContext &c, int, void *dst) {
  const Problem p = problem(c);
  const auto *weight = c.input(kWeight).data<uint8_t>();
  for (int64_t i = 0; i < p.panels(); ++i)
    PackBlocks_simd()(p.f, weight, p.k, p.n, i * BlockPanel_simd()(),
                      static_cast<uint8_t *>(dst) + uint64_t(i) * p.panel_bytes());
}

void Kernel(Context &c) {
  const Problem p = problem(c);
  if (p.m == 0 || p.n == 0) return;
  const Scratch<char> scratch(c, uint64_t(p.m) * p.row_bytes());
  const int64_t lanes = BlockPanel_simd()();
  QuantRows x;
  x.scale = reinterpret_cast<float *>(scratch.get());
  x.sum = reinterpret_cast<int32_t *>(x.scale + p.m * p.blocks());
  x.codes = reinterpret_cast<int8_t *>(x.sum + p.m * p.blocks());
  const auto quantise = QuantiseRow_simd(c.input(kX).dtype());
  c.parallel_for(p.m, std::max<int64_t>(1, 65536 / std::max<int64_t>(p.k, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) quantise(c.input(kX).raw(), p.k, m, x);
  });
  const BlockTile g{&p.f, x, p.k, p.n, c.output(0).raw()};
  const auto dot = BlockDot_simd(c.input(kX).dtype());
  const auto *packed = static_cast<const uint8_t *>(c.packed(kWeight));
  const auto *weight = c.input(kWeight).data<uint8_t>();
  const int64_t pieces = (p.m + kRowsAtOnce - 1) / kRowsAtOnce;
  const int64_t work = int64_t(p.panel_bytes()) * std::min(p.m, kRowsAtOnce);
  c.parallel_for(p.panels() * pieces, std::max<int64_t>(1, kUnitBytes / std::max<int64_t>(work, 1)),
                 [&](int64_t begin, int64_t end) {
                   std::vector<uint8_t> own(packed ? 0 : p.panel_bytes());
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t panel = i / pieces, m = i % pieces * kRowsAtOnce;
                     if (!packed && (m == 0 || i == begin))
                       PackBlocks_simd()(p.f, weight, p.k, p.n, panel * lanes, own.data());
                     dot(g, packed ? packed + uint64_t(panel) * p.panel_bytes() : own.data(), panel * lanes, m,
                         std::min(m + kRowsAtOnce, p.m));
                   }
                 });
}

// The weights' meaning times x as it came: what the eight bits of x cost is in the cases' bound.
void Reference(Context &c) {
  const Problem p = problem(c);
  const auto *weight = c.input(kWeight).data<uint8_t>();
  dispatch<float, float16, bfloat16>(c, c.input(kX).dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(kX).data<T>();
    for (int64_t m = 0; m < p.m; ++m)
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < p.k; ++i)
          sum += double(float(x[m * p.k + i])) *
                 double(p.f.value(weight + (j * p.blocks() + i / kBlock) * p.f.bytes(), i % kBlock));
        c.output(0).data<T>()[m * p.n + j] = T(float(sum));
      }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(BlockQuantMatMul, .inputs = 2, .infer = Infer, .kernel = Kernel, .reference = Reference,
           .workspace = Workspace, .packed_bytes = PackedBytes, .pack = PackWeight)
#endif
