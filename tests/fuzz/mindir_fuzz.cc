// The MindIR reader on hostile bytes, from memory and as a mapped file with external data beside it. Only
// MindirError may come out, and what was read and written reads back. OPGRAFT_OPS_PATH names a folder of built
// operators; without one every node ends at "no registered operator".
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "infer/mindir.h"

namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "mindir_fuzz_XXXXXX").string();
    if (!mkdtemp(name.data())) std::abort();
    path = name;
    fs::create_directory(path / "m_variables");
    std::ofstream(path / "m_variables" / "data_0", std::ios::binary) << std::string(4096, '\1');
  }
  ~Folder() { fs::remove_all(path); }
};

// Written and read again: the same inputs and outputs, or the writer's own refusal.
void round_trip(const opgraft::Graph &graph, const fs::path &file, const opgraft::Registry &registry) {
  try {
    opgraft::write_mindir(graph, file, {SIZE_MAX});
  } catch (const opgraft::MindirError &) {
    return;
  }
  try {
    auto back = opgraft::read_mindir(file, registry);
    if (back->inputs.size() == graph.inputs.size() && back->output_names == graph.output_names) return;
    std::fputs("written and read back, the model has other inputs or outputs\n", stderr);
  } catch (const opgraft::MindirError &e) {
    std::fprintf(stderr, "what was written does not read back: %s\n", e.what());
  }
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const Folder folder;
  std::string_view bytes(reinterpret_cast<const char *>(data), size);
  auto &registry = opgraft::Registry::global();
  try {
    opgraft::parse_mindir(bytes, registry, "fuzz");
  } catch (const opgraft::MindirError &) {
  }
  const fs::path file = folder.path / "m.mindir";
  std::ofstream(file, std::ios::binary) << bytes;
  try {
    auto graph = opgraft::read_mindir(file, registry);
    round_trip(*graph, folder.path / "written.mindir", registry);
  } catch (const opgraft::MindirError &) {
  }
  return 0;
}
