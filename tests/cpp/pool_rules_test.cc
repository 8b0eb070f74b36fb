// What the shared pool decides by: what sharing cost and brought, the times of each loop, and what kernels tell of it.
#include "aot_ops/common/balance.h"
#include "aot_ops/common/chunks.h"
#include "aot_ops/common/loop_times.h"
#include "aot_ops/common/partition.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine_test_util.h"
#include "infer/native.h"

namespace opgraft {
namespace {

// Times in µs; the owner does `mine` of 16 indices.
void book(opgraft::Balance &balance, int64_t begin, int64_t own, int64_t wait, int64_t mine) {
  const int64_t ns = 1000, taken = balance.samples() ? 0 : -1;
  balance.book(begin * ns, (begin + own) * ns, (begin + own + wait) * ns, taken, mine, 16);
}
// Its worker sleeps by then, and such a loop is over before it has come.
TEST(PoolBalance, ShortLoopsAreSharedAgainAfterALoss) {
  opgraft::Balance balance;
  book(balance, 1000, 60, 250'000, 8);  // as a process that was stopped
  int64_t at = balance.alone_until / 1000;
  EXPECT_EQ(at, 1000 + 60 + 250'000 + 4 * 8000);
  const int64_t until = balance.alone_until;
  book(balance, at, 60, 1, 16), book(balance, at + 70, 20, 1, 16);
  EXPECT_EQ(balance.alone_until, until) << "what the worker missed while it woke counts as a loss";
  for (int i = 0; i < 4; ++i) book(balance, at += 100, 60, 2, 8);  // 58 each
  EXPECT_TRUE(balance.proven()) << "not every loop's gain is seen";
  for (int i = 0; i < 50; ++i) book(balance, at += 100, 60, 2, i % 8 ? 8 : 16);  // now and then it comes late
  EXPECT_EQ(balance.alone_until, until);
}
TEST(PoolBalance, AWorkerThatDoesNotComeOrHoldsLoopsUpIsALoss) {
  opgraft::Balance balance;
  book(balance, 1000, 60, 3000, 8);
  const int64_t first = balance.alone_until;
  EXPECT_EQ(first / 1000, 1000 + 60 + 3000 + 4 * (3000 - 60 - 2000));
  int64_t at = first / 1000;
  for (int i = 0; i < 4; ++i) book(balance, at + i * 60, 60, 1, 16);
  const int64_t second = balance.alone_until;
  EXPECT_GE(second, first + 8 * 200'000) << "it never came";
  at = second / 1000;
  book(balance, at, 60, 3000, 16);
  EXPECT_GE(balance.alone_until, second + 16 * 2'900'000) << "the first loop is free only if nothing is lost";
}
TEST(PoolBalance, AWorkerThatOnlyTakesLongToWakeKeepsLoopsAloneForMillisecondsAtMost) {
  opgraft::Balance balance;
  book(balance, 1000, 60, 3000, 8);
  for (int i = 0; i < 20; ++i) {
    const int64_t at = balance.alone_until / 1000;
    book(balance, at, 120, 8, 16);  // it had not come after 120 us; 8 were lost
    EXPECT_LE(balance.alone_until / 1000 - at - 128, 16 * 200);
  }
  const int64_t at = balance.alone_until / 1000;
  book(balance, at, 60, 3000, 8);
  EXPECT_LE(balance.alone_until / 1000 - at - 3060, 16 * 3000);
}
TEST(PoolSpared, WorkersWakeWhereLoopsThatGainAddUp) {
  opgraft::Spared spared;
  const int64_t gain = opgraft::kWaking / 3 + 1, soon = opgraft::kSoon / 2;
  EXPECT_TRUE(spared.worth(1, false, 0)) << "it is awake";
  EXPECT_FALSE(spared.worth(0, false, 0));
  EXPECT_FALSE(spared.worth(gain, true, 0));
  EXPECT_FALSE(spared.worth(gain, true, soon));
  EXPECT_TRUE(spared.worth(gain, true, 2 * soon));
  EXPECT_FALSE(spared.worth(0, true, 3 * soon)) << "a loop that gains nothing wakes nobody, whatever others might save";
  EXPECT_FALSE(spared.worth(-gain, true, 4 * soon));
  EXPECT_TRUE(spared.worth(gain, true, 5 * soon));
  EXPECT_FALSE(spared.worth(gain, true, 9 * soon)) << "a pause: they would sleep again";
}
// A loop of 20 us that has run alone and shared; `gap`, `pause`: from it to the next loop, shared and alone.
struct LoopTimesOf20us {
  LoopTimesOf20us(int64_t shared, int64_t gap, int64_t pause = 5000) {
    for (int i = 0; i < 16; ++i) {
      times.ran(true, 0, shared, shared + gap);
      times.ran(false, 0, 20'000, 20'000 + pause);
    }
  }
  int gains() const {  // of 256 spans
    int n = 0;
    for (int64_t i = 0; i < 256; ++i) n += times.gain(2, i * opgraft::LoopTimes::kSpan) > 0;
    return n;
  }
  opgraft::LoopTimes::Slot slots[opgraft::LoopTimes::kSlots];
  opgraft::LoopTimes times{slots, &slots, 0, 100, 1};
};
TEST(PoolLoopTimes, ALoopThatIsSlowerSharedRunsAloneButForTrials) {
  EXPECT_GT(LoopTimesOf20us(12'000, 5000).gains(), 240);
  const int trials = LoopTimesOf20us(24'000, 5000).gains();
  EXPECT_LT(trials, 16);
  EXPECT_GT(trials, 0);
  EXPECT_LT(LoopTimesOf20us(15'000, 15'000).gains(), 16) << "what follows the loop is slower by more than it saves";
  EXPECT_LT(LoopTimesOf20us(10'000, 19'000, 8000).gains(), 16) << "and by more than the loop itself takes";
  EXPECT_GT(LoopTimesOf20us(12'000, 1'100'000, 1'000'000).gains(), 240)
      << "a run with a long pause behind it does not count";
}
TEST(PoolLoopTimes, AShortLoopThatGainsNothingIsSettled) {
  const auto settled = [](int64_t alone, int64_t shared, int runs, int trials) {
    LoopTimes::Slot slots[LoopTimes::kSlots];
    LoopTimes loop(slots, slots, 0, 1000, 10);
    for (int i = 0; i < runs; ++i) loop.ran(false, 0, alone, alone);
    for (int i = 0; i < trials; ++i) loop.ran(true, 0, shared, shared);
    return loop.settled();
  };
  EXPECT_TRUE(settled(2000, 2500, 20, 8));
  EXPECT_TRUE(settled(2000, 1900, 20, 8)) << "less than a tenth is not worth the other core";
  EXPECT_FALSE(settled(2000, 1500, 20, 8));
  EXPECT_FALSE(settled(20'000, 25'000, 20, 8)) << "asking for the time is little beside it";
  EXPECT_FALSE(settled(2000, 2500, 8, 8)) << "not sure yet";
  EXPECT_FALSE(settled(2000, 2500, 20, 2)) << "not tried often enough";
  EXPECT_FALSE(settled(2000, 2500, 0, 0));
}
TEST(PoolLoopTimes, ALoopThatMetANeighbourInItsFirstRunsIsSharedSoon) {
  constexpr int64_t kSpan = opgraft::LoopTimes::kSpan;
  int loops = 0, shared = 0;
  for (int64_t start = 1; start <= 32; ++start) {
    opgraft::LoopTimes::Slot slots[opgraft::LoopTimes::kSlots];
    opgraft::LoopTimes times(slots, &slots, 0, 100, 1);
    for (int i = 0; i < 4; ++i) times.ran(true, 0, 40'000, 41'000);
    for (int i = 0; i < 2; ++i) times.ran(false, 0, 20'000, 21'000);
    const int64_t begin = 1000 * start * kSpan;
    for (int64_t t = begin; t < begin + 64 * kSpan;) {
      const bool share = times.gain(2, t) > 0;
      const int64_t end = t + (share ? 12'000 : 20'000);
      times.ran(share, t, end, end + 1000);
      if (t > begin + 32 * kSpan) ++loops, shared += share;
      t = end + 1000;
    }
  }
  EXPECT_GT(shared, loops * 9 / 10) << "8 ms later, wherever it begins";
}
// As when all virtual cores are one real one for some seconds, and a loop of a third of a millisecond learns it.
TEST(PoolLoopTimes, ALongLoopThatSharingBroughtNothingIsSharedSoonWhereItDoesAgain) {
  constexpr int64_t kAlone = 300'000, kBetter = 160'000, kGap = 1000;
  double waited = 0;
  for (int64_t start = 1; start <= 32; ++start) {
    opgraft::LoopTimes::Slot slots[opgraft::LoopTimes::kSlots];
    opgraft::LoopTimes times(slots, &slots, 0, 100, 1);
    for (int i = 0; i < 32; ++i) times.ran(true, 0, kAlone, kAlone + kGap), times.ran(false, 0, kAlone, kAlone + kGap);
    const int64_t begin = 1'000'000'000 * start;
    int64_t t = begin;
    for (int in_a_row = 0; in_a_row < 64 && t < begin + 2'000'000'000;) {  // for longer than a trial
      const bool share = times.gain(2, t) > 0;
      const int64_t end = t + (share ? kBetter : kAlone);
      times.ran(share, t, end, end + kGap);
      in_a_row = share ? in_a_row + 1 : 0, t = end + kGap;
    }
    waited += double(t - begin) / 32;
  }
  EXPECT_LT(waited, 100e6) << "ns, on an average";
  opgraft::LoopTimes::Slot slots[opgraft::LoopTimes::kSlots];
  opgraft::LoopTimes times(slots, &slots, 0, 100, 1);
  for (int i = 0; i < 32; ++i) times.ran(true, 0, kAlone * 3 / 2, kAlone * 3 / 2), times.ran(false, 0, kAlone, kAlone);
  int trials = 0;
  for (int64_t i = 0; i < 20'000; ++i) trials += times.gain(2, i * kAlone) > 0;
  EXPECT_LT(trials, 20'000 / 32) << "one that sharing slows down stays alone";
  EXPECT_GT(trials, 0);
}
// Single calls, as when results are checked, then many in a row: the times of both would not compare.
TEST(PoolLoopTimes, RunsWithLongPausesBehindThemSayNothingOfLoopsInARow) {
  opgraft::LoopTimes::Slot slots[opgraft::LoopTimes::kSlots];
  opgraft::LoopTimes times(slots, &slots, 0, 100, 1);
  for (int i = 0; i < 8; ++i) times.ran(true, 0, 300'000, 3'000'000);
  for (int i = 0; i < 2; ++i) times.ran(true, 0, 300'000, 310'000), times.ran(false, 0, 550'000, 560'000);
  int shared = 0;
  for (int64_t i = 0; i < 256; ++i) shared += times.gain(2, i << 23) > 0;
  EXPECT_GT(shared, 240);
}
// The pace of a shared loop that waits for memory is that of two; here it is now above, now below what is long.
TEST(PoolLoopTimes, APaceDoesNotReplaceWhatWasMeasured) {
  opgraft::LoopTimes::Slot slots[opgraft::LoopTimes::kSlots];
  opgraft::LoopTimes times(slots, &slots, 0, 100, 1);
  times.estimate(990'000);
  EXPECT_EQ(times.alone(), 990'000);
  times.ran(false, 0, 700'000, 700'000);
  times.estimate(opgraft::LoopTimes::kLong + 1);
  EXPECT_EQ(times.alone(), 700'000);
}
TEST(PoolLoopTimes, ATrialLastsForSeveralRunsOfALongLoop) {
  opgraft::LoopTimes::Slot slots[opgraft::LoopTimes::kSlots];
  opgraft::LoopTimes times(slots, &slots, 0, 100, 1);
  const int64_t length = 500'000;  // longer than a span: in one the first run may be the one that wakes the workers
  for (int i = 0; i < 8; ++i) times.ran(true, 0, length, length), times.ran(false, 0, length, length);
  int trials = 0, running = 0;
  for (int64_t i = 0; i < 20'000; ++i) {
    const bool shared = times.gain(2, i * length) > 0;
    if (!shared && running) {
      EXPECT_GE(running, 7) << "at " << i;
    }
    running = shared ? running + 1 : 0, trials += running == 1;
  }
  EXPECT_GT(trials, 10);
}
TEST(PoolLoopTimes, LoopsOfOneBodyAreToldApartByWhatTheyWorkOn) {
  opgraft::LoopTimes::Slot slots[opgraft::LoopTimes::kSlots];
  const auto loop = [&](uint64_t sizes) { return opgraft::LoopTimes(slots, &slots, sizes, 8, 1); };
  for (int i = 0; i < 16; ++i) loop(1).ran(true, 0, 30'000, 31'000), loop(1).ran(false, 0, 20'000, 21'000);
  int known = 0;
  for (int64_t i = 0; i < 256; ++i) known += loop(1).gain(2, i * opgraft::LoopTimes::kSpan) <= 0;
  EXPECT_GT(known, 240);
  EXPECT_EQ(loop(2).gain(2, 0), opgraft::kWaking) << "a loop that was never seen is worth a try";
}
// By a kernel: what the loop works on, to a quarter of an octave; a host of 1.1 has no word for it.
TEST(PoolLoopTimes, TheHostIsToldTheSizesOfWhatALoopWorksOn) {
  using Run = void (*)(void *, int64_t, int64_t, int32_t);
  static uint64_t told;
  static int64_t indices, chunk;
  opgraft_host stub = *host();
  stub.threads = [](void *) { return 2; };
  stub.parallel_for = [](void *, int64_t n, int64_t, Run body, void *arg) { told = 0, body(arg, 0, n, 0); };
  stub.parallel_for_sized = [](void *, uint64_t sizes, int64_t n, int64_t grain, Run body, void *arg) {
    told = sizes, indices = n, chunk = grain, body(arg, 0, n, 0);
  };
  auto sizes = [&](int64_t n) {
    std::vector<float> x(size_t(n), 1.0f), y(size_t(n), 0.0f);
    opgraft_tensor in{x.data(), &n, 1, OPGRAFT_FLOAT32, n}, out{y.data(), &n, 1, OPGRAFT_FLOAT32, n};
    opgraft_call call{};
    call.struct_size = sizeof call;
    call.n_inputs = call.n_outputs = 1;
    call.inputs = &in, call.outputs = &out, call.host = &stub;
    EXPECT_EQ(test::ops().resolve("Neg")->native->kernel(&call), OPGRAFT_OK);
    EXPECT_EQ(y.back(), -1.0f);
    return told;
  };
  const uint64_t some = sizes(1 << 20);
  EXPECT_EQ(some >> 56, opgraft_magnitude(2 * 4 << 20));
  EXPECT_NE(some << 8, 0u);
  EXPECT_EQ(sizes((1 << 20) + 1000), some);
  EXPECT_NE(sizes(1 << 21), some);
  const auto amounts = [&](uint64_t amount) {  // where the shapes are the same
    opgraft_call call{};
    call.host = &stub;
    const Context c("Neg", call);
    int done = 0;
    partition::run_shares(
        c, 100, 1, [&](int64_t, int) { ++done; }, amount);
    EXPECT_EQ(done, 100);
    EXPECT_EQ(indices, 2 * chunk) << "a chunk a share";
    return told;
  };
  EXPECT_EQ(amounts(210'000), amounts(210'001));
  EXPECT_NE(amounts(210'000), amounts(1'250'000));
  EXPECT_NE(amounts(210'000), amounts(0));
  stub.struct_size = offsetof(opgraft_host, parallel_for_sized);
  EXPECT_EQ(sizes(1 << 20), 0u);
}
TEST(PoolLoopTimes, AMagnitudeIsALogarithmInQuartersOfAnOctave) {
  EXPECT_EQ(opgraft_magnitude(0), 0u);
  EXPECT_EQ(opgraft_magnitude(1 << 20) - opgraft_magnitude(1 << 19), 4u);
  EXPECT_EQ(opgraft_magnitude(5 << 18) - opgraft_magnitude(1 << 20), 1u);
  EXPECT_LT(opgraft_magnitude(~uint64_t(0) >> 1), 256u);
  for (uint64_t n = 1; n < 5000; ++n) ASSERT_LE(opgraft_magnitude(n - 1), opgraft_magnitude(n));
}

TEST(PoolChunks, EveryIndexIsInOneChunkAndNoneIsBelowTwoThirdsOfTheGrain) {
  for (int64_t n : {1, 2, 7, 12, 33, 100, 132, 4097, 1 << 20})
    for (int64_t grain : {1, 2, 3, 10, 64, 5000})
      for (int64_t threads : {2, 3, 8, 64})
        for (int64_t option : {0, 1, 2, 3}) {
          if (n <= grain) continue;  // runs on its own thread
          const int64_t shares = option & 1 ? threads : 1;
          SCOPED_TRACE(testing::Message() << n << " of " << grain << ", " << threads << " threads, option " << option);
          const Chunks cut(n, grain, threads, shares, option & 2);
          ASSERT_LE(cut.shares(), shares);
          int64_t at = 0;
          for (int64_t share = 0; share < cut.shares(); ++share)
            for (int64_t i = 0; i < cut.count(); ++i) {
              ASSERT_EQ(cut.begin(share, i), at);
              at = cut.begin(share, i + 1);
              ASSERT_GE(3 * (at - cut.begin(share, i)), 2 * grain - 2);  // less what whole indices leave
            }
          ASSERT_EQ(at, n);
        }
}
TEST(PoolChunks, WhatMakesOneChunkIsKnownBefore) {
  for (int64_t grain : {0, 1, 2, 3, 7, 8192})
    for (int64_t n : {0, 1, 2, 3, 4, 5, 8, 10, 11, 8192, 12287, 12288, 12289, 100'000})
      for (int64_t threads : {2, 3, 16})
        for (int64_t shares : {int64_t(1), threads}) {
          const Chunks cut(n, grain, threads, shares, true);
          EXPECT_EQ(Chunks::uncut(n, grain), cut.shares() * cut.count() == 1) << n << " by " << grain;
        }
}
TEST(PoolChunks, AShareOfLongWorkEndsInSmallChunks) {
  const Chunks all(3200, 1, 2, 1, true), halves(3200, 1, 2, 2, true);
  const auto sizes = [](const Chunks &cut, int64_t share) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < cut.count(); ++i) all.push_back(cut.begin(share, i + 1) - cut.begin(share, i));
    return all;
  };
  const std::vector<int64_t> half{400, 400, 400, 200, 200};
  EXPECT_EQ(sizes(all, 0), (std::vector<int64_t>{400, 400, 400, 400, 400, 400, 200, 200, 200, 200}));
  ASSERT_EQ(halves.shares(), 2);
  EXPECT_EQ(sizes(halves, 0), half);
  EXPECT_EQ(sizes(halves, 1), half);
  EXPECT_EQ(halves.begin(1, 0), 1600);
  EXPECT_EQ(sizes(Chunks(3200, 300, 2, 1, true), 0),
            (std::vector<int64_t>{400, 400, 400, 400, 400, 400, 267, 267, 266}));
  EXPECT_EQ(sizes(Chunks(3200, 1, 2, 2, false), 1), (std::vector<int64_t>{400, 400, 400, 400}));
  EXPECT_EQ(sizes(Chunks(33, 4, 2, 1, true), 0), (std::vector<int64_t>{5, 4, 4, 4, 4, 4, 4, 4}));
}

}  // namespace
}  // namespace opgraft
