// TopK: the k largest elements along the last dimension, the largest first, and where they were.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "opgraft/op.h"

namespace {
using namespace opgraft;

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT32, OPGRAFT_INT64});
  const auto x = c.input(0).shape();
  c.check(!x.empty(), "x must have at least 1 dimension, got shape ", x);
  const int64_t k = c.attr_int("k", 1);
  c.check(x.back() <= INT32_MAX, "x's last dimension must be at most 2147483647, got ", x.back());
  c.check(k >= 0, "k must be at least 0, got ", k);
  c.check(x.back() < 0 || k <= x.back(), "k must be at most x's last dimension ", x.back(), ", got ", k);
  Shape y(x.begin(), x.end());
  y.back() = k;
  c.output(c.input(0).dtype(), y);
  c.output(OPGRAFT_INT32, y);
}

// NaN is above all numbers.
template <class E> bool above(E a, E b) { return a > b || (a != a && b == b); }

template <class E> struct Candidate {
  E value;
  int32_t place;
  // Of equals the first one comes first.
  bool operator<(const Candidate &o) const {
    return above(value, o.value) || (!above(o.value, value) && place < o.place);
  }
};

template <class T, class E> struct Row {
  const T *x;
  int64_t n, k;
  T *values;
  int32_t *places;

  E at(int64_t i) const { return E(x[i]); }

  // take(i) of elements from i on, of which most are no larger than the least that is kept: eight at a time are told
  // from such without a branch each.
  template <class Take> void scan(int64_t i, const E &least, const Take &take) const {
    for (; i + 8 <= n; i += 8) {
      bool more = false;
      for (int64_t j = 0; j < 8; ++j) more |= !(at(i + j) <= least);
      for (int64_t j = 0; more && j < 8; ++j) take(i + j);
    }
    for (; i < n; ++i) take(i);
  }

  // Those kept are in order at any time.
  static constexpr int64_t kFew = 32;
  void few() const {
    E kept[kFew];
    int64_t count = 0;
    const auto take = [&](int64_t i) {
      const E v = at(i);
      if (count == k && !above(v, kept[k - 1])) return;
      int64_t j = count < k ? count++ : k - 1;
      for (; j > 0 && above(v, kept[j - 1]); --j) kept[j] = kept[j - 1], places[j] = places[j - 1];
      kept[j] = v, places[j] = int32_t(i);
    };
    for (int64_t i = 0; i < k; ++i) take(i);
    scan(k, kept[k - 1], take);
    for (int64_t j = 0; j < k; ++j) values[j] = x[places[j]];
  }

  // Up to as many more are kept before the k largest of all are told from the others.
  void many(std::vector<Candidate<E>> &kept) const {
    kept.clear();
    E least{};
    const auto cut = [&] {
      if (int64_t(kept.size()) <= k) return;
      std::nth_element(kept.begin(), kept.begin() + k - 1, kept.end());
      kept.resize(size_t(k));
      least = kept.back().value;
    };
    const size_t most = size_t(k) + std::max<size_t>(size_t(k), 1024);
    const int64_t first = std::min<int64_t>(n, int64_t(most));
    for (int64_t i = 0; i < first; ++i) kept.push_back({at(i), int32_t(i)});
    if (first < n) {
      cut();
      scan(first, least, [&](int64_t i) {
        if (!above(at(i), least)) return;
        kept.push_back({at(i), int32_t(i)});
        if (kept.size() == most) cut();
      });
    }
    cut();
    std::sort(kept.begin(), kept.end());
    for (int64_t i = 0; i < k; ++i) values[i] = x[kept[size_t(i)].place], places[i] = kept[size_t(i)].place;
  }
};

template <class F> void each_row(const Context &c, int64_t grain, const F &f) {
  const int64_t n = c.input(0).dim(-1), k = c.output(0).dim(-1);
  if (k == 0) return;
  dispatch<float, float16, bfloat16, int32_t, int64_t>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    using E = std::conditional_t<std::is_integral_v<T>, T, float>;
    c.parallel_for(c.output(0).size() / k, std::max<int64_t>(1, grain / n), [&](int64_t begin, int64_t end) {
      std::vector<Candidate<E>> kept;
      for (int64_t r = begin; r < end; ++r) {
        const Row<T, E> row{c.input(0).data<T>() + r * n, n, k, c.output(0).data<T>() + r * k,
                            c.output(1).data<int32_t>() + r * k};
        f(row, kept);
      }
    });
  });
}

void Kernel(Context &c) {
  each_row(c, 8192, [](auto &row, auto &kept) {
    if (row.k <= row.kFew) row.few();
    else row.many(kept);
  });
}

// All of it sorted.
void Reference(Context &c) {
  each_row(c, INT64_MAX, [](auto &row, auto &all) {
    all.clear();
    for (int64_t i = 0; i < row.n; ++i) all.push_back({row.at(i), int32_t(i)});
    std::stable_sort(all.begin(), all.end(), [](auto &a, auto &b) { return above(a.value, b.value); });
    for (int64_t i = 0; i < row.k; ++i)
      row.values[i] = row.x[all[size_t(i)].place], row.places[i] = all[size_t(i)].place;
  });
}

}  // namespace

OPGRAFT_OP(TopK, .inputs = 1, .outputs = 2, .infer = Infer, .kernel = Kernel, .reference = Reference)
