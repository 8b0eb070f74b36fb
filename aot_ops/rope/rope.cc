// Rotary position embedding (Su et al. 2021): the pair (x1, x2) of a row is turned by an angle of its own that grows
// with the row's position, y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. Halves: the pair is (x[p], x[p + R/2]), as in
// GPT-NeoX; interleaved: (x[2p], x[2p + 1]), as in GPT-J.
#include "opgraft/op.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rope.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "rotate-inl.h"
#include "tables-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/streams.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(Rotate)
OPGRAFT_SIMD_FLOATS(TableSums)

namespace {

constexpr int64_t kGrain = 32768;      // elements: about 10 µs
constexpr int64_t kCaches = 16 << 20;  // bytes read and written that may stay in L3

// What x, cos and sin must be in every operator; the tables are inputs `i` and `i + 1`.
void check_tables(const InferContext &c, int i, int64_t dim, bool by_token = false) {
  if (c.input(0).dtype() == OPGRAFT_FLOAT32) c.check_dtype(i, "cos", {OPGRAFT_FLOAT32});
  else c.check_dtype(i, "cos", {OPGRAFT_FLOAT32, c.input(0).dtype()});
  c.check_same_dtype(i + 1, "sin", i, "cos");
  c.check_same_shape(i + 1, "sin", i, "cos");
  const int64_t mode = c.attr_int("mode", 0);
  c.check(mode >= 0 && mode <= (by_token ? 3 : 1),
          "mode must be 0 (halves) or 1 (interleaved)" +
              std::string(by_token ? ", or 2 or 3 where the tables have a row for each token" : "") + ", got " +
              std::to_string(mode));
  c.check(c.input(i).rank() >= 1, "cos must have at least 1 dimension, got shape ()");
  const int64_t width = c.input(i).dim(-1), asked = c.attr_int("rotary_dim", 0), turned = asked ? asked : width;
  c.check(turned < 0 || turned % 2 == 0, (asked ? "rotary_dim" : "cos's last dimension") +
                                             std::string(" must be even, got ") + std::to_string(turned));
  c.check(asked >= 0 && (turned < 0 || dim < 0 || turned <= dim),
          (asked ? "rotary_dim" : "cos's last dimension") + std::string(" must be at most the rows' ") +
              std::to_string(dim) + " elements, got " + std::to_string(turned));
  c.check(width < 0 || !asked || width == asked || width == asked / 2,
          "cos's last dimension must be rotary_dim " + std::to_string(asked) + " or half of it, got " +
              std::to_string(width));
}

Rotation rotation(const Arguments &c, int i, int64_t dim, bool back = false) {
  const int64_t width = c.input(i).dim(-1), asked = c.attr_int("rotary_dim", 0);
  Rotation r;
  r.cos = c.input(i).raw(), r.sin = c.input(i + 1).raw();
  r.dim = dim, r.pairs = (asked ? asked : width) / 2;
  r.interleaved = c.attr_int("mode", 0) % 2 == 1, r.back = back;
  r.full = width == 2 * r.pairs;
  r.wide = c.input(i).dtype() == OPGRAFT_FLOAT32;
  return r;
}

// x's rows, as the tables repeat over them. Nothing is allocated: a decode step asks at every call.
Sheet sheet(std::span<const int64_t> x, std::span<const int64_t> table) {
  struct Dim {
    int64_t n, step, table;
  };
  Dim dims[OPGRAFT_MAX_RANK];  // from the innermost, rows that walk alike joined
  size_t count = 0;
  int64_t step = x.back(), at = table.back();
  for (size_t k = 1; k < x.size(); ++k) {
    const int64_t n = x[x.size() - 1 - k], rows = k < table.size() ? table[table.size() - 1 - k] : 1;
    const Dim d{n, step, rows == 1 ? 0 : at};
    if (n != 1) {
      if (count && d.table == dims[count - 1].table * dims[count - 1].n) dims[count - 1].n *= n;
      else dims[count++] = d;
    }
    step *= n, at *= rows;
  }
  Sheet s{};
  size_t used = 0;
  auto heads = [&](const Dim &d) { s.heads = d.n, s.head_step = d.step, ++used; };
  auto rows = [&](const Dim &d) { s.rows = d.n, s.row_step = d.step, s.row_table = d.table, ++used; };
  if (count) dims[0].table ? rows(dims[0]) : heads(dims[0]);
  if (count > 1) {
    if (s.rows == 1 && dims[1].table) rows(dims[1]);
    else if (s.heads == 1 && !dims[1].table) heads(dims[1]);
  }
  for (size_t k = count; k-- > used;) s.outer.add(dims[k].n, dims[k].step, dims[k].table);
  return s;
}

// Where the call's tensors push each other out of L3 anyway and no operator reads the results, lines of them need not
// be read before they are written.
bool past_caches(const Context &c, const Rotation &r, const Sheet &s) {
  int64_t bytes = 0;
  for (int i = 0; i < c.outputs(); ++i) bytes += 2 * 4 * c.output(i).size();
  return c.input(0).dtype() == OPGRAFT_FLOAT32 && ((bytes > kCaches && c.unread()) || goes_past_caches(c)) &&
         s.x != s.y && reinterpret_cast<uintptr_t>(s.y) % 64 == 0 && r.dim % 16 == 0 && r.pairs % 16 == 0;
}

void run(Context &c, Rotation r, const Sheet &s) {
  r.stream = past_caches(c, r, s);
  const auto rotate = Rotate_simd(c.input(0).dtype());
  const int64_t work = block_of(r) * std::min(s.heads, kHeads) * r.dim;
  c.parallel_for(units_of(r, s), kGrain / std::max<int64_t>(work, 1) + 1,
                 [&](int64_t begin, int64_t end) { rotate(r, s, begin, end); });
}

// f(offset of a row in x, offset of its factors in the tables) for every row.
template <class F> void each_row(const Sheet &s, F &&f) {
  for (int64_t i = 0, n = s.outer.size(); i < n; ++i) {
    int64_t element, table;
    s.outer.locate(i, element, table);
    for (int64_t row = 0; row < s.rows; ++row)
      for (int64_t head = 0; head < s.heads; ++head)
        f(element + head * s.head_step + row * s.row_step, s.table_at(table, row));
  }
}

// A table's entry for the first (0) or second (1) element of pair p, in the row that begins at `row`.
int64_t entry(const Rotation &r, int64_t row, int64_t p, int which) {
  return row + (!r.full ? p : which ? r.second(p) : r.first(p));
}

template <class T> double number(const void *p, int64_t i) { return double(float(static_cast<const T *>(p)[i])); }
template <class T> double factor(const Rotation &r, const void *table, int64_t at) {
  return r.wide ? number<float>(table, at) : number<T>(table, at);
}

void run_reference(Context &c, const Rotation &r, const Sheet &s) {
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    each_row(s, [&](int64_t at, int64_t row) {
      const T *x = static_cast<const T *>(s.x) + at;
      T *y = static_cast<T *>(s.y) + at;
      for (int64_t p = 0; p < r.pairs; ++p) {
        const double x1 = double(float(x[r.first(p)])), x2 = double(float(x[r.second(p)]));
        const int64_t e1 = entry(r, row, p, 0), e2 = entry(r, row, p, 1);
        const double c1 = factor<T>(r, r.cos, e1), c2 = factor<T>(r, r.cos, e2);
        const double s1 = factor<T>(r, r.sin, e1), s2 = factor<T>(r, r.sin, e2);
        y[r.first(p)] = T(float(r.back ? x1 * c1 + x2 * s2 : x1 * c1 - x2 * s1));
        y[r.second(p)] = T(float(r.back ? x2 * c2 - x1 * s1 : x2 * c2 + x1 * s2));
      }
      for (int64_t i = 2 * r.pairs; i < r.dim; ++i) y[i] = x[i];
    });
  });
}

