// Concat, Stack, Split, SplitWithSize, Unstack and Gather: whole blocks of memory move.
#include <algorithm>

#include "aot_ops/shape/move.h"

namespace opgraft {
namespace {

// Elements before and after position i of dims.
int64_t outer_of(std::span<const int64_t> dims, int i) { return element_count(dims.first(size_t(i))); }
int64_t inner_of(std::span<const int64_t> dims, int i) { return element_count(dims.subspan(size_t(i))); }

void InferConcat(InferContext &c) {
  c.check(c.inputs() > 0, "takes at least 1 input, got 0");
  check_any_dtype(c, 0, "x0");
  auto first = c.input(0).shape();
  const int axis = c.axis(c.attr_int("axis", 0), c.input(0).rank());
  Shape out(first.begin(), first.end());
  for (int i = 1; i < c.inputs(); ++i) {
    const std::string name = "x" + std::to_string(i);
    c.check_same_dtype(i, name.c_str(), 0, "x0");
    auto s = c.input(i).shape();
    bool ok = s.size() == first.size();
    for (size_t k = 0; ok && k < s.size(); ++k) {
      if (int(k) == axis) continue;
      ok = s[k] < 0 || out[k] < 0 || s[k] == out[k];
      if (out[k] < 0 && s[k] >= 0) out[k] = s[k];
    }
    c.check(ok, name, ".shape must equal x0.shape ", first, " but for axis ", axis, ", got ", s);
    out[size_t(axis)] = c.dim_op('+', out[size_t(axis)], s[size_t(axis)]);
  }
  c.output(c.input(0).dtype(), out);
}

// One block per input lies in each outer element of the whole.
void concat(Context &c, bool parallel) {
  const TensorView y = c.output(0);
  const int axis = c.axis(c.attr_int("axis", 0), y.rank());
  const int64_t bytes = element_bytes(y), outer = outer_of(y.shape(), axis), whole = inner_of(y.shape(), axis) * bytes;
  const int n = c.inputs();
  std::vector<int64_t> block(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) block[size_t(i)] = inner_of(c.input(i).shape(), axis) * bytes;
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      char *to = y.data<char>() + o * whole;
      for (int i = 0; i < n; to += block[size_t(i++)])
        if (block[size_t(i)]) std::memcpy(to, c.input(i).data<char>() + o * block[size_t(i)], size_t(block[size_t(i)]));
    }
  };
  if (parallel) c.parallel_for(outer, std::max<int64_t>(1, 65536 / std::max<int64_t>(whole, 1)), body);
  else body(0, outer);
}
void KernelConcat(Context &c) { concat(c, true); }
void ReferenceConcat(Context &c) { concat(c, false); }

void InferStack(InferContext &c) {
  c.check(c.inputs() > 0, "takes at least 1 input, got 0");
  check_any_dtype(c, 0, "x0");
  for (int i = 1; i < c.inputs(); ++i) {
    const std::string name = "x" + std::to_string(i);
    c.check_same_dtype(i, name.c_str(), 0, "x0");
    c.check_same_shape(i, name.c_str(), 0, "x0");
  }
  auto x = c.input(0).shape();
  Shape out(x.begin(), x.end());
  out.insert(out.begin() + c.axis(c.attr_int("axis", 0), c.input(0).rank() + 1), c.inputs());
  c.output(c.input(0).dtype(), out);
}

void InferSplit(InferContext &c) {
  check_any_dtype(c, 0, "x");
  const int axis = c.axis(c.attr_int("axis", 0), c.input(0).rank());
  const int64_t n = c.attr_int("output_num", 1), dim = c.input(0).dim(axis);
  c.check(n > 0, "output_num must be positive, got ", n);
  c.check(dim < 0 || dim % n == 0, "dimension ", axis, " of size ", dim, " does not divide into ", n, " parts");
  auto from = c.input(0).shape();
  Shape out(from.begin(), from.end());
  out[size_t(axis)] = c.dim_op('/', dim, n);
  for (int64_t i = 0; i < n; ++i) c.output(c.input(0).dtype(), out);
}

void InferUnstack(InferContext &c) {
  check_any_dtype(c, 0, "x");
  const int axis = c.axis(c.attr_int("axis", 0), c.input(0).rank());
  const int64_t num = c.attr_int("num", 0), dim = c.input(0).dim(axis), n = num > 0 ? num : dim;
  c.check(num >= 0, "num must be the number of outputs, or 0, got ", num);
  if (n < 0)
    c.fail(OPGRAFT_UNSUPPORTED, "num must be given where dimension ", axis, " of x is open, for the number of outputs");
  c.check(n > 0 && (dim < 0 || n == dim), "num must be dimension ", axis, " of x, of size ", dim, ", got ", num);
  auto from = c.input(0).shape();
  Shape out(from.begin(), from.end());
  out.erase(out.begin() + axis);
  for (int64_t i = 0; i < n; ++i) c.output(c.input(0).dtype(), out);
}

