// What the operators of rotary embedding share: the checks of their tables, and turning the rows of their tensors.
#include "opgraft/op.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <type_traits>

#include "rotary.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rotary.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "rotate-inl.h"
// clang-format on

#if HWY_ONCE
#include "aot_ops/common/streams.h"

namespace opgraft {
OPGRAFT_SIMD_FLOATS(Rotate)

namespace {

constexpr int64_t kCaches = 16 << 20;  // bytes read and written that may stay in L3

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
bool past_caches(const Context &c, const Rotation &r, std::span<const Sheet> sheets) {
  int64_t bytes = 0;
  for (int i = 0; i < c.outputs(); ++i) bytes += 2 * 4 * c.output(i).size();
  return c.input(0).dtype() == OPGRAFT_FLOAT32 && ((bytes > kCaches && c.unread()) || goes_past_caches(c)) &&
         r.dim % 16 == 0 && r.pairs % 16 == 0 && std::ranges::all_of(sheets, [](const Sheet &s) {
           return s.x != s.y && reinterpret_cast<uintptr_t>(s.y) % 64 == 0;
         });
}

template <class T> double number(const void *p, int64_t i) { return double(float(static_cast<const T *>(p)[i])); }
template <class T> double factor(const Rotation &r, const void *table, int64_t at) {
  return r.wide ? number<float>(table, at) : number<T>(table, at);
}

}  // namespace

void check_tables(const InferContext &c, int i, int64_t dim, bool by_token) {
  if (c.input(0).dtype() == OPGRAFT_FLOAT32) c.check_dtype(i, "cos", {OPGRAFT_FLOAT32});
  else c.check_dtype(i, "cos", {OPGRAFT_FLOAT32, c.input(0).dtype()});
  c.check_same_dtype(i + 1, "sin", i, "cos");
  c.check_same_shape(i + 1, "sin", i, "cos");
  const int64_t mode = c.attr_int("mode", 0);
  c.check(mode >= 0 && mode <= (by_token ? 3 : 1), "mode must be 0 (halves) or 1 (interleaved)",
          by_token ? ", or 2 or 3 where the tables have a row for each token" : "", ", got ", mode);
  c.check(c.input(i).rank() >= 1, "cos must have at least 1 dimension, got shape ()");
  const int64_t width = c.input(i).dim(-1), asked = c.attr_int("rotary_dim", 0), turned = asked ? asked : width;
  c.check(turned < 0 || turned % 2 == 0, asked ? "rotary_dim" : "cos's last dimension", " must be even, got ", turned);
  c.check(asked >= 0 && (turned < 0 || dim < 0 || turned <= dim), asked ? "rotary_dim" : "cos's last dimension",
          " must be at most the rows' ", dim, " elements, got ", turned);
  c.check(width < 0 || !asked || width == asked || width == asked / 2, "cos's last dimension must be rotary_dim ",
          asked, " or half of it, got ", width);
}

Rotation rotation(const Arguments &c, int i, int64_t dim, bool back) {
  const int64_t width = c.input(i).dim(-1), asked = c.attr_int("rotary_dim", 0);
  Rotation r;
  r.cos = c.input(i).raw(), r.sin = c.input(i + 1).raw();
  r.dim = dim, r.pairs = (asked ? asked : width) / 2;
  r.interleaved = c.attr_int("mode", 0) % 2 == 1, r.back = back;
  r.full = width == 2 * r.pairs;
  r.wide = c.input(i).dtype() == OPGRAFT_FLOAT32;
  return r;
}

void check_broadcast(const InferContext &c, int of, const std::string &name, int i) {
  auto x = c.input(of).shape(), t = c.input(i).shape();
  bool fits = t.size() <= x.size();
  for (size_t k = 2; fits && k <= t.size(); ++k) {
    const int64_t have = t[t.size() - k], want = x[x.size() - k];
    fits = have == 1 || have == want || (have < 0 && !(is_symbol(have) && want == 1)) ||
           (want < 0 && !(is_symbol(want) && have == 1));
  }
  c.check(fits, "cos.shape must broadcast to ", name, ".shape ", x, " in all but the last dimension, got ", t);
}

Sheet rotary_sheet(const Context &c, int i, int tables) {
  Sheet s = sheet(c.input(i).shape(), c.input(tables).shape());
  s.x = c.input(i).raw(), s.y = c.output(i).raw();
  return s;
}

void run(Context &c, Rotation r, std::span<const Sheet> sheets) {
  r.stream = past_caches(c, r, sheets);
  const auto rotate = Rotate_simd(c.input(0).dtype());
  int64_t units = 0, heads = 0;
  for (const Sheet &s : sheets) units += units_of(r, s), heads = std::max(heads, std::min(s.heads, kHeads));
  const int64_t work = block_of(r) * heads * r.dim;
  c.parallel_for(units, kGrain / std::max<int64_t>(work, 1) + 1, [&](int64_t begin, int64_t end) {
    for (const Sheet &s : sheets) {
      const int64_t n = units_of(r, s);
      if (begin < n) rotate(r, s, begin, std::min(end, n));
      begin = std::max<int64_t>(begin - n, 0), end -= n;
      if (end <= 0) break;
    }
  });
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

}  // namespace opgraft
#endif
