// The tokenizer of opgraft_generate on hostile JSON, a NUL and a text: only std::runtime_error may come out, and what
// ids spell is UTF-8.
#include <stdexcept>

#include "infer/cli/text/tokenizer.h"
#include "infer/cli/text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const std::string_view all(reinterpret_cast<const char *>(data), size);
  const size_t end = std::min(all.find('\0'), size);
  // A pattern may take PCRE2's ten million steps for each character.
  const std::string text = opgraft::text::repaired(all.substr(end).substr(0, 40));
  try {
    const opgraft::text::Tokenizer tokenizer(all.substr(0, end));
    const auto ids = tokenizer.encode(text);
    if (!opgraft::text::is_utf8(tokenizer.decode(ids))) __builtin_trap();
    for (int32_t id : ids) tokenizer.bytes(id);
  } catch (const std::runtime_error &) {
  }
  return 0;
}
