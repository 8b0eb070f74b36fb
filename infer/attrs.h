// Named attributes of a node, and their flat form for the ABI.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "opgraft/abi.h"
#include "registry/manifest.h"

namespace opgraft {

using Attrs = std::map<std::string, AttrValue, std::less<>>;

int32_t attr_kind(const AttrValue &value);
std::string attr_text(const AttrValue &value);

// The opgraft_attr array of some Attrs. Holds copies; not movable once `data()` was taken.
class FlatAttrs {
 public:
  FlatAttrs() = default;
  explicit FlatAttrs(const Attrs &attrs);
  FlatAttrs(const FlatAttrs &) = delete;
  const opgraft_attr *data() const { return list_.data(); }
  int32_t size() const { return int32_t(list_.size()); }

 private:
  Attrs values_;
  std::vector<std::vector<int64_t>> ints_;
  std::vector<std::vector<double>> floats_;
  std::vector<opgraft_attr> list_;
};

// Converts values to the kinds that the op's manifest declares (an int for a float, one int for
// ints), fills in defaults, and refuses unknown names. Throws Error naming op and attribute.
Attrs complete_attrs(const Manifest &manifest, const Attrs &given);

}  // namespace opgraft
