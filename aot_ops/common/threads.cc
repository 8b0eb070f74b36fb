// A pool for short parallel loops. Work is handed out in chunks by atomic counters, so that a core taken away by
// another process costs that core and no more: one for each thread's share, the same share each time, and then what is
// left of the others'; or one for all, where nothing is known of the data (kept_bytes). Workers spin briefly, then
// sleep on a futex, and keep off their caller's core. A loop that finds the pool busy with another runs on its own
// thread. So does one that is not worth waking a worker for, and one that comes while sharing costs more than it
// brings: see Balance. A host may call from several threads at once: each takes the place of a worker, which leaves its
// loop after the chunk that it is at and comes back when the caller is through. No static destructor; after fork the
// child starts workers of its own.
#include "aot_ops/common/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "aot_ops/common/balance.h"
#include "aot_ops/common/caches.h"
#include "aot_ops/common/chunks.h"
#include "aot_ops/common/loop_times.h"

namespace {

constexpr int kMostThreads = 256;
constexpr int kSpins = 4000;    // about 50-100 µs: a model's next loop usually comes sooner
constexpr long kNap = 100'000;  // ns: of a worker that has made room for a caller
constexpr int64_t kBytes = 4;   // a ns: what one thread gets from memory, and works little on, is more
using opgraft::Balance, opgraft::LoopTimes, opgraft::kSoon, opgraft::kWaking;

inline void pause() { __builtin_ia32_pause(); }

int64_t now(clockid_t clock = CLOCK_MONOTONIC) {
  timespec t;
  clock_gettime(clock, &t);
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Lets the calling worker run where the owner of the loops may, but not on `core`; -1: there too.
void confine(pid_t owner, int32_t core) {
  cpu_set_t set;
  if (owner == 0 || sched_getaffinity(owner, sizeof set, &set) != 0) return;
  if (core >= 0) CPU_CLR(core, &set);
  if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof set, &set);
}

// How many threads this thread was told that there are: what it has made room for, whatever another sets meanwhile.
thread_local int32_t answered = 0;
thread_local pid_t self = 0;  // asked for once

// This thread's last loop, if its time is to be learnt.
struct Ran {
  LoopTimes loop;
  bool shared;
  int64_t begin, end;
};
thread_local std::optional<Ran> previous;

// Of 16 calls about one, at random: where a program's loops take turns it is none of them each time.
bool one_of_16() {
  static thread_local uint32_t dice = 1;
  return (dice = dice * 747796405u + 2891336453u) >> 28 == 0;
}

struct Pool {
  std::atomic<uint32_t> generation{0};  // futex word: changes with every loop
  std::atomic<uint64_t> sleeping{0};    // a bit for each worker
  std::atomic<int32_t> inside{0};       // workers that hold the current loop's arguments
  std::atomic<int32_t> core{-1};        // where the owner of the last loop was
  std::atomic<pid_t> owner{0};          // which thread that is
  opgraft::Spared spared;
  LoopTimes::Slot times[LoopTimes::kSlots];
  std::atomic<bool> busy{false};
  std::atomic<bool> open{false};      // workers may join the current loop
  std::atomic<bool> gave_way{false};  // one of them has left it to make room for a caller
  struct alignas(64) Next {
    std::atomic<int64_t> chunk{0};
  } next[kMostThreads];
  std::atomic<int64_t> done{0};
  opgraft::Chunks chunks;
  void (*body)(void *, int64_t, int64_t, int32_t) = nullptr;
  void *arg = nullptr;
  std::atomic<int32_t> wanted{0};
  std::atomic<int32_t> limit{0};                // workers of the current loop are below it
  alignas(64) std::atomic<int32_t> callers{0};  // threads with a loop that may be shared, this one or their own
  int32_t started = 1;                          // threads that exist, the caller included
  uint64_t kept_bytes = 0;                      // of a thread: up to so many it has the same share every time
  Pool *before = nullptr;                       // of the process that this one was forked from
  Balance balance;

