// Rotary position embedding (Su et al. 2021): the pair (x1, x2) of a row is turned by an angle of its own that grows
// with the row's position, y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. Halves: the pair is (x[p], x[p + R/2]), as in
// GPT-NeoX; interleaved: (x[2p], x[2p + 1]), as in GPT-J.
#include "opgraft/op.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "rotary.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rope.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "tables-inl.h"
// clang-format on

#if HWY_ONCE
namespace opgraft {
OPGRAFT_SIMD_FLOATS(TableSums)

namespace {

// --- RotaryPositionEmbedding ---

// `name`: of the first input, whose rows are turned.
void check_rotary(InferContext &c, const std::string &name) {
  c.check_dtype(0, name.c_str(), {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check(c.input(0).rank() > 0, name, " must have at least 1 dimension, got shape ()");
  check_tables(c, 1, c.input(0).dim(-1));
  check_broadcast(c, 0, name, 1);
}

void InferRotary(InferContext &c) {
  check_rotary(c, "x");
  c.output(c.input(0).dtype(), c.input(0).shape());
}

void KernelRotary(Context &c) {
  const Sheet s = rotary_sheet(c);
  if (c.output(0).size()) run(c, rotation(c, 1, c.input(0).dim(-1)), {&s, 1});
}

void ReferenceRotary(Context &c) {
  if (c.output(0).size()) run_reference(c, rotation(c, 1, c.input(0).dim(-1)), rotary_sheet(c));
}

// --- its gradient ---

void InferGrad(InferContext &c) {
  check_rotary(c, "dy");
  c.check_same_dtype(3, "x", 0, "dy");
  c.check_same_shape(3, "x", 0, "dy");
  for (int i = 0; i < 3; ++i) c.output(c.input(i).dtype(), c.input(i).shape());
}

// dcos and dsin: a table's entry gets the sum over all rows that read it.
void table_gradients(Context &c) {
  const Rotation r = rotation(c, 1, c.input(0).dim(-1));
  if (c.input(0).size() == 0) {
    for (int i : {1, 2})
      std::memset(c.output(i).raw(), 0, size_t(c.output(i).size()) * dtype_size(c.output(i).dtype()));
    return;
  }
  const Sheet s = rotary_sheet(c);
  TableGradient g{c.input(0).raw(), c.input(3).raw(), c.output(1).raw(), c.output(2).raw(), {}, {}, kPiece};
  auto add = [&](int64_t n, int64_t step, int64_t table) { (table ? g.own : g.shared).add(n, step, table); };
  for (int k = 0; k < s.outer.count; ++k) add(s.outer.n[k], s.outer.step[k], s.outer.table[k]);
  add(s.rows, s.row_step, s.row_table);
  add(s.heads, s.head_step, 0);
  if (g.own.size() < 16) g.pairs = 16;  // few rows: more units
  const int64_t work = g.shared.size() * g.pairs * 2;
  c.parallel_for(g.units(r), kGrain / work + 1,
                 [&, sums = TableSums_simd(c.input(0).dtype())](int64_t b, int64_t e) { sums(r, g, b, e); });
}

void table_gradients_reference(Context &c) {
  const Rotation r = rotation(c, 1, c.input(0).dim(-1));
  const Sheet s = rotary_sheet(c);
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    std::vector<double> dcos(size_t(c.output(1).size())), dsin(dcos.size());
    if (c.input(0).size())
      each_row(s, [&](int64_t at, int64_t row) {
        const T *x = c.input(3).data<T>() + at, *dy = c.input(0).data<T>() + at;
        for (int64_t p = 0; p < r.pairs; ++p) {
          const double x1 = double(float(x[r.first(p)])), x2 = double(float(x[r.second(p)]));
          const double d1 = double(float(dy[r.first(p)])), d2 = double(float(dy[r.second(p)]));
          const size_t e1 = size_t(entry(r, row, p, 0)), e2 = size_t(entry(r, row, p, 1));
          dcos[e1] += d1 * x1, dcos[e2] += d2 * x2;
          dsin[e1] -= d1 * x2, dsin[e2] += d2 * x1;
        }
      });
    auto put = [&](int i, const std::vector<double> &from) {
      for (size_t k = 0; k < from.size(); ++k) {
        if (r.wide) c.output(i).data<float>()[k] = float(from[k]);
        else c.output(i).data<T>()[k] = T(float(from[k]));
      }
    };
    put(1, dcos), put(2, dsin);
  });
}

void KernelGrad(Context &c) {
  table_gradients(c);  // first: dx may lie in dy
  const Sheet s = rotary_sheet(c);
  if (c.output(0).size()) run(c, rotation(c, 1, c.input(0).dim(-1), true), {&s, 1});
}

void ReferenceGrad(Context &c) {
  table_gradients_reference(c);
  if (c.output(0).size()) run_reference(c, rotation(c, 1, c.input(0).dim(-1), true), rotary_sheet(c));
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(RotaryPositionEmbedding, .inputs = 3, .infer = InferRotary, .kernel = KernelRotary,
           .reference = ReferenceRotary)
OPGRAFT_OP(RotaryPositionEmbeddingGrad, .inputs = 4, .outputs = 3, .infer = InferGrad, .kernel = KernelGrad,
           .reference = ReferenceGrad)
#endif
