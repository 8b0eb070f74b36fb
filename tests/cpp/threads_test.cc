// The shared pool: busy, forked, at the end of a process. (ThreadSanitizer runs what is named Threads.)
#include "aot_ops/common/threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine_test_util.h"
#include "infer/native.h"
#include "registry/elf.h"
#include "timing_test_util.h"

namespace opgraft {
namespace {

using Body = std::function<void(int64_t, int64_t, int32_t)>;
constexpr auto kCall = [](void *arg, int64_t begin, int64_t end, int32_t worker) {
  (*static_cast<const Body *>(arg))(begin, end, worker);
};
void parallel_for(int64_t n, int64_t grain, const Body &body) {
  auto *host = opgraft_shared_host();
  host->parallel_for(host->context, n, grain, kCall, const_cast<Body *>(&body));
}
// The same of a call whose tensors have so many bytes.
void parallel_for_bytes(uint64_t bytes, int64_t n, int64_t grain, const Body &body) {
  auto *host = opgraft_shared_host();
  const uint64_t sizes = uint64_t(opgraft_magnitude(bytes)) << 56;
  host->parallel_for_sized(host->context, sizes, n, grain, kCall, const_cast<Body *>(&body));
}

// Whether a loop runs every index once, whether or not its data fit the cores' caches.
bool covers(int64_t n) {
  for (const uint64_t bytes : {0, 4096, 1 << 30}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
    const Body count = [&](int64_t begin, int64_t end, int32_t) {
      for (; begin < end; ++begin) ++seen[size_t(begin)];
    };
    bytes ? parallel_for_bytes(bytes, n, 1, count) : parallel_for(n, 1, count);
    if (!std::all_of(seen.begin(), seen.end(), [](auto &s) { return s == 1; })) return false;
  }
  return true;
}

// A loop whose n chunks wait for each other: it takes n threads, and when it returns they have started. On a machine
// that is busy the pool runs loops on one thread for a while: tried again then, for 20 s.
bool meet(int n) {
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [](auto t) { return std::chrono::steady_clock::now() - t; };
  while (since(begin) < std::chrono::seconds(20)) {
    std::atomic<int> inside{0};
    parallel_for(n, 1, [&](int64_t, int64_t, int32_t) {
      ++inside;
      const auto entered = std::chrono::steady_clock::now();
      while (inside < n && since(entered) < std::chrono::seconds(1)) std::this_thread::yield();
    });
    if (inside == n) return true;
  }
  return false;
}

// Runs `body` in a forked child; its exit code, or -1 where it does not end within 20 s.
int in_child(const std::function<int()> &body) {
  pid_t child = fork();
  if (child == 0) _exit(body());
  for (int i = 0; i < 2000; ++i) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -1;
}

// While it lives, another thread has the pool.
class Occupied {
 public:
  Occupied() {
    while (!running_) std::this_thread::yield();
  }
  ~Occupied() { end(); }
  void end() {
    stop_ = true;
    if (other_.joinable()) other_.join();
  }

