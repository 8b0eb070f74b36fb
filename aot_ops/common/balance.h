// When the pool of threads.cc shares a loop: what sharing won or lost, summed. All times in ns.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace opgraft {

// A worker that sleeps comes some 25 µs after the loop, and waking it costs its caller 10: a loop is worth that if its
// threads save more. Shorter ones are shared where so many follow each other, `kSoon`, that they add up to it.
constexpr int64_t kWaking = 30'000, kSoon = 100'000;

// What the loops since the last pause might have saved, had a worker been awake. Written by all threads: a guess.
class Spared {
 public:
  // Whether a loop that begins now, and that sharing saves `gain`, is worth it, where a worker may have to wake first.
  bool worth(int64_t gain, bool asleep, int64_t begin) {
    if (begin - last_.exchange(begin, std::memory_order_relaxed) > kSoon) sum_.store(0, std::memory_order_relaxed);
    if (gain <= 0 || !asleep) return gain > 0;
    const int64_t sum = sum_.load(std::memory_order_relaxed) + gain;
    sum_.store(sum, std::memory_order_relaxed);
    return sum >= kWaking;
  }

 private:
  std::atomic<int64_t> last_{0};  // when the last loop began that could be shared
  std::atomic<int64_t> sum_{0};
};

// Whether sharing loops pays. A worker whose core another process has taken holds its chunk for
// milliseconds, and spins in the owner's place where both have one core left. What sharing won or lost
// is summed; in the red, loops run on their own thread for a time many times the loss, then sharing is
// tried again. Written by the owner of the pool only.
struct Balance {
  static constexpr int64_t kMost = 2'000'000;  // won time that is remembered: a hiccup of the machine uses it up
  // Times the loss; doubled until sharing pays again, up to kSome where each try lost less than kLeast: a worker that
  // only took long to wake.
  static constexpr int64_t kFirst = 4, kSome = 16, kLast = 256;
  // A loss counts as this much at least and at most: a machine that stood still for a while has not lost a core.
  static constexpr int64_t kLeast = 200'000, kWorst = 8'000'000;
  static constexpr int kSample = 8;  // one loop of so many asks for the owner's CPU time; all do until sharing has won
  std::atomic<int64_t> alone_until{0};
  int64_t sum = kMost, factor = kFirst, streak = 0;
  int64_t tried = INT64_MIN / 2;  // when the first loop began that was shared again, or woke workers; 0: none yet
  uint32_t loops = 0;

  bool proven() const { return sum >= kLeast; }
  bool samples() { return !proven() || ++loops % kSample == 0; }
  // Workers that sleep are woken: a new try, unless one has just begun and they have not come yet.
  void wakes(int64_t begin) {
    if (begin - tried > 8 * kSoon) tried = begin;
  }
  // The owner did `mine` of `total` indices from `begin` to `worked`, then waited for the others until `end`; `taken`
  // of the former it was not running, or -1: not asked.
  void book(int64_t begin, int64_t worked, int64_t end, int64_t taken, int64_t mine, int64_t total) {
    const int64_t own = worked - begin, wait = end - worked, lost = std::max<int64_t>(taken, 0);
    // The workers have slept since: the loops that they miss while they wake say nothing.
    if (!tried) tried = begin;
    if (mine == total && worked - tried < kSoon && wait + lost < kWaking) return;
    // Alone, it would have done the others' indices at its own pace.
    const int64_t alone = mine > 0 ? int64_t(double(own - lost) * double(total - mine) / double(mine)) : own + wait;
    int64_t won = alone - wait - lost;
    // Without knowing what was taken only a loss is sure; those that know stand for the others.
    won = taken < 0 ? std::min<int64_t>(won, 0) : proven() ? kSample * won : won;
    sum = std::min(sum + won, kMost);
    if (won > 0 && (streak += won) > 2 * kMost) factor = kFirst;
    if (sum >= 0) return;
    alone_until.store(end + factor * std::clamp(-sum, kLeast, kWorst), std::memory_order_relaxed);
    factor = std::max(factor, std::min(2 * factor, -sum < kLeast ? kSome : kLast));
    sum = streak = tried = 0;
  }
};

}  // namespace opgraft
