// Attention of many queries over packed keys and values, per SIMD target: by blocks of queries whose scores of a tile
// of keys are one product, and their sums of values another.
#include <algorithm>
#include <cstring>

#include "attention.h"

#if defined(OPGRAFT_ATTENTION_PACKED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_ATTENTION_PACKED_INL_H_
#undef OPGRAFT_ATTENTION_PACKED_INL_H_
#else
#define OPGRAFT_ATTENTION_PACKED_INL_H_
#endif

#include "opgraft/simd.h"
#include "aot_ops/common/amx-inl.h"
#include "aot_ops/common/gemm-inl.h"
#include "weights-inl.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// The rows of the head that is worked on next, where they lie; every product of a tile fetches some of them, for where
// they are far apart the machine follows none by itself: MiniLM's attention of 8 x 128 tokens takes 0.79 of its time
// (Zen 4).
class Coming {
 public:
  Coming() = default;
  Coming(const Attention &g, int64_t head, int64_t element) : left_(kTensors) {
    const int64_t batch = head / g.kv_heads, of = head % g.kv_heads, n = g.length(batch);
    const auto rows = [&](const void *all, const Attention::Strides &at, int64_t of, int64_t count, int64_t dim) {
      const char *from = static_cast<const char *>(all) + (batch * at.batch + of * at.head) * element;
      return Rows{from, at.row * element, count, dim * element};
    };
    rows_[3] = rows(g.k, g.k_at, of, n, g.dim);
    if (g.k_step != 1) rows_[3] = {rows_[3].from, g.k_step * element, g.dim, n * element};
    rows_[2] = rows(g.v, g.v_at, of, n, g.value_dim);
    rows_[1] = rows(g.q, g.q_at, of * g.group, g.queries, g.dim);
    rows_[0] = rows(g.out, g.out_at, of * g.group, g.queries, g.value_dim);
  }
  // What a product of so many steps is to fetch; `other` when all is there.
  Ahead take(int64_t steps, Ahead other) {
    constexpr int64_t kBytes = std::max<int64_t>(kPanel * sizeof(float), 64);  // that a step fetches
    if (left_ == 0) return other;
    const Rows &r = rows_[left_ - 1];
    const Ahead ahead{r.from + row_ * r.step + column_, r.step};
    row_ += steps;
    if (row_ >= r.count) row_ = 0, column_ += kBytes;
    if (column_ >= r.bytes) column_ = 0, --left_;
    return ahead;
  }

 private:
  static constexpr int kTensors = 4;
  struct Rows {
    const char *from;
    int64_t step, count, bytes;
  };
  Rows rows_[kTensors] = {};
  int64_t row_ = 0, column_ = 0;
  int left_ = 0;
};

// n keys, rows of `dim` bfloat16, `row` elements apart, in panels: of a step each key's next pair of elements, zeros
// behind the last.
inline void PackKeyPairs(const void *keys, int64_t row, int64_t dim, int64_t n, float *to) {
  const hn::FixedTag<uint32_t, 4> d;
  const int64_t steps = ::opgraft::simd::pair_words(dim);
  for (int64_t key = 0; key < (n + kPanel - 1) / kPanel * kPanel; key += 4) {
    const auto *from = static_cast<const uint16_t *>(keys) + key * row;
    auto *panel = reinterpret_cast<uint32_t *>(to + key / kPanel * kPanel * steps + key % kPanel);
    for (int64_t i = 0; i < steps; i += 4) {
      const auto four = [&](int64_t j) HWY_ATTR {
        const int64_t left = dim - 2 * i;
        if (key + j >= n || left <= 0) return hn::Zero(d);
        uint16_t rest[8] = {};
        if (left < 8) std::copy_n(from + j * row + 2 * i, left, rest);
        return hn::LoadU(d, reinterpret_cast<const uint32_t *>(left < 8 ? rest : from + j * row + 2 * i));
      };
      const auto k0 = four(0), k1 = four(1), k2 = four(2), k3 = four(3);
      const auto p0 = hn::InterleaveLower(d, k0, k2), p1 = hn::InterleaveLower(d, k1, k3);
      const auto p2 = hn::InterleaveUpper(d, k0, k2), p3 = hn::InterleaveUpper(d, k1, k3);
      hn::StoreU(hn::InterleaveLower(d, p0, p1), d, panel + i * kPanel);
      if (i + 1 < steps) hn::StoreU(hn::InterleaveUpper(d, p0, p1), d, panel + (i + 1) * kPanel);
      if (i + 2 < steps) hn::StoreU(hn::InterleaveLower(d, p2, p3), d, panel + (i + 2) * kPanel);
      if (i + 3 < steps) hn::StoreU(hn::InterleaveUpper(d, p2, p3), d, panel + (i + 3) * kPanel);
    }
  }
}

