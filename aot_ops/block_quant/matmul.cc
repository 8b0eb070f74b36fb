// BlockQuantMatMul: x[..., K] times the transpose of weight[N, K], whose rows are blocks of 4 or 8 bits. x is turned
// into eight bits by blocks, so that the products are of integers. BlockQuantQKV: three such products of one x.
// BlockQuantSwiGLU: SiLU of one of two, times the other.
#include "opgraft/op.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "matmul.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/block_quant/dot-inl.h"
#include "aot_ops/common/gated-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/scratch.h"

namespace opgraft {
OPGRAFT_SIMD(BlockPanel)
OPGRAFT_SIMD(PackBlocks)
OPGRAFT_SIMD_FLOATS(BlockDot)
OPGRAFT_SIMD_FLOATS(QuantiseRow)
OPGRAFT_SIMD_FLOATS(GatedRows)

namespace {

enum { kX, kWeight, kGate = kWeight, kUp };
constexpr int64_t kRowsAtOnce = 32;      // of x, which a panel meets while it is in L1
constexpr int64_t kUnitBytes = 1 << 16;  // of weights that a chunk of work reads: a few microseconds
constexpr int64_t kMostLanes = 16;

Shape infer_output(InferContext &c, int weight, const char *name) {
  c.check_dtype(kX, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  const auto x = c.input(kX).shape();
  c.check(x.size() >= 1, "x must have at least 1 dimension, got shape ", x);
  check_rows(c, weight, name, format_of(c), x.back());
  Shape out(x.begin(), x.end());
  out.back() = c.input(weight).dim(0);
  return out;
}

// M rows of x, K of a row.
struct Problem {
  const BlockFormat &f;
  int64_t m, k;
  int64_t blocks() const { return k / kBlock; }
  uint64_t panel_bytes() const { return uint64_t(blocks() * f.bytes() * BlockPanel_simd()()); }
  uint64_t row_bytes() const { return uint64_t(k + 8 * blocks()); }
  int64_t pieces() const { return (m + kRowsAtOnce - 1) / kRowsAtOnce; }
  // Of pieces of panels.
  int64_t grain() const {
    const int64_t work = int64_t(panel_bytes()) * std::min(m, kRowsAtOnce);
    return std::max<int64_t>(1, kUnitBytes / std::max<int64_t>(work, 1));
  }
};
int64_t panels(int64_t n) { return (n + BlockPanel_simd()() - 1) / BlockPanel_simd()(); }

Problem problem(const Arguments &c) {
  const auto x = c.input(kX).shape();
  const BlockFormat &f = format_of(c);
  return {f, element_count(x.first(x.size() - 1)), c.input(kWeight).dim(1) / f.bytes() * kBlock};
}

uint64_t Workspace(InferContext &c) {
  const Problem p = problem(c);
  return p.m < 0 || p.k < 0 ? 0 : uint64_t(p.m) * p.row_bytes();
}
uint64_t PackedBytes(InferContext &c, int input) {
  return input == kX ? 0 : uint64_t(panels(c.input(input).dim(0))) * problem(c).panel_bytes();
}
void PackWeight(InferContext &c, int input, void *dst) {
  const Problem p = problem(c);
  const int64_t n = c.input(input).dim(0);
  for (int64_t i = 0; i < panels(n); ++i)
    PackBlocks_simd()(p.f, c.input(input).data<uint8_t>(), p.k, n, i * BlockPanel_simd()(),
                      static_cast<uint8_t *>(dst) + uint64_t(i) * p.panel_bytes());
}

// A weight's panels: laid out when the model was planned, or here, one at a time.
class Panels {
 public:
  Panels(const Context &c, const Problem &p, int input)
      : p_(p),
        packed_(static_cast<const uint8_t *>(c.packed(input))),
        weight_(c.input(input).data<uint8_t>()),
        n_(c.input(input).dim(0)) {}
  const uint8_t *at(int64_t panel) {
    if (packed_) return packed_ + uint64_t(panel) * p_.panel_bytes();
    if (panel != held_) {
      own_.resize(p_.panel_bytes());
      PackBlocks_simd()(p_.f, weight_, p_.k, n_, panel * BlockPanel_simd()(), own_.data());
      held_ = panel;
    }
    return own_.data();
  }

 private:
  const Problem &p_;
  const uint8_t *packed_, *weight_;
  int64_t n_, held_ = -1;
  std::vector<uint8_t> own_{};
};

QuantRows quantised(Context &c, const Problem &p, char *to) {
  QuantRows x;
  x.scale = reinterpret_cast<float *>(to);
  x.sum = reinterpret_cast<int32_t *>(x.scale + p.m * p.blocks());
  x.codes = reinterpret_cast<int8_t *>(x.sum + p.m * p.blocks());
  const auto quantise = QuantiseRow_simd(c.input(kX).dtype());
  c.parallel_for(p.m, std::max<int64_t>(1, 65536 / std::max<int64_t>(p.k, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) quantise(c.input(kX).raw(), p.k, m, x);
  });
  return x;
}

// Output i is x times weight i.
template <int kCount> void Products(Context &c) {
  const Problem p = problem(c);
  if (p.m == 0) return;
  const Scratch<char> scratch(c, uint64_t(p.m) * p.row_bytes());
  const QuantRows x = quantised(c, p, scratch.get());
  const auto dot = BlockDot_simd(c.input(kX).dtype());
  std::array<int64_t, kCount + 1> first{};  // panel of each weight, of all together
  for (int i = 0; i < kCount; ++i) first[size_t(i) + 1] = first[size_t(i)] + panels(c.input(kWeight + i).dim(0));
  const int64_t pieces = p.pieces();
  c.parallel_for(first[kCount] * pieces, p.grain(), [&](int64_t begin, int64_t end) {
    for (int i = 0; i < kCount; ++i) {
      Panels weight(c, p, kWeight + i);
      const BlockTile g{&p.f, x, p.k, c.input(kWeight + i).dim(0), c.output(i).raw()};
      const int64_t from = first[size_t(i)] * pieces, to = first[size_t(i) + 1] * pieces;
      for (int64_t u = std::max(begin, from); u < std::min(end, to); ++u) {
        const int64_t panel = (u - from) / pieces, m = (u - from) % pieces * kRowsAtOnce;
        dot(g, weight.at(panel), panel * BlockPanel_simd()(), m, std::min(m + kRowsAtOnce, p.m));
      }
    }
  });
}

void Gated(Context &c) {
  const Problem p = problem(c);
  const int64_t n = c.input(kGate).dim(0), lanes = BlockPanel_simd()(), pieces = p.pieces();
  if (p.m == 0 || n == 0) return;
  const Scratch<char> scratch(c, uint64_t(p.m) * p.row_bytes());
  const QuantRows x = quantised(c, p, scratch.get());
  const auto dot = BlockDot_simd(OPGRAFT_FLOAT32);
  const auto gated = GatedRows_simd(c.input(kX).dtype());
  const auto y = static_cast<char *>(c.output(0).raw());
  const auto size = int64_t(dtype_size(c.input(kX).dtype()));
  c.parallel_for(panels(n) * pieces, std::max<int64_t>(1, p.grain() / 2), [&](int64_t begin, int64_t end) {
    Panels gate(c, p, kGate), up(c, p, kUp);
    std::array<float, kRowsAtOnce * kMostLanes> a, b;
    for (int64_t u = begin; u < end; ++u) {
      const int64_t panel = u / pieces, m = u % pieces * kRowsAtOnce, rows = std::min(kRowsAtOnce, p.m - m);
      const QuantRows some = x.from(m, p.k);
      dot({&p.f, some, p.k, lanes, a.data()}, gate.at(panel), 0, 0, rows);
      dot({&p.f, some, p.k, lanes, b.data()}, up.at(panel), 0, 0, rows);
      gated(a.data(), b.data(), lanes, rows, std::min(lanes, n - panel * lanes), y + (m * n + panel * lanes) * size, n);
    }
  });
}

void Infer(InferContext &c) { c.output(c.input(kX).dtype(), infer_output(c, kWeight, "weight")); }
void InferQkv(InferContext &c) {
  constexpr const char *kNames[] = {"q_weight", "k_weight", "v_weight"};
  for (int i = 0; i < 3; ++i) c.output(c.input(kX).dtype(), infer_output(c, kWeight + i, kNames[i]));
}
void InferGated(InferContext &c) {
  const Shape gate = infer_output(c, kGate, "gate_weight"), up = infer_output(c, kUp, "up_weight");
  c.check(gate.back() < 0 || up.back() < 0 || gate.back() == up.back(),
          "gate_weight and up_weight must have as many rows, got ", gate.back(), " and ", up.back());
  c.output(c.input(kX).dtype(), gate.back() < 0 ? up : gate);
}

// Row m of x as it came times row j of a weight, by what it means: what the eight bits of x cost is in the cases'
// bound.
template <class T> double product(const Arguments &c, const Problem &p, int weight, int64_t m, int64_t j) {
  const T *x = c.input(kX).data<T>() + m * p.k;
  const auto *row = c.input(weight).data<uint8_t>() + j * p.blocks() * p.f.bytes();
  double sum = 0;
  for (int64_t i = 0; i < p.k; ++i)
    sum += double(float(x[i])) * double(p.f.value(row + i / kBlock * p.f.bytes(), i % kBlock));
  return sum;
}
// value(T(), m, j) into output i.
template <class Value> void each_element(Context &c, int i, Value &&value) {
  dispatch<float, float16, bfloat16>(c, c.input(kX).dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t rows = problem(c).m, n = c.input(kWeight + i).dim(0);
    for (int64_t m = 0; m < rows; ++m)
      for (int64_t j = 0; j < n; ++j) c.output(i).data<T>()[m * n + j] = T(float(value(zero, m, j)));
  });
}
template <int kCount> void ReferenceProducts(Context &c) {
  for (int i = 0; i < kCount; ++i)
    each_element(c, i, [&](auto zero, int64_t m, int64_t j) {
      return product<decltype(zero)>(c, problem(c), kWeight + i, m, j);
    });
}
void ReferenceGated(Context &c) {
  each_element(c, 0, [&](auto zero, int64_t m, int64_t j) {
    const double gate = product<decltype(zero)>(c, problem(c), kGate, m, j);
    return gate / (1 + std::exp(-gate)) * product<decltype(zero)>(c, problem(c), kUp, m, j);
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(BlockQuantMatMul, .inputs = 2, .infer = Infer, .kernel = Products<1>, .reference = ReferenceProducts<1>,
           .workspace = Workspace, .packed_bytes = PackedBytes, .pack = PackWeight)
OPGRAFT_OP(BlockQuantQKV, .inputs = 4, .outputs = 3, .infer = InferQkv, .kernel = Products<3>,
           .reference = ReferenceProducts<3>, .workspace = Workspace, .packed_bytes = PackedBytes, .pack = PackWeight)
OPGRAFT_OP(BlockQuantSwiGLU, .inputs = 3, .infer = InferGated, .kernel = Gated, .reference = ReferenceGated,
           .workspace = Workspace, .packed_bytes = PackedBytes, .pack = PackWeight)
#endif