  // Whether the worker's core is for a caller: all of them and the workers before it are as many as there may be.
  bool crowded(int32_t worker) const {
    return worker && worker + callers.load(std::memory_order_relaxed) > wanted.load(std::memory_order_relaxed);
  }

  // Takes the chunks of its own share, then what is left of the others'; how many indices it did. A worker stops where
  // it is crowded.
  int64_t work(int32_t worker) {
    const opgraft::Chunks cut = chunks;
    const int64_t shares = cut.shares(), count = cut.count();
    int64_t mine = 0;
    for (int64_t s = 0; s < shares; ++s) {
      const int64_t share = (worker + s) % shares;
      for (;;) {
        if (crowded(worker)) {
          gave_way.store(true, std::memory_order_relaxed);
          break;
        }
        const int64_t i = next[share].chunk.fetch_add(1, std::memory_order_relaxed);
        if (i >= count) break;
        const int64_t begin = cut.begin(share, i), end = cut.begin(share, i + 1);
        if (begin == end) continue;
        body(arg, begin, end, worker);
        mine += end - begin;
      }
    }
    if (mine) done.fetch_add(mine, std::memory_order_release);
    return mine;
  }

  // Linux takes a core of a virtual machine that has halted for one that is taken: it would wake the worker on the core
  // of the very thread that waits for it, and leave it there. Where it sleeps it may not be woken there, and as soon as
  // it is awake it may run anywhere again.
  void sleep(int32_t worker, uint32_t seen) {
    const uint64_t bit = uint64_t(1) << worker % 64;
    confine(owner.load(), core.load());
    sleeping.fetch_or(bit);
    if (generation.load() == seen)
      syscall(SYS_futex, &generation, FUTEX_WAIT_BITSET_PRIVATE, seen, nullptr, nullptr, folded(bit));
    sleeping.fetch_and(~bit);
    if (sched_getcpu() == core.load()) confine(owner.load(), core.load());  // the owner has moved
    confine(owner.load(), -1);
  }

  // Takes part in the current loop, if it may: `due`. Whether it should come again, as some made room for a caller.
  bool join(int32_t worker, bool &due) {
    inside.fetch_add(1);  // sequentially consistent with the owner's close of `open`
    due = worker < limit.load();
    const bool part = due && open.load();
    if (part) work(worker);
    const bool again = part && gave_way.load(std::memory_order_relaxed);
    inside.fetch_sub(1, std::memory_order_release);
    return again;
  }

  // Of the workers below `threads`: from bits of all, and as the futex has them, which are fewer.
  static uint64_t below(int32_t threads) { return threads < 64 ? (uint64_t(1) << threads) - 2 : ~uint64_t(0); }
  static uint32_t folded(uint64_t bits) { return uint32_t(bits | bits >> 32); }

  // `seen`: the loops before it was started; the one that started it is the first it joins.
  void serve(int32_t worker, uint32_t seen) {
    for (bool due = true;;) {
      for (int i = 0; due && i < kSpins && generation.load(std::memory_order_acquire) == seen; ++i)
        i % 64 || !crowded(worker) ? pause() : (void)(due = false);
      while (generation.load(std::memory_order_acquire) == seen) sleep(worker, seen);
      seen = generation.load(std::memory_order_acquire);
      while (join(worker, due) && generation.load(std::memory_order_relaxed) == seen) {
        const timespec nap{0, kNap};
        nanosleep(&nap, nullptr);
      }
    }
  }

  void start(int32_t threads) {
    for (; started < threads; ++started) {
      pthread_t t;
      struct Start {
        Pool *pool;
        int32_t worker;
        uint32_t seen;
      };
      auto *argument = new Start{this, started, generation.load()};
      auto run = [](void *p) -> void * {
        const Start a = *static_cast<Start *>(p);
        delete static_cast<Start *>(p);
        pthread_setname_np(pthread_self(), "opgraft");
        a.pool->serve(a.worker, a.seen);
        return nullptr;
      };
      if (pthread_create(&t, nullptr, run, argument) != 0) {
        delete argument;
        wanted = started;
        return;
      }
      pthread_detach(t);
    }
  }

