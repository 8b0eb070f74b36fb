// render: a line of JSON in, one out: a template and messages give a text or an error. For the comparison with Jinja in
// tests/python/test_chat_template_cpp.py.
#include <iostream>
#include <nlohmann/json.hpp>

#include "infer/cli/llama/chat_template.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto given = nlohmann::json::parse(line);
    nlohmann::json out;
    try {
      std::vector<opgraft::llama::Message> messages;
      for (auto &m : given.at("messages"))
        messages.push_back({m.at("role").get<std::string>(), m.at("content").get<std::string>()});
      out["text"] = opgraft::llama::ChatTemplate(given.at("template").get<std::string>())
                        .text(messages, given.at("bos_token").get<std::string>(),
                              given.at("eos_token").get<std::string>(), given.at("add_generation_prompt").get<bool>());
    } catch (const std::runtime_error &e) {
      out["error"] = e.what();
    }
    std::cout << out.dump(-1, ' ', true) << "\n";
  }
}
