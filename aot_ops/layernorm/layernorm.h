// What LayerNorm and its gradient share: their axes.
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
  c.check(axes.params >= axes.norm,
          "begin_params_axis must not lie before begin_norm_axis " + std::to_string(axes.norm) + ", got " +
              std::to_string(axes.params),
          OPGRAFT_UNSUPPORTED);
  return axes;
}

}  // namespace opgraft
