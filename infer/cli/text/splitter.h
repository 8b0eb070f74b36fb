// Texts cut at the matches of a regular expression, as byte-level tokenizers do before they look at bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace opgraft::text {

class Splitter {
 public:
  // Throws std::runtime_error where the expression is none.
  explicit Splitter(const std::string &pattern);
  // Appends the matches and what lies between them, empty ones left out. `text` must be UTF-8. Throws
  // std::runtime_error where a match takes more steps than PCRE2 allows.
  void split(std::string_view text, std::vector<std::string_view> &pieces) const;

 private:
  std::shared_ptr<void> code_, match_;
};

}  // namespace opgraft::text
