// The reader of checkpoints on hostile bytes: only MindirError may come out, and what was read is written, in small
// pieces, and read alike.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "infer/checkpoint.h"

namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "checkpoint_fuzz_XXXXXX").string();
    if (!mkdtemp(name.data())) std::abort();
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
};

bool same(const opgraft::CheckpointEntry &a, const opgraft::CheckpointEntry &b) {
  if (a.name != b.name || a.text != b.text || bool(a.tensor) != bool(b.tensor)) return false;
  return !a.tensor || (a.tensor.dtype() == b.tensor.dtype() && a.tensor.dims() == b.tensor.dims() &&
                       std::memcmp(a.tensor.data(), b.tensor.data(), a.tensor.bytes()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const Folder folder;
  const fs::path file = folder.path / "written.ckpt";
  opgraft::Checkpoint read;
  try {
    read = opgraft::parse_checkpoint({reinterpret_cast<const char *>(data), size}, "fuzz");
  } catch (const opgraft::MindirError &) {
    return 0;
  }
  opgraft::write_checkpoint(read.entries, file, size % 2, 1 + size % 16);
  const auto back = opgraft::read_checkpoint(file);  // what was written is never refused
  if (back.has_crc != (size % 2 == 1) || back.entries.size() != read.entries.size()) std::abort();
  for (size_t i = 0; i < read.entries.size(); ++i)
    if (!same(read.entries[i], back.entries[i])) std::abort();
  return 0;
}
