// ScaledDotProductAttention: softmax(q k^T scale + mask) v per head, by blocks of queries with a running
// maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022), so that no more of the scores exists
// than one tile per thread. Keys and values are packed once per call for the GEMM kernel; where few
// queries would use the packed form (decoding), they are read where they lie.
#include "opgraft/op.h"

#include <cmath>
#include <vector>

#include "attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/gemm-inl.h"
#include "direct-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// Units [begin, end) of (batch, head, block of queries).
template <class T> void Attend(const Attention &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  HWY_ALIGN float q[kQueries * kMostDim], scores[kQueries * kKeys], sums[kQueries * kMostDim];
  const int64_t blocks = (g.queries + kQueries - 1) / kQueries;
  const int64_t width = (g.dim + kPanel - 1) / kPanel * kPanel;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t s0 = unit % blocks * kQueries, head = unit / blocks % g.heads, batch = unit / blocks / g.heads;
    const int64_t rows = g.queries - s0 < kQueries ? g.queries - s0 : kQueries;
    const int64_t at = batch * g.q_at.batch + head * g.q_at.head + s0 * g.q_at.row;
    const float *keys = g.packed_k + (batch * g.heads + head) * g.k_floats;
    const float *values = g.packed_v + (batch * g.heads + head) * g.v_floats;
    Gather(static_cast<const T *>(g.q) + at, g.q_at.row, 1, rows, g.dim, q, g.dim);
    float m[kQueries], l[kQueries];
    for (int64_t r = 0; r < rows; ++r) m[r] = -HUGE_VALF, l[r] = 0.0f;
    for (int64_t t = 0; t < g.keys; t += kKeys) {
      const int64_t n = g.keys - t < kKeys ? g.keys - t : kKeys;
      for (int64_t column = 0; column < n; column += kPanel)
        for (int64_t r = 0, tile; r < rows; r += tile) {
          tile = TileSize(rows, r);
          MicroRows(tile, q + r * g.dim, g.dim, keys + (t + column) * g.dim, g.dim, scores + r * kKeys + column, kKeys,
                    false);
        }
      for (int64_t r = 0; r < rows; ++r) {
        const T *mask = g.mask ? static_cast<const T *>(g.mask) + batch * g.mask_at[0] + head * g.mask_at[1] +
                                     (s0 + r) * g.mask_at[2] + t * g.mask_at[3]
                               : nullptr;
        const auto before = hn::Set(d, SoftmaxRow(scores + r * kKeys, n, g.scale, mask, g.mask_at[3], m + r, l + r));
        for (int64_t i = 0; t > 0 && i < width; i += lanes)
          hn::StoreU(hn::Mul(hn::LoadU(d, sums + r * width + i), before), d, sums + r * width + i);
      }
      for (int64_t column = 0; column < width; column += kPanel)
        for (int64_t r = 0, tile; r < rows; r += tile) {
          tile = TileSize(rows, r);
          MicroRows(tile, scores + r * kKeys, kKeys, values + column * g.keys + t * kPanel, n,
                    sums + r * width + column, width, t > 0);
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
      T *out = static_cast<T *>(g.out) + at + r * g.q_at.row;
      const auto scale = hn::Set(d, 1.0f / l[r]);
      for (int64_t i = 0; i < g.dim; i += lanes) {
        const auto y = g.keys ? hn::Mul(hn::LoadU(d, sums + r * width + i), scale) : hn::Zero(d);
        if (g.dim - i >= lanes) StoreF32(y, d, out + i);
        else StoreF32N(y, d, out + i, size_t(g.dim - i));
      }
    }
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "aot_ops/common/gemm-host.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(Attend)
OPGRAFT_SIMD_FLOATS(AttendDirect)

namespace {

bool packed_layout(const Arguments &c) {
  const std::string l = c.attr_string("layout", "BHSD");
  c.check(l == "BHSD" || l == "BSE" || l == "BSHD_PACKED", "layout must be BHSD, BSE or BSHD_PACKED, got '" + l + "'");
  return l != "BHSD";
}

void Infer(InferContext &c) {
  c.check_inputs(3, 4);
  c.check_dtype(0, "q", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  const bool packed = packed_layout(c);
  const int rank = packed ? 3 : 4;
  static constexpr const char *kNames[] = {"q", "k", "v", "mask"};
  auto q = c.input(0).shape();
  for (int i = 0; i < 3; ++i) {
    c.check_same_dtype(i, kNames[i], 0, "q");
    auto s = c.input(i).shape();
    c.check(int(s.size()) == rank,
            std::string(kNames[i]) + " must have " + std::to_string(rank) + " dimensions, got shape " + to_string(s));
    for (int a = 0; a < rank; ++a)
      c.check(a == rank - 2 || may_equal(s[a], q[a]), std::string(kNames[i]) + ".shape must agree with q.shape " +
                                                          to_string(q) + " in all but the sequence, got " +
                                                          to_string(s));
  }
  c.check_same_shape(2, "v", 1, "k");
  const int64_t heads = packed ? c.attr_int("heads", 0) : q[1];
  if (packed)
    c.check(heads > 0 && (q[2] < 0 || q[2] % heads == 0),
            "heads must divide q's last dimension " + std::to_string(q[2]) + ", got " + std::to_string(heads));
  if (c.inputs() > 3) {
    c.check_same_dtype(3, "mask", 0, "q");
    const int64_t full[] = {q[0], heads, q[rank - 2], c.input(1).dim(-2)};
    auto s = c.input(3).shape();
    bool ok = s.size() <= 4;
    for (size_t a = 0; ok && a < s.size(); ++a) {
      const int64_t want = full[4 - s.size() + a];
      ok = s[a] < 0 || want < 0 || s[a] == 1 || s[a] == want;
    }
    c.check(ok, "mask.shape must broadcast to " + to_string(full) + ", got " + to_string(s));
  }
  c.output(c.input(0).dtype(), q);
}

Attention attention(const Arguments &c) {
  const bool packed = packed_layout(c);
  Attention g{};
  auto q = c.input(0).shape();
  g.batches = q[0];
  g.heads = packed ? c.attr_int("heads", 0) : q[1];
  g.queries = c.input(0).dim(-2);
  g.keys = c.input(1).dim(-2);
  g.dim = packed ? q[2] / g.heads : q[3];
  const double scale = c.attr_float("scale", NAN);
  g.scale = float(std::isnan(scale) ? 1 / std::sqrt(double(g.dim)) : scale);
  g.q = c.input(0).raw(), g.k = c.input(1).raw(), g.v = c.input(2).raw();
  auto strides = [&](int64_t s) {
    return packed ? Attention::Strides{s * g.heads * g.dim, g.dim, g.heads * g.dim}
                  : Attention::Strides{g.heads * s * g.dim, s * g.dim, g.dim};
  };
  g.q_at = strides(g.queries);
  g.k_at = strides(g.keys);
  if (c.inputs() > 3) {
    g.mask = c.input(3).raw();
    int64_t stride = 1;
    for (int a = 1; a <= c.input(3).rank(); ++a) {
      const int64_t n = c.input(3).dim(-a);
      g.mask_at[4 - a] = n == 1 ? 0 : stride;
      stride *= n;
    }
  }
  g.k_floats = packed_floats(g.dim, g.keys);
  g.v_floats = packed_floats(g.keys, g.dim);
  return g;
}

uint64_t Workspace(InferContext &c) {
  for (int i = 0; i < 2; ++i)
    if (c.input(i).size() < 0) return 0;
  const Attention g = attention(c);
  if (g.queries <= kDirect) return 0;
  return 4 * uint64_t(g.batches * g.heads * (g.k_floats + g.v_floats));
}

void Kernel(Context &c) {
  Attention g = attention(c);
  const int64_t pairs = g.batches * g.heads;
  if (pairs == 0 || g.queries == 0 || g.dim == 0) return;
  c.check(g.dim <= kMostDim, "the head dimension must be at most 512, got " + std::to_string(g.dim),
          OPGRAFT_UNSUPPORTED | OPGRAFT_NOTHING_WRITTEN);
  g.out = c.output(0).raw();
  const int32_t t = c.input(0).dtype();
  if (g.queries <= kDirect) {
    const auto attend = AttendDirect_simd(t);
    const int64_t grain = std::max<int64_t>(1, 50000 / std::max<int64_t>(4 * g.keys * g.dim, 1));
    return c.parallel_for(pairs * g.queries, grain, [&](int64_t b, int64_t e) { attend(g, b, e); });
  }
  const size_t floats = size_t(pairs * (g.k_floats + g.v_floats));
  std::vector<float> own;  // only where the plan did not know the shapes
  float *k = static_cast<float *>(c.workspace());
  if (c.workspace_bytes() < 4 * floats) own.resize(floats), k = own.data();
  float *v = k + pairs * g.k_floats;
  g.packed_k = k, g.packed_v = v;
  const GemmKernels f = gemm_kernels(t);
  const int64_t element = int64_t(dtype_size(t));
  c.parallel_for(pairs, std::max<int64_t>(1, 8192 / std::max<int64_t>(g.keys * g.dim, 1)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t at = (i / g.heads * g.k_at.batch + i % g.heads * g.k_at.head) * element;
                     f.pack({static_cast<const char *>(g.k) + at, 1, g.k_at.row}, g.dim, g.keys, 0, panel_count(g.keys),
                            k + i * g.k_floats);
                     f.pack({static_cast<const char *>(g.v) + at, g.k_at.row, 1}, g.keys, g.dim, 0, panel_count(g.dim),
                            v + i * g.v_floats);
                   }
                 });
  const auto attend = Attend_simd(t);
  const int64_t grain = std::max<int64_t>(1, 200000 / std::max<int64_t>(4 * kQueries * g.keys * g.dim, 1));
  c.parallel_for(pairs * ((g.queries + kQueries - 1) / kQueries), grain,
                 [&](int64_t b, int64_t e) { attend(g, b, e); });
}

void Reference(Context &c) {
  const Attention g = attention(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    auto at = [](const void *p, int64_t i) { return double(float(static_cast<const T *>(p)[i])); };
    std::vector<double> w(static_cast<size_t>(g.keys));
    for (int64_t i = 0; i < g.batches * g.heads * g.queries; ++i) {
      const int64_t s = i % g.queries, h = i / g.queries % g.heads, b = i / g.queries / g.heads;
      const int64_t q = b * g.q_at.batch + h * g.q_at.head + s * g.q_at.row, k = b * g.k_at.batch + h * g.k_at.head;
      double most = -HUGE_VAL, sum = 0;
      for (int64_t t = 0; t < g.keys; ++t) {
        double dot = 0;
        for (int64_t d = 0; d < g.dim; ++d) dot += at(g.q, q + d) * at(g.k, k + t * g.k_at.row + d);
        w[size_t(t)] = dot * double(g.scale);
        if (g.mask)
          w[size_t(t)] += at(g.mask, b * g.mask_at[0] + h * g.mask_at[1] + s * g.mask_at[2] + t * g.mask_at[3]);
        most = std::max(most, w[size_t(t)]);
      }
      for (double &x : w) sum += x = std::exp(x - most);
      for (int64_t d = 0; d < g.dim; ++d) {
        double y = 0;
        for (int64_t t = 0; t < g.keys; ++t) y += w[size_t(t)] / sum * at(g.v, k + t * g.k_at.row + d);
        c.output(0).data<T>()[q + d] = T(float(y));
      }
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(ScaledDotProductAttention, .inputs = -1, .infer = Infer, .kernel = Kernel, .reference = Reference,
           .workspace = Workspace)
#endif