// n values, rows of `dim` bfloat16, `row` elements apart, in panels: of a step each column's elements of two rows,
// zeros behind the last. So are keys packed whose rows lie turned.
inline void PackValuePairs(const void *values, int64_t row, int64_t dim, int64_t n, float *to) {
  const hn::ScalableTag<uint32_t> d;
  const hn::Rebind<uint16_t, decltype(d)> half;
  const int64_t lanes = int64_t(hn::Lanes(d)), steps = ::opgraft::simd::pair_words(n);
  for (int64_t column = 0; column < dim; column += kPanel, to += steps * kPanel) {
    auto *panel = reinterpret_cast<uint32_t *>(to);
    for (int64_t i = 0; i < n; i += 2) {
      const auto *from = static_cast<const uint16_t *>(values) + i * row + column;
      for (int64_t j = 0; j < kPanel; j += lanes, panel += lanes) {
        const size_t count = size_t(std::clamp<int64_t>(dim - column - j, 0, lanes));
        const auto words = [&](const uint16_t *of) HWY_ATTR {
          uint16_t rest[kPanel] = {};
          if (count < size_t(lanes)) std::copy_n(of + (count ? j : 0), count, rest);
          return hn::PromoteTo(d, hn::LoadU(half, count < size_t(lanes) ? rest : of + j));
        };
        const auto first = words(from);
        hn::StoreU(i + 1 < n ? hn::Or(first, hn::ShiftLeft<16>(words(from + row))) : first, d, panel);
      }
    }
    std::fill(panel, reinterpret_cast<uint32_t *>(to + steps * kPanel), 0u);
  }
}

// Multiplies rows by a panel.
template <class T> class Product {
 public:
  // Of so many rows, from row r on, how many at a time.
  static int64_t Size(Multiplied by, int64_t rows, int64_t r) { return by == kByTiles ? rows - r : TileSize(rows, r); }

  // c = (more ? c : 0) + a panel, of so many steps.
  HWY_INLINE void operator()(Multiplied by, int64_t rows, const float *a, int64_t lda, const float *panel,
                             int64_t steps, float *c, int64_t ldc, bool more, Ahead ahead) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (std::is_same_v<T, ::opgraft::bfloat16>) {
      const float *add = more ? c : nullptr;
      if (by == kByTiles)
        return tiles_.template Multiply<false, true>(rows, {a, lda * 4}, {panel, kPanelRow}, steps, {add, ldc * 4},
                                                     {c, ldc * 4});
      if (by == kByPairs)
        return MicroRowsOf(rows, a, lda, reinterpret_cast<const Bf16Pair *>(panel), steps, add, ldc, c, ldc, ahead);
    }
#endif
    MicroRows(rows, a, lda, panel, steps, c, ldc, more, ahead);
  }

 private:
#if HWY_TARGET == HWY_AVX3
  AmxTiles tiles_;
#endif
};

// to = `from`, n numbers, and zeros up to `room`.
template <class T> HWY_INLINE void Pad(const T *from, int64_t n, T *to, int64_t room) {
  std::copy_n(from, n, to);
  std::fill(to + n, to + room, T(0.0f));
}

