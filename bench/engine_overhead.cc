// What the engine costs beside the kernels: running and planning chains of trivial nodes.
#include <benchmark/benchmark.h>

#include <memory>

#include "infer/session.h"

namespace opgraft {
namespace {

std::shared_ptr<Graph> Chain(int64_t nodes) {
  auto graph = std::make_shared<Graph>();
  ValueId value = graph->add_input("x", {OPGRAFT_FLOAT32, {1}});
  graph->inputs = {value};
  for (int64_t i = 0; i < nodes; ++i)
    value = graph->node(graph->add_node(Registry::global(), "ReLU", {value})).outputs[0];
  graph->outputs = {value};
  graph->output_names = {"y"};
  return graph;
}

// Time per node; it includes the trivial kernel itself.
void RunChain(benchmark::State &state) {
  Session session(std::make_shared<Model>(Chain(state.range(0))));
  Tensor x = Tensor::scalar(1.0f);
  std::vector<Tensor> inputs{Tensor(OPGRAFT_FLOAT32, {1}, x.data(), x.owner())}, outputs = session.run(inputs);
  for (auto _ : state) session.run_into(inputs, outputs);
  state.counters["s_per_node"] = benchmark::Counter(double(state.iterations() * state.range(0)),
                                                    benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(RunChain)->Arg(1000);

// Linear: ten times the nodes, ten times the time.
void PlanChain(benchmark::State &state) {
  auto graph = Chain(state.range(0));
  for (auto _ : state) {
    Model model(graph);
    benchmark::DoNotOptimize(model.plan({{1}}));
  }
}
BENCHMARK(PlanChain)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace opgraft

BENCHMARK_MAIN();
