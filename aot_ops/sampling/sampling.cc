// SampleToken: an index of a row of logits, drawn by inverting the cumulative distribution at a given number, so that
// the same numbers draw the same indices. top_k and top_p (nucleus sampling, Holtzman et al. 2020) as is usual: first
// the k largest, of those the fewest of which the probabilities reach p.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "opgraft/op.h"

namespace {
using namespace opgraft;

enum { kLogits, kUniform };

void Infer(InferContext &c) {
  c.check_dtype(kLogits, "logits", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  c.check_dtype(kUniform, "uniform", {OPGRAFT_FLOAT32});
  const auto x = c.input(kLogits).shape(), u = c.input(kUniform).shape();
  c.check(x.size() >= 1 && x.back() != 0, "logits must have a last dimension of at least 1, got shape ", x);
  const auto rows = x.first(x.size() - 1);
  const bool same = u.size() == rows.size() &&
                    std::equal(u.begin(), u.end(), rows.begin(), [](auto a, auto b) { return may_equal(a, b); });
  c.check(same, "uniform.shape must be ", rows, ", got ", u);
  const double temperature = c.attr_float("temperature", 1), p = c.attr_float("top_p", 1);
  c.check(temperature >= 0 && std::isfinite(temperature), "temperature must be at least 0, got ", temperature);
  c.check(p > 0 && p <= 1, "top_p must be in (0, 1], got ", p);
  c.check(c.attr_int("top_k", 0) >= 0, "top_k must be at least 0, got ", c.attr_int("top_k", 0));
  c.output(OPGRAFT_INT32, rows);
}

struct Candidate {
  double weight;
  int32_t index;
  // The likelier first, of equals the one that comes first.
  bool operator<(const Candidate &o) const { return weight != o.weight ? weight > o.weight : index < o.index; }
};

template <class T> int32_t Draw(const Context &c, const T *x, int64_t n, double at, std::vector<Candidate> &all) {
  int64_t largest = -1;
  for (int64_t i = 0; i < n; ++i) {
    const float v = float(x[i]);
    c.check(!std::isnan(v), "logits must be numbers, got NaN at ", i);
    if (largest < 0 || v > float(x[largest])) largest = i;
  }
  const double temperature = c.attr_float("temperature", 1), most = double(float(x[largest]));
  if (temperature == 0 || !std::isfinite(most)) return int32_t(largest);
  all.clear();
  for (int64_t i = 0; i < n; ++i)
    if (const double w = std::exp((double(float(x[i])) - most) / temperature); w > 0) all.push_back({w, int32_t(i)});
  if (const int64_t k = c.attr_int("top_k", 0); k > 0 && k < int64_t(all.size())) {
    std::nth_element(all.begin(), all.begin() + k, all.end());
    all.resize(size_t(k));
  }
  std::sort(all.begin(), all.end());
  double sum = 0, kept = 0;
  for (auto &a : all) sum += a.weight;
  size_t count = 0;
  for (const double p = c.attr_float("top_p", 1) * sum; count < all.size() && (count == 0 || kept < p); ++count)
    kept += all[count].weight;
  double passed = 0;
  for (size_t i = 0; i < count; ++i)
    if ((passed += all[i].weight) > at * kept) return all[i].index;
  return all[count - 1].index;
}

void Kernel(Context &c) {
  const int64_t n = c.input(kLogits).dim(-1), rows = c.input(kUniform).size();
  const float *uniform = c.input(kUniform).data<float>();
  dispatch<float, float16, bfloat16>(c, c.input(kLogits).dtype(), [&](auto zero) {
    const auto *x = c.input(kLogits).data<decltype(zero)>();
    c.parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      std::vector<Candidate> all;
      for (int64_t r = begin; r < end; ++r) {
        c.check(uniform[r] >= 0 && uniform[r] < 1, "uniform must be in [0, 1), got ", uniform[r]);
        c.output(0).data<int32_t>()[r] = Draw(c, x + r * n, n, double(uniform[r]), all);
      }
    });
  });
}

}  // namespace

OPGRAFT_OP(SampleToken, .inputs = 2, .infer = Infer, .kernel = Kernel, .reference = Kernel)