// Units [begin, end) of (batch, head of keys, block of its queries).
template <class T> void Attend(const Attention &g, int64_t begin, int64_t end) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  constexpr int64_t kMostRows = ::opgraft::simd::kAmxRows;
  HWY_ALIGN float q_rows[kMostRows * kMostDim], scores[kMostRows * (kAmxKeys + 16)], sum_rows[kMostRows * kMostDim];
  float *const q = g.wide() ? g.own_rows : q_rows, *const sums = g.wide() ? g.own_sums() : sum_rows;
  const int64_t block = g.tile_rows(), blocks = (g.rows() + block - 1) / block;
  const int64_t tile_keys = g.tile_keys(), apart = g.scores_apart();
  const int64_t width = (g.value_dim + kPanel - 1) / kPanel * kPanel;
  const int64_t steps = g.key_steps();
  const bool far = steps > kMostDim;
  Product<T> product;
  Coming coming;
  if (g.next) coming = Coming(g, end / blocks, sizeof(T));
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row0 = unit % blocks * block, head = unit / blocks % g.kv_heads;
    const int64_t batch = unit / blocks / g.kv_heads, length = g.length(batch);
    const int64_t rows = g.rows() - row0 < block ? g.rows() - row0 : block;
    const int64_t held = batch * g.kv_heads + head - g.first_packed;
    const float *keys = g.packed_k + held * g.k_floats, *values = g.packed_v + held * g.v_floats;
    RowStates<kMostRows> state;
    int64_t last = 0;  // the keys that any of the rows sees
    for (int64_t r = 0; r < rows; ++r) {
      const T *from = static_cast<const T *>(g.q) + g.query_at(batch, head, row0 + r);
      if (g.keys_by) Pad(from, g.dim, reinterpret_cast<T *>(q + r * steps), 2 * steps);
      else Gather(from, 0, 1, 1, g.dim, q + r * steps, steps);
      state.begin(g, batch, head, row0, r);
      last = std::max(last, state.seen[r]);
    }
    for (int64_t t = 0; t < last; t += tile_keys) {
      const int64_t n = last - t < tile_keys ? last - t : tile_keys;
      for (int64_t column = 0; column < n; column += kPanel)
        for (int64_t r = 0, tile; r < rows; r += tile) {
          tile = product.Size(g.keys_by, rows, r);
          const float *panel = keys + (t + column) * steps, *next = panel + kPanel * steps;
          // One of long rows is out of L1 when the last tile is through: that fetches the next one.
          const Ahead ahead = HWY_UNLIKELY(far) ? AheadOf(panel, next, steps, rows, r, tile)
                                                : AheadOf(panel, panel, steps, tile, 0, tile);
          product(g.keys_by, tile, q + r * steps, steps, panel, steps, scores + r * apart + column, apart, false,
                  coming.take(steps, ahead));
        }
      SoftmaxTile<T>(g, scores, apart, rows, t, n, state);
      for (int64_t r = 0; t > 0 && r < rows; ++r) {
        if (state.before[r] == 1.0f) continue;
        const auto before = hn::Set(d, state.before[r]);
        for (int64_t i = 0; i < width; i += lanes)
          hn::StoreU(hn::Mul(hn::LoadU(d, sums + r * width + i), before), d, sums + r * width + i);
      }
      for (int64_t column = 0; column < width; column += kPanel)
        for (int64_t r = 0, tile; r < rows; r += tile) {
          tile = product.Size(g.values_by, rows, r);
          const float *panel = values + column * g.value_steps(length) + g.value_steps(t) * kPanel;
          const int64_t summed = g.value_steps(n);
          product(g.values_by, tile, scores + r * apart, apart, panel, summed, sums + r * width + column, width, t > 0,
                  AheadOf(panel, panel, summed, tile, 0, tile));
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
      T *out = static_cast<T *>(g.out) + g.result_at(batch, head, row0 + r);
      Finish(sums + r * width, state.l[r], g.counts(state.seen[r], state.l[r]), out, g.value_dim);
    }
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
