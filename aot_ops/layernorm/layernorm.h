// What LayerNorm and its gradients share: their axes.
#pragma once

#include <string>

#include "aot_ops/common/norm.h"

namespace opgraft {

struct LayerNormAxes {
  int norm, params;
};

inline LayerNormAxes norm_axes(const Arguments &c) {
  auto axis = [&](const char *name) { return c.axis(c.attr_int(name, -1), c.input(0).rank(), name); };
  const LayerNormAxes axes{axis("begin_norm_axis"), axis("begin_params_axis")};
  if (axes.params < axes.norm)
    c.fail(OPGRAFT_UNSUPPORTED, "begin_params_axis must not lie before begin_norm_axis ", axes.norm, ", got ",
           axes.params);
  return axes;
}

// How many of input i's last dimensions normalized_shape names.
inline int normalized_dims(const Arguments &c, int i, const char *name) {
  const auto normalized = c.attr_ints("normalized_shape");
  const auto x = c.input(i).shape();
  c.check(!normalized.empty() && normalized.size() <= x.size() && may_equal(x.last(normalized.size()), normalized),
          "normalized_shape must be the last dimensions of ", name, ".shape ", x, ", got ", normalized);
  return int(normalized.size());
}

}  // namespace opgraft
