// WeightQuantBatchMatmul: act(x[..., M, K] ((weight[K, N] + antiquant_offset) antiquant_scale) + bias), weights of
// eight bits. They are read as bytes: scale and offset follow the sums, once an element of y. Of bytes without a sign
// the sums are those of weight - 128, and the offset 128 more.
#include "opgraft/op.h"

#include <algorithm>
#include <utility>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weight_quant.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/product-inl.h"
#include "aot_ops/common/skinny-inl.h"
#include "aot_ops/quant/digits-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class T> void PanelsInt8(const GemmTile &g, int64_t p0, int64_t p1, int64_t m0, int64_t m1) {
  PanelsOf<T, int8_t>(g, p0, p1, m0, m1);
}
template <class T>
void SkinnyInt8(const GemmTile &g, const MatrixRef &b, int64_t n0, int64_t n1, int64_t k0, int64_t k1, float *partial) {
  SkinnyOf<T, int8_t>(g, b, n0, n1, k0, k1, partial);
}
void PackInt8(const MatrixRef &b, int64_t k, int64_t n, int64_t p0, int64_t p1, int64_t k0, int64_t k1, void *dst) {
  PackInto<int8_t>(b, k, n, p0, p1, k0, k1, static_cast<int8_t *>(dst));
}

// As pairs of bfloat16, for kernels that multiply these.
void PackInt8Pairs(const MatrixRef &b, int64_t k, int64_t n, int64_t p0, int64_t p1, int64_t k0, int64_t k1,
                   void *dst) {
  PackPairs<int8_t>(b, k, n, p0, p1, k0, k1, static_cast<Bf16Pair *>(dst));
}

