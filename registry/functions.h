// Functions built for MindSpore's AOT Custom (foreign.h), as ops that graph, plan and session run like
// any other: an Op with a native descriptor whose calls go to the function.
//
// Besides the function's own attributes such an op takes
//   opgraft_outputs  int: how many outputs it has (default 1)
//   out_shape        str: their shapes, else InferShape of the file decides. Outputs are separated by
//                    ';', dimensions by ',', each in postfix: "4", "i0.1" (input 0, dimension 1),
//                    "i0.0 2 *", or "?" (not known)
//   out_dtype        str: their dtypes, separated by ';', else InferType of the file decides
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "registry/registry.h"

namespace opgraft {

// What a file offers a Custom, read without running any of it.
struct FileKind {
  bool native = false;             // an opgraft operator: `names` are its ops
  std::vector<std::string> names;  // else the functions that may be MindSpore entries
};
FileKind examine_kind(const std::filesystem::path &file);

// Loads a function and gives the op for it. `attrs` are the names and kinds its nodes will carry. A
// file that changed since an earlier load is loaded anew. Throws LoadError.
OpPtr load_function(const Registry &registry, const std::filesystem::path &file, const std::string &function,
                    const std::vector<ManifestAttr> &attrs);

// The op behind a model's `func_name` ("path.so:Func"), loaded where need be. A model is not trusted:
// its file must lie in a folder of the white list or of OPGRAFT_OPS_PATH, beside opgraft's own ops, or
// have been loaded by this program before. It is looked for by its base name in `beside`, the model's folder (may be
// empty), then at its path, then by its base name where models may load from.
// Null where the file is nowhere to be found; throws LoadError where it must not be loaded.
OpPtr model_function(const Registry &registry, std::string_view func_name, const std::vector<ManifestAttr> &attrs,
                     const std::filesystem::path &beside = {});

// By the name that load_function gave ("Scale#1"); null where there is none.
OpPtr find_function(std::string_view name);

}  // namespace opgraft
