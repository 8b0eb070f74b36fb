// GGUF files of opgraft_generate on hostile bytes: only GgufError may come out, and a vocabulary that was taken makes a
// tokenizer.
#include <vector>

#include "infer/cli/llama/config.h"
#include "infer/cli/llama/expand.h"
#include "infer/cli/llama/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  using namespace opgraft;
  try {
    const llama::Gguf file(std::string_view(reinterpret_cast<const char *>(data), size), "fuzz");
    for (const char *name : {"t", "token_embd.weight", "blk.0.attn_q.weight"}) {
      const llama::GgufTensor *t = file.tensor(name);
      volatile char read = 0;
      for (size_t i = 0; t && i < t->bytes.size(); ++i) read = t->bytes[i];
      if (!t) continue;
      std::vector<float> numbers(size_t(element_count(t->dims)));
      llama::expand(*t->type, t->bytes, numbers.data());
    }
    llama::read_config(file);
    const text::Tokenizer tokenizer(llama::text_of(file, 16).tokenizer);
    tokenizer.decode(tokenizer.encode("the tin"));
  } catch (const llama::GgufError &) {
  }
  return 0;
}
