// A vector of pixels as three of their colours: of planes that follow one another, or of pixels side by side.
#if defined(OPGRAFT_SEPIA_COLOURS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_SEPIA_COLOURS_INL_H_
#undef OPGRAFT_SEPIA_COLOURS_INL_H_
#else
#define OPGRAFT_SEPIA_COLOURS_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class D> struct Colours { hn::Vec<D> r, g, b; };

// Each layout: elements from a pixel to the next one, and a whole vector of pixels or the first `count` of one.
struct Planes {
  int64_t pixels;  // of a plane
  int64_t step() const { return 1; }
  template <class D, class T> HWY_INLINE Colours<D> load(D d, const T *p) const {
    return {LoadF32(d, p), LoadF32(d, p + pixels), LoadF32(d, p + 2 * pixels)};
  }
  template <class D, class T> HWY_INLINE Colours<D> load(D d, const T *p, size_t count) const {
    return {LoadF32N(d, p, count), LoadF32N(d, p + pixels, count), LoadF32N(d, p + 2 * pixels, count)};
  }
  template <class D, class T> HWY_INLINE void store(D d, const Colours<D> &v, T *p) const {
    StoreF32(v.r, d, p);
    StoreF32(v.g, d, p + pixels);
    StoreF32(v.b, d, p + 2 * pixels);
  }
  template <class D, class T> HWY_INLINE void store(D d, const Colours<D> &v, T *p, size_t count) const {
    StoreF32N(v.r, d, p, count);
    StoreF32N(v.g, d, p + pixels, count);
    StoreF32N(v.b, d, p + 2 * pixels, count);
  }
};

// Halves become float32 as they lie, and are parted as that.
struct Together {
  int64_t step() const { return 3; }
  template <class D> HWY_INLINE Colours<D> load(D d, const float *p) const {
    Colours<D> v;
    hn::LoadInterleaved3(d, p, v.r, v.g, v.b);
    return v;
  }
  template <class D, class T> HWY_INLINE Colours<D> load(D d, const T *p) const {
    HWY_ALIGN float wide[3 * hn::MaxLanes(d)];
    for (size_t i = 0; i < 3; ++i) hn::Store(LoadF32(d, p + i * hn::Lanes(d)), d, wide + i * hn::Lanes(d));
    return load(d, wide);
  }
  template <class D, class T> HWY_INLINE Colours<D> load(D d, const T *p, size_t count) const {
    HWY_ALIGN T some[3 * hn::MaxLanes(d)] = {};
    for (size_t i = 0; i < 3 * count; ++i) some[i] = p[i];
    return load(d, some);
  }
  template <class D> HWY_INLINE void store(D d, const Colours<D> &v, float *p) const {
    hn::StoreInterleaved3(v.r, v.g, v.b, d, p);
  }
  template <class D, class T> HWY_INLINE void store(D d, const Colours<D> &v, T *p) const {
    HWY_ALIGN float wide[3 * hn::MaxLanes(d)];
    store(d, v, wide);
    for (size_t i = 0; i < 3; ++i) StoreF32(hn::Load(d, wide + i * hn::Lanes(d)), d, p + i * hn::Lanes(d));
  }
  template <class D, class T> HWY_INLINE void store(D d, const Colours<D> &v, T *p, size_t count) const {
    HWY_ALIGN T some[3 * hn::MaxLanes(d)];
    store(d, v, some);
    for (size_t i = 0; i < 3 * count; ++i) p[i] = some[i];
  }
};

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // per target
