// DenseQKV: three products of one x, an attention layer's query, key and value; DenseSwiGLU: SiLU of one of two, times
// the other. Where the weights are packed x is widened once and the threads are called once.
#include "opgraft/op.h"

#include <algorithm>
#include <array>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "joint.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/gated-inl.h"
#include "aot_ops/common/product-inl.h"
#include "aot_ops/common/skinny-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Products of T whose sums stay as they are, in float32.
template <class T> void SumPanels(const GemmTile &g, int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
  OfPanel<T>([&](auto panel) HWY_ATTR { PanelsOf<float, decltype(panel)>(g, p0, p1, m0, m1); });
}
template <class T>
void SumSkinny(const GemmTile &g, const MatrixRef &b, int64_t n0, int64_t n1, int64_t k0, int64_t k1, float *partial) {
  SkinnyOf<float, T>(g, b, n0, n1, k0, k1, partial);
}

// Rows [m0, m1) of panels [p0, p1) of SiLU(gate) up, at most a block; y is the gate's C.
template <class T>
void GatedPanels(const GemmTile &gate, const GemmTile &up, int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
  HWY_ALIGN float sums[2][kBlockPanels * kMostBlockRows * kPanel];
  const int64_t column = p0 * kPanel, width = (p1 - p0) * kPanel;
  const int64_t n = width < gate.n - column ? width : gate.n - column;
  for (int i = 0; i < 2; ++i) {
    GemmTile g = i == 0 ? gate : up;
    g.a += m0 * g.lda;
    g.b = static_cast<const char *>(g.b) + column * g.k * PanelElement<T>();
    g.c = sums[i];
    g.n = g.ldc = width;  // with the zeros of the last panel
    if (g.bias) {         // which has no columns there
      g.bias = static_cast<const float *>(g.bias) + column;
      g.n = n;
    }
    SumPanels<T>(g, 0, p1 - p0, 0, m1 - m0);
  }
  GatedRows<T>(sums[0], sums[1], width, m1 - m0, n, static_cast<T *>(gate.c) + m0 * gate.ldc + column, gate.ldc);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/dense/dense.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(SumPanels)
OPGRAFT_SIMD_FLOATS(SumSkinny)
OPGRAFT_SIMD_FLOATS(GatedPanels)
OPGRAFT_SIMD_FLOATS(GatedRows)

namespace {

enum { kX, kWeight, kGate = kWeight, kUp, kGateBias, kUpBias, kBias = 4 };

ProductKernels sum_kernels(int32_t dtype) {
  ProductKernels f = product_kernels(dtype);
  f.gemm = SumPanels_simd(dtype);
  f.skinny = SumSkinny_simd(dtype);
  f.skinny_sum = SkinnySum_simd(OPGRAFT_FLOAT32);
  f.c_element = sizeof(float);
  return f;
}

GemmProblem problem(const Context &c, int weight) {
  GemmProblem p = layer(c, weight);
  p.packed = c.packed(weight);
  return p;
}

// Of `count` products one after another, and of all at once where each weight is packed.
template <class Packed> uint64_t products_workspace(const Arguments &c, int count, const Packed &packed) {
  uint64_t most = 0;
  for (int i = kWeight; i < kWeight + count; ++i) {
    const GemmProblem p = layer(c, i);
    most = std::max(most, product_workspace(p, product_kernels(p.dtype), packed(i)));
  }
  return (most + 63) / 64 * 64;
}
// Where one is not, the sums of gate and up lie behind that, so many bytes each.
uint64_t sums_bytes(const GemmProblem &p) { return p.m < 0 || p.n < 0 ? 0 : uint64_t(p.m * p.n) * sizeof(float); }
// And behind these their biases in float32, as the sums are.
uint64_t biases_bytes(const Arguments &c, const GemmProblem &p) {
  return c.inputs() <= kGateBias || p.n < 0 ? 0 : 2 * uint64_t(p.n) * sizeof(float);
}

template <int kCount> uint64_t Workspace(InferContext &c) {
  const auto constant = [&](int i) { return c.input(i).known(); };
  const uint64_t products = products_workspace(c, kCount, constant);
  if (kCount == 3) return products;
  const GemmProblem gate = layer(c, kGate);
  return products + (constant(kGate) && constant(kUp) ? 0 : 2 * sums_bytes(gate)) + biases_bytes(c, gate);
}

template <int kCount> uint64_t PackedBytes(InferContext &c, int input) {
  if (input < kWeight || input >= kWeight + kCount) return 0;
  const GemmProblem p = layer(c, input);
  return packed_bytes(p, product_kernels(p.dtype));
}
void PackWeight(InferContext &c, int input, void *dst) {
  const GemmProblem p = layer(c, input);
  pack_b(p, product_kernels(p.dtype), dst);
}

std::array<GemmProblem, 3> layers(const Context &c) {
  std::array<GemmProblem, 3> products{problem(c, kWeight), problem(c, kWeight + 1), problem(c, kWeight + 2)};
  for (int i = 0; i < 3; ++i) {
    products[size_t(i)].c = c.output(i).raw();
    products[size_t(i)].bias = c.inputs() > kBias ? c.input(kBias + i).raw() : nullptr;
  }
  return products;
}
void Products(Context &c) {
  const auto p = layers(c);
  run_products(c, p, product_kernels(p[0].dtype));
}

void widen_biases(const Context &c, GemmProblem &gate, GemmProblem &up, float *to) {
  if (c.inputs() <= kGateBias) return;
  dispatch<float, float16, bfloat16>(c, gate.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int i = 0; i < 2; ++i) {
      const T *bias = c.input(kGateBias + i).data<T>();
      for (int64_t j = 0; j < gate.n; ++j) to[i * gate.n + j] = float(bias[j]);
    }
  });
  gate.bias = to;
  up.bias = to + gate.n;
}

