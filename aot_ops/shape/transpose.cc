// Transpose: rows stay whole where the last dimension does; else matrices are turned, in tiles.
#include "transpose.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "aot_ops/shape/move.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transpose.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "turn-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/streams.h"

namespace opgraft {
OPGRAFT_SIMD(TurnTiles)
OPGRAFT_SIMD(CopyPast)
OPGRAFT_SIMD(MoveRows)

namespace {

constexpr int64_t kGrain = 16384, kLine = 64, kFarApart = 2048, kLongRow = 4096;  // elements, bytes

std::vector<int> permutation(const Arguments &a) {
  const int rank = a.input(0).rank();
  const auto perm = a.attr_ints("perm");
  std::vector<int> p;
  for (int64_t v : perm) p.push_back(a.axis(v, rank, "perm"));
  std::vector<int> sorted = p;
  std::sort(sorted.begin(), sorted.end());
  bool ok = int(p.size()) == rank;
  for (int i = 0; ok && i < rank; ++i) ok = sorted[size_t(i)] == i;
  a.check(ok, "perm must be a permutation of x's ", rank, " dimensions, got ", perm);
  return p;
}

void InferTranspose(InferContext &c) {
  check_any_dtype(c, 0, "x");
  Shape out;
  for (int i : permutation(c)) out.push_back(c.input(0).dim(i));
  c.output(c.input(0).dtype(), out);
}

// Of y's dimensions, as the walk has them.
std::array<int64_t, Strided<1>::kDims> strides_of_y(const Strided<1> &walk) {
  std::array<int64_t, Strided<1>::kDims> strides{};
  for (int64_t i = walk.dims, stride = walk.row; i-- > 0; stride *= walk.extent[i]) strides[size_t(i)] = stride;
  return strides;
}

// The dimension that is contiguous in x and y's last one make the matrices; the others count them.
Turning turning(const Strided<1> &walk, int64_t bytes) {
  Turning t{};
  t.bytes = bytes;
  t.across = walk.row, t.x_step = walk.step[0];
  const auto to = strides_of_y(walk);
  for (int i = 0; i < walk.dims; ++i) {
    if (walk.stride[0][i] == 1) t.down = walk.extent[i], t.y_step = to[size_t(i)];
    else t.matrices.push(walk.extent[i], {walk.stride[0][i], to[size_t(i)]});
  }
  const int64_t tile = kTileBytes / bytes;
  t.tiles_down = (t.down + kTileDown - 1) / kTileDown, t.tiles_across = (t.across + tile - 1) / tile;
  // Rows that lie so far apart share few sets of the first cache: what was fetched of them must be used at once.
  t.by_lines = t.x_step * bytes % kFarApart == 0 || t.y_step * bytes % kFarApart == 0;
  return t;
}

// Whether all rows of the matrices in y do.
bool begin_at_lines(const Turning &t, const void *y) {
  bool all = reinterpret_cast<uintptr_t>(y) % kLine == 0 && t.y_step * t.bytes % kLine == 0;
  for (int i = 0; i < t.matrices.dims; ++i) all = all && t.matrices.stride[1][i] * t.bytes % kLine == 0;
  return all;
}

// Rows that stay whole, in the order in which they lie in x. What lies one after another is foreseen, and a store waits
// for its line while others go on.
void move_rows(Context &c, const Strided<1> &walk, int64_t bytes) {
  const auto to = strides_of_y(walk);
  int order[Strided<1>::kDims];
  std::iota(order, order + walk.dims, 0);
  std::sort(order, order + walk.dims, [&](int a, int b) { return walk.stride[0][a] > walk.stride[0][b]; });
  Strided<2> rows;
  for (int i : std::span(order, size_t(walk.dims))) rows.push(walk.extent[i], {walk.stride[0][i], to[size_t(i)]});
  rows.finish();
  const auto move = MoveRows_simd();
  c.parallel_for(rows.total, kGrain / walk.row + 1, [&](int64_t begin, int64_t end) {
    move(rows, bytes, walk.row * bytes, c.input(0).raw(), c.output(0).raw(), begin, end);
  });
}

void KernelTranspose(Context &c) {
  const TensorView x = c.input(0);
  const auto strides = strides_of(x.shape());
  Strided<1> walk;
  for (int i : permutation(c)) walk.push(x.dim(i), {strides[size_t(i)]});
  walk.finish();
  if (walk.total == 0) return;
  const bool past = goes_past_caches(c);
  const int64_t bytes = element_bytes(x);
  if (walk.step[0] == 1 || walk.dims == 0) {  // rows stay whole
    const int64_t length = walk.row * bytes;
    if (!past || length < 4 * kLine) {
      const bool by_rows = walk.dims > 0 && length >= kLine && length <= kLongRow;
      return by_rows ? move_rows(c, walk, bytes) : copy_strided(c, walk);
    }
    const auto copy = CopyPast_simd();
    return c.parallel_for(walk.total, kGrain, [&](int64_t begin, int64_t end) {
      copy(walk, bytes, x.raw(), c.output(0).raw(), begin, end);
    });
  }
  Turning t = turning(walk, bytes);
  t.past = past && begin_at_lines(t, c.output(0).raw());
  const int64_t tile = std::min(t.down, kTileDown) * std::min(t.across, kTileBytes / t.bytes);
  const auto turn = TurnTiles_simd();
  c.parallel_for(t.matrices.total * t.tiles_down * t.tiles_across, kGrain / tile + 1,
                 [&](int64_t begin, int64_t end) { turn(t, x.raw(), c.output(0).raw(), begin, end); });
}

void ReferenceTranspose(Context &c) {
  const auto perm = permutation(c);
  const auto strides = strides_of(c.input(0).shape());
  move_one_by_one(c, [&](const Shape &index) {
    int64_t at = 0;
    for (size_t i = 0; i < perm.size(); ++i) at += index[i] * strides[size_t(perm[i])];
    return at;
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Transpose, .inputs = 1, .infer = InferTranspose, .kernel = KernelTranspose, .reference = ReferenceTranspose)
#endif  // HWY_ONCE
