/* One operator, Probe, that is wrong in the way the macros say; see ../CMakeLists.txt. */
#include <stdlib.h>
#include <unistd.h>

#include "opgraft/abi.h"

#ifndef VERSION
#define VERSION "1.0.0"
#endif
#ifndef NAME
#define NAME "Probe"
#endif
#ifndef DESCRIPTOR_ABI
#define DESCRIPTOR_ABI OPGRAFT_ABI_VERSION
#endif
#ifndef DESCRIPTOR_BYTES
#define DESCRIPTOR_BYTES sizeof(opgraft_op)
#endif
#ifndef KERNEL
#define KERNEL kernel
#endif
#ifndef SCORE
#define SCORE 1
#endif

/* Tells the test that code of this file ran. */
__attribute__((constructor)) static void mark(void) { setenv("OPGRAFT_PROBE_RAN", "1", 1); }

static int infer(opgraft_infer_args *args) {
  args->n_outputs = 1;
  args->outputs[0].ndim = args->inputs[0].ndim;
  args->outputs[0].dtype = args->inputs[0].dtype;
  for (int i = 0; i < args->inputs[0].ndim; ++i) args->outputs[0].dims[i] = args->inputs[0].shape[i];
  return OPGRAFT_OK;
}
#if defined(CALLS)
int CALLS(void);
#endif
__attribute__((unused)) static int kernel(const opgraft_call *call) {
#if defined(CALLS)
  return CALLS();
#endif
#ifdef FAILS_WITH
  if (call) return FAILS_WITH;
#endif
#ifdef MICROSECONDS
  usleep(MICROSECONDS);
#endif
  for (int64_t i = 0; i < call->inputs[0].elements; ++i)
    ((float *)call->outputs[0].data)[i] = ((const float *)call->inputs[0].data)[i] + 1;
  return OPGRAFT_OK;
}
static const char *last_error(void) { return "probe"; }
static int32_t score(void) { return SCORE; }

const opgraft_op opgraft_op_Probe = {.struct_size = DESCRIPTOR_BYTES,
                                     .abi_version = DESCRIPTOR_ABI,
                                     .name = NAME,
                                     .version = VERSION,
                                     .infer = infer,
                                     .kernel = KERNEL,
                                     .last_error = last_error,
                                     .score = score};
#ifdef EXTRA
const opgraft_op opgraft_op_Extra = {.struct_size = sizeof(opgraft_op)};
#endif
int Probe(void) { return OPGRAFT_UNSUPPORTED; }