// Of small parts: those of a few rows at a time, which stay in the first cache.
template <class U> void deal(Context &c, int64_t begin, int64_t end) {
  const int n = c.outputs();
  const int64_t rows = std::max<int64_t>(1, 16384 / (n * int64_t(sizeof(U))));
  for (int64_t o = begin; o < end; o += rows)
    for (int i = 0; i < n; ++i)
      copy_row(c.input(0).data<U>() + o * n + i, n, c.output(i).data<U>() + o, std::min(rows, end - o));
}

template <int n> struct Bytes { char b[n]; };

auto deal_of(int64_t block) {
  switch (block) {
    case 1: return deal<Bytes<1>>;  // bytes, because elements may be smaller and aligned to less
    case 2: return deal<Bytes<2>>;
    case 4: return deal<Bytes<4>>;
    case 8: return deal<Bytes<8>>;
    case 16: return deal<Bytes<16>>;
    case 32: return deal<Bytes<32>>;
    case 64: return deal<Bytes<64>>;
  }
  return static_cast<void (*)(Context &, int64_t, int64_t)>(nullptr);
}

// A part is a block in each outer element of the whole.
void split(Context &c, bool parallel) {
  const TensorView x = c.input(0);
  const int axis = c.axis(c.attr_int("axis", 0), x.rank()), n = c.outputs();
  const int64_t outer = outer_of(x.shape(), axis), block = inner_of(x.shape(), axis) * element_bytes(x) / n;
  if (block == 0 || outer == 0) return;
  if (const auto rows = deal_of(block); parallel && rows)
    return c.parallel_for(outer, 65536 / (n * block) + 1, [&](int64_t begin, int64_t end) { rows(c, begin, end); });
  auto copy = [&](int64_t o, int i) {
    std::memcpy(c.output(i).data<char>() + o * block, x.data<char>() + (o * n + i) * block, size_t(block));
  };
  auto whole = [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o)
      for (int i = 0; i < n; ++i) copy(o, i);
  };
  if (!parallel) return whole(0, outer);
  if (outer >= 64) return c.parallel_for(outer, std::max<int64_t>(1, 65536 / (block * n)), whole);
  // Of few outer elements the blocks are shared among threads.
  c.parallel_for(outer * n, std::max<int64_t>(1, 65536 / block), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) copy(i / n, int(i % n));
  });
}
void KernelSplit(Context &c) { split(c, true); }
void ReferenceSplit(Context &c) { split(c, false); }

void InferSplitWithSize(InferContext &c) {
  check_any_dtype(c, 0, "x");
  const int axis = c.axis(c.attr_int("dim", 0), c.input(0).rank(), "dim");
  const auto sizes = c.attr_ints("split_size");
  const int64_t dim = c.input(0).dim(axis);
  int64_t total = 0;
  c.check(!sizes.empty(), "split_size must hold at least one number, got none");
  bool held = true;  // their sum, by int64
  for (int64_t n : sizes) {
    c.check(n >= 0, "sizes in split_size must be at least 0, got ", n);
    held = held && !__builtin_add_overflow(total, n, &total);
  }
  c.check(held || dim >= 0, "split_size must add up to at most ", INT64_MAX, ", got ", sizes);
  c.check(dim < 0 || (held && dim == total), "split_size must add up to ", dim, ", dimension ", axis, " of x, got ",
          sizes);
  auto from = c.input(0).shape();
  Shape out(from.begin(), from.end());
  for (int64_t n : sizes) {
    out[size_t(axis)] = n;
    c.output(c.input(0).dtype(), out);
  }
}

// As concat, the other way.
void split_by_size(Context &c, bool parallel) {
  const TensorView x = c.input(0);
  const int axis = c.axis(c.attr_int("dim", 0), x.rank(), "dim"), n = c.outputs();
  const int64_t bytes = element_bytes(x), outer = outer_of(x.shape(), axis), whole = inner_of(x.shape(), axis) * bytes;
  std::vector<int64_t> block(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) block[size_t(i)] = inner_of(c.output(i).shape(), axis) * bytes;
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const char *from = x.data<char>() + o * whole;
      for (int i = 0; i < n; from += block[size_t(i++)])
        if (block[size_t(i)])
          std::memcpy(c.output(i).data<char>() + o * block[size_t(i)], from, size_t(block[size_t(i)]));
    }
  };
  if (whole == 0) return;
  if (parallel) c.parallel_for(outer, std::max<int64_t>(1, 65536 / whole), body);
  else body(0, outer);
}
void KernelSplitWithSize(Context &c) { split_by_size(c, true); }
void ReferenceSplitWithSize(Context &c) { split_by_size(c, false); }

