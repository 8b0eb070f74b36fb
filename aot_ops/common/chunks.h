// How the pool of threads.cc cuts a loop.
#pragma once

#include <algorithm>
#include <cstdint>

namespace opgraft {

// [0, n) in `shares` even shares, each in even chunks: four for each of its threads. `fine`: the last one of which is
// cut in two again, so that who is through early has something to take; in four, parts of one image or block of rows
// change cores too often (Conv 3x3 of 8 images 1.03 of the time). None is below two thirds of the grain.
class Chunks {
 public:
  static constexpr int64_t kEach = 4, kFiner = 2;

  // Whether [0, n) is one chunk, however many threads there are.
  static bool uncut(int64_t n, int64_t grain) {
    grain = std::max<int64_t>(grain, 1);
    return n - grain < grain - grain / 2;
  }

  Chunks() = default;
  Chunks(int64_t n, int64_t grain, int64_t threads, int64_t shares, bool fine) : n_(n) {
    grain = std::max<int64_t>(grain, 1);
    const auto most = [grain](int64_t length) { return std::max<int64_t>((length + grain / 2) / grain, 1); };
    shares_ = std::min(shares, most(n));
    const int64_t share = n / shares_, each = std::max<int64_t>(threads / shares_, 1), whole = kEach * each;
    whole_ = std::min(most(share), whole);
    if (!fine || most(share) <= whole) return;
    whole_ -= each;
    fine_ = std::clamp(most(share * each / whole), each, kFiner * each);
    each_ = each;
  }

  int64_t shares() const { return shares_; }
  int64_t count() const { return whole_ + fine_; }  // of a share
  // Where chunk i of a share begins, and chunk i - 1 ends.
  int64_t begin(int64_t share, int64_t i) const {
    const int64_t from = share * n_ / shares_, length = (share + 1) * n_ / shares_ - from;
    const int64_t last = fine_ ? length * each_ / (whole_ + each_) : 0;  // of these the finer ones are made
    if (i <= whole_) return from + cut(length - last, whole_, i);
    return from + length - last + cut(last, fine_, i - whole_);
  }

 private:
  // The end of `i` of `parts` even parts, the larger ones first.
  static int64_t cut(int64_t length, int64_t parts, int64_t i) {
    return i * (length / parts) + std::min(i, length % parts);
  }

  int64_t n_ = 0, shares_ = 1, whole_ = 1, fine_ = 0, each_ = 0;
};

}  // namespace opgraft
