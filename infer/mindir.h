// MindIR files: MindSpore's protobuf model format (package mind_ir), read without trust and written so
// that MindSpore loads it.
#pragma once

#include <filesystem>
#include <memory>

#include "infer/graph.h"

namespace opgraft {

// The file is not what it should be: names the file, where in it, and what was expected.
struct MindirError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct MindirOptions {
  // Parameters of at least this many bytes in total go to an external data file beside the model,
  // 64-byte aligned, so that they are mapped and not read. 0: always external.
  size_t external_from = 0;
  // How grafted nodes name their .so: by its absolute path, or by a variable of this environment that holds it
  // (library_variable). MindSpore's C++ inference knows no variables: refused where a dimension is open.
  bool path_from_env = false;
};

// The variable that stands for a .so: "…/dense.so" is OPGRAFT_DENSE_SO.
std::string library_variable(const std::filesystem::path &library);

// Reads a model; weights stay mapped from the file (inline ones are copied only where misaligned).
// Ops are resolved through the registry, and the whole graph is inferred.
std::shared_ptr<Graph> read_mindir(const std::filesystem::path &file, const Registry &registry);
// The same from memory, external data refused (the fuzzer's entry).
std::shared_ptr<Graph> parse_mindir(std::string_view bytes, const Registry &registry, const std::string &origin);
// Writes `file` and, for external weights, `<stem>_variables/data_0` beside it.
void write_mindir(const Graph &graph, const std::filesystem::path &file, const MindirOptions &options = {});

}  // namespace opgraft
