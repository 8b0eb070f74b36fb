// The sizes of this machine's caches, which tiles are chosen by.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace opgraft {

struct Caches {
  int64_t l1, l2, l3;  // bytes: of a core, of a core, of all
};

// Where the system does not say: sizes that no machine with AVX2 goes below.
inline const Caches &caches() {
  static const Caches found = [] {
    const auto size = [](int name, int64_t otherwise) {
      const long bytes = sysconf(name);
      return bytes > 0 ? int64_t(bytes) : otherwise;
    };
    return Caches{size(_SC_LEVEL1_DCACHE_SIZE, 32 << 10), size(_SC_LEVEL2_CACHE_SIZE, 256 << 10),
                  size(_SC_LEVEL3_CACHE_SIZE, 4 << 20)};
  }();
  return found;
}

}  // namespace opgraft
