// The process's one thread pool. It lies beside the ops as libopgraft_threads.so.
#pragma once

#include "opgraft/abi.h"

extern "C" {
// The host services of the shared pool; never null, never destroyed.
__attribute__((visibility("default"))) const opgraft_host *opgraft_shared_host(void);
// Sets the number of threads a parallel_for uses, the caller included; 0 = the machine's (cgroup and
// affinity respected; OPGRAFT_NUM_THREADS overrides). Returns the number in force.
__attribute__((visibility("default"))) int32_t opgraft_set_threads(int32_t n);
// How many threads the host gives its own operators; 0: it does not say. The pool takes no more, unless
// opgraft_set_threads or OPGRAFT_NUM_THREADS say how many. Returns the number in force.
__attribute__((visibility("default"))) int32_t opgraft_set_host_threads(int32_t n);
}
