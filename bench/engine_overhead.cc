// What the engine costs beside the kernels: a run, capture, passes and planning of chains of trivial nodes.
// Ends with a table of the figures against their targets; --benchmark_out=FILE keeps all of them as JSON.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <map>
#include <memory>

#include "infer/passes/passes.h"
#include "infer/session.h"

namespace opgraft {
namespace {

const Registry &Ops() { return Registry::global(); }

ValueId Append(Graph &graph, const char *op, std::vector<ValueId> inputs) {
  return graph.node(graph.add_node(Ops(), op, std::move(inputs))).outputs[0];
}

void Finish(Graph &graph, ValueId result) {
  graph.outputs = {result};
  graph.output_names = {"y"};
}

// `nodes` ReLUs of one element, one after another.
std::shared_ptr<Graph> Chain(int64_t nodes) {
  auto graph = std::make_shared<Graph>();
  ValueId value = graph->add_input("x", {OPGRAFT_FLOAT32, {1}});
  for (int64_t i = 0; i < nodes; ++i) value = Append(*graph, "ReLU", {value});
  Finish(*graph, value);
  return graph;
}

// As many nodes, over a symbolic size, in pairs of which SwiGLU takes the place.
std::shared_ptr<Graph> Gates(int64_t nodes) {
  auto graph = std::make_shared<Graph>();
  TensorType type{OPGRAFT_FLOAT32, {graph->symbols.fresh("n"), 8}};
  ValueId x = graph->add_input("x", type), gate = graph->add_input("gate", type);
  for (int64_t i = 0; i < nodes / 2; ++i) x = Append(*graph, "Mul", {x, Append(*graph, "SiLU", {gate})});
  Finish(*graph, x);
  return graph;
}

// Per node, its trivial kernel included.
void Run(benchmark::State &state) {
  Session session(std::make_shared<Model>(Chain(state.range(0))));
  std::vector<Tensor> inputs{Tensor(OPGRAFT_FLOAT32, {1})};
  *inputs[0].data<float>() = 1;
  std::vector<Tensor> outputs = session.run(inputs);
  for (auto _ : state) session.run_into(inputs, outputs);
  state.counters["s_per_node"] = benchmark::Counter(double(state.iterations() * state.range(0)),
                                                    benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(Run)->Arg(1000);

void Capture(benchmark::State &state) {
  for (auto _ : state) benchmark::DoNotOptimize(Chain(state.range(0)));
}

void Clean(benchmark::State &state) {
  const auto graph = Chain(state.range(0));
  for (auto _ : state) {
    Graph copy = *graph;
    passes::fold_constants(copy, Ops());
    passes::merge_common(copy, Ops());
    passes::remove_dead_code(copy, Ops());
    benchmark::DoNotOptimize(copy.order().data());
  }
}

void Substitute(benchmark::State &state) {
  const auto graph = Gates(state.range(0));
  const auto rules = passes::rules_of(Ops());
  for (auto _ : state) {
    Graph copy = *graph;
    auto report = passes::substitute(copy, Ops(), rules);
    if (report.swapped.size() != size_t(state.range(0) / 2)) state.SkipWithError("not every pair was swapped");
  }
}

void Plan(benchmark::State &state) {
  const auto graph = Chain(state.range(0));
  for (auto _ : state) {
    Model model(graph);
    benchmark::DoNotOptimize(model.plan({{1}}));
  }
}

// The session's own part of a new signature: addresses bound, kernels initialised.
void FirstRun(benchmark::State &state) {
  const auto model = std::make_shared<Model>(Chain(state.range(0)));
  const std::vector<Tensor> inputs{Tensor(OPGRAFT_FLOAT32, {1})};
  *inputs[0].data<float>() = 1;
  for (auto _ : state) benchmark::DoNotOptimize(Session(model).run(inputs));
}

BENCHMARK(Capture)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);
BENCHMARK(Clean)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);
BENCHMARK(Substitute)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);
BENCHMARK(Plan)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);
BENCHMARK(FirstRun)->Arg(1000)->Arg(10000)->Unit(benchmark::kMillisecond);

// The usual console lines, and CPU seconds of one iteration kept by name: all here runs on one thread, and other
// processes' work does not count.
class Table : public benchmark::ConsoleReporter {
 public:
  Table() : ConsoleReporter(isatty(STDOUT_FILENO) ? OO_ColorTabular : OO_Tabular) {}
  void ReportRuns(const std::vector<Run> &runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (auto &r : runs)
      if (r.run_type == Run::RT_Iteration && !r.error_occurred && r.iterations)
        seconds_[r.benchmark_name()] = r.cpu_accumulated_time / double(r.iterations);
  }

  void print() const {
    constexpr double kLinear = 13;  // ten times the nodes, and room for what a larger working set costs
    fmt::print("\n{:<32} {:>12} {:>12}\n", "", "figure", "target");
    row("Run, ns per node of 1000", at("Run/1000") * 1e6, 100);
    row("Plan of 10000 nodes, ms", at("Plan/10000") * 1e3, 300);
    for (const char *name : {"Capture", "Clean", "Substitute", "Plan", "FirstRun"}) {
      double few = at(fmt::format("{}/1000", name)), many = at(fmt::format("{}/10000", name));
      row(fmt::format("{}, time 10000 : 1000 nodes", name), few > 0 ? many / few : 0, kLinear);
    }
  }

 private:
  double at(const std::string &name) const {
    auto it = seconds_.find(name);
    return it == seconds_.end() ? 0 : it->second;
  }
  static void row(const std::string &what, double figure, double target) {
    if (figure > 0)  // else filtered out, or failed with a message above
      fmt::print("{:<32} {:>12.1f} {:>12} {}\n", what, figure, fmt::format("<= {}", target),
                 figure <= target ? "" : " MISSED");
  }
  std::map<std::string, double> seconds_;
};

}  // namespace
}  // namespace opgraft

int main(int argc, char **argv) {
  // Memory stays in the process: else the larger graphs are timed with the pages they get anew in each iteration.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  opgraft::Table table;
  benchmark::RunSpecifiedBenchmarks(&table);
  table.print();
  benchmark::Shutdown();
}
