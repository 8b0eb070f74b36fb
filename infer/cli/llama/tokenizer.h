// What a GGUF file says of its text: vocabulary, ends, chat form. What examples/llama/tokenizer.py does.
#pragma once

#include "infer/cli/llama/gguf.h"
#include "infer/cli/text/text_model.h"

namespace opgraft::llama {

// With a context of so many positions. Throws GgufError.
text::Text text_of(const Gguf &file, int64_t context);

}  // namespace opgraft::llama
