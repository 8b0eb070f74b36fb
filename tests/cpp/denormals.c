// Preloaded by tests/python/denormals.py: aligned memory that holds one word all over, as the workspace and the scratch
// of an operator may, and the processor's note that it met a denormal operand, which <fenv.h> leaves out.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <xmmintrin.h>

static int filling;
static uint32_t word;
static uint64_t filled;  // bytes

// -> the bytes filled since the last call. From now on memory is filled with the word, or left as it is.
uint64_t fill_memory(int fill, uint32_t with) {
  const uint64_t before = filled;
  filling = fill, word = with, filled = 0;
  return before;
}

int met_denormal(void) { return (_mm_getcsr() & _MM_EXCEPT_DENORM) != 0; }
void forget_denormals(void) { _mm_setcsr(_mm_getcsr() & ~(unsigned)_MM_EXCEPT_MASK); }

static void fill(void *p, size_t bytes) {
  if (!filling || !p) return;
  for (size_t i = 0; i < bytes / 4; ++i) ((uint32_t *)p)[i] = word;
  filled += bytes;
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  static void *(*next)(size_t, size_t);
  if (!next) next = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
  void *p = next(alignment, bytes);
  fill(p, bytes);
  return p;
}

int posix_memalign(void **p, size_t alignment, size_t bytes) {
  static int (*next)(void **, size_t, size_t);
  if (!next) next = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  const int failed = next(p, alignment, bytes);
  if (!failed) fill(*p, bytes);
  return failed;
}
