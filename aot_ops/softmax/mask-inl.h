// Masks of bools over vectors of scores, per SIMD target.
#include <cstring>

#include "softmax.h"

#if defined(OPGRAFT_SOFTMAX_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OPGRAFT_SOFTMAX_MASK_INL_H_
#undef OPGRAFT_SOFTMAX_MASK_INL_H_
#else
#define OPGRAFT_SOFTMAX_MASK_INL_H_
#endif

#include "opgraft/simd.h"

HWY_BEFORE_NAMESPACE();
namespace opgraft::HWY_NAMESPACE {

template <class D> HWY_INLINE hn::Mask<D> AllLanes(D d, bool value) {
  return hn::Eq(hn::Set(d, value ? 1.0f : 0.0f), hn::Set(d, 1.0f));
}

// The lanes whose scores a mask hides, of the bools at p: as many as a vector has, or the first `count`.
template <class D> class Hidden {
 public:
  HWY_INLINE Hidden(D d, const SoftmaxMask &m) : d_(d), hides_(AllLanes(d, m.hides)) {}
  HWY_INLINE hn::Mask<D> operator()(const uint8_t *p) const {
    const hn::Rebind<uint8_t, D> bytes;
#if HWY_TARGET == HWY_AVX3  // a mask has a bit for a lane, of whatever size
    const hn::Mask<D> off{hn::Eq(hn::LoadU(bytes, p), hn::Zero(bytes)).raw};
#else
    const hn::RebindToSigned<D> wide;
    const auto off = hn::RebindMask(d_, hn::Eq(hn::PromoteTo(wide, hn::LoadU(bytes, p)), hn::Zero(wide)));
#endif
    return hn::Xor(off, hides_);
  }
  HWY_INLINE hn::Mask<D> operator()(const uint8_t *p, size_t count) const {
    uint8_t some[hn::MaxLanes(D())] = {};
    return (*this)(static_cast<const uint8_t *>(std::memcpy(some, p, std::min(count, sizeof some))));
  }

 private:
  D d_;
  hn::Mask<D> hides_;  // of all lanes
};

}  // namespace opgraft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
