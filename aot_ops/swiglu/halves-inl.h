// SwiGLU of the halves of short rows, per SIMD target.
#if defined(OPGRAFT_SWIGLU_HALVES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_SWIGLU_HALVES_INL_H_
#undef OPGRAFT_SWIGLU_HALVES_INL_H_
#else
#define OPGRAFT_SWIGLU_HALVES_INL_H_
#endif

#include "aot_ops/common/activations-inl.h"
#include "aot_ops/common/map-inl.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// The elements at `place`, of 2 Lanes(d), of two vectors that follow each other.
struct PlacesInTwo {
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  decltype(hn::IndicesFromVec(D(), hn::Zero(hn::RebindToSigned<D>()))) within;
  hn::Mask<D> second;

  HWY_INLINE explicit PlacesInTwo(const int32_t *place) {
    const D d;
    const hn::RebindToSigned<D> di;
    const auto at = hn::Load(di, place), last = hn::Set(di, int32_t(hn::Lanes(d)) - 1);
    within = hn::IndicesFromVec(d, hn::And(at, last));
    second = hn::RebindMask(d, hn::Gt(at, last));
  }
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(second, hn::TableLookupLanes(b, within), hn::TableLookupLanes(a, within));
  }
};

// Rows [begin, end) of `rows` ones that hold the two halves, of `half` elements each. A call for each of short ones
// costs more than its work: of halves that a vector holds, as many as it does are parted by their places in two.
template <class T>
void ShortHalves(const void *from, void *to, int64_t half, int64_t rows, int64_t begin, int64_t end, bool gate_first) {
  const T *in = static_cast<const T *>(from);
  T *y = static_cast<T *>(to);
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), together = lanes / half;
  if (together == 0) {
    for (int64_t r = begin; r < end; ++r) {
      const T *first = in + 2 * r * half, *second = first + half;
      Map([](auto t, auto v, auto g) HWY_ATTR { return hn::Mul(v, Silu<T>(t, g)); }, y + r * half, half,
          gate_first ? second : first, gate_first ? first : second);
    }
    return;
  }
  HWY_ALIGN int32_t at[2][hn::MaxLanes(d)] = {};  // of x and of the gate
  for (int64_t r = 0, i = 0; r < together; ++r)
    for (int64_t k = 0; k < half; ++k, ++i) {
      at[gate_first][i] = int32_t(2 * r * half + k);
      at[!gate_first][i] = int32_t(2 * r * half + half + k);
    }
  const PlacesInTwo of_x(at[0]), of_gate(at[1]);
  for (int64_t r = begin; r < end; r += together) {
    const T *p = in + 2 * r * half;
    T *t = y + r * half;
    const int64_t given = 2 * (rows - r) * half, left = (end - r) * half;
    auto a = hn::Zero(d), b = a;
    if (given >= 2 * lanes) {
      a = LoadF32(d, p), b = LoadF32(d, p + lanes);
    } else {
      a = LoadF32N(d, p, size_t(std::min(given, lanes)));
      if (given > lanes) b = LoadF32N(d, p + lanes, size_t(given - lanes));
    }
    const auto v = hn::Mul(of_x(a, b), Silu<T>(d, of_gate(a, b)));
    if (left >= lanes) StoreF32(v, d, t);  // what is behind these rows is written again
    else StoreF32N(v, d, t, size_t(std::min(together * half, left)));
  }
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
