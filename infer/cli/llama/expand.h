// Blocks of ggml's types as float32.
#pragma once

#include <string_view>

#include "infer/cli/llama/gguf.h"

namespace opgraft::llama {

// All numbers of whole blocks, in order, the bits of PyPI gguf's dequantize: Q5_0, Q5_1 and Q2_K to Q6_K. False, and
// nothing written, where the type is none of these.
bool expand(const GgmlType &type, std::string_view blocks, float *to);

}  // namespace opgraft::llama
