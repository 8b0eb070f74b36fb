// Small graphs for the engine's tests.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "infer/graph.h"
#include "infer/session.h"

namespace opgraft::test {

inline const Registry &ops() { return Registry::global(); }

inline Tensor floats(Shape dims, float start = 0.0f, float step = 0.25f) {
  Tensor t(OPGRAFT_FLOAT32, std::move(dims));
  for (int64_t i = 0; i < t.size(); ++i) t.data<float>()[i] = start + step * float(i % 23);
  return t;
}

inline ValueId one(Graph &g, const std::string &op, std::vector<ValueId> in, Attrs attrs = {}) {
  return g.node(g.add_node(ops(), op, std::move(in), std::move(attrs))).outputs[0];
}

// y = x * SiLU(gate) spelled out, over symbolic rows of `width`.
inline std::shared_ptr<Graph> gated(int64_t width = 33) {
  auto g = std::make_shared<Graph>("gated");
  int64_t rows = g->symbols.fresh("rows");
  ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {rows, width}, true});
  ValueId gate = g->add_input("gate", {OPGRAFT_FLOAT32, {rows, width}, true});
  g->outputs = {one(*g, "Mul", {one(*g, "SiLU", {gate}), x})};
  return g;
}

// `n` nodes, each adding a scalar to the one before.
inline std::shared_ptr<Graph> chain(int n, Shape dims) {
  auto g = std::make_shared<Graph>("chain");
  ValueId v = g->add_input("x", {OPGRAFT_FLOAT32, std::move(dims), true});
  ValueId c = g->add_constant(Tensor::scalar(1.0f));
  for (int i = 0; i < n; ++i) v = one(*g, "Add", {v, c});
  g->outputs = {v};
  return g;
}

}  // namespace opgraft::test