void GatedOfPacked(Context &c, GemmProblem gate, GemmProblem up) {
  gate.pairs = up.pairs = product_kernels(gate.dtype).pairs;
  const ProductKernels f = product_kernels(gate.dtype);
  const uint64_t at = products_workspace(c, 2, [](int) { return true; });
  const Scratch<char> memory(c, at + biases_bytes(c, gate));
  widen_biases(c, gate, up, reinterpret_cast<float *>(memory.get() + at));
  const float *a = float_rows(c, gate, memory.get());
  const PackedUnits units(gate, tiles_of(gate, gate.n, f, c.threads()));
  GemmTile g = first_tile(gate, a, gate.packed, units.t.kc), u = first_tile(up, a, up.packed, units.t.kc);
  const auto gated = GatedPanels_simd(gate.dtype);
  c.parallel_for(units.count(), std::max<int64_t>(1, units.grain() / 2), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      units.at(i, [&](int64_t p0, int64_t p1, int64_t m0, int64_t m1) { gated(g, u, p0, p1, m0, m1); });
  });
}

void Gated(Context &c) {
  GemmProblem gate = problem(c, kGate), up = problem(c, kUp);
  if (gate.m == 0 || gate.n == 0) return;
  gate.c = c.output(0).raw();
  if (gate.packed && up.packed) return GatedOfPacked(c, gate, up);
  // run_product takes the workspace from its beginning.
  const uint64_t at = products_workspace(c, 2, [&](int i) { return c.packed(i) != nullptr; });
  const Scratch<char> memory(c, at + 2 * sums_bytes(gate) + biases_bytes(c, gate));
  widen_biases(c, gate, up, reinterpret_cast<float *>(memory.get() + at + 2 * sums_bytes(gate)));
  const auto y = static_cast<char *>(gate.c);
  gate.c = memory.get() + at;
  up.c = memory.get() + at + sums_bytes(gate);
  const ProductKernels f = sum_kernels(gate.dtype);
  run_product(c, gate, f);
  run_product(c, up, f);
  const auto gated = GatedRows_simd(gate.dtype);
  const int64_t n = gate.n, row = n * int64_t(dtype_size(gate.dtype));
  c.parallel_for(gate.m, std::max<int64_t>(1, 16384 / n), [&](int64_t begin, int64_t end) {
    gated(static_cast<float *>(gate.c) + begin * n, static_cast<float *>(up.c) + begin * n, n, end - begin, n,
          y + begin * row, n);
  });
}

void InferProducts(InferContext &c) {
  constexpr const char *kNames[] = {"q", "k", "v"};
  c.check(c.inputs() == kBias || c.inputs() == kBias + 3, "takes 4 inputs, or 7 with biases, got ", c.inputs());
  for (int i = 0; i < 3; ++i) {
    const std::string name = kNames[i];
    const Shape out = check_layer(c, kWeight + i, name + "_weight");
    if (c.inputs() > kBias) check_bias(c, kBias + i, name + "_bias", out.back());
    c.output(c.input(kX).dtype(), out);
  }
}
void InferGated(InferContext &c) {
  c.check(c.inputs() == kGateBias || c.inputs() == kUpBias + 1, "takes 3 inputs, or 5 with biases, got ", c.inputs());
  const Shape gate = check_layer(c, kGate, "gate_weight"), up = check_layer(c, kUp, "up_weight");
  c.check(may_equal(gate.back(), up.back()), "gate_weight and up_weight must have one N, got ", gate.back(), " and ",
          up.back());
  const Shape out = gate.back() < 0 ? up : gate;
  if (c.inputs() > kGateBias) {
    check_bias(c, kGateBias, "gate_bias", out.back());
    check_bias(c, kUpBias, "up_bias", out.back());
  }
  c.output(c.input(kX).dtype(), out);
}

void ReferenceProducts(Context &c) {
  for (auto &p : layers(c)) reference_gemm(c, p);
}
void ReferenceGated(Context &c) {
  const GemmProblem gate = problem(c, kGate), up = problem(c, kUp);
  dispatch<float, float16, bfloat16>(c, gate.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(kX).data<T>();
    const auto bias = [&](int of, int64_t j) {
      return c.inputs() > kGateBias ? double(float(c.input(of).data<T>()[j])) : 0.0;
    };
    for (int64_t i = 0; i < gate.m; ++i)
      for (int64_t j = 0; j < gate.n; ++j) {
        const double a = reference_sum(gate, x, c.input(kGate).data<T>(), i, j) + bias(kGateBias, j);
        const double b = reference_sum(up, x, c.input(kUp).data<T>(), i, j) + bias(kUpBias, j);
        c.output(0).data<T>()[i * gate.n + j] = T(float(activate(Activation::kSilu, a) * b));
      }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(DenseQKV, .inputs = -1, .outputs = 3, .infer = InferProducts, .kernel = Products,
           .reference = ReferenceProducts, .workspace = Workspace<3>, .packed_bytes = PackedBytes<3>,
           .pack = PackWeight)
OPGRAFT_OP(DenseSwiGLU, .inputs = -1, .infer = InferGated, .kernel = Gated, .reference = ReferenceGated,
           .workspace = Workspace<2>, .packed_bytes = PackedBytes<2>, .pack = PackWeight)
#endif
