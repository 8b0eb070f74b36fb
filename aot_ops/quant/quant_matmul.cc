// QuantBatchMatmul: (((x1 - x1_offset) (x2 - x2_offset) + bias) scale x1_scale pertoken_scale) + offset of eight-bit
// x1[..., M, K] and x2[K, N]; the sums are exact.
#include "opgraft/op.h"

#include <algorithm>
#include <array>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant_matmul.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/quant/dot-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/scratch.h"

namespace opgraft {
OPGRAFT_SIMD(PanelWidth)
OPGRAFT_SIMD(TileRows)
OPGRAFT_SIMD(DotPanels)
OPGRAFT_SIMD(PackDot)
OPGRAFT_SIMD(WidenDot)

namespace {

enum { kX1, kX2, kScale, kOffset, kBias, kToken };

bool is_unsigned(const Arguments &c, int i) { return c.input(i).dtype() == OPGRAFT_UINT8; }

struct Problem {
  int64_t m, n, k;
  MatrixRef a, b;
  bool b_unsigned;
  int32_t b_zero;  // of what is packed: unsigned numbers less 128
  int64_t panels() const { return (n + PanelWidth_simd()() - 1) / PanelWidth_simd()(); }
  int64_t padded() const { return dot_padded(k); }
  // Rows a multiple of 4 KiB apart would share the sets of L1.
  int64_t lda() const { return 2 * padded() + 64; }
  uint64_t a_bytes() const { return uint64_t(m * lda() + 63) / 64 * 64; }
  uint64_t row_sums_bytes() const { return b_zero ? uint64_t(m * 4 + 63) / 64 * 64 : 0; }
  uint64_t sums_bytes() const { return uint64_t(panels() * PanelWidth_simd()() * 4); }
  // The columns' sums, then the panels.
  uint64_t b_bytes() const { return sums_bytes() + uint64_t(panels() * PanelWidth_simd()() * padded()); }
};

Problem problem(const Arguments &c) {
  const bool ta = c.attr_bool("transpose_x1", false), tb = c.attr_bool("transpose_x2", false);
  const auto x1 = c.input(kX1).shape(), x2 = c.input(kX2).shape();
  const int64_t k = x2[tb ? 1 : 0], n = x2[tb ? 0 : 1], m = ta ? x1[1] : element_count(x1.first(x1.size() - 1));
  const MatrixRef a{c.input(kX1).raw(), ta ? 1 : k, ta ? m : 1}, b{c.input(kX2).raw(), tb ? 1 : n, tb ? k : 1};
  const bool b_unsigned = is_unsigned(c, kX2);
  return {m, n, k, a, b, b_unsigned, int32_t(c.attr_float("x2_offset", 0.0)) - (b_unsigned ? 128 : 0)};
}

int32_t output_dtype(const Arguments &c) {
  const std::string name = c.attr_string("dtype", "float16");
  const int32_t d = dtype_from_name(name);
  for (int32_t known : {OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_FLOAT32, OPGRAFT_INT8, OPGRAFT_INT32})
    if (d == known) return d;
  c.fail(OPGRAFT_INVALID_TYPE, "dtype must be one of float16, bfloat16, float32, int8, int32, got '", name, "'");
}

void Infer(InferContext &c) {
  c.check_inputs(3, 6);
  c.check_dtype(kX1, "x1", {OPGRAFT_INT8, OPGRAFT_UINT8});
  c.check_dtype(kX2, "x2", {OPGRAFT_INT8, OPGRAFT_UINT8});
  const auto x1 = c.input(kX1).shape(), x2 = c.input(kX2).shape();
  c.check(x1.size() >= 2, "x1 must have at least 2 dimensions, got shape ", x1);
  c.check(x2.size() == 2, "x2 must have 2 dimensions, got shape ", x2);
  const bool ta = c.attr_bool("transpose_x1", false), tb = c.attr_bool("transpose_x2", false);
  c.check(x1.size() == 2 || !ta, "x1 must have 2 dimensions with transpose_x1, got shape ", x1);
  const int64_t k = x2[tb ? 1 : 0], n = x2[tb ? 0 : 1], ka = x1[x1.size() - (ta ? 2 : 1)];
  c.check(k < 0 || ka < 0 || k == ka, "x1's K must equal x2's K of ", k, ", got ", ka, " (x1 ", x1, ", x2 ", x2, ")");
  const int32_t dtype = output_dtype(c);
  for (int i : {kX1, kX2}) {
    const std::string name = i == kX1 ? "x1_offset" : "x2_offset";
    const double zero = c.attr_float(name, 0.0), least = is_unsigned(c, i) ? 0 : -128;
    c.check(zero >= least && zero <= least + 255 && zero == std::floor(zero), name, " must be a whole number from ",
            is_unsigned(c, i) ? "0 to 255" : "-128 to 127", ", got ", zero);
  }
  const auto check_vector = [&](int i, const char *name, int32_t wanted, int64_t size, bool one) {
    if (c.inputs() <= i) return;
    c.check_dtype(i, name, {wanted});
    auto s = c.input(i).shape();
    const int64_t count = element_count(s);
    if (count == 0) return;
    if (i == kScale && s.size() == 2 && s[tb ? 1 : 0] == 1) s = tb ? s.first(1) : s.last(1);
    if (i == kToken && !ta && s.size() == x1.size() && s.back() == 1) {  // as it is multiplied with x1
      for (size_t d = 0; d + 1 < s.size(); ++d)
        c.check(may_equal(s[d], x1[d]), name, ".shape must be x1.shape ", x1, " with the last dimension as 1, got ", s);
      return;
    }
    c.check(s.size() <= 1 && (count < 0 || size < 0 || count == size || (one && count == 1)), name, ".shape must be ",
            one ? "(), (1,) or " : "", std::array{size}, ", got ", s);
  };
  check_vector(kScale, "scale", OPGRAFT_FLOAT32, n, true);
  check_vector(kOffset, "offset", OPGRAFT_FLOAT32, n, true);
  check_vector(kBias, "bias", OPGRAFT_INT32, n, false);
  check_vector(kToken, "pertokenScaleOptional", OPGRAFT_FLOAT32, ta ? x1[1] : element_count(x1.first(x1.size() - 1)),
               false);
  const bool sums = dtype == OPGRAFT_INT32;
  // How many elements there are is unknown where only dtypes are asked for.
  const auto open = [&](int i) { return c.inputs() > i && element_count(c.input(i).shape()) < 0; };
  const bool scaled = given(c, kScale);
  c.check(!sums || !scaled || n == 0 || open(kScale), "scale must have no elements where dtype is int32");
  if (!sums && !scaled && n != 0 && !open(kScale))
    c.fail(OPGRAFT_INVALID_VALUE, "scale must have elements, got shape ", c.input(kScale).shape());
  c.check(!given(c, kOffset) || open(kOffset) || !sums, "offset must have no elements where dtype is int32");
  c.check(!given(c, kToken) || open(kToken) || !sums,
          "pertokenScaleOptional must have no elements where dtype is int32");
  Shape out(x1.begin(), x1.end());
  out[x1.size() - 2] = x1[x1.size() - (ta ? 1 : 2)];
  out.back() = n;
  c.output(dtype, out);
}

uint64_t Workspace(InferContext &c) {
  const Problem p = problem(c);
  if (p.m < 0 || p.n < 0 || p.k < 0) return 0;
  return p.a_bytes() + p.row_sums_bytes() + (c.input(kX2).known() ? 0 : p.b_bytes());
}
uint64_t PackedBytes(InferContext &c, int input) { return input == kX2 ? problem(c).b_bytes() : 0; }

void pack(const Problem &p, int64_t begin, int64_t end, void *dst) {
  auto *sums = static_cast<int32_t *>(dst);
  PackDot_simd()(p.b, p.b_unsigned, p.k, p.n, begin, end, static_cast<int8_t *>(dst) + p.sums_bytes(), sums);
}
void PackX2(InferContext &c, int, void *dst) {
  const Problem p = problem(c);
  pack(p, 0, p.panels(), dst);
}

DotTile tile(const Context &c, const Problem &p) {
  DotTile g{};
  g.c = c.output(0).raw();
  g.n = p.n, g.k = p.k, g.lda = p.lda();
  g.b_zero = p.b_zero;
  g.is_unsigned = is_unsigned(c, kX1), g.zero = int32_t(c.attr_float("x1_offset", 0.0f));
  g.a_scale = c.attr_float("x1_scale", 1.0f);
  if (given(c, kBias)) g.bias = c.input(kBias).data<int32_t>();
  if (given(c, kScale)) g.scale = c.input(kScale).data<float>(), g.scale_step = c.input(kScale).size() > 1;
  if (given(c, kOffset)) g.offset = c.input(kOffset).data<float>(), g.offset_step = c.input(kOffset).size() > 1;
  if (given(c, kToken)) g.token_scale = c.input(kToken).data<float>();
  return g;
}

// Of row `row` of A less its zero point, modulo 2^32.
int32_t row_sum(const Problem &p, const DotTile &g, int64_t row) {
  const auto *a = static_cast<const int8_t *>(p.a.data) + row * p.a.row_stride;
  uint32_t sum = 0;
  for (int64_t l = 0; l < p.k; ++l) {
    const int8_t v = a[l * p.a.column_stride];
    sum += uint32_t(g.is_unsigned ? int32_t(uint8_t(v)) : int32_t(v));
  }
  return int32_t(sum - uint32_t(p.k) * uint32_t(g.zero));
}

void Kernel(Context &c) {
  const Problem p = problem(c);
  if (p.m == 0 || p.n == 0) return;
  const void *packed = c.packed(kX2);
  const Scratch<char> memory(c, p.a_bytes() + p.row_sums_bytes() + (packed ? 0 : p.b_bytes()));
  char *scratch = memory.get();
  DotTile g = tile(c, p);
  g.a = scratch;
  auto *row_sums = p.b_zero ? reinterpret_cast<int32_t *>(scratch + p.a_bytes()) : nullptr;
  g.row_sums = row_sums;
  c.parallel_for(p.m, std::max<int64_t>(1, 65536 / std::max<int64_t>(p.k, 1)), [&](int64_t begin, int64_t end) {
    WidenDot_simd()(p.a, g.is_unsigned, p.k, begin, end, scratch, p.lda());
    for (int64_t row = begin; row_sums && row < end; ++row) row_sums[row] = row_sum(p, g, row);
  });
  if (!packed) {
    char *to = scratch + p.a_bytes() + p.row_sums_bytes();
    const int64_t each = p.k * PanelWidth_simd()();
    c.parallel_for(p.panels(), std::max<int64_t>(1, 16384 / std::max<int64_t>(each, 1)),
                   [&](int64_t begin, int64_t end) { pack(p, begin, end, to); });
    packed = to;
  }
  g.column_sums = static_cast<const int32_t *>(packed);
  g.b = static_cast<const int8_t *>(packed) + p.sums_bytes();
  const bool amx = simd::by_amx(p.m);
  const int64_t tile = TileRows_simd()(), rows = amx ? kAmxBlockRows : kBlockRows / tile * tile;
  const int64_t blocks = (p.m + rows - 1) / rows;
  const int64_t work = 2 * std::min(rows, amx ? std::max(p.m, simd::kAmxRows) : p.m) * p.k * PanelWidth_simd()();
  c.parallel_for(blocks * p.panels(), std::max<int64_t>(1, 500000 * (amx ? kAmxGain : 1) / std::max<int64_t>(work, 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin, last; i < end; i = last) {  // panels of one block of rows
                     const int64_t panel = i % p.panels(), m0 = i / p.panels() * rows;
                     last = std::min(end, i - panel + p.panels());
                     DotPanels_simd()(g, c.output(0).dtype(), panel, panel + last - i, m0, std::min(m0 + rows, p.m));
                   }
                 });
}

// As the kernel: an exact sum, then float32.
void Reference(Context &c) {
  const Problem p = problem(c);
  const DotTile g = tile(c, p);
  const auto *a = static_cast<const int8_t *>(p.a.data), *b = static_cast<const int8_t *>(p.b.data);
  const auto wide = [](int8_t v, bool is_unsigned) { return is_unsigned ? int32_t(uint8_t(v)) : int32_t(v); };
  const int32_t b_zero = p.b_zero + (p.b_unsigned ? 128 : 0);
  dispatch<float, float16, bfloat16, int8_t, int32_t>(c, c.output(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        uint32_t sum = g.bias ? uint32_t(g.bias[j]) : 0;
        for (int64_t l = 0; l < p.k; ++l)
          sum += uint32_t((wide(a[i * p.a.row_stride + l * p.a.column_stride], g.is_unsigned) - g.zero) *
                          (wide(b[l * p.b.row_stride + j * p.b.column_stride], p.b_unsigned) - b_zero));
        T &to = static_cast<T *>(g.c)[i * p.n + j];
        if constexpr (std::is_same_v<T, int32_t>) {
          to = int32_t(sum);
        } else {
          float v = float(int32_t(sum)) * g.scale[j * g.scale_step];
          if (g.a_scale != 1.0f) v *= g.a_scale;
          if (g.token_scale) v *= g.token_scale[i];
          if (g.offset) v += g.offset[j * g.offset_step];
          if constexpr (std::is_same_v<T, int8_t>)
            to = v != v ? int8_t(0) : int8_t(std::nearbyint(std::clamp(v, -128.0f, 127.0f)));
          else to = T(v);
        }
      }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(QuantBatchMatmul, .inputs = -1, .infer = Infer, .kernel = Kernel, .reference = Reference,
           .workspace = Workspace, .packed_bytes = PackedBytes, .pack = PackX2)
#endif