struct GatherAxes {
  int axis, batch;
  explicit GatherAxes(const Arguments &a) {
    const int rank = a.input(0).rank(), index_rank = a.input(1).rank();
    axis = a.axis(a.attr_int("axis", 0), rank);
    int64_t b = a.attr_int("batch_dims", 0);
    b += b < 0 ? index_rank : 0;
    batch = int(std::clamp<int64_t>(b, -1, OPGRAFT_MAX_RANK + 1));
    a.check(batch >= 0 && batch <= axis && batch <= index_rank, "batch_dims must be at most axis ", axis,
            " and indices' rank ", index_rank, ", got ", b);
  }
};

void InferGather(InferContext &c) {
  check_any_dtype(c, 0, "params");
  c.check_dtype(1, "indices", {OPGRAFT_INT32, OPGRAFT_INT64});
  const GatherAxes g(c);
  auto p = c.input(0).shape(), i = c.input(1).shape();
  for (size_t k = 0; k < size_t(g.batch); ++k)
    c.check(p[k] < 0 || i[k] < 0 || p[k] == i[k], "params.shape ", p, " and indices.shape ", i,
            " must agree in the first ", g.batch, " dimensions");
  Shape out(p.begin(), p.begin() + g.axis);
  out.insert(out.end(), i.begin() + g.batch, i.end());
  out.insert(out.end(), p.begin() + g.axis + 1, p.end());
  c.output(c.input(0).dtype(), out);
}

template <class Index> void gather_by(Context &c, bool parallel) {
  const TensorView params = c.input(0), indices = c.input(1);
  const GatherAxes g(c);
  const Index *index = indices.data<Index>();
  const int64_t range = params.dim(g.axis);
  for (int64_t i = 0; i < indices.size(); ++i)  // before a byte is written
    if (index[i] < 0 || int64_t(index[i]) >= range)
      c.fail(OPGRAFT_INVALID_VALUE, "indices[", i, "] is ", index[i], ", outside [0, ", range, ")");
  const int64_t batches = outer_of(params.shape(), g.batch);
  const int64_t outer = batches ? outer_of(params.shape(), g.axis) / batches : 0;
  const int64_t count = inner_of(indices.shape(), g.batch);
  const int64_t block = inner_of(params.shape(), g.axis + 1) * element_bytes(params);
  const char *from = params.data<char>();
  char *to = c.output(0).data<char>();
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r / count, j = index[at / outer * count + r % count];  // at: batch and outer position
      std::memcpy(to + r * block, from + (at * range + j) * block, size_t(block));
    }
  };
  const int64_t rows = block ? batches * outer * count : 0;
  if (parallel) c.parallel_for(rows, std::max<int64_t>(1, 32768 / std::max<int64_t>(block, 16)), body);
  else body(0, rows);
}

void gather(Context &c, bool parallel) {
  if (c.input(1).dtype() == OPGRAFT_INT32) gather_by<int32_t>(c, parallel);
  else gather_by<int64_t>(c, parallel);
}
void KernelGather(Context &c) { gather(c, true); }
void ReferenceGather(Context &c) { gather(c, false); }

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(Concat, .inputs = -1, .infer = InferConcat, .kernel = KernelConcat, .reference = ReferenceConcat)
// Along a new axis an input's block is what lies behind it, as along its own: the same moves.
OPGRAFT_OP(Stack, .inputs = -1, .infer = InferStack, .kernel = KernelConcat, .reference = ReferenceConcat)
OPGRAFT_OP(Split, .inputs = 1, .outputs = -1, .infer = InferSplit, .kernel = KernelSplit, .reference = ReferenceSplit)
OPGRAFT_OP(SplitWithSize, .inputs = 1, .outputs = -1, .infer = InferSplitWithSize, .kernel = KernelSplitWithSize,
           .reference = ReferenceSplitWithSize)
// And so of a dimension that goes.
OPGRAFT_OP(Unstack, .inputs = 1, .outputs = -1, .infer = InferUnstack, .kernel = KernelSplit,
           .reference = ReferenceSplit)
OPGRAFT_OP(Gather, .inputs = 2, .infer = InferGather, .kernel = KernelGather, .reference = ReferenceGather)
