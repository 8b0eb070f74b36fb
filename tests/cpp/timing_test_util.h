// Properties of time, on machines that others work on as well.
#pragma once

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

namespace opgraft {

// Spins as a kernel would; the machine may take the core meanwhile.
inline void spin(std::chrono::microseconds time) {
  for (const auto begin = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - begin < time;) {
  }
}
// Whether two threads that spin for 20 ms have a core each. (What is not the guest's own, its host's, is not seen.)
inline bool cores_are_free() {
  const std::chrono::milliseconds time(20);
  std::atomic<int> free{0};
  const auto look = [&] {
    spin(std::chrono::milliseconds(1));  // begun
    timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    spin(time);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    free += double(end.tv_sec - begin.tv_sec) + 1e-9 * double(end.tv_nsec - begin.tv_nsec) > 0.019;
  };
  std::thread other(look);
  look();
  other.join();
  return free == 2;
}
// Whether it holds at some time within 20 s: on a busy machine threads come late. Where others had a core before or
// after each half second in which it did not hold, nothing is known.
enum class Within { kHolds, kNever, kNoCores };
inline Within within_20_s(const std::function<bool()> &holds) {
  using std::chrono::milliseconds, std::chrono::steady_clock;
  Within found = Within::kNoCores;
  bool before = cores_are_free();
  for (const auto begin = steady_clock::now(); steady_clock::now() - begin < milliseconds(20'000);) {
    const auto window = steady_clock::now();
    do {
      if (holds()) return Within::kHolds;
    } while (steady_clock::now() - window < milliseconds(500));
    const bool after = cores_are_free();
    if (before && after) found = Within::kNever;
    before = after;
  }
  return found;
}
#define EXPECT_WITHIN_20_S(...)                                                                    \
  switch (within_20_s(__VA_ARGS__)) {                                                              \
    case Within::kHolds: break;                                                                    \
    case Within::kNever: ADD_FAILURE() << "not within 20 s: " #__VA_ARGS__; break;                 \
    case Within::kNoCores: GTEST_SKIP() << "other processes have the cores: nothing can be timed"; \
  }

}  // namespace opgraft
