// llama_graph FILE.gguf WEIGHTS ROWS plain|fused LOGITS.npy ID…: prints the graph that opgraft_generate makes of a
// file, and writes the last id's logits. For the comparison with Python's in tests/python/test_generate_gguf.py.
#include <cstdlib>
#include <iostream>
#include <string>

#include "infer/cli/llama/llama.h"
#include "infer/npy.h"
#include "infer/session.h"

int main(int argc, char **argv) {
  using namespace opgraft;
  try {
    if (argc < 7) throw std::runtime_error("too few arguments");
    const auto graph =
        llama::load(argv[1], llama::weights_of(argv[2]).value(), std::stoll(argv[3]), argv[4] == std::string("plain"));
    std::cout << graph->dump();
    const int n = argc - 6;
    const std::vector<Tensor> inputs{Tensor(OPGRAFT_INT32, {1, n}), Tensor(OPGRAFT_INT32, {n})};
    for (int i = 0; i < n; ++i) {
      inputs[0].data<int32_t>()[i] = std::atoi(argv[6 + i]);
      inputs[1].data<int32_t>()[i] = i;
    }
    write_npy(argv[5], Session(std::make_shared<Model>(graph)).run(inputs).at(0));
    return 0;
  } catch (const std::exception &e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