 private:
  std::atomic<bool> running_{false}, stop_{false};
  std::thread other_{[this] {
    parallel_for(64, 1, [this](int64_t, int64_t, int32_t) {
      running_ = true;
      while (!stop_) std::this_thread::yield();
    });
  }};
};

class Pool : public testing::Test {
 protected:
  void SetUp() override { opgraft_set_threads(4); }
  void TearDown() override { opgraft_set_threads(0); }
};

TEST_F(Pool, ThreadsShareALoop) {
  EXPECT_TRUE(meet(4));
  EXPECT_TRUE(covers(100'000));
}
TEST_F(Pool, AForkedChildHasWorkersOfItsOwn) {
  // All of the parent's run: AddressSanitizer's locks do not survive a fork while a thread is being made.
  ASSERT_TRUE(meet(4));
  auto shared = [] { return meet(4) && covers(1000) ? 7 : 8; };
  EXPECT_EQ(in_child(shared), 7);
  EXPECT_EQ(in_child([&] { return in_child(shared); }), 7);  // and a child of the child
  EXPECT_TRUE(covers(1000));
}
TEST_F(Pool, ForkWhileALoopRuns) {
  ASSERT_TRUE(meet(4));
  Occupied occupied;
  EXPECT_EQ(in_child([] { return covers(1000) ? 7 : 8; }), 7);
  occupied.end();
  EXPECT_TRUE(covers(1000));
}
TEST_F(Pool, BusyThreadsLeaveALoopToItsCaller) {
  Occupied occupied;
  std::atomic<int> elsewhere{0};
  const auto here = std::this_thread::get_id();
  int64_t total = 0;
  parallel_for(1000, 1, [&](int64_t begin, int64_t end, int32_t worker) {
    elsewhere += std::this_thread::get_id() != here || worker != 0;
    total += end - begin;
  });
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(total, 1000);
}
// Two threads that keep pace, each chunk of 20 µs. A thread may be late: among 200 loops there are such as go by plan.
TEST_F(Pool, EachThreadHasItsOwnHalfOfALoopEveryTime) {
  const auto halves = [](uint64_t bytes) {
    int found = 0;
    for (int again = 0; again < 200; ++again) {
      std::vector<int> who(64, -1);
      parallel_for_bytes(bytes, 64, 1, [&](int64_t begin, int64_t end, int32_t worker) {
        for (; begin < end; ++begin) who[size_t(begin)] = worker;
        spin(std::chrono::microseconds(20));
      });
      found += std::count(who.begin(), who.begin() + 32, 0) == 32 && std::count(who.begin() + 32, who.end(), 1) == 32;
    }
    return found;
  };
  opgraft_set_threads(2);
  ASSERT_TRUE(meet(2));
  EXPECT_EQ(halves(0), 0) << "a loop of whose data nothing is known is shared chunk by chunk";
  EXPECT_WITHIN_20_S([&] { return halves(4096) > 0; });
  const uint64_t beyond_the_caches = uint64_t(1) << 30;
  if (__builtin_cpu_is("intel")) EXPECT_EQ(halves(beyond_the_caches), 0);
  else EXPECT_WITHIN_20_S([&] { return halves(beyond_the_caches) > 0; });
}
TEST_F(Pool, LoopsRunAloneWhileWorkersHoldThemUpAndAreSharedAgainAfterwards) {
  using std::chrono::milliseconds, std::chrono::steady_clock;
  const std::chrono::microseconds work(20), held(3000);
  std::atomic<bool> slow{true}, joined{false};
  auto loop = [&] {
    joined = false;
    parallel_for(16, 1, [&](int64_t begin, int64_t end, int32_t worker) {
      if (worker) joined = true;
      if (worker && slow) std::this_thread::sleep_for(held);  // as a worker whose core was taken
      spin((end - begin) * work);
    });
    return joined.load();
  };
  ASSERT_TRUE(meet(4));
  EXPECT_WITHIN_20_S([&] {
    int loops = 0, shared = 0;
    for (const auto begin = steady_clock::now(); steady_clock::now() - begin < milliseconds(1000); ++loops)
      shared += loop();
    // Alone a loop takes 0.32 ms, held up at least 3: in the red for at least 16 times what sharing lost.
    return shared < loops / 10 && loops > 500;
  });
  slow = false;
  EXPECT_WITHIN_20_S([&] { return loop(); });
}
// The machine itself may stand still for as long: that is no neighbour, and must not cost seconds of one thread.
TEST_F(Pool, AWorkerThatIsHeldUpOnceForHalfASecondIsBackSoon) {
  using std::chrono::milliseconds, std::chrono::steady_clock;
  std::atomic<bool> hold{false}, joined{false};
  auto loop = [&] {
    joined = false;
    parallel_for(64, 1, [&](int64_t begin, int64_t end, int32_t worker) {
      if (worker) joined = true;
      if (worker && hold.exchange(false)) std::this_thread::sleep_for(milliseconds(500));
      spin((end - begin) * std::chrono::microseconds(20));
    });
    return joined.load();
  };
  opgraft_set_threads(2);
  ASSERT_TRUE(meet(2));
  EXPECT_WITHIN_20_S([&] {  // something else may take the core meanwhile
    int shared = 0;
    for (const auto begin = steady_clock::now(); shared < 100 && steady_clock::now() - begin < milliseconds(4000);)
      shared += loop();
    if (!shared) return false;
    for (hold = true; hold;) loop();
    const auto back = steady_clock::now();
    while (!loop() && steady_clock::now() - back < milliseconds(4000)) {
    }
    return steady_clock::now() - back < milliseconds(400);
  });
}
// Whether a loop of n indices, 2 µs each, is shared.
bool shared(int64_t n) {
  std::atomic<bool> joined{false};
  parallel_for(n, 1, [&](int64_t begin, int64_t end, int32_t worker) {
    if (worker) joined = true;
    spin((end - begin) * std::chrono::microseconds(2));
  });
  return joined;
}
TEST_F(Pool, AfterAPauseALoopIsSharedOnlyIfItIsWorthWakingAWorker) {
  ASSERT_TRUE(meet(4));
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  EXPECT_WITHIN_20_S([&] {  // the machine may hold one up, which then seems to be long
    int alone = 0;
    for (int i = 0; i < 20; ++i) pause(), alone += !shared(8);
    return alone > 16;
  });
  EXPECT_WITHIN_20_S([&] { return pause(), shared(2000); });
  EXPECT_WITHIN_20_S([] { return shared(8); });  // one of many that follow each other
}
TEST_F(Pool, AWorkerSleepsOffTheCoreOfTheThreadThatWakesIt) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core";
  opgraft_set_threads(2);
  ASSERT_TRUE(meet(2));
  // The machine may move the owner to another core meanwhile.
  EXPECT_WITHIN_20_S([&] {
    const int core = sched_getcpu();
    std::atomic<int> worker_id{0};
    std::atomic<bool> free{false};
    parallel_for(400, 1, [&](int64_t begin, int64_t end, int32_t worker) {
      cpu_set_t set;
      if (worker && sched_getaffinity(0, sizeof set, &set) == 0) worker_id = gettid(), free = CPU_EQUAL(&set, &all);
      spin((end - begin) * std::chrono::microseconds(10));
    });
    const bool stayed = sched_getcpu() == core;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    cpu_set_t asleep, rest = all;
    CPU_CLR(core, &rest);
    return stayed && free && sched_getaffinity(worker_id, sizeof asleep, &asleep) == 0 && CPU_EQUAL(&asleep, &rest);
  });
  cpu_set_t now;
  ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
  EXPECT_TRUE(CPU_EQUAL(&now, &all));  // the owner's own is as it was
}
TEST_F(Pool, AWorkerMakesRoomForASecondCallerAndComesBack) {
  using std::chrono::milliseconds;
  opgraft_set_threads(2);
  ASSERT_TRUE(meet(2));
  int good = 0, crowded = 0;
  EXPECT_WITHIN_20_S([&] {
    enum { kBefore, kBeside, kAfter };
    std::atomic<int> stage{kBefore}, begun[3]{};  // chunks of the worker
    std::atomic<bool> over{false};
    std::thread second([&] {
      while (!begun[kBefore] && !over) std::this_thread::yield();
      parallel_for(64, 1, [&](int64_t, int64_t, int32_t) {
        spin(milliseconds(2));  // a chunk that it was about to begin
        stage = kBeside;
        spin(milliseconds(20));
        stage = kAfter;
      });
    });
    parallel_for(8, 1, [&](int64_t, int64_t, int32_t worker) {
      begun[stage] += worker != 0;
      spin(milliseconds(10));
    });
    over = true;
    second.join();
    crowded += begun[kBeside] > 0;
    good += begun[kBefore] && !begun[kBeside] && begun[kAfter];
    return good == 5;
  });
  EXPECT_LE(crowded, 1);
}
// Chunks of 160 us; a caller comes at any time, its first chunk may begin beside one of a worker.
TEST_F(Pool, NoWorkerBeginsAChunkBesideAsManyCallersAsThereMayBeThreads) {
  constexpr int kThreads = 2;
  opgraft_set_threads(kThreads);
  ASSERT_TRUE(meet(kThreads));
  EXPECT_WITHIN_20_S([] {
    std::atomic<int> inside{0}, chunks{0}, excess{0};
    const Body body = [&](int64_t begin, int64_t end, int32_t worker) {
      const int at_work = ++inside;
      if (worker) ++chunks, excess += at_work > kThreads;
      spin((end - begin) * std::chrono::microseconds(20));
      --inside;
    };
    const auto call = [&] {
      for (int i = 0; i < 200; ++i) {
        parallel_for(64, 1, body);
        if (i % 3) std::this_thread::sleep_for(std::chrono::microseconds(700));
      }
    };
    std::thread second(call);
    call();
    second.join();
    return chunks > 50 && excess <= chunks / 50;
  });
}
TEST(PoolThreads, AHostSaysHowManyAtMostUnlessTheUserSaysHowMany) {
  const char *const variable = "OPGRAFT_NUM_THREADS";
  const char *const before = std::getenv(variable);
  const std::string value = before ? before : "";
  unsetenv(variable);
  const int own = opgraft_set_threads(0);
  EXPECT_EQ(opgraft_set_host_threads(1), 1);
  EXPECT_EQ(opgraft_set_host_threads(own + 28), own);
  EXPECT_EQ(opgraft_set_threads(3), 3);
  EXPECT_EQ(opgraft_set_host_threads(1), 3);
  EXPECT_EQ(opgraft_set_threads(0), 1);
  setenv(variable, "5", 1);
  EXPECT_EQ(opgraft_set_threads(0), 5);
  if (before) setenv(variable, value.c_str(), 1);
  else unsetenv(variable);
  opgraft_set_host_threads(0);
}
TEST_F(Pool, AProcessMayEndWhileALoopRuns) {
  ASSERT_TRUE(meet(4));
  EXPECT_EQ(in_child([] {
              std::thread([] {
                for (;;) covers(1000);
              }).detach();
              while (!covers(1000)) {
              }
              std::exit(7);  // runs static destructors, of which the pool has none
              return 0;
            }),
            7);
}
TEST(PoolLibrary, RegistersNothingToRunAtExit) {
  std::ifstream in(std::string(OPGRAFT_OPS_DIR) + "/libopgraft_threads.so", std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  Elf elf(bytes);
  for (auto &s : elf.undefined) {
    EXPECT_NE(s.name, "__cxa_atexit");
    EXPECT_NE(s.name, "atexit");
    EXPECT_NE(s.name, "on_exit");
  }
  EXPECT_TRUE(std::any_of(elf.undefined.begin(), elf.undefined.end(), [](auto &s) { return s.name == "syscall"; }));
}

}  // namespace
}  // namespace opgraft
