#include "registry/mindspore_probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

namespace opgraft {
namespace {

constexpr int kSeconds = 5;
constexpr int kTensors = 16;  // the more, the fewer operators read past the end of the lists

// What the child tells its parent, a byte each.
constexpr char kAsksOld = 'o', kAsksNew = 'n', kAsksEither = '?', kReturned = 'r', kMissing = 'm';

// Of the child.
int answer = -1;

[[noreturn]] void tell(char what) {
  (void)!::write(answer, &what, 1);
  ::_exit(0);
}

// AotExtra as an operator sees it.
struct Extra {
  void **vtable;
  std::vector<size_t> workspace;
  void *kernel_data = nullptr;
};
struct Pointed {  // any class: what comes back through a pointer
  uint64_t words[4] = {};
  Pointed() = default;
  Pointed(const Pointed &) = delete;
  ~Pointed() {}
};
void no_delete(Extra *) {}
[[noreturn]] void asked(const void *name) {
  switch (string_abi(name)) {
    case StringAbi::kOld: tell(kAsksOld);
    case StringAbi::kNew: tell(kAsksNew);
    default: tell(kAsksEither);
  }
}
uint64_t number(Extra *, const void *name) { asked(name); }
Pointed pointed(Extra *, const void *name) { asked(name); }

template <class F> void *slot(F *f) { return reinterpret_cast<void *>(f); }
void *const kVtable[] = {nullptr,       nullptr,       slot(no_delete), slot(no_delete), slot(number),
                         slot(number),  slot(number),  slot(number),    slot(pointed),   slot(pointed),
                         slot(pointed), slot(pointed), slot(pointed)};

struct Arguments {
  Extra extra{const_cast<void **>(kVtable + 2), {}};
  std::array<int, kTensors> ndims;
  std::array<int64_t, kTensors> dims;  // any prefix is a shape
  std::array<int64_t *, kTensors> shapes;
  std::array<const char *, kTensors> dtypes;
  std::array<std::array<char, 4096>, kTensors> memory{};
  std::array<void *, kTensors> params;

  Arguments() {
    ndims.fill(2);
    dims.fill(2);
    shapes.fill(dims.data());
    dtypes.fill("float32");
    for (int i = 0; i < kTensors; ++i) params[size_t(i)] = memory[size_t(i)].data();
  }
};
using Types = std::vector<int32_t>;
Types types() { return Types(3, 43); }  // float32

// An error of a function ends the child: it may not have come to where it asks.
void init(void *f, Arguments &a) {
  using Init = int (*)(int *, int64_t **, const char **, void *);
  if (reinterpret_cast<Init>(f)(a.ndims.data(), a.shapes.data(), a.dtypes.data(), &a.extra)) ::_exit(0);
}
void infer_shape(void *f, Arguments &a) {
  reinterpret_cast<Pointed (*)(int *, int64_t **, void *)>(f)(a.ndims.data(), a.shapes.data(), &a.extra);
}
// Nothing tells of how many outputs it is, which decides the type of the result.
void infer_type(void *f, Arguments &a) { reinterpret_cast<int (*)(Types, void *)>(f)(types(), &a.extra); }
void infer_types(void *f, Arguments &a) { reinterpret_cast<Pointed (*)(Types, void *)>(f)(types(), &a.extra); }
void entry(void *f, Arguments &a) {
  using Entry = int (*)(int, void **, int *, int64_t **, const char **, void *, void *);
  // Some look at their number of tensors first.
  for (int n : {2, 3, 4, 5, 6, 7, 8, 1})
    if (!reinterpret_cast<Entry>(f)(n, a.params.data(), a.ndims.data(), a.shapes.data(), a.dtypes.data(), nullptr,
                                    &a.extra))
      return;
  ::_exit(0);
}

using Call = void (*)(void *, Arguments &);
[[noreturn]] void call_part(const std::string &file, const std::string &function, const char *suffix, Call call) {
  void *handle = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);  // as MindSpore does
  if (!handle) ::_exit(0);
  void *f = ::dlsym(handle, (function + suffix).c_str());
  if (!f) tell(kMissing);
  static auto *a = new Arguments;
  try {
    if (void *first = *suffix ? nullptr : ::dlsym(handle, (function + "Init").c_str())) init(first, *a);
    call(f, *a);
  } catch (...) {
    ::_exit(0);
  }
  tell(kReturned);
}

// The byte that `work` tells in a process of its own, or 0 where that ended without one.
template <class Work> char apart(Work &&work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC)) return 0;
  const pid_t pid = ::fork();
  if (!pid) {
    answer = ends[1];
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGTERM, SIGINT}) ::signal(s, SIG_DFL);
    ::setpgid(0, 0);
    const rlimit none{0, 0}, cpu{kSeconds, kSeconds};
    ::setrlimit(RLIMIT_CORE, &none);
    ::setrlimit(RLIMIT_CPU, &cpu);
    if (int null = ::open("/dev/null", O_RDWR); null >= 0)
      for (int fd : {0, 1, 2}) ::dup2(null, fd);
    work();
  }
  ::close(ends[1]);
  char byte = 0;
  if (pid > 0) {
    pollfd ready{ends[0], POLLIN, 0};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kSeconds);
    auto left = [&] {
      auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      return std::max(0, int(rest.count()));
    };
    int got;
    while ((got = ::poll(&ready, 1, left())) < 0 && errno == EINTR) {
    }
    if (got > 0 && ::read(ends[0], &byte, 1) != 1) byte = 0;
    ::kill(-pid, SIGKILL);  // and what it may have started
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  ::close(ends[0]);
  return byte;
}

}  // namespace

bool survives_opening(const std::filesystem::path &file) {
  return apart([&] {
    ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);  // if it fails the caller learns why
    tell(kReturned);
  });
}

Probed probe(const std::filesystem::path &file, const std::string &function) {
  struct Part {
    const char *suffix;
    std::vector<Call> forms;
  };
  const Part parts[] = {
      {"Init", {init}}, {"InferShape", {infer_shape}}, {"InferType", {infer_type, infer_types}}, {"", {entry}}};
  Probed out;
  for (auto &part : parts) {
    bool returned = false;
    for (auto form : part.forms) {
      const char byte = apart([&] { call_part(file.string(), function, part.suffix, form); });
      returned |= byte == kReturned || byte == kMissing;
      if (byte != kAsksOld && byte != kAsksNew && byte != kAsksEither) continue;
      out.asked = true;
      out.abi = byte == kAsksOld ? StringAbi::kOld : byte == kAsksNew ? StringAbi::kNew : StringAbi::kEither;
    }
    if (out.asked || (!returned && out.returned)) out.part = function + part.suffix;
    if (out.asked) break;
    out.returned &= returned;
  }
  return out;
}

}  // namespace opgraft
