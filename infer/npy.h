// NumPy's .npy files: versions 1 to 3, row-major, little-endian.
#pragma once

#include <filesystem>

#include "infer/tensor.h"

namespace opgraft {

// Throws Error naming the file. A header that claims more than the file holds is refused before
// anything is allocated. '<V2' (which NumPy makes of ml_dtypes' bfloat16) is bfloat16.
Tensor read_npy(const std::filesystem::path &file);
// bfloat16 is written as '<V2'.
void write_npy(const std::filesystem::path &file, const Tensor &tensor);

}  // namespace opgraft
