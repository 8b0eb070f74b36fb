// ApplyRotaryPosEmb: query and key in one call, their rows' factors chosen by position.
#include "opgraft/op.h"

#include <algorithm>
#include <array>
#include <span>

#include "rotary.h"

namespace opgraft {
namespace {

// MindSpore's cos_format: 2 and 3 are 0 and 1, but for tables that have a row for each token, in the tokens' order.
bool by_token(const Arguments &c) { return c.attr_int("mode", 0) >= 2; }

// [B, H, S, D] or [B, S, H, D]; or packed, [B, S, H * D] or [S, H * D]: heads as wide as the tables.
struct Heads {
  int64_t batch, sequence, heads, dim;
  bool sequence_first;
};
Heads heads_of(const Arguments &c, int i) {
  const std::string l = c.attr_string("layout", "BSHD");
  c.check(l == "BHSD" || l == "BSHD", "layout must be BHSD or BSHD, got '", l, "'");
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
  c.check(!k.empty() && may_equal(k.back(), q.back()), "key's last dimension must be query's ", q.back(),
          ", got shape ", k);
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
  c.check(q.size() >= 2 && q.size() <= 4, "query must have 2, 3 or 4 dimensions, got shape ", q);
  c.check(c.input(2).rank() == 2, "cos must have 2 dimensions, got shape ", c.input(2).shape());
  const Heads of = heads_of(c, 0);
  const size_t heads = q.size() < 4 ? q.size() - 1 : of.sequence_first ? 2 : 1;
  bool fits = k.size() == q.size();
  for (size_t a = 0; fits && a < q.size(); ++a) fits = a == heads || may_equal(k[a], q[a]);
  c.check(fits, "key.shape must agree with query.shape ", q, " in all but the heads, got ", k);
  check_tables(c, 2, of.dim, true);
  if (q.size() < 4)
    for (int i : {0, 1}) {
      const int64_t packed = c.input(i).dim(-1);
      c.check(packed < 0 || of.dim < 0 || (of.dim == 0 ? packed == 0 : packed % of.dim == 0), i ? "key" : "query",
              "'s last dimension must be heads of ", of.dim, " elements, got ", packed);
    }
  c.check_dtype(4, "position_ids", {OPGRAFT_INT32, OPGRAFT_INT64});
  if (by_token(c)) {
    const int64_t rows = c.input(2).dim(0), tokens = of.batch < 0 || of.sequence < 0 ? -1 : of.batch * of.sequence;
    c.check(rows < 0 || tokens < 0 || rows == tokens, "cos.shape must begin with a row for each of ", tokens,
            " tokens, got ", c.input(2).shape());
  } else {
    // One number, a sequence's, each sequence's; and each sequence's only one.
    const bool shape =
        p.size() == 0 ||
        (p.size() == 1 && (may_equal(p[0], of.sequence) || (may_equal(of.sequence, 1) && may_equal(p[0], of.batch)))) ||
        (p.size() == 2 && may_equal(p[1], of.sequence) && (p[0] == 1 || may_equal(p[0], of.batch)));
    const int64_t each[] = {of.batch, of.sequence};
    c.check(shape, "position_ids.shape must be (), ", std::span(each).subspan(1), " or ", each, ", got ", p);
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
template <class T> void check_positions(const Context &c, int64_t more) {
  const std::span<const T> positions(c.input(4).data<T>(), size_t(c.input(4).size()));
  if (positions.empty()) return;
  const auto [least, most] = std::ranges::minmax(positions);
  const int64_t table = c.input(2).dim(0);
  if (least >= 0 && most < table - more) return;
  const int64_t wrong = least < 0 ? least : most < table ? most + more : most;
  c.fail(OPGRAFT_INVALID_VALUE, "position_ids must be in [0, ", table, "), got ", wrong);
}

Rotation apply_rotation(const Context &c) {
  return rotation(c, 2, positioned(c) ? heads_of(c, 0).dim : c.input(0).dim(-1));
}
std::array<Sheet, 2> apply_sheets(Context &c) {
  const std::array<Sheet, 2> sheets{apply_sheet(c, 0), apply_sheet(c, 1)};
  const Sheet &q = sheets[0];
  if (q.positions && q.outer.size() * q.rows > 0) {
    const int64_t more = q.position_step ? 0 : q.rows - 1;  // one position: the first row's
    q.wide_positions ? check_positions<int64_t>(c, more) : check_positions<int32_t>(c, more);
  }
  return sheets;
}

void KernelApply(Context &c) {
  const auto sheets = apply_sheets(c);
  if (c.output(0).size() + c.output(1).size()) run(c, apply_rotation(c), sheets);
}

void ReferenceApply(Context &c) {
  const auto sheets = apply_sheets(c);
  for (int i : {0, 1})
    if (c.output(i).size()) run_reference(c, apply_rotation(c), sheets[size_t(i)]);
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(ApplyRotaryPosEmb, .inputs = -1, .outputs = 2, .infer = InferApply, .kernel = KernelApply,
           .reference = ReferenceApply)