  void loop(uint64_t sizes, int64_t total, int64_t grain, void (*f)(void *, int64_t, int64_t, int32_t), void *a) {
    int32_t threads = wanted.load(std::memory_order_relaxed);
    if (answered && answered < threads) threads = answered;
    if (threads < 2 || opgraft::Chunks::uncut(total, grain)) return f(a, 0, total, 0);
    const int32_t others = callers.fetch_add(1);
    share(sizes, total, grain, f, a, std::min(threads, wanted.load(std::memory_order_relaxed) - others), others > 0);
    callers.fetch_sub(1);
  }

  // Among at most so many threads. `beside`: of another caller, so that its time says nothing of what the loop takes.
  void share(uint64_t sizes, int64_t total, int64_t grain, void (*f)(void *, int64_t, int64_t, int32_t), void *a,
             int32_t threads, bool beside) {
    if (threads < 2) return previous.reset(), f(a, 0, total, 0);
    LoopTimes loop_times(times, reinterpret_cast<const void *>(f), sizes, total, grain);
    const bool timed = !loop_times.settled() || one_of_16();
    if (!timed && !previous) return f(a, 0, total, 0);
    const int64_t begin = now();
    if (previous) previous->loop.ran(previous->shared, previous->begin, previous->end, begin);
    previous.reset();
    if (!timed) return f(a, 0, total, 0);
    const auto alone = [&] {
      f(a, 0, total, 0);
      if (!beside) previous = Ran{loop_times, false, begin, now()};
    };
    const int64_t gain = loop_times.gain(threads, begin);
    if (!spared.worth(gain, sleeping.load(std::memory_order_relaxed) & below(threads), begin)) return alone();
    bool free = false;
    if (begin < balance.alone_until.load(std::memory_order_relaxed) || !busy.compare_exchange_strong(free, true))
      return alone();
    const int64_t running = balance.samples() ? now(CLOCK_THREAD_CPUTIME_ID) : -1;
    if (started < threads) start(threads);
    body = f;
    arg = a;
    const bool kept = sizes >> 56 && sizes >> 56 <= opgraft_magnitude(uint64_t(threads) * kept_bytes);
    // What keeps a core at work for long has a fine end; what waits for memory is faster in long runs of it.
    const int64_t time = loop_times.alone();
    const bool fine = sizes >> 56 && time > 0 && sizes >> 56 < opgraft_magnitude(uint64_t(kBytes * time));
    chunks = {total, grain, threads, kept ? threads : 1, fine};
    for (int64_t s = 0; s < chunks.shares(); ++s) next[s].chunk.store(0, std::memory_order_relaxed);
    done.store(0);
    limit.store(threads);
    core.store(sched_getcpu(), std::memory_order_relaxed);
    if (!self) self = gettid();
    owner.store(self, std::memory_order_relaxed);
    gave_way.store(false, std::memory_order_relaxed);
    open.store(true);
    generation.fetch_add(1);
    int64_t awake = begin;
    const bool asleep = sleeping.load() & below(threads);
    if (asleep) {
      balance.wakes(begin);
      syscall(SYS_futex, &generation, FUTEX_WAKE_BITSET_PRIVATE, threads - 1, nullptr, nullptr, folded(below(threads)));
      awake = now();
    }
    const int64_t mine = work(0), worked = now();
    const int64_t taken =
        running < 0 ? -1 : std::max<int64_t>(worked - begin - (now(CLOCK_THREAD_CPUTIME_ID) - running), 0);
    for (int i = 0; done.load(std::memory_order_acquire) < total; ++i) i < kSpins ? pause() : (void)sched_yield();
    open.store(false);
    for (int i = 0; inside.load() != 0; ++i) i < kSpins ? pause() : (void)sched_yield();
    const int64_t end = now();
    if (!gave_way.load(std::memory_order_relaxed)) {
      balance.book(begin, worked, end, taken, mine, total);
      if (mine > 0) loop_times.estimate(int64_t(double(worked - awake) * double(total) / double(mine)));
      // A worker that had to wake came late.
      if (!asleep && !beside && mine < total) previous = Ran{loop_times, true, begin, end};
    }
    busy.store(false, std::memory_order_release);
  }
};

Pool *pool = nullptr;
std::atomic<int32_t> told{0}, of_host{0};  // opgraft_set_threads, opgraft_set_host_threads; 0: nothing

// Of a pool that was not told how many.
int32_t own_threads() {
  if (const char *e = std::getenv("OPGRAFT_NUM_THREADS"))
    if (int v = std::atoi(e); v > 0) return v < kMostThreads ? v : kMostThreads;
  cpu_set_t set;
  int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  if (FILE *f = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    long quota, period;
    if (std::fscanf(f, "%ld %ld", &quota, &period) == 2 && period > 0 && quota > 0) {
      int limit = int((quota + period - 1) / period);
      if (limit < n) n = limit;
    }
    std::fclose(f);
  }
  if (const int32_t most = of_host; most > 0 && most < n) n = most;
  return n < 1 ? 1 : n < kMostThreads ? n : kMostThreads;
}

int32_t threads_now() {
  const int32_t n = told;
  return n > 0 ? std::min(n, kMostThreads) : own_threads();
}

// What the other thread had last comes from its core's cache, or from the L3 beside that core: where two cores of AMD's
// do not share theirs, loops whose shares stay take 0.76 to 0.95 of the time, up to the L3's size, and where they do,
// as long. On Intel's what comes from memory takes 1.05 to 1.17 then: there only what fits the cores' own caches stays.
uint64_t kept_bytes() {
  if (!__builtin_cpu_is("intel")) return ~uint64_t(0) / kMostThreads;
  try {
    return opgraft::own_caches(1);
  } catch (const std::invalid_argument &) {  // the operators that ask say so
    return 0;
  }
}

Pool *shared() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] {
    pool = new Pool;
    pool->wanted = threads_now();
    pool->kept_bytes = kept_bytes();
    // A forked child has none of the workers: it gets a fresh pool. The old one is left as it is.
    pthread_atfork(nullptr, nullptr, [] {
      self = 0;
      auto *old = pool;
      pool = new Pool;
      pool->wanted = old->wanted.load();
      pool->kept_bytes = old->kept_bytes;
      pool->before = old;
    });
  });
  return pool;
}

const opgraft_host kHost = {
    OPGRAFT_HOST_MAGIC,
    sizeof(opgraft_host),
    OPGRAFT_ABI_VERSION,
    nullptr,
    [](void *, int64_t n, int64_t grain, void (*body)(void *, int64_t, int64_t, int32_t), void *arg) {
      shared()->loop(0, n, grain, body, arg);
    },
    [](void *) -> int32_t { return answered = shared()->wanted; },
    [](void *, int32_t, const char *message) { std::fprintf(stderr, "opgraft: %s\n", message); },
    nullptr,
    nullptr,
    [](void *, uint64_t sizes, int64_t n, int64_t grain, void (*body)(void *, int64_t, int64_t, int32_t), void *arg) {
      shared()->loop(sizes, n, grain, body, arg);
    }};

}  // namespace

const opgraft_host *opgraft_shared_host(void) { return &kHost; }

namespace {
int32_t set(std::atomic<int32_t> &which, int32_t n) {
  which = n;
  answered = 0;
  return shared()->wanted = threads_now();
}
}  // namespace

int32_t opgraft_set_threads(int32_t n) { return set(told, n); }
int32_t opgraft_set_host_threads(int32_t n) { return set(of_host, n); }
