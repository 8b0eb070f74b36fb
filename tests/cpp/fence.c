// Preloaded into the Python tests (tests/stages.sh): aligned memory, as plans, sessions and kernels take it for
// outputs, packed constants and workspaces, ends at a page that cannot be touched, so that the process ends at the
// instruction that goes past it; AddressSanitizer does not see masked loads and tiles. Bytes are 0xff, NaNs as each
// floating type: what nobody wrote shows in a result. Freed, its pages cannot be touched either, and what lies before
// it is looked at.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { kLine = 64, kPage = 4096 };
static const uint64_t kRegion = (uint64_t)4 << 40, kMark = 0x6f706772616674fe;

// Right before the memory.
struct head {
  uint64_t bytes, pages, mark;
};

static char *region;            // null where a process has too few addresses for it: memory is as ever
static _Atomic uint64_t taken;  // bytes of the region, each given once

// -> how much of it was given.
uint64_t fence_taken(void) { return taken; }

static void fail(const char *what) {
  fprintf(stderr, "fence: %s\n", what);
  abort();
}

static char *pages_at(char *p, uint64_t count, int access) {
  return mmap(p, count * kPage, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (p ? MAP_FIXED : 0), -1, 0);
}

__attribute__((constructor)) static void reserve(void) {
  if (!region && (region = pages_at(NULL, kRegion / kPage, PROT_NONE)) == MAP_FAILED) region = NULL;
}

static int is_fenced(void *p) { return p && region && (uint64_t)((char *)p - region) < kRegion; }

// To a cache line at most: what asks for more, for its speed, would not end where its memory does.
static void *take(uint64_t alignment, uint64_t bytes) {
  if (alignment > kLine) alignment = kLine;
  if (bytes > kRegion / 64) return NULL;
  const uint64_t room = (bytes + alignment - 1) / alignment * alignment, pages = (room + kLine + kPage - 1) / kPage;
  const uint64_t at = atomic_fetch_add(&taken, (pages + 1) * kPage);
  if (at + (pages + 1) * kPage > kRegion) return NULL;
  char *const first = region + at, *const p = first + pages * kPage - room;
  if (mprotect(first, pages * kPage, PROT_READ | PROT_WRITE)) return NULL;
  memset(first, 0xff, pages * kPage);
  const struct head head = {bytes, pages, kMark};
  memcpy(p - sizeof head, &head, sizeof head);
  return p;
}

static struct head head_of(char *p) {
  struct head head;
  memcpy(&head, p - sizeof head, sizeof head);
  if (head.mark != kMark) fail("something wrote before the memory that is freed");
  return head;
}

static void give_back(char *p) {
  const struct head head = head_of(p);
  char *const end = region + ((uint64_t)(p - region) + head.bytes + kPage - 1) / kPage * kPage;
  if (pages_at(end - head.pages * kPage, head.pages, PROT_NONE) == MAP_FAILED) fail("pages cannot be given back");
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  static void *(*next)(size_t, size_t);
  if (!region) {
    if (!next) next = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    return next(alignment, bytes);
  }
  void *p = take(alignment, bytes);
  if (!p) errno = ENOMEM;
  return p;
}

int posix_memalign(void **to, size_t alignment, size_t bytes) {
  static int (*next)(void **, size_t, size_t);
  if (!region) {
    if (!next) next = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    return next(to, alignment, bytes);
  }
  void *p = take(alignment, bytes);
  if (!p) return ENOMEM;
  *to = p;
  return 0;
}

void free(void *p) {
  static void (*next)(void *);
  if (is_fenced(p)) {
    give_back(p);
    return;
  }
  if (!next) next = (void (*)(void *))dlsym(RTLD_NEXT, "free");
  next(p);
}

void *realloc(void *p, size_t bytes) {
  static void *(*next)(void *, size_t);
  if (!next) next = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
  if (!is_fenced(p)) return next(p, bytes);
  void *to = malloc(bytes);
  if (!to) return NULL;
  const uint64_t had = head_of(p).bytes;
  memcpy(to, p, had < bytes ? had : bytes);
  give_back(p);
  return to;
}
