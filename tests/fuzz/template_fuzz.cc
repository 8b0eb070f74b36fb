// The chat template of opgraft_generate, hostile, a NUL and what a person says: only std::runtime_error may come out,
// and the text is UTF-8.
#include <stdexcept>

#include "infer/cli/llama/chat_template.h"
#include "infer/cli/text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const std::string_view all(reinterpret_cast<const char *>(data), size);
  const size_t end = std::min(all.find('\0'), size);
  const std::string said = opgraft::text::repaired(all.substr(end).substr(0, 200));
  try {
    const opgraft::llama::ChatTemplate made(all.substr(0, end));
    const std::string text = made.text({{"system", said}, {"user", "Hi"}}, "<s>", "</s>", true);
    if (!opgraft::text::is_utf8(text)) __builtin_trap();
  } catch (const std::runtime_error &) {
  }
  return 0;
}
