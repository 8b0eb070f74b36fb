// What a loop takes on one thread and what it takes shared, learnt as it runs. All times in ns.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "aot_ops/common/balance.h"

namespace opgraft {

// One loop's two times, in a table of its pool. A body may do for each range what it does once for the whole loop, as a
// product that packs its other factor: the pace of a shared loop does not tell what it would take alone. So each is
// measured, and each again in one of 64 spans of time, long enough for the caches to follow the change and for workers
// to wake: the loop that wakes them says nothing. What its thread does until its next loop counts too, up to twice what
// the loop takes alone: it takes longer where the data lie in another core's cache. Loops are told apart by a hash: two
// may be taken for one, and a writer may lose to another. It is a guess.
class LoopTimes {
 public:
  static constexpr int kSlots = 1024;
  static constexpr int64_t kLong = 1'000'000;  // from here on the pace is good enough, and a trial too dear
  static constexpr int64_t kSpan = 1 << 18;    // 0.26 ms, or eight loops
  static constexpr int64_t kBrief = 3'000;     // asking for the time twice takes 0.15 µs and more
  // From above: 36 bits of key, 4 of how often it was measured, 24 of time.
  struct alignas(32) Slot {
    std::atomic<uint64_t> alone{0}, shared{0};  // until the next loop
    std::atomic<uint64_t> length{0};            // alone, until its end
  };

  // sizes: of what the body works on: opgraft_host.parallel_for_sized.
  LoopTimes(Slot *slots, const void *body, uint64_t sizes, int64_t total, int64_t grain) {
    uint64_t h = reinterpret_cast<uintptr_t>(body);
    for (auto v : {sizes, uint64_t(total), uint64_t(grain)}) h = mixed(h ^ v);
    key_ = h & ~(kTime | kCounts);
    slot_ = &slots[h % kSlots];
  }

  // What sharing it among `threads` may save; 0 or less: it runs alone. Unknown loops are worth a try.
  int64_t gain(int32_t threads, int64_t now) const {
    const Time a = read(slot_->alone), s = read(slot_->shared);
    if (a.ns < 0) return kWaking;
    const int64_t ideal = a.ns - a.ns / threads;
    if (a.ns >= kLong) return ideal;
    const int64_t span = std::max(kSpan, int64_t(std::bit_ceil(uint64_t(8 * a.ns))));
    const uint64_t one_of_64 = mixed(uint64_t(now / span)) >> 58;
    if (one_of_64 == 1) return 0;
    // One that sharing neither speeds up nor slows down by much may only have met a time in which all cores were one:
    // 64 spans of a long loop would be half a second.
    const bool level = a.ns >= kSoon && s.ns <= a.ns + a.ns / 8;
    if (one_of_64 == 0 || (one_of_64 < 8 && (s.count < kSure || level))) return ideal;
    // What brings less than a tenth of its time is not worth the other core.
    return s.count < kFew ? ideal : a.count < kFew / 2 ? 0 : a.ns - a.ns / 10 - s.ns;
  }

  // Whether it is short, and known to gain nothing: asking for the time takes a tenth of it.
  bool settled() const {
    const Time a = read(slot_->alone), s = read(slot_->shared), length = read(slot_->length);
    return length.ns < kBrief && a.count >= kSure && s.count >= kFew && a.ns - a.ns / 10 <= s.ns;
  }

  // What it takes on one thread; less than 0: not known.
  int64_t alone() const { return read(slot_->alone).ns; }

  // `pace`: what a shared loop would have taken alone at the speed of one of its threads.
  void estimate(int64_t pace) {
    if (!read(slot_->alone).count) write(slot_->alone, {pace, 0});
  }

  // A run from `begin` to `end` is over, and its thread begins its next loop at `next`: soon, or the run says nothing
  // of loops in a row.
  void ran(bool shared, int64_t begin, int64_t end, int64_t next) {
    if (next - end > kSoon) return;
    if (!shared) fold(slot_->length, end - begin);
    const Time length = read(slot_->length);  // the same limit for both
    const int64_t pause = 2 * (length.count ? length.ns : end - begin);
    fold(shared ? slot_->shared : slot_->alone, std::min(next, end + pause) - begin);
  }

 private:
  struct Time {
    int64_t ns;
    uint64_t count;
  };
  static constexpr uint64_t kFew = 4;
  static constexpr uint64_t kSure = 15;  // the first runs may have met a neighbour: until then it is shared more often
  static constexpr uint64_t kTime = (1u << 24) - 1, kCounts = kSure << 24;  // kSure: all bits of a count
  static uint64_t mixed(uint64_t h) { return h *= 0x9e3779b97f4a7c15u, h ^ h >> 32; }

  Time read(const std::atomic<uint64_t> &word) const {
    const uint64_t v = word.load(std::memory_order_relaxed);
    if (!v || (v & ~(kTime | kCounts)) != key_) return {-1, 0};
    return {int64_t(v & kTime), (v & kCounts) >> 24};
  }
  void write(std::atomic<uint64_t> &word, Time t) const {
    const auto ns = uint64_t(std::clamp<int64_t>(t.ns, 1, kTime));
    word.store(key_ | std::min(t.count, kSure) << 24 | ns, std::memory_order_relaxed);
  }
  // A quarter of the way, up by little: what held a loop up once is mostly not its own.
  void fold(std::atomic<uint64_t> &word, int64_t ns) const {
    Time t = read(word);
    const int64_t more = ns - t.ns;
    if (!t.count || (t.count < kFew && more < 0)) return write(word, {ns, t.count + 1});  // the first ones are cold
    write(word, {t.ns + std::min(more, t.ns / 4) / 4, t.count + 1});
  }

  uint64_t key_;
  Slot *slot_;
};

}  // namespace opgraft
