// A pool for short parallel loops. Work is handed out in chunks by one atomic counter, so that a core
// taken away by another process costs that core and no more; workers spin briefly, then sleep on a
// futex. A loop that finds the pool busy with another runs on its own thread. No static destructor;
// after fork the child starts workers of its own.
#include "aot_ops/common/threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kMostThreads = 256;
constexpr int kSpins = 4000;  // about 50-100 µs: a model's next loop usually comes sooner

inline void pause() { __builtin_ia32_pause(); }

// How many threads this thread was told that there are: what it has made room for, whatever another sets meanwhile.
thread_local int32_t answered = 0;

struct Pool {
  std::atomic<uint32_t> generation{0};  // futex word: changes with every loop
  std::atomic<int32_t> sleeping{0};
  std::atomic<int32_t> inside{0};  // workers that hold the current loop's arguments
  std::atomic<bool> busy{false};
  std::atomic<bool> open{false};  // workers may join the current loop
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  int64_t n = 0, chunk = 1;
  void (*body)(void *, int64_t, int64_t, int32_t) = nullptr;
  void *arg = nullptr;
  std::atomic<int32_t> wanted{0};
  std::atomic<int32_t> limit{0};  // workers of the current loop are below it
  int32_t started = 1;            // threads that exist, the caller included
  Pool *before = nullptr;         // of the process that this one was forked from

  void work(int32_t worker) {
    const int64_t total = n, size = chunk;
    for (;;) {
      int64_t begin = next.fetch_add(size, std::memory_order_relaxed);
      if (begin >= total) return;
      int64_t end = begin + size < total ? begin + size : total;
      body(arg, begin, end, worker);
      done.fetch_add(end - begin, std::memory_order_release);
    }
  }

  // `seen`: the loops before it was started; the one that started it is the first it joins.
  void serve(int32_t worker, uint32_t seen) {
    for (;;) {
      for (int i = 0; i < kSpins && generation.load(std::memory_order_acquire) == seen; ++i) pause();
      while (generation.load(std::memory_order_acquire) == seen) {
        sleeping.fetch_add(1);
        if (generation.load() == seen) syscall(SYS_futex, &generation, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
        sleeping.fetch_sub(1);
      }
      seen = generation.load(std::memory_order_acquire);
      inside.fetch_add(1);  // sequentially consistent with the owner's close of `open`
      if (open.load() && worker < limit.load()) work(worker);
      inside.fetch_sub(1, std::memory_order_release);
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

  void loop(int64_t total, int64_t grain, void (*f)(void *, int64_t, int64_t, int32_t), void *a) {
    int32_t threads = wanted.load(std::memory_order_relaxed);
    if (answered && answered < threads) threads = answered;
    bool free = false;
    if (threads < 2 || total <= grain || !busy.compare_exchange_strong(free, true)) return f(a, 0, total, 0);
    if (started < threads) start(threads);
    n = total;
    // Four chunks a thread keep the tail short; never below the grain.
    int64_t size = (total + 4 * threads - 1) / (4 * threads);
    chunk = size < grain ? grain : size;
    body = f;
    arg = a;
    next.store(0);
    done.store(0);
    limit.store(threads);
    open.store(true);
    generation.fetch_add(1);
    if (sleeping.load() > 0) syscall(SYS_futex, &generation, FUTEX_WAKE_PRIVATE, threads - 1, nullptr, nullptr, 0);
    work(0);
    for (int i = 0; done.load(std::memory_order_acquire) < total; ++i) i < kSpins ? pause() : (void)sched_yield();
    open.store(false);
    for (int i = 0; inside.load() != 0; ++i) i < kSpins ? pause() : (void)sched_yield();
    busy.store(false, std::memory_order_release);
  }
};

Pool *pool = nullptr;

int32_t machine_threads() {
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
  return n < 1 ? 1 : n < kMostThreads ? n : kMostThreads;
}

Pool *shared() {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] {
    pool = new Pool;
    pool->wanted = machine_threads();
    // A forked child has none of the workers: it gets a fresh pool. The old one is left as it is.
    pthread_atfork(nullptr, nullptr, [] {
      auto *old = pool;
      pool = new Pool;
      pool->wanted = old->wanted.load();
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
      shared()->loop(n, grain, body, arg);
    },
    [](void *) -> int32_t { return answered = shared()->wanted; },
    [](void *, int32_t, const char *message) { std::fprintf(stderr, "opgraft: %s\n", message); }};

}  // namespace

const opgraft_host *opgraft_shared_host(void) { return &kHost; }

int32_t opgraft_set_threads(int32_t n) {
  Pool *p = shared();
  answered = 0;
  p->wanted = n > 0 ? (n < kMostThreads ? n : kMostThreads) : machine_threads();
  return p->wanted;
}
