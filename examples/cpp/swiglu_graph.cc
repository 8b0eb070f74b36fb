// Builds a graph, grafts SwiGLU into it with a proof, and runs it: no Python involved.
#include <cstdio>

#include "infer/passes/passes.h"
#include "infer/session.h"

using namespace opgraft;

int main() {
  const Registry &ops = Registry::global();
  auto graph = std::make_shared<Graph>("example");
  const int64_t rows = graph->symbols.fresh("rows");
  ValueId x = graph->add_input("x", {OPGRAFT_FLOAT32, {rows, 1536}});
  ValueId gate = graph->add_input("gate", {OPGRAFT_FLOAT32, {rows, 1536}});
  ValueId silu = graph->node(graph->add_node(ops, "SiLU", {gate})).outputs[0];
  graph->outputs = {graph->node(graph->add_node(ops, "Mul", {silu, x})).outputs[0]};
  std::printf("before\n%s\n", graph->dump().c_str());

  Tensor a(OPGRAFT_FLOAT32, {64, 1536}), b(OPGRAFT_FLOAT32, {64, 1536});
  for (int64_t i = 0; i < a.size(); ++i) {
    a.data<float>()[i] = float(i % 13) - 6.0f;
    b.data<float>()[i] = float(i % 7) - 3.0f;
  }
  passes::ProofOptions proof{{{a, b}}};
  passes::Report report = passes::substitute(*graph, ops, passes::rules_of(ops), &proof);
  std::printf("after\n%s\n", graph->dump().c_str());
  for (auto &s : report.swapped)
    std::printf("%s: max difference %.2g, %.3f ms before, %.3f ms after\n", s.op.c_str(), s.max_abs, s.ms_before,
                s.ms_after);

  Session session(std::make_shared<Model>(graph));
  Tensor y = session.run({a, b})[0];
  std::printf("y[0] = %g, arena %zu bytes\n", y.data<float>()[0], session.arena_bytes());
  return report.swapped.empty() ? 1 : 0;
}
