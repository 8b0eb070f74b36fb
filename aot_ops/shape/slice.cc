// StridedSlice with MindSpore's five masks: bit i speaks of entry i of begin, end and strides.
#include <algorithm>

#include "aot_ops/shape/move.h"

namespace opgraft {
namespace {

// One dimension of x as the slice reads it; `kept` is false where shrink_axis_mask drops it. A
// dimension that new_axis_mask adds has source -1.
struct Part {
  int source = -1;
  bool kept = true;
  int64_t begin = 0, stride = 1, extent = 1;
};

struct Masks {
  int64_t begin, end, ellipsis, new_axis, shrink;
  explicit Masks(const Arguments &a)
      : begin(a.attr_int("begin_mask", 0)),
        end(a.attr_int("end_mask", 0)),
        ellipsis(a.attr_int("ellipsis_mask", 0)),
        new_axis(a.attr_int("new_axis_mask", 0)),
        shrink(a.attr_int("shrink_axis_mask", 0)) {}
  static bool bit(int64_t mask, size_t i) { return mask >> i & 1; }
};

// Length of begin:end:stride where sizes or edges are symbols. Told as if the slice lay inside the dimension
// (x[:length] of a table has `length` rows), but only as a symbol: a number would be taken for certain, and
// x[:5] of 3 rows has 3. -1: not known.
int64_t symbolic_extent(const InferContext &c, int64_t dim, int64_t begin, bool open_begin, int64_t end, bool open_end,
                        int64_t stride) {
  if (stride != 1 || dim == -1) return -1;
  auto edge = [&](int64_t v) { return v >= 0 || is_symbol(v) ? v : c.dim_op('-', dim, -v); };
  const int64_t from = open_begin ? 0 : edge(begin), to = open_end ? dim : edge(end);
  const int64_t n = from == 0 ? to : c.dim_op('-', to, from);
  return is_symbol(n) ? n : -1;
}

// Length of begin:end:stride in a dimension of known size.
int64_t extent_of(int64_t dim, int64_t &begin, bool open_begin, int64_t end, bool open_end, int64_t stride) {
  const bool forward = stride > 0;
  auto clamp = [&](int64_t v) {
    if (v < 0) v += dim;
    return std::clamp<int64_t>(v, forward ? 0 : -1, forward ? dim : dim - 1);
  };
  begin = open_begin ? (forward ? 0 : dim - 1) : clamp(begin);
  end = open_end ? (forward ? dim : -1) : clamp(end);
  if (forward) return end > begin ? (end - begin - 1) / stride + 1 : 0;
  return begin > end ? (end - begin + 1) / stride + 1 : 0;
}

// `symbols`: while shapes are inferred, entries of begin and end may be ids of symbols; else null.
std::vector<Part> resolve(const Arguments &a, const Shape &begin, const Shape &end, const Shape &strides,
                          const InferContext *symbols) {
  const Masks m(a);
  const TensorView x = a.input(0);
  const size_t n = begin.size();
  a.check(end.size() == n && strides.size() == n, "begin, end and strides must have one length, got ", n, ", ",
          end.size(), " and ", strides.size());
  int named = 0, ellipses = 0;  // dimensions of x that entries name
  for (size_t i = 0; i < n; ++i) {
    if (Masks::bit(m.ellipsis, i)) ++ellipses;
    else if (!Masks::bit(m.new_axis, i)) ++named;
  }
  a.check(ellipses <= 1, "ellipsis_mask may have one bit set");
  a.check(named <= x.rank(), "begin names ", named, " dimensions, x has ", x.rank());
  std::vector<Part> parts;
  int d = 0;
  auto whole = [&] {
    parts.push_back({d, true, 0, 1, x.dim(d)});
    ++d;
  };
  for (size_t i = 0; i < n; ++i) {
    if (Masks::bit(m.ellipsis, i)) {
      for (int k = x.rank() - named; k > 0; --k) whole();
    } else if (Masks::bit(m.new_axis, i)) {
      parts.push_back({});
    } else if (Masks::bit(m.shrink, i)) {
      const int64_t dim = x.dim(d), at = begin[i];
      if (dim >= 0 && !(symbols && is_symbol(at)))
        a.check(at >= -dim && at < dim, "begin ", at, " is outside dimension ", d, " of size ", dim);
      parts.push_back({d++, false, at < 0 && dim >= 0 ? at + dim : at, 1, 1});
    } else {
      a.check(strides[i] != 0, "strides must not be 0");
      Part p{d, true, begin[i], strides[i], 0};
      const bool open_begin = Masks::bit(m.begin, i), open_end = Masks::bit(m.end, i);
      const bool doubtful =
          x.dim(d) < 0 || (symbols && ((!open_begin && is_symbol(begin[i])) || (!open_end && is_symbol(end[i]))));
      if (!doubtful) p.extent = extent_of(x.dim(d), p.begin, open_begin, end[i], open_end, strides[i]);
      else if (symbols)
        p.extent = symbolic_extent(*symbols, x.dim(d), begin[i], open_begin, end[i], open_end, strides[i]);
      else p.extent = -1;
      ++d;
      parts.push_back(p);
    }
  }
  while (d < x.rank()) whole();
  return parts;
}

void InferStridedSlice(InferContext &c) {
  check_any_dtype(c, 0, "x");
  Shape begin, end, strides;
  const bool b = c.values(1, "begin", begin), e = c.values(2, "end", end), s = c.values(3, "strides", strides);
  const int64_t n = b ? int64_t(begin.size()) : c.input(1).rank() == 1 ? c.input(1).dim(0) : 1;
  if (n < 0) c.fail(OPGRAFT_UNSUPPORTED, "the length of begin is not known, so the output has no known rank");
  const bool known = b && e && s;
  // With unknown values the masks still tell the rank: slice everything, then forget the sliced sizes.
  if (!b) begin.assign(size_t(n), 0);
  if (!e) end.assign(size_t(n), 0);
  if (!s) strides.assign(size_t(n), 1);
  const Masks m(c);
  std::vector<Part> parts;
  if (known) {
    parts = resolve(c, begin, end, strides, c.args().dim_op ? &c : nullptr);
  } else {
    int named = 0;
    for (size_t i = 0; i < size_t(n); ++i) named += !Masks::bit(m.ellipsis, i) && !Masks::bit(m.new_axis, i);
    Shape out;
    int d = 0;
    for (size_t i = 0; i < size_t(n); ++i) {
      if (Masks::bit(m.ellipsis, i))
        for (int k = c.input(0).rank() - named; k > 0; --k) out.push_back(c.input(0).dim(d++));
      else if (Masks::bit(m.new_axis, i)) out.push_back(1);
      else if (++d; !Masks::bit(m.shrink, i)) out.push_back(-1);
    }
    while (d < c.input(0).rank()) out.push_back(c.input(0).dim(d++));
    return c.output(c.input(0).dtype(), out);
  }
  Shape out;
  for (auto &p : parts)
    if (p.kept) out.push_back(p.extent);
  c.output(c.input(0).dtype(), out);
}

std::vector<Part> parts_of(Context &c) {
  Shape begin, end, strides;
  c.values(1, "begin", begin);
  c.values(2, "end", end);
  c.values(3, "strides", strides);
  return resolve(c, begin, end, strides, nullptr);
}

void KernelStridedSlice(Context &c) {
  const auto steps = strides_of(c.input(0).shape());
  Strided<1> walk;
  int64_t origin = 0;
  for (auto &p : parts_of(c)) {
    if (p.source < 0) continue;
    const int64_t step = steps[size_t(p.source)];
    origin += p.begin * step;
    walk.push(p.extent, {p.stride * step});
  }
  walk.finish();
  if (walk.total > 0) copy_strided(c, walk, origin);
}

void ReferenceStridedSlice(Context &c) {
  const auto steps = strides_of(c.input(0).shape());
  const auto parts = parts_of(c);
  move_one_by_one(c, [&](const Shape &index) {
    int64_t at = 0;
    size_t i = 0;
    for (auto &p : parts) {
      const int64_t k = p.kept ? index[i++] : 0;
      if (p.source >= 0) at += (p.begin + k * p.stride) * steps[size_t(p.source)];
    }
    return at;
  });
}

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(StridedSlice, .inputs = 4, .infer = InferStridedSlice, .kernel = KernelStridedSlice,
           .reference = ReferenceStridedSlice)
