// ScaledDotProductAttention: softmax(q k^T scale + mask) v per head, by blocks of queries with a running maximum and
// sum (Milakov and Gimelshein 2018; Dao et al. 2022), so that no more of the scores exists than one tile per thread.
// Keys and values are packed once per call for the GEMM kernel, or, of few queries, read where they lie.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <thread>
#include <vector>

#include "aot_ops/common/scratch.h"
#include "attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "direct-inl.h"
#include "packed-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/gemm-host.h"
#include "heads.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(Attend)
OPGRAFT_SIMD_FLOATS(AttendDirect)
OPGRAFT_SIMD_FLOATS(Join)
OPGRAFT_SIMD(PackKeyPairs)
OPGRAFT_SIMD(PackValuePairs)

namespace {

enum { kMask = 3, kMask2 };

// Of three dimensions, [S, B H, D].
void check_joined(InferContext &c, const char *const names[3]) {
  const int64_t heads = c.attr_int("heads", 0), batches = joined_batches(c);
  c.check(heads > 0 && (batches < 0 || c.input(0).dim(1) % heads == 0), "heads must divide q's second dimension ",
          c.input(0).dim(1), ", got ", heads);
  for (int i = 1; i < 3; ++i) {
    const int64_t all = c.input(i).dim(1);
    c.check(batches < 0 || all < 0 || (batches ? all % batches == 0 : all == 0), names[i],
            "'s second dimension must be a multiple of the ", batches, " batches that q has, got shape ",
            c.input(i).shape());
  }
}

// q, k and v, under these names; the output's shape; -> the number of query heads.
int64_t check_heads(InferContext &c, const char *const names[3], Layout layout) {
  c.check_dtype(0, "q", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  const bool packed = layout == kPacked, joined = layout == kSBHD && c.input(0).rank() == 3;
  const int rank = packed || joined ? 3 : 4;
  for (int i = 0; i < 3; ++i) {
    c.check_same_dtype(i, names[i], 0, "q");
    c.check(c.input(i).rank() == rank, names[i], " must have ", rank, " dimensions, got shape ", c.input(i).shape());
  }
  if (joined) check_joined(c, names);
  const HeadsShape shapes[] = {{c, 0, layout}, {c, 1, layout}, {c, 2, layout}};
  const auto q = *shapes[0], k = *shapes[1], v = *shapes[2];
  const bool apart = layout == kBSHD || layout == kSBHD;
  const auto given = [&](int i) { return apart ? c.input(i).shape() : *shapes[i]; };  // as messages name it
  for (int i = 0; i < 3; ++i) {
    const auto s = *shapes[i];
    c.check(may_equal(s[0], q[0]) && (packed || i == 2 || may_equal(s[3], q[3])), names[i],
            ".shape must agree with q.shape ", given(0), " in all but the heads and the sequence, got ", given(i));
  }
  bool same = true;  // but for the last dimension
  for (size_t a = 0; a + 1 < v.size(); ++a) same = same && may_equal(v[a], k[a]);
  c.check(same, names[2], ".shape must agree with ", names[1], ".shape ", given(1),
          " in all but the last dimension, got ", given(2));
  const int64_t heads = packed ? c.attr_int("heads", 0) : q[1];
  c.check(layout == kBHSD || (packed && heads == 1) || !c.attr_bool("k_transposed", false),
          "k_transposed takes layout BHSD, or one head, got ", heads, " of layout ",
          packed ? "BSE" : c.attr_string("layout", ""));
  if (packed)
    c.check(heads > 0 && (q[2] < 0 || q[2] % heads == 0), "heads must divide q's last dimension ", q[2], ", got ",
            heads);
  // Of layout BSE the last dimensions stand for the heads: all of them have one size.
  const int64_t ours = packed ? q[2] : heads, theirs = k[packed ? 2 : 1], size = packed ? ours / heads : 1;
  c.check(ours < 0 || theirs < 0 || (theirs && size ? ours % theirs == 0 && theirs % size == 0 : ours == theirs),
          names[1], "'s heads must divide q's, got shapes ", given(1), " and ", given(0));
  const bool known = packed && ours >= 0 && theirs >= 0;
  const int64_t shared = !known ? 0 : size ? theirs / size : heads;  // heads of k and v
  c.check(!known || v[2] < 0 || (shared ? v[2] % shared == 0 : v[2] == 0), names[2],
          "'s last dimension must be a multiple of the ", shared, " heads that k.shape ", k, " has, got shape ", v);
  Shape out(q.begin(), q.end());
  if (layout == kBSHD) std::swap(out[1], out[2]);
  if (joined) out[0] = c.dim_op('/', c.input(0).dim(1), heads);
  if (layout == kSBHD) out = {out[2], out[0], out[1], out[3]};
  if (!packed) out[3] = v[3];
  else if (known && v[2] >= 0) out[2] = shared ? v[2] / shared * heads : 0;
  else if (v[2] != k[2]) out[2] = -1;  // how long a row of a head is, is open
  c.output(c.input(0).dtype(), out);
  return heads;
}

// One mask of the scores, [B, Hkv, G, S, T]: G of q's heads share one of k's.
void check_mask(InferContext &c, int i, const char *name, const int64_t (&grouped)[5], int64_t heads) {
  const int32_t dtype = c.input(i).dtype();
  if (dtype != OPGRAFT_BOOL && dtype != OPGRAFT_FLOAT32) c.check_same_dtype(i, name, 0, "q");
  const int64_t scores[] = {grouped[0], heads, grouped[3], grouped[4]};
  const auto shape = c.input(i).shape();
  std::span<const int64_t> s = shape, full = scores;
  // [1, n, h, s, t]: for the batches in turn.
  const bool turns = i == kMask2 && s.size() == 5 && s[0] == 1;
  const int64_t of_one_head[] = {scores[0], scores[2], scores[3]};  // [b, s, t]
  if (s.size() == 3 && heads == 1 && s[0] != 1) full = of_one_head;
  if (s.size() == 5 && i == kMask) full = grouped;
  const auto whole = full.size() == 5 ? full : scores;
  bool ok = s.size() <= full.size() || turns;
  if (turns) {
    ok = s[1] < 0 || full[0] < 0 || (s[1] > 0 && full[0] % s[1] == 0);
    s = s.last(3);
  }
  for (size_t a = 0; ok && a < s.size(); ++a) ok = s[a] == 1 || may_equal(s[a], full[full.size() - s.size() + a]);
  c.check(ok, name, ".shape must broadcast to ", whole, ", got ", shape);
}

void Infer(InferContext &c) {
  c.check_inputs(3, 5);
  static constexpr const char *kNames[] = {"q", "k", "v"};
  const Layout layout = layout_of(c);
  const int64_t heads = check_heads(c, kNames, layout);
  const HeadsShape shapes[] = {{c, 0, layout}, {c, 1, layout}};
  const auto q = *shapes[0], k = *shapes[1];
  const int64_t row = layout == kPacked ? (q[2] < 0 ? -1 : q[2] / heads) : 1, theirs = k[layout == kPacked ? 2 : 1];
  const int64_t shared = row > 0 && theirs > 0 ? theirs / row : -1;  // heads of k
  const int64_t full[] = {q[0], shared, heads > 0 && shared > 0 ? heads / shared : -1, q.end()[-2], k.end()[-2]};
  if (c.inputs() > kMask) check_mask(c, kMask, "mask", full, heads);
  if (c.inputs() > kMask2) {
    check_mask(c, kMask2, "mask2", full, heads);
    c.check(c.input(kMask).dtype() != OPGRAFT_BOOL || c.input(kMask2).dtype() != OPGRAFT_BOOL,
            "mask2.dtype must not be bool where mask's is");
  }
}

void InferCached(InferContext &c) {
  static constexpr const char *kNames[] = {"q", "k_cache", "v_cache"};
  check_heads(c, kNames, kBHSD);
  c.check_dtype(3, "lengths", {OPGRAFT_INT32, OPGRAFT_INT64});
  auto n = c.input(3).shape(), q = c.input(0).shape();
  c.check(n.size() == 1 && may_equal(n[0], q[0]), "lengths.shape must be ", q.first(1), ", got ", n);
}

// Of heads with so many keys.
int64_t splits(const Attention &g, int64_t keys) {
  const int64_t units = std::max<int64_t>(g.batches * g.kv_heads * g.chunks, 1);
  return std::clamp<int64_t>((kUnits + units - 1) / units, 1, std::max<int64_t>(keys / kLeastKeys, 1));
}

Mask mask_of(const Arguments &c, int i, const Attention &g) {
  const auto input = c.input(i);
  const float factor = i == kMask ? float(c.attr_float("mask_scale", 1.0)) : 1.0f;
  const int32_t dtype = input.dtype();
  const bool wide = dtype == OPGRAFT_FLOAT32 && c.input(0).dtype() != dtype;
  Mask m{input.raw(), {}, 0, std::max<int64_t>(g.batches, 1), dtype == OPGRAFT_BOOL, wide, factor};
  const bool turns = i == kMask2 && input.rank() == 5, grouped = i == kMask && input.rank() == 5;
  if (turns) m.batches = input.dim(1);
  int64_t stride = 1, at[5] = {};
  for (int a = 1; a <= std::min(input.rank(), turns ? 4 : 5); ++a) {
    const int64_t n = input.dim(-a);
    at[5 - a] = n == 1 ? 0 : stride;
    stride *= n;
  }
  m.at[0] = at[grouped ? 0 : 1], std::copy(at + 2, at + 5, m.at + 1);
  if (g.heads == 1 && input.rank() == 3) std::swap(m.at[0], m.at[1]);  // [b, s, t]
  m.shared = grouped ? at[1] : g.group * m.at[1];
  return m;
}

Attention attention(const Arguments &c, bool cached) {
  const Layout layout = cached ? kBHSD : layout_of(c);
  const bool packed = layout == kPacked;
  Attention g{};
  const HeadsShape shapes[] = {{c, 0, layout}, {c, 1, layout}, {c, 2, layout}};
  const auto q = *shapes[0], k = *shapes[1], v = *shapes[2];
  g.batches = q[0];
  g.heads = packed ? c.attr_int("heads", 0) : q[1];
  g.queries = q.end()[-2];
  g.keys = k.end()[-2];
  g.dim = packed ? q[2] / g.heads : q[3];
  g.kv_heads = !packed ? k[1] : g.dim ? k[2] / g.dim : g.heads;
  g.value_dim = !packed ? v[3] : g.kv_heads ? v[2] / g.kv_heads : 0;
  g.group = g.kv_heads ? g.heads / g.kv_heads : 0;
  const double scale = c.attr_float("scale", NAN);
  g.scale = float(std::isnan(scale) ? 1 / std::sqrt(double(g.dim)) : scale);
  g.q = c.input(0).raw(), g.k = c.input(1).raw(), g.v = c.input(2).raw();
  auto strides = [&](int64_t heads, int64_t s, int64_t dim) {
    if (layout == kSBHD) return Attention::Strides{heads * dim, dim, g.batches * heads * dim};
    return layout == kBHSD ? Attention::Strides{heads * s * dim, s * dim, dim}
                           : Attention::Strides{s * heads * dim, dim, heads * dim};
  };
  g.q_at = strides(g.heads, g.queries, g.dim), g.out_at = strides(g.heads, g.queries, g.value_dim);
  g.k_at = strides(g.kv_heads, g.keys, g.dim), g.v_at = strides(g.kv_heads, g.keys, g.value_dim);
  g.k_step = 1;
  if (c.attr_bool("k_transposed", false)) g.k_at.row = 1, g.k_step = g.keys;
  g.causal = cached || c.attr_bool("is_causal", false);
  if (cached) {
    g.lengths = c.input(3).raw(), g.wide_lengths = c.input(3).dtype() == OPGRAFT_INT64;
  } else {
    g.hides = c.attr_bool("hides", false), g.fill = float(c.attr_float("fill", -HUGE_VAL));
    g.nan_to_zero = c.attr_bool("nan_to_zero", false), g.softcap = float(c.attr_float("softcap", std::nan("")));
    for (int i = kMask; i < c.inputs(); ++i) {
      g.masks[g.mask_count] = mask_of(c, i, g);
      g.wide_masks = g.masks[g.mask_count++].wide || g.wide_masks;
    }
    if (g.mask_count && g.masks[0].chosen) g.fill *= g.masks[0].factor;
  }
  const bool in_pairs = c.input(0).dtype() == OPGRAFT_BFLOAT16 && !g.direct() && simd::bf16_pairs();
  g.keys_by = !in_pairs ? kByFloats : simd::amx() ? kByTiles : kByPairs;
  g.values_by = c.attr_bool("float_weights", false) ? kByFloats : g.keys_by;
  g.k_floats = packed_floats(g.key_steps(), g.keys);
  g.v_floats = packed_floats(g.value_steps(g.keys), g.value_dim);
  // By shapes and lengths alone, whatever number of threads there is: the same bits.
  g.chunks = (g.rows() + kRows - 1) / kRows;
  g.splits = splits(g, g.keys);
  return g;
}

size_t workspace_floats(const Attention &g, int64_t threads) {
  const int64_t heads = g.batches * g.kv_heads, own = threads * g.own_floats();
  if (!g.direct()) return size_t(own + heads * (g.k_floats + g.v_floats));
  return size_t(own + (g.splits == 1 ? 0 : heads * g.chunks * g.splits * kRows * g.partial_row()));
}

template <bool kCached> uint64_t Workspace(InferContext &c) {
  for (int i = 0; i < 2; ++i)
    if (c.input(i).size() < 0) return 0;
  return 4 * uint64_t(workspace_floats(attention(c, kCached), std::max(1u, std::thread::hardware_concurrency())));
}

void check_lengths(Context &c, const Attention &g) {
  for (int64_t b = 0; b < g.batches && g.lengths; ++b)
    if (g.length(b) < 0 || g.length(b) > g.keys)
      c.fail(OPGRAFT_INVALID_VALUE, "lengths must be in [0, ", g.keys, "], got ", g.length(b));
}

template <bool kCached> void Kernel(Context &c) {
  Attention g = attention(c, kCached);
  check_lengths(c, g);
  const int64_t heads = g.batches * g.kv_heads;
  if (heads == 0 || g.rows() == 0 || g.value_dim == 0) return;
  g.out = c.output(0).raw();
  const int32_t t = c.input(0).dtype();
  const int64_t threads = g.wide() ? c.threads() : 0;  // that have rows of their own
  const Scratch<float> scratch(c, workspace_floats(g, threads));
  float *const rows = scratch.get(), *const rest = rows + threads * g.own_floats();
  const auto share = [&](int64_t n, int64_t grain, auto f) {
    c.parallel_for(n, grain, [&](int64_t begin, int64_t end, int worker) {
      g.by(worker, rows, [&](const Attention &own) { f(own, begin, end); });
    });
  };
  if (g.direct()) {
    int64_t longest = 0;  // what a cache has room for says little of what it holds
    for (int64_t b = 0; b < g.batches; ++b) longest = std::max(longest, g.length(b));
    g.splits = splits(g, longest);
    g.partial = rest;
    const int64_t work = 2 * (longest / g.splits) * (g.dim + g.value_dim) * std::min(g.rows(), kRows);
    share(heads * g.chunks * g.splits, std::max<int64_t>(1, 100000 / std::max<int64_t>(work, 1)), AttendDirect_simd(t));
    if (g.splits == 1) return;
    return share(heads * g.rows(), std::max<int64_t>(1, 100000 / (g.splits * g.value_dim)), Join_simd(t));
  }
  float *k = rest, *v = k + heads * g.k_floats;
  const GemmKernels f = gemm_kernels(t);
  const int64_t element = int64_t(dtype_size(t));
  const auto pack = [&](int64_t head, int64_t place) {
    const auto from = [&](const void *all, const Attention::Strides &at) {
      return static_cast<const char *>(all) + (head / g.kv_heads * at.batch + head % g.kv_heads * at.head) * element;
    };
    const int64_t n = g.length(head / g.kv_heads);
    float *const keys = k + place * g.k_floats, *const values = v + place * g.v_floats;
    if (g.keys_by && g.k_step == 1) PackKeyPairs_simd()(from(g.k, g.k_at), g.k_at.row, g.dim, n, keys);
    else if (g.keys_by) PackValuePairs_simd()(from(g.k, g.k_at), g.k_step, n, g.dim, keys);
    else f.pack({from(g.k, g.k_at), g.k_step, g.k_at.row}, g.dim, n, 0, panel_count(n), keys);
    if (g.values_by) PackValuePairs_simd()(from(g.v, g.v_at), g.v_at.row, g.value_dim, n, values);
    else f.pack({from(g.v, g.v_at), g.v_at.row, 1}, n, g.value_dim, 0, panel_count(g.value_dim), values);
  };
  const auto attend = Attend_simd(t);
  const int64_t blocks = (g.rows() + g.tile_rows() - 1) / g.tile_rows();
  const int64_t work = std::max<int64_t>(2 * g.tile_rows() * g.keys * (g.dim + g.value_dim), 1);  // of a block
  // Few heads of little work may be as many as the threads: what one loses with its core is short.
  const bool short_ones = heads * blocks * work < kShort && heads % c.threads() == 0;
  if (heads >= 4 * c.threads() || short_ones) {
    // Each is packed by the thread that uses it: else the lines of short ones go to and fro between the cores.
    const int64_t grain = std::max<int64_t>(1, 200000 / (blocks * work));
    return c.parallel_for(heads, grain, [&](int64_t begin, int64_t end, int worker) {
      Attention own = g;
      own.own_rows = rows + worker * g.own_floats();
      own.packed_k = k + worker * g.k_floats, own.packed_v = v + worker * g.v_floats;
      for (int64_t head = begin; head < end; ++head) {
        pack(head, worker);
        own.next = head + 1 < end;
        own.first_packed = head;
        attend(own, head * blocks, (head + 1) * blocks);
      }
    });
  }
  c.parallel_for(heads, std::max<int64_t>(1, 8192 / std::max<int64_t>(g.keys * g.dim, 1)), [&](int64_t b, int64_t e) {
    for (int64_t head = b; head < e; ++head) pack(head, head);
  });
  g.packed_k = k, g.packed_v = v;
  share(heads * blocks, std::max<int64_t>(1, 200000 / work), attend);
}

template <bool kCached> void Reference(Context &c) {
  const Attention g = attention(c, kCached);
  check_lengths(c, g);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    auto at = [](const void *p, int64_t i) { return double(float(static_cast<const T *>(p)[i])); };
    std::vector<double> w;
    for (int64_t i = 0; i < g.batches * g.kv_heads * g.rows(); ++i) {
      const int64_t row = i % g.rows(), head = i / g.rows() % g.kv_heads, batch = i / g.rows() / g.kv_heads;
      const int64_t q = g.query_at(batch, head, row), k = batch * g.k_at.batch + head * g.k_at.head;
      const int64_t v = batch * g.v_at.batch + head * g.v_at.head, to = g.result_at(batch, head, row);
      const auto row_at = g.mask_row(batch, head, row);
      w.assign(size_t(g.seen(g.length(batch), row)), 0.0);
      double most = -HUGE_VAL, sum = 0;
      for (size_t t = 0; t < w.size(); ++t) {
        for (int64_t d = 0; d < g.dim; ++d)
          w[t] += at(g.q, q + d) * at(g.k, k + int64_t(t) * g.k_at.row + d * g.k_step);
        w[t] *= double(g.scale);
        if (g.capped()) w[t] = double(g.softcap) * std::tanh(w[t] / double(g.softcap));
        for (int m = 0; m < g.mask_count; ++m) {
          const Mask &mask = g.masks[m];
          const int64_t i = row_at.at[m] + int64_t(t) * mask.at[3];
          if (mask.wide) w[t] += double(mask.factor) * double(static_cast<const float *>(mask.data)[i]);
          else if (!mask.chosen) w[t] += double(mask.factor) * at(mask.data, i);
          else if ((static_cast<const uint8_t *>(mask.data)[i] != 0) == g.hides) w[t] = double(g.fill);
        }
        most = std::max(most, w[t]);
      }
      for (double &x : w) sum += x = std::exp(x - most);
      if (g.nan_to_zero && std::isnan(sum)) w.clear();
      for (int64_t d = 0; d < g.value_dim; ++d) {
        double y = 0;
        for (size_t t = 0; t < w.size(); ++t) y += w[t] / sum * at(g.v, v + int64_t(t) * g.v_at.row + d);
        c.output(0).data<T>()[to + d] = T(float(y));
      }
    }
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(ScaledDotProductAttention, .inputs = -1, .infer = Infer, .kernel = Kernel<false>,
           .reference = Reference<false>, .workspace = Workspace<false>)
OPGRAFT_OP(CachedAttention, .inputs = 4, .infer = InferCached, .kernel = Kernel<true>, .reference = Reference<true>,
           .workspace = Workspace<true>)
#endif
