// tokenize TOKENIZER.json: a line of JSON in, one out: a text gives its ids, ids give their text. For the comparison
// with `tokenizers` in tests/python/test_tokenizer_cpp.py.
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "infer/cli/text/tokenizer.h"

int main(int, char **argv) {
  try {
    std::ifstream in(argv[1], std::ios::binary);
    const opgraft::text::Tokenizer tokenizer(std::string(std::istreambuf_iterator<char>(in), {}));
    for (std::string line; std::getline(std::cin, line);) {
      const auto given = nlohmann::json::parse(line);
      nlohmann::json out;
      if (given.is_string()) out = tokenizer.encode(given.get<std::string>());
      else out = tokenizer.decode(given.get<std::vector<int32_t>>());
      std::cout << out.dump(-1, ' ', true) << "\n";
    }
    return 0;
  } catch (const std::exception &e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
