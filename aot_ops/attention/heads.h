// Where the heads of q, k and v lie, by the attribute `layout`.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "opgraft/op.h"

namespace opgraft {

// Before the sequence, behind it, behind it and the batches, or with their elements in one dimension.
enum Layout { kBHSD, kBSHD, kSBHD, kPacked };
inline Layout layout_of(const Arguments &c) {
  const std::string l = c.attr_string("layout", "BHSD");
  c.check(l == "BHSD" || l == "BSHD" || l == "SBHD" || l == "BSE" || l == "BSHD_PACKED",
          "layout must be BHSD, BSHD, SBHD, BSE or BSHD_PACKED, got '", l, "'");
  return l == "BHSD" ? kBHSD : l == "BSHD" ? kBSHD : l == "SBHD" ? kSBHD : kPacked;
}

// The batches whose heads q has in one dimension, of layout SBHD; -1: not known.
inline int64_t joined_batches(const Arguments &c) {
  const int64_t heads = c.attr_int("heads", 0), all = c.input(0).dim(1);
  return all < 0 || heads < 1 ? -1 : all / heads;
}

// An input's shape with the heads first, unless they are packed, and the sequence before the rows' elements; of more
// dimensions than it may have, as it is. Nothing is allocated: it is asked for at every call.
class HeadsShape {
 public:
  HeadsShape(const Arguments &c, int input, Layout layout) : dims_(c.input(input).shape()) {
    const size_t rank = dims_.size();
    const bool apart = layout == kBSHD && rank == 4, turned = input == 1 && c.attr_bool("k_transposed", false);
    if (layout == kSBHD && (rank == 3 || rank == 4)) {
      own_[0] = rank == 4 ? dims_[1] : joined_batches(c);
      own_[1] = rank == 4 ? dims_[2] : heads_of(c, dims_[1]);
      own_[2] = dims_[0], own_[3] = dims_[rank - 1];
      dims_ = own_;
      return;
    }
    if (rank < 2 || rank > 4 || (!apart && !turned)) return;
    std::copy(dims_.begin(), dims_.end(), own_);
    if (apart) std::swap(own_[1], own_[2]);
    if (turned) std::swap(own_[rank - 2], own_[rank - 1]);
    dims_ = {own_, rank};
  }
  HeadsShape(const HeadsShape &) = delete;
  std::span<const int64_t> operator*() const { return dims_; }

 private:
  static int64_t heads_of(const Arguments &c, int64_t all) {
    if (all == c.input(0).dim(1)) return c.attr_int("heads", 0);
    const int64_t batches = joined_batches(c);
    return all < 0 || batches < 1 ? -1 : all / batches;
  }

  int64_t own_[4];
  std::span<const int64_t> dims_;
};

}  // namespace opgraft
