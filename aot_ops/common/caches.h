// The sizes of this machine's caches, which tiles are chosen by.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace opgraft {

struct Caches {
  int64_t l1, l2, l3;  // bytes: of a core, of a core, of all
};

// Where the system does not say: sizes that no machine with AVX2 goes below. OPGRAFT_CACHES=L1,L2,L3, in bytes, says
// otherwise, as where other programs take a share of them.
inline const Caches &caches() {
  static const Caches found = [] {
    if (const char *given = std::getenv("OPGRAFT_CACHES")) {
      Caches c{};
      int read = 0;
      if (std::sscanf(given, "%" SCNd64 ",%" SCNd64 ",%" SCNd64 "%n", &c.l1, &c.l2, &c.l3, &read) != 3 || given[read] ||
          std::min({c.l1, c.l2, c.l3}) < 1)
        throw std::invalid_argument(std::string("OPGRAFT_CACHES must be three sizes in bytes, L1,L2,L3, got '") +
                                    given + "'");
      return c;
    }
    const auto size = [](int name, int64_t otherwise) {
      const long bytes = sysconf(name);
      return bytes > 0 ? int64_t(bytes) : otherwise;
    };
    return Caches{size(_SC_LEVEL1_DCACHE_SIZE, 32 << 10), size(_SC_LEVEL2_CACHE_SIZE, 256 << 10),
                  size(_SC_LEVEL3_CACHE_SIZE, 4 << 20)};
  }();
  return found;
}

// What so many cores hold in caches of their own.
inline uint64_t own_caches(int threads) { return uint64_t(threads) * uint64_t(caches().l2); }

}  // namespace opgraft