// A byte without a sign, 128 less.
struct Centred {
  uint8_t bits;
  explicit operator float() const { return float(int(bits) - 128); }
};
void PackUint8(const MatrixRef &b, int64_t k, int64_t n, int64_t p0, int64_t p1, int64_t k0, int64_t k1, void *dst) {
  PackInto<Centred>(b, k, n, p0, p1, k0, k1, static_cast<int8_t *>(dst));
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/common/product-host.h"
#include "aot_ops/quant/quant_matmul.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(PanelsInt8)
OPGRAFT_SIMD_FLOATS(SkinnyInt8)
OPGRAFT_SIMD(PackInt8)
OPGRAFT_SIMD(PackInt8Pairs)
OPGRAFT_SIMD(PackUint8)
OPGRAFT_SIMD(MakeDigits)
OPGRAFT_SIMD_FLOATS(DigitPanels)

namespace {

enum { kX, kWeight, kScale, kOffset, kQuantScale, kQuantOffset, kBias };

bool has_sign(const Arguments &c) { return c.input(kWeight).dtype() == OPGRAFT_INT8; }
ProductKernels kernels(const Arguments &c) {
  const int32_t dtype = c.input(kX).dtype();
  if (!has_sign(c)) return {PanelsInt8_simd(dtype), PackUint8_simd(), nullptr, nullptr, 1, int64_t(dtype_size(dtype))};
  return {PanelsInt8_simd(dtype),    PackInt8_simd(), SkinnyInt8_simd(dtype), SkinnySum_simd(dtype), 1,
          int64_t(dtype_size(dtype))};
}

Activation activation(const Arguments &c) { return activation_from_name(c, c.attr_string("activation", "none")); }
bool transpose_weight(const Arguments &c) { return c.attr_bool("transpose_weight", false); }
int64_t weight_n(const Arguments &c) { return c.input(kWeight).dim(transpose_weight(c) ? 0 : 1); }
int64_t weight_k(const Arguments &c) { return c.input(kWeight).dim(transpose_weight(c) ? 1 : 0); }

// (1,), (N,), or the weight's two dimensions with K as 1; of a weight [N, K] also (1, N).
void check_per_channel(InferContext &c, int i, const char *name) {
  const int32_t dtype = c.input(i).dtype();
  if (dtype != OPGRAFT_FLOAT32 && (i != kOffset || dtype != OPGRAFT_INT32)) c.check_same_dtype(i, name, kX, "x");
  const auto shape = c.input(i).shape();
  const int64_t n = weight_n(c), count = element_count(shape);
  const bool flat = shape.size() <= 1, turned = transpose_weight(c);
  const bool two = shape.size() == 2 && (may_equal(shape[0], 1) || (turned && may_equal(shape[1], 1)));
  if (i == kOffset && count == 0) return;
  const int64_t whole[] = {turned ? n : 1, turned ? 1 : n};
  c.check((flat || two) && (count < 0 || n < 0 || count == n || count == 1), name, ".shape must be (), (1,), (", n,
          ",) or ", whole, ", got ", shape);
}

void Infer(InferContext &c) {
  c.check_inputs(3, 7);
  c.check_dtype(kX, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_dtype(kWeight, "weight", {OPGRAFT_INT8, OPGRAFT_UINT8});
  const auto x = c.input(kX).shape(), w = c.input(kWeight).shape();
  c.check(x.size() >= 2, "x must have at least 2 dimensions, got shape ", x);
  c.check(w.size() == 2, "weight must have 2 dimensions, got shape ", w);
  const bool tx = c.attr_bool("transpose_x", false);
  c.check(x.size() == 2 || !tx, "x must have 2 dimensions with transpose_x, got shape ", x);
  c.check(c.attr_int("antiquant_group_size", 0) == 0, "antiquant_group_size must be 0, got ",
          c.attr_int("antiquant_group_size", 0));
  activation(c);
  const int64_t k = x[x.size() - (tx ? 2 : 1)], kw = weight_k(c), n = weight_n(c);
  c.check(k < 0 || kw < 0 || k == kw, "x's K must equal weight's K of ", kw, ", got ", k, " (x ", x, ", weight ", w,
          ")");
  check_per_channel(c, kScale, "antiquant_scale");
  if (c.inputs() > kOffset) check_per_channel(c, kOffset, "antiquant_offset");
  for (auto [i, name] : {std::pair<int, const char *>{kQuantScale, "quant_scale"}, {kQuantOffset, "quant_offset"}})
    if (c.inputs() > i && element_count(c.input(i).shape()) > 0)
      c.fail(OPGRAFT_INVALID_VALUE, name, " must have no elements, got shape ", c.input(i).shape());
  if (given(c, kBias) || (c.inputs() > kBias && n != 0)) {
    c.check_same_dtype(kBias, "bias", kX, "x");
    const auto b = c.input(kBias).shape();
    c.check(b.size() == 1 && may_equal(b[0], n), "bias.shape must be (", n, ",), got ", b);
  }
  Shape out(x.begin(), x.end());
  out[x.size() - 2] = x[x.size() - (tx ? 1 : 2)];
  out.back() = n;
  c.output(c.input(kX).dtype(), out);
}

GemmProblem problem(const Arguments &c) {
  const bool tx = c.attr_bool("transpose_x", false), tw = transpose_weight(c);
  const auto x = c.input(kX).shape();
  const int64_t n = weight_n(c), k = weight_k(c);
  const int64_t m = tx ? x[1] : element_count(x.first(x.size() - 1));
  GemmProblem p{c.input(kX).dtype(),
                m,
                n,
                k,
                {c.input(kX).raw(), tx ? 1 : k, tx ? m : 1},
                {c.input(kWeight).raw(), tw ? 1 : n, tw ? k : 1},
                nullptr};
  p.int8 = true;
  p.activation = activation(c);
  p.has_offset = given(c, kOffset) || !has_sign(c);
  return p;
}

// Many rows of bfloat16: a machine that multiplies pairs of it does so in half the time, for which the bytes become
// pairs in each call.
constexpr int64_t kManyRows = 64;
bool in_pairs(const GemmProblem &p) {
  return p.dtype == OPGRAFT_BFLOAT16 && !p.has_offset && p.m >= kManyRows && simd::bf16_pairs();
}
ProductKernels pair_kernels() {
  ProductKernels f = product_kernels(OPGRAFT_BFLOAT16);
  f.pack = PackInt8Pairs_simd(), f.skinny = nullptr;
  return f;
}

// Few rows by a constant weight, where bytes are multiplied four at a time.
bool in_digits(const GemmProblem &p) {
  return simd::vnni() && p.m <= kDigitRows && p.k >= kLeastDigits && p.k <= kMostDigits;
}
// Bytes between the digits of a row, an odd number of cache lines.
int64_t digits_ld(const GemmProblem &p) { return (p.k / 128 * 2 + 3) * 64; }
uint64_t digits_workspace(const Arguments &c, const GemmProblem &p) {
  return product_workspace(p, kernels(c), true) + uint64_t(4 * p.m * digits_ld(p));
}

uint64_t Workspace(InferContext &c) {
  const GemmProblem p = problem(c);
  const bool constant = c.input(kWeight).known();
  if (in_pairs(p)) return product_workspace(p, pair_kernels(), false);
  if (constant && p.m > 0 && in_digits(p)) return digits_workspace(c, p);
  return product_workspace(p, kernels(c), constant);
}
uint64_t PackedBytes(InferContext &c, int input) {
  const GemmProblem p = problem(c);
  return input == kWeight ? packed_bytes(p, kernels(c)) : 0;
}
void PackWeight(InferContext &c, int, void *dst) {
  const GemmProblem p = problem(c);
  pack_b(p, kernels(c), dst);
}

bool divides(const Arguments &c) { return c.attr_bool("divide", false); }

// A scale or an offset by column, as float32; what multiplies and what is added.
std::vector<float> by_column(const Context &c, int i, int64_t n) {
  std::vector<float> to(static_cast<size_t>(n));
  const TensorView t = c.input(i);
  dispatch<float, float16, bfloat16, int32_t>(c, t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t j = 0; j < n; ++j) to[size_t(j)] = float(t.data<T>()[t.size() == 1 ? 0 : j]);
  });
  if (i == kOffset && c.attr_bool("subtract_offset", false))
    for (float &o : to) o = -o;
  if (i == kScale && divides(c))
    for (float &s : to) s = 1.0f / s;
  return to;
}

// By the rows' digits; false, and nothing is written, where a row has none.
bool run_digits(Context &c, const GemmProblem &p) {
  const Scratch<char> memory(c, digits_workspace(c, p));
  Pieces pieces(memory.get());
  const float *a = float_rows(c, p, pieces.take(4 * p.a_floats()));
  Digits rows[kDigitRows];
  for (int64_t i = 0; i < p.m; ++i) {
    rows[i].ld = digits_ld(p);
    rows[i].bytes = reinterpret_cast<int8_t *>(pieces.take(uint64_t(4 * rows[i].ld)));
    if (!MakeDigits_simd()(a + i * p.lda(), p.k, rows[i])) return false;
  }
  GemmTile g = first_tile(p, a, p.packed, p.k);
  if (p.has_offset) {
    auto *sums = reinterpret_cast<float *>(pieces.take(uint64_t(p.m) * 4));
    sum_rows(p, a, sums);
    g.row_sums = sums;
  }
  const int64_t grain = std::max<int64_t>(1, 250000 / (p.m * p.k * PanelWidth_simd()()));
  c.parallel_for(panel_count(p.n), grain,
                 [&](int64_t begin, int64_t end) { DigitPanels_simd(p.dtype)(g, rows, begin, end); });
  return true;
}

void Kernel(Context &c) {
  GemmProblem p = problem(c);
  if (p.n == 0 || p.m == 0) return;
  p.c = c.output(0).raw();
  const bool pairs = in_pairs(p);
  if (!pairs) p.packed = c.packed(kWeight);
  std::vector<float> scale, offset;
  const TensorView s = c.input(kScale);
  if (s.dtype() == OPGRAFT_FLOAT32 && s.size() == p.n && !divides(c)) p.scale = s.data<float>();
  else scale = by_column(c, kScale, p.n), p.scale = scale.data();
  if (given(c, kOffset)) offset = by_column(c, kOffset, p.n);
  if (!has_sign(c)) {
    offset.resize(size_t(p.n));
    for (float &o : offset) o += 128.0f;
  }
  if (p.has_offset) p.offset = offset.data();
  p.bias = given(c, kBias) ? c.input(kBias).raw() : nullptr;
  if (p.packed && in_digits(p) && run_digits(c, p)) return;
  run_product(c, p, pairs ? pair_kernels() : kernels(c));
}

void Reference(Context &c) {
  const GemmProblem p = problem(c);
  const auto scale = by_column(c, kScale, p.n);
  const auto offset = given(c, kOffset) ? by_column(c, kOffset, p.n) : std::vector<float>(size_t(p.n), 0.0f);
  const auto *bytes = static_cast<const uint8_t *>(c.input(kWeight).raw());
  const auto weight = [&, sign = has_sign(c)](int64_t i) { return sign ? double(int8_t(bytes[i])) : double(bytes[i]); };
  dispatch<float, float16, bfloat16>(c, p.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *x = c.input(kX).data<T>(), *bias = given(c, kBias) ? c.input(kBias).data<T>() : nullptr;
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < p.k; ++l)
          sum += double(float(x[i * p.a.row_stride + l * p.a.column_stride])) *
                 (weight(l * p.b.row_stride + j * p.b.column_stride) + double(offset[size_t(j)]));
        sum = sum * double(scale[size_t(j)]) + (bias ? double(float(bias[j])) : 0.0);
        c.output(0).data<T>()[i * p.n + j] = T(float(activate(p.activation, sum)));
      }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(WeightQuantBatchMatmul, .inputs = -1, .infer = Infer, .kernel = Kernel, .reference = Reference,
           .workspace = Workspace, .packed_bytes = PackedBytes, .pack = PackWeight)
#endif
