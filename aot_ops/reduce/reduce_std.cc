// ReduceStd: the standard deviation over any set of axes, and the mean; two passes in double.
#include "opgraft/op.h"

#include <algorithm>
#include <cmath>

#include "aot_ops/reduce/reduce.h"

namespace {
using namespace opgraft;

void Infer(InferContext &c) {
  c.check_dtype(0, "x", {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16});
  infer_shape<kMean>(c, c.input(0).dtype());
  infer_shape<kMean>(c, c.input(0).dtype());
}

void run(Context &c, int64_t grain) {
  const Walks w(c);
  const double n = double(w.reduced.total), over = c.attr_bool("unbiased", true) ? n - 1 : n;
  dispatch<float, float16, bfloat16>(c, c.input(0).dtype(), [&](auto zero) {
    using T = decltype(zero);
    c.parallel_for(w.kept.total, std::max<int64_t>(1, grain / std::max<int64_t>(1, w.reduced.total)),
                   [&](int64_t begin, int64_t end) {
                     w.kept.walk(begin, end, [&](const int64_t(&at)[1], int64_t out, int64_t length) {
                       for (int64_t i = 0; i < length; ++i) {
                         const T *x = c.input(0).data<T>() + at[0] + i * w.kept.step[0];
                         auto sum = [&](auto f) {
                           double total = 0;
                           w.reduced.walk(0, w.reduced.total, [&](const int64_t(&offset)[1], int64_t, int64_t m) {
                             for (int64_t k = 0; k < m; ++k)
                               total += f(double(float(x[offset[0] + k * w.reduced.step[0]])));
                           });
                           return total;
                         };
                         const double mean = sum([](double v) { return v; }) / n;
                         // Of one element, unbiased: 0 / 0, a NaN.
                         const double variance = sum([&](double v) { return (v - mean) * (v - mean); }) / over;
                         c.output(0).data<T>()[out + i] = T(float(std::sqrt(variance)));
                         c.output(1).data<T>()[out + i] = T(float(mean));
                       }
                     });
                   });
  });
}

void Kernel(Context &c) { run(c, 8192); }
void Reference(Context &c) { run(c, INT64_MAX); }
}  // namespace

OPGRAFT_OP(ReduceStd, .inputs = 1, .outputs = 2, .infer = Infer, .kernel = Kernel, .reference = Reference)
