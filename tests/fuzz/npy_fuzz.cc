// The .npy reader on hostile bytes: only Error may come out, and what was read is written and read alike.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "infer/npy.h"

namespace {

// A file without a folder, by its path.
struct File {
  int fd = memfd_create("npy", 0);
  std::string path = "/proc/self/fd/" + std::to_string(fd);
};

opgraft::Tensor read(const File &file) { return opgraft::read_npy(file.path); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const File in, out;
  if (ftruncate(in.fd, 0) != 0 || pwrite(in.fd, data, size, 0) != ssize_t(size)) __builtin_trap();
  try {
    opgraft::Tensor t = read(in);
    opgraft::write_npy(out.path, t);
    opgraft::Tensor back = read(out);
    if (back.dtype() != t.dtype() || back.dims() != t.dims() || std::memcmp(back.data(), t.data(), t.bytes()) != 0)
      __builtin_trap();
  } catch (const opgraft::Error &) {
  }
  return 0;
}
