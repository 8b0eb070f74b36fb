// The chat template of a GGUF file: the part of Jinja's language that such templates use, as Jinja renders it in its
// immutable sandbox with trim_blocks and lstrip_blocks.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace opgraft::llama {

struct Message {
  std::string role, content;
};

class ChatTemplate {
 public:
  // Throws std::runtime_error for what is no template. Filters, tests and methods that are not known here are refused
  // where a text needs them.
  explicit ChatTemplate(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate &&) noexcept;
  ChatTemplate &operator=(ChatTemplate &&) noexcept;
  // The text of the messages; throws std::runtime_error where the template raises or a limit (steps, length, depth) is
  // passed. All must be UTF-8.
  std::string text(const std::vector<Message> &messages, const std::string &bos_token, const std::string &eos_token,
                   bool add_generation_prompt) const;

 private:
  std::unique_ptr<const std::vector<struct Statement>> statements_;
};

}  // namespace opgraft::llama