// --- RotaryPositionEmbedding ---

// Tables (input i, and the one behind it) broadcast to the rows of input `of`, `name`.
void check_broadcast(const InferContext &c, int of, const std::string &name, int i) {
  auto x = c.input(of).shape(), t = c.input(i).shape();
  bool fits = t.size() <= x.size();
  for (size_t k = 2; fits && k <= t.size(); ++k) {
    const int64_t have = t[t.size() - k], want = x[x.size() - k];
    fits = have == 1 || have == want || (have < 0 && !(is_symbol(have) && want == 1)) ||
           (want < 0 && !(is_symbol(want) && have == 1));
  }
  c.check(fits, "cos.shape must broadcast to " + name + ".shape " + to_string(x) +
                    " in all but the last dimension, got " + to_string(t));
}

// `name`: of the first input, whose rows are turned.
void check_rotary(InferContext &c, const std::string &name) {
  c.check_dtype(0, name.c_str(), {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check(c.input(0).rank() > 0, name + " must have at least 1 dimension, got shape ()");
  check_tables(c, 1, c.input(0).dim(-1));
  check_broadcast(c, 0, name, 1);
}

void InferRotary(InferContext &c) {
  check_rotary(c, "x");
  c.output(c.input(0).dtype(), c.input(0).shape());
}

// Input and output i, by tables that broadcast.
Sheet rotary_sheet(const Context &c, int i = 0, int tables = 1) {
  Sheet s = sheet(c.input(i).shape(), c.input(tables).shape());
  s.x = c.input(i).raw(), s.y = c.output(i).raw();
  return s;
}

void KernelRotary(Context &c) {
  if (c.output(0).size()) run(c, rotation(c, 1, c.input(0).dim(-1)), rotary_sheet(c));
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
  if (c.output(0).size()) run(c, rotation(c, 1, c.input(0).dim(-1), true), rotary_sheet(c));
}

void ReferenceGrad(Context &c) {
  table_gradients_reference(c);
  if (c.output(0).size()) run_reference(c, rotation(c, 1, c.input(0).dim(-1), true), rotary_sheet(c));
}

// --- ApplyRotaryPosEmb ---

// MindSpore's cos_format: 2 and 3 are 0 and 1, but for tables that have a row for each token, in the tokens' order.
bool by_token(const Arguments &c) { return c.attr_int("mode", 0) >= 2; }

// [B, H, S, D] or [B, S, H, D]; or packed, [B, S, H * D] or [S, H * D]: heads as wide as the tables.
struct Heads {
  int64_t batch, sequence, heads, dim;
  bool sequence_first;
};
Heads heads_of(const Arguments &c, int i) {
  const std::string l = c.attr_string("layout", "BSHD");
  c.check(l == "BHSD" || l == "BSHD", "layout must be BHSD or BSHD, got '" + l + "'");
  auto x = c.input(i).shape();
  if (x.size() == 4) return l == "BSHD" ? Heads{x[0], x[1], x[2], x[3], true} : Heads{x[0], x[2], x[1], x[3], false};
  const int64_t asked = c.attr_int("rotary_dim", 0), dim = asked ? asked : c.input(2).dim(-1), packed = x.back();
  const int64_t heads = dim < 0 || packed < 0 ? -1 : dim == 0 ? 0 : packed / dim;
  return {x.size() == 3 ? x[0] : 1, x[x.size() - 2], heads, dim, true};
}

// Without positions the tables broadcast, as RotaryPositionEmbedding's do.
bool positioned(const Arguments &c) { return c.inputs() > 4; }

void InferBroadcast(InferContext &c) {
  const auto q = c.input(0).shape(), k = c.input(1).shape();
  c.check(!q.empty(), "query must have at least 1 dimension, got shape ()");
  c.check(!k.empty() && may_equal(k.back(), q.back()),
          "key's last dimension must be query's " + std::to_string(q.back()) + ", got shape " + to_string(k));
  check_tables(c, 2, q.back());
  check_broadcast(c, 0, "query", 2);
  check_broadcast(c, 1, "key", 2);
  for (int i : {0, 1}) c.output(c.input(i).dtype(), c.input(i).shape());
}

void InferApply(InferContext &c) {
  c.check_inputs(4, 5);
  c.check_dtype(0, "query", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_same_dtype(1, "key", 0, "query");
  if (!positioned(c)) return InferBroadcast(c);
  auto q = c.input(0).shape(), k = c.input(1).shape(), p = c.input(4).shape();
  c.check(q.size() >= 2 && q.size() <= 4, "query must have 2, 3 or 4 dimensions, got shape " + to_string(q));
  c.check(c.input(2).rank() == 2, "cos must have 2 dimensions, got shape " + to_string(c.input(2).shape()));
  const Heads of = heads_of(c, 0);
  const size_t heads = q.size() < 4 ? q.size() - 1 : of.sequence_first ? 2 : 1;
  bool fits = k.size() == q.size();
  for (size_t a = 0; fits && a < q.size(); ++a) fits = a == heads || may_equal(k[a], q[a]);
  c.check(fits, "key.shape must agree with query.shape " + to_string(q) + " in all but the heads, got " + to_string(k));
  check_tables(c, 2, of.dim, true);
  if (q.size() < 4)
    for (int i : {0, 1}) {
      const int64_t packed = c.input(i).dim(-1);
      c.check(packed < 0 || of.dim < 0 || (of.dim == 0 ? packed == 0 : packed % of.dim == 0),
              (i ? "key" : "query") + std::string("'s last dimension must be heads of ") + std::to_string(of.dim) +
                  " elements, got " + std::to_string(packed));
    }
  c.check_dtype(4, "position_ids", {OPGRAFT_INT32, OPGRAFT_INT64});
  if (by_token(c)) {
    const int64_t rows = c.input(2).dim(0), tokens = of.batch < 0 || of.sequence < 0 ? -1 : of.batch * of.sequence;
    c.check(rows < 0 || tokens < 0 || rows == tokens, "cos.shape must begin with a row for each of " +
                                                          std::to_string(tokens) + " tokens, got " +
                                                          to_string(c.input(2).shape()));
  } else {
    // One number, a sequence's, each sequence's; and each sequence's only one.
    const bool shape =
        p.size() == 0 ||
        (p.size() == 1 && (may_equal(p[0], of.sequence) || (may_equal(of.sequence, 1) && may_equal(p[0], of.batch)))) ||
        (p.size() == 2 && may_equal(p[1], of.sequence) && (p[0] == 1 || may_equal(p[0], of.batch)));
    const int64_t each[] = {of.batch, of.sequence};
    c.check(shape, "position_ids.shape must be (), " + to_string(std::span(each).subspan(1)) + " or " +
                       to_string(each) + ", got " + to_string(p));
  }
  c.output(c.input(0).dtype(), q);
  c.output(c.input(1).dtype(), k);
}

Sheet apply_sheet(const Context &c, int i) {
  if (!positioned(c)) return rotary_sheet(c, i, 2);
  const Heads x = heads_of(c, i);
  Sheet s{};
  s.x = c.input(i).raw(), s.y = c.output(i).raw();
  s.rows = x.sequence, s.heads = x.heads;
  s.row_step = x.sequence_first ? x.heads * x.dim : x.dim, s.head_step = x.sequence_first ? x.dim : x.sequence * x.dim;
  s.row_table = c.input(2).dim(1);
  auto p = c.input(4).shape();
  const int64_t sequence = by_token(c)                           ? x.sequence * s.row_table
                           : p.size() == 2 && p[0] > 1           ? p[1]
                           : p.size() == 1 && p[0] != x.sequence ? 1
                                                                 : 0;
  s.outer.add(x.batch, x.sequence * x.heads * x.dim, sequence);
  if (by_token(c)) return s;
  s.positions = c.input(4).raw(), s.wide_positions = c.input(4).dtype() == OPGRAFT_INT64;
  s.position_step = p.size() > 0;
  return s;
}

// Nothing is written before all positions are known to lie in the tables.
void check_positions(Context &c, const Sheet &s) {
  if (!s.positions || s.outer.size() * s.rows == 0) return;
  const int64_t table = c.input(2).dim(0), count = c.input(4).size(), more = s.position_step ? 0 : s.rows - 1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t p = s.wide_positions ? c.input(4).data<int64_t>()[i] : c.input(4).data<int32_t>()[i];
    c.check(p >= 0 && p < table && p + more < table,
            "position_ids must be in [0, " + std::to_string(table) + "), got " +
                std::to_string(p < 0 || p >= table ? p : p + more),
            OPGRAFT_INVALID_VALUE);
  }
}

template <class Run> void apply(Context &c, Run &&turn) {
  const Rotation r = rotation(c, 2, positioned(c) ? heads_of(c, 0).dim : c.input(0).dim(-1));
  const Sheet q = apply_sheet(c, 0), k = apply_sheet(c, 1);
  check_positions(c, q);
  if (c.output(0).size()) turn(c, r, q);
  if (c.output(1).size()) turn(c, r, k);
}

void KernelApply(Context &c) { apply(c, run); }
void ReferenceApply(Context &c) { apply(c, run_reference); }

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(RotaryPositionEmbedding, .inputs = 3, .infer = InferRotary, .kernel = KernelRotary,
           .reference = ReferenceRotary)
OPGRAFT_OP(RotaryPositionEmbeddingGrad, .inputs = 4, .outputs = 3, .infer = InferGrad, .kernel = KernelGrad,
           .reference = ReferenceGrad)
OPGRAFT_OP(ApplyRotaryPosEmb, .inputs = -1, .outputs = 2, .infer = InferApply, .kernel = KernelApply,
           .reference = ReferenceApply)
#endif
