// SumExt: ReduceSum with a dtype of its own. MindSpore's functional sums are this primitive.
#include "aot_ops/reduce/reduce.h"

#include <type_traits>

namespace opgraft {
namespace {

bool whole(int32_t dtype) { return dtype == OPGRAFT_INT32 || dtype == OPGRAFT_INT64 || dtype == OPGRAFT_BOOL; }

void InferSumExt(InferContext &c) {
  c.check_dtype(0, "x",
                {OPGRAFT_FLOAT32, OPGRAFT_FLOAT16, OPGRAFT_BFLOAT16, OPGRAFT_INT32, OPGRAFT_INT64, OPGRAFT_BOOL});
  const int32_t from = c.input(0).dtype();
  const std::string name(c.attr_string("dtype", ""));
  int32_t to = whole(from) ? int32_t(OPGRAFT_INT64) : from;
  if (!name.empty()) {
    to = dtype_from_name(name);
    const bool known = to == OPGRAFT_FLOAT32 || to == OPGRAFT_FLOAT16 || to == OPGRAFT_BFLOAT16 ||
                       (whole(from) && (to == OPGRAFT_INT32 || to == OPGRAFT_INT64));
    c.check(known, "dtype must be float32, float16, bfloat16", whole(from) ? ", int32, int64" : "", " for x of ",
            dtype_name(from), ", got ", name);
  }
  infer_shape<kSum>(c, to);
}

// Of another dtype than x: every element becomes one, and these add up in double or wrap.
void ReferenceSumExt(Context &c) {
  const Walks w(c);
  dispatch<float, float16, bfloat16, int32_t, int64_t, bool>(c, c.input(0).dtype(), [&](auto of_x) {
    dispatch<float, float16, bfloat16, int32_t, int64_t>(c, c.output(0).dtype(), [&](auto of_y) {
      using T = decltype(of_x);
      using U = decltype(of_y);
      using E = std::conditional_t<std::is_integral_v<T>, T, float>;
      using Sum = std::conditional_t<std::is_integral_v<U>, uint64_t, double>;
      const T *x = c.input(0).data<T>();
      w.kept.walk(0, w.kept.total, [&](const int64_t(&at)[1], int64_t out, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          Sum sum = 0;
          w.reduced.walk(0, w.reduced.total, [&](const int64_t(&offset)[1], int64_t, int64_t m) {
            for (int64_t k = 0; k < m; ++k) {
              const E v = E(x[at[0] + i * w.kept.step[0] + offset[0] + k * w.reduced.step[0]]);
              if constexpr (std::is_integral_v<U>) sum += Sum(int64_t(v));
              else sum += Sum(float(U(float(v))));
            }
          });
          if constexpr (std::is_integral_v<U>) c.output(0).data<U>()[out + i] = U(sum);
          else c.output(0).data<U>()[out + i] = U(float(sum));
        }
      });
    });
  });
}

void KernelSumExt(Context &c) { c.input(0).dtype() == c.output(0).dtype() ? KernelReduceSum(c) : ReferenceSumExt(c); }

}  // namespace
}  // namespace opgraft

using namespace opgraft;
OPGRAFT_OP(SumExt, .inputs = 1, .infer = InferSumExt, .kernel = KernelSumExt, .reference = ReferenceSumExt)
