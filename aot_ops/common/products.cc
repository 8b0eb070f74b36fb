// The kernels of product-host.h, compiled once for every operator of this tree that multiplies matrices: the build
// defines OPGRAFT_PRODUCTS as `extern` for these and links what this makes into each. An operator that is built by
// itself, without it, compiles its own from the same headers.
#define OPGRAFT_PRODUCTS

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aot_ops/common/products.cc"
#include "hwy/foreach_target.h"
// clang-format off
#include "opgraft/simd.h"
#include "aot_ops/common/product-inl.h"
#include "aot_ops/common/skinny-inl.h"
// clang-format on
