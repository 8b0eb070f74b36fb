// The thread pool for a host that brings none, as MindSpore: libopgraft_threads.so, which opgraft has loaded already
// or which lies beside the operator's own file.
#pragma once

#include <dlfcn.h>

#include <string>

#include "opgraft/abi.h"

namespace opgraft::detail {

// Null where there is no pool: the kernel then runs on the calling thread. Looked for once; never closed.
__attribute__((visibility("hidden"))) inline const opgraft_host *shared_pool() {
  static const opgraft_host *const host = []() -> const opgraft_host * {
    constexpr const char *kName = "libopgraft_threads.so";
    void *library = ::dlopen(kName, RTLD_NOW | RTLD_NOLOAD);
    Dl_info self;
    if (!library && ::dladdr(reinterpret_cast<void *>(&shared_pool), &self) && self.dli_fname) {
      const std::string path = self.dli_fname;
      if (auto slash = path.rfind('/'); slash != path.npos)
        library = ::dlopen((path.substr(0, slash + 1) + kName).c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    void *get = library ? ::dlsym(library, "opgraft_shared_host") : nullptr;
    return get ? reinterpret_cast<const opgraft_host *(*)()>(get)() : nullptr;
  }();
  return host && host->magic == OPGRAFT_HOST_MAGIC && host->abi_version >> 16 == OPGRAFT_ABI_MAJOR ? host : nullptr;
}

}  // namespace opgraft::detail
