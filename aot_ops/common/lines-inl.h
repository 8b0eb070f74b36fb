// Vectors of a row that does not begin a line of the caches, read by whole lines, per SIMD target.
#if defined(OPGRAFT_LINES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_LINES_INL_H_
#undef OPGRAFT_LINES_INL_H_
#else
#define OPGRAFT_LINES_INL_H_
#endif

#include <algorithm>

#include "aot_ops/common/map-inl.h"
#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

// The vectors x[0..], x[L..], x[2 L..] of n elements, L lanes each, in this order: at(i) is the one at i. NumPy's large
// arrays begin 16 bytes behind a page: each vector of 64 bytes then lies in two lines, and to load it takes two
// accesses. Here a line is loaded once, and each vector put together from two of them: the same elements in the same
// lanes. Another type than float32, and other targets than AVX-512, load each vector as it lies.
template <class T> class Lines {
 public:
  using D = hn::ScalableTag<float>;
  explicit Lines(const T *x) : x_(x) {}
  HWY_INLINE hn::Vec<D> at(int64_t i) { return LoadF32(D(), x_ + i); }
  // How many whole vectors at() may give of n elements.
  static int64_t whole(int64_t n) { return n / int64_t(hn::Lanes(D())); }
  static bool worth(const T *, int64_t) { return false; }

 private:
  const T *x_;
};

#if HWY_TARGET == HWY_AVX3
template <> class Lines<float> {
 public:
  using D = hn::ScalableTag<float>;
  explicit Lines(const float *x) {
    const hn::RebindToSigned<D> di;
    const auto behind = int32_t(reinterpret_cast<uintptr_t>(x) / sizeof(float) % kLanes);
    line_ = x - behind;
    index_ = hn::Add(hn::Iota(di, 0), hn::Set(di, behind));
    last_ = hn::MaskedLoad(hn::Not(hn::FirstN(D(), size_t(behind))), D(), line_);
  }
  HWY_INLINE hn::Vec<D> at(int64_t i) {
    const auto next = hn::Load(D(), line_ + i + kLanes);
    const hn::Vec<D> v{_mm512_permutex2var_ps(last_.raw, index_.raw, next.raw)};
    last_ = next;
    return v;
  }
  // The last one would read elements behind x's.
  static int64_t whole(int64_t n) { return n / kLanes - 1; }
  static bool worth(const float *x, int64_t n) {
    const auto address = reinterpret_cast<uintptr_t>(x);
    return n >= 16 * kLanes && address % (kLanes * sizeof(float)) && address % sizeof(float) == 0;
  }

 private:
  static constexpr int64_t kLanes = int64_t(hn::MaxLanes(D()));
  const float *line_;  // where x's first line begins
  hn::Vec<hn::RebindToSigned<D>> index_;
  hn::Vec<D> last_;
};
#endif

// Map of one row, x by whole lines where that is worth it; y may be x.
template <class T, class F, class... More>
HWY_INLINE void MapLines(F f, T *y, int64_t n, const T *x, const More *...more) {
  int64_t i = 0;
  if (HWY_UNLIKELY(Lines<T>::worth(x, n))) {
    const hn::ScalableTag<float> d;
    const int64_t lanes = int64_t(hn::Lanes(d)), end = Lines<T>::whole(n) * lanes;
    Lines<T> in(x);
    for (; i < end; i += lanes) StoreF32(f(d, in.at(i), LoadF32(d, more + i)...), d, y + i);
  }
  Map(f, y + i, n - i, x + i, more + i...);
}

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
