// Which std::string a file's functions speak, found out by calling them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "registry/string_abi.h"

namespace opgraft {

struct Probed {
  bool asked = false;  // for an attribute, and `abi` is of the name it gave
  StringAbi abi = StringAbi::kEither;
  bool returned = true;  // else a part crashed, took too long, threw or returned an error before it asked
  std::string part;      // that asked or did not return: "OpInit"
};

// Whether the file can be opened without ending the process, by a try in another one. Its constructors run there.
bool survives_opening(const std::filesystem::path &file);

// Runs the function's Init, InferShape, InferType and entry, each in a process of its own, on 2x2 float32 tensors
// filled with zeros, with an AotExtra whose getters tell the ABI of the name and end the process. A process that
// crashes harms none but itself; one that takes longer than 5 s is ended. What the functions do to files and the like
// they do: for files whose code one would run anyway.
Probed probe(const std::filesystem::path &file, const std::string &function);

}  // namespace opgraft
