#include "infer/passes/passes.h"
#include "infer/passes/subgraph.h"

#include <gtest/gtest.h>

#include <set>

#include "engine_test_util.h"
#include "infer/passes/pattern.h"
#include "infer/passes/proof.h"

namespace opgraft {
namespace {
using namespace test;
using namespace passes;

std::vector<Rule> swiglu_rules() {
  std::vector<Rule> out;
  for (auto &r : rules_of(ops()))
    if (r.op.rfind("SwiGLU@", 0) == 0) out.push_back(r);
  return out;
}

// What is kept of the last call belongs to the operators that there were.
TEST(Passes, AnOperatorThatComesBringsItsRules) {
  const auto names = [](const std::vector<Rule> &rules) {
    std::set<std::string> out;
    for (auto &r : rules) out.insert(r.name.substr(0, r.name.find('@')));
    return out;
  };
  Registry registry;
  EXPECT_TRUE(rules_of(registry).empty());
  registry.load(OPGRAFT_OPS_DIR "/sepia.so");
  const auto before = rules_of(registry), again = rules_of(registry);
  EXPECT_TRUE(names(before).count("Sepia"));
  ASSERT_EQ(before.size(), again.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i].parsed, again[i].parsed);
  registry.load(OPGRAFT_OPS_DIR "/swiglu.so");
  EXPECT_TRUE(names(rules_of(registry)).count("SwiGLU"));
  EXPECT_TRUE(names(rules_of(registry)).count("Sepia"));
  EXPECT_GT(rules_of(ops()).size(), rules_of(registry).size());
}

TEST(Passes, FoldComputesWhatIsConstant) {
  Graph g;
  ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {2}, true});
  ValueId c = one(g, "Add", {g.add_constant(Tensor::scalar(1)), g.add_constant(Tensor::scalar(2))});
  g.outputs = {one(g, "Mul", {x, c})};
  EXPECT_TRUE(fold_constants(g, ops()));
  ASSERT_EQ(g.order().size(), 1u);
  const Value &folded = g.value(g.node(g.order()[0]).inputs[1]);
  ASSERT_EQ(folded.kind, Value::kConstant);
  EXPECT_EQ(*folded.constant.data<float>(), 3.0f);
  EXPECT_FALSE(fold_constants(g, ops()));
}

TEST(Passes, DeadCodeGoesAndOutputsStay) {
  auto g = gated();
  one(*g, "Neg", {g->inputs[0]});
  EXPECT_TRUE(remove_dead_code(*g, ops()));
  EXPECT_EQ(g->order().size(), 2u);
  EXPECT_FALSE(remove_dead_code(*g, ops()));
}

TEST(Passes, CommonSubexpressionsMergeAlsoWhenExchanged) {
  Graph g;
  ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {2}, true}), y = g.add_input("y", {OPGRAFT_FLOAT32, {2}, true});
  g.outputs = {one(g, "Sub", {one(g, "Add", {x, y}), one(g, "Add", {y, x})})};
  EXPECT_TRUE(merge_common(g, ops()));
  ASSERT_EQ(g.order().size(), 2u);
  auto &n = g.node(g.order()[1]);
  EXPECT_EQ(n.inputs[0], n.inputs[1]);
}

TEST(Passes, SizesOfComputedValuesAreAskedOfInputs) {
  auto graph = std::make_shared<Graph>("sizes");
  Graph &g = *graph;
  const int64_t n = g.symbols.fresh("n"), m = g.symbols.fresh("m"), double_n = g.symbols.op('*', n, 2);
  ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {n, m}, true});
  ValueId y = one(g, "ExpandDims", {x}, {{"axis", int64_t(0)}});
  const auto size = [&](ValueId v, int64_t i) {
    return one(g, "TupleGetItem", {one(g, "Shape", {v})}, {{"index", i}});
  };
  // Of z the rows are no input's.
  ValueId z = one(g, "Concat", {x, x}, {{"axis", int64_t(0)}});
  ASSERT_EQ(g.value(z).type.dims[0], double_n);
  g.outputs = {one(g, "Reshape", {y, one(g, "MakeTuple", {size(y, 2), size(y, 1)})}), size(z, 0), size(x, 0)};
  EXPECT_TRUE(ask_inputs_for_sizes(g, ops()));
  remove_dead_code(g, ops());
  std::vector<std::string> of;
  for (NodeId id : g.order())
    if (g.node(id).op == "Shape") of.push_back(g.value(g.node(id).inputs[0]).name);
  EXPECT_EQ(of, (std::vector<std::string>{"x", g.value(z).name, "x"}));
  const std::vector<int64_t> want{m, n};
  const Node &reshape = g.node(g.value(g.outputs[0]).producer);
  EXPECT_EQ(g.value(reshape.inputs[1]).known, want);
  EXPECT_FALSE(ask_inputs_for_sizes(g, ops()));
  const auto got = Session(std::make_shared<Model>(graph)).run({floats({3, 2})});
  EXPECT_EQ(got[0].dims(), (Shape{2, 3}));
  EXPECT_EQ(*got[1].data<int64_t>(), 6);
}

TEST(Substitute, PutsTheOpInAndKeepsTheSubgraphAsFallback) {
  auto g = gated();
  Report r = substitute(*g, ops(), swiglu_rules());
  ASSERT_EQ(r.swapped.size(), 1u);
  ASSERT_EQ(g->order().size(), 1u);
  const Node &n = g->node(g->order()[0]);
  EXPECT_EQ(n.op, "SwiGLU");
  EXPECT_EQ(n.inputs, g->inputs) << "x and gate by name, not by place";
  ASSERT_TRUE(n.fallback);
  EXPECT_EQ(n.fallback->order().size(), 2u);
}

TEST(Substitute, AProofFillsInDifferencesAndTimes) {
  auto g = gated();
  ProofOptions proof{{{floats({6, 33}, -2), floats({6, 33}, -1)}}, false, nullptr};
  Report r = substitute(*g, ops(), swiglu_rules(), &proof);
  ASSERT_EQ(r.swapped.size(), 1u);
  EXPECT_GE(r.swapped[0].max_abs, 0);
  EXPECT_LT(r.swapped[0].max_abs, 1e-5);
  EXPECT_GT(r.swapped[0].ms_before, 0);
  EXPECT_GT(r.swapped[0].ms_after, 0);
}

TEST(Substitute, AProofWithoutInputsIsAnErrorAndChangesNothing) {
  auto g = gated();
  ProofOptions proof;
  EXPECT_THROW(substitute(*g, ops(), swiglu_rules(), &proof), Error);
  EXPECT_EQ(g->order().size(), 2u);
}

TEST(Substitute, AWrongReplacementIsUndoneAndReported) {
  auto g = gated();
  auto pattern = std::make_shared<Graph>("pattern");
  ValueId a = pattern->add_input("a", {OPGRAFT_FLOAT32, {2, 33}, true});
  pattern->outputs = {one(*pattern, "SiLU", {a})};
  auto wrong = std::make_shared<Graph>("wrong");
  ValueId b = wrong->add_input("a", {OPGRAFT_FLOAT32, {2, 33}, true});
  wrong->outputs = {one(*wrong, "Sigmoid", {b})};
  ProofOptions proof{{{floats({6, 33}, -2), floats({6, 33}, -1)}}, false, nullptr};
  Rule rule{"wrong", "", "", pattern, wrong, nullptr, nullptr};
  Report r = substitute(*g, ops(), {rule}, &proof);
  EXPECT_TRUE(r.swapped.empty());
  ASSERT_EQ(r.left.size(), 1u);
  EXPECT_NE(r.left[0].why.find("the results differ"), std::string::npos) << r.left[0].why;
  EXPECT_EQ(g->node(g->order()[0]).op, "SiLU");
}

TEST(Substitute, SeveralNodesInPlaceOfOneAreProvenAsOne) {
  auto g = gated();
  auto pattern = std::make_shared<Graph>("pattern");
  ValueId a = pattern->add_input("a", {OPGRAFT_FLOAT32, {2, 33}, true});
  pattern->outputs = {one(*pattern, "SiLU", {a})};
  auto pair = std::make_shared<Graph>("pair");
  ValueId b = pair->add_input("a", {OPGRAFT_FLOAT32, {2, 33}, true});
  pair->outputs = {one(*pair, "Mul", {b, one(*pair, "Sigmoid", {b})})};
  ProofOptions proof{{{floats({6, 33}, -2), floats({6, 33}, -1)}}, false, nullptr};
  size_t last = 0, all = 0;
  proof.progress = [&](size_t done, size_t total) { last = done, all = total; };
  Rule rule{"pair", "", "", pattern, pair, nullptr, nullptr};
  Report r = substitute(*g, ops(), {rule}, &proof);
  ASSERT_EQ(r.swapped.size(), 1u);
  EXPECT_GE(r.swapped[0].max_abs, 0);
  EXPECT_LT(r.swapped[0].max_abs, 1e-5);
  EXPECT_GT(r.swapped[0].ms_after, 0);
  EXPECT_EQ(g->order().size(), 3u);
  EXPECT_EQ(last, all);
  EXPECT_EQ(all, 4u) << "one swap and the model, at two sizes";
}

TEST(Substitute, ConstantsOfAPatternAreCompared) {
  auto scale = [](float second) {
    Tensor t(OPGRAFT_FLOAT32, {2});
    t.data<float>()[0] = 1, t.data<float>()[1] = second;
    return t;
  };
  auto scaled = [&](Graph &g, const char *op, float second) {
    ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {3, 2}, true});
    g.outputs = {one(g, op, {x, g.add_constant(scale(second))})};
  };
  for (float second : {2.0f, 3.0f}) {
    Graph g;
    scaled(g, "Mul", 2);
    auto pattern = std::make_shared<Graph>("pattern"), other = std::make_shared<Graph>("other");
    scaled(*pattern, "Mul", second);
    scaled(*other, "Div", second);
    Rule rule{"constant", "", "", pattern, other, nullptr, nullptr};
    EXPECT_EQ(substitute(g, ops(), {rule}).matched, second == 2 ? 1 : 0);
  }
}

TEST(Substitute, AReplacementThatGivesAConstantOrNothingIsLeftOut) {
  auto g = gated();
  auto pattern = std::make_shared<Graph>("pattern"), same = std::make_shared<Graph>("same");
  ValueId a = pattern->add_input("a", {OPGRAFT_FLOAT32, {6, 33}, true});
  pattern->outputs = {one(*pattern, "SiLU", {a})};
  same->outputs = {same->add_input("a", {OPGRAFT_FLOAT32, {6, 33}, true})};
  Rule rule{"same", "", "", pattern, same, nullptr, nullptr};
  Report r = substitute(*g, ops(), {rule});
  ASSERT_EQ(r.left.size(), 1u);
  EXPECT_NE(r.left[0].why.find("the replacement has no operator"), std::string::npos) << r.left[0].why;
  EXPECT_EQ(g->order().size(), 2u);
}

TEST(Substitute, AnInnerValueUsedElsewhereIsLeftAlone) {
  auto g = gated();
  ValueId silu = g->node(g->order()[0]).outputs[0];
  g->outputs.push_back(silu);
  Report r = substitute(*g, ops(), swiglu_rules());
  EXPECT_TRUE(r.swapped.empty());
  ASSERT_FALSE(r.left.empty());
  EXPECT_NE(r.left[0].why.find("is an output of the model"), std::string::npos);
}

// AddLayerNorm gives the sum and its norm; here the norm's gamma is made of the sum.
TEST(Substitute, AnOpThatWouldWaitForItselfIsLeftAlone) {
  auto build = [](bool back) {
    auto g = std::make_shared<Graph>();
    TensorType rows{OPGRAFT_FLOAT32, {8, 8}}, row{OPGRAFT_FLOAT32, {8}};
    ValueId x = g->add_input("x", rows), residual = g->add_input("residual", rows);
    ValueId gamma = g->add_input("gamma", row), beta = g->add_input("beta", row);
    ValueId sum = one(*g, "Add", {x, residual});
    ValueId before = one(*g, "Neg", {sum});  // stands between the two results
    if (back) gamma = one(*g, "ReduceSum", {before}, {{"axis", std::vector<int64_t>{0}}});
    g->outputs = {one(*g, "FusedLayerNorm", {sum, gamma, beta}), before};
    return g;
  };
  std::vector<Rule> rules;
  for (auto &r : rules_of(ops()))
    if (r.name.starts_with("AddLayerNorm@")) rules.push_back(r);
  std::vector<Tensor> in{floats({8, 8}), floats({8, 8}, 2), floats({8}, 1), floats({8})};
  for (bool back : {false, true}) {
    auto g = build(back);
    auto want = Session(std::make_shared<Model>(g->clone())).run(in);
    Report report = substitute(*g, ops(), rules);
    EXPECT_EQ(report.swapped.size(), back ? 0u : 1u);
    EXPECT_EQ(report.left.size(), back ? 1u : 0u);
    auto got = Session(std::make_shared<Model>(g)).run(in);
    for (size_t i = 0; i < want.size(); ++i)
      for (int64_t k = 0; k < want[i].size(); ++k)
        EXPECT_NEAR(got[i].data<float>()[k], want[i].data<float>()[k], 1e-5) << i << " " << k;
  }
}

TEST(Proof, SecondSizeIsCutFromTheFirst) {
  auto g = gated();
  auto sets = vary_sizes(*g, {{floats({6, 33}), floats({6, 33})}});
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[1][0].dims(), (Shape{3, 33}));
  EXPECT_EQ(std::memcmp(sets[1][0].data(), sets[0][0].data(), sets[1][0].bytes()), 0);
}

TEST(Proof, NanAndInfMustStandInTheSamePlaces) {
  Tensor a = floats({4}), b = floats({4});
  a.data<float>()[1] = b.data<float>()[1] = NAN;
  a.data<float>()[2] = b.data<float>()[2] = INFINITY;
  EXPECT_TRUE(compare(a, b).agrees);
  a.data<float>()[2] = -INFINITY;
  EXPECT_FALSE(compare(a, b).agrees);
  a.data<float>()[2] = 1;
  EXPECT_FALSE(compare(a, b).agrees);
}

// A value that the model or another node uses: taken only where the pattern lets them, for whom it stays.
TEST(Substitute, WhatIsSharedStaysForItsOtherUsers) {
  const std::string spec = ops().resolve("SwiGLU")->spec(), program = "h = Neg(gate)\ns = SiLU(h)\nMul(s, x)";
  const auto rule = [&](const std::string &text) { return Rule{spec, spec, text, nullptr, nullptr}; };
  const auto names = [](const Graph &g) {
    std::vector<std::string> out;
    for (NodeId id : g.order()) out.push_back(g.node(id).op);
    return out;
  };
  using Names = std::vector<std::string>;
  for (bool model : {false, true}) {
    auto g = std::make_shared<Graph>("shared");
    const TensorType type{OPGRAFT_FLOAT32, {4, 33}, true};
    ValueId x = g->add_input("x", type), y = g->add_input("y", type), gate = g->add_input("gate", type);
    ValueId s = one(*g, "SiLU", {one(*g, "Neg", {gate})});
    g->outputs = {one(*g, "Mul", {s, x}), model ? s : one(*g, "Mul", {s, y})};
    // SwiGLU of Neg(gate) is no such thing, but which nodes stay is what is asked.
    Report r = substitute(*g, ops(), {rule(program)});
    EXPECT_TRUE(r.swapped.empty());
    EXPECT_EQ(r.left.size(), model ? 1u : 2u);
    r = substitute(*g, ops(), {rule(program + " -> shared(s)")});
    EXPECT_EQ(r.swapped.size(), model ? 1u : 2u);
    EXPECT_TRUE(r.left.empty());
    EXPECT_EQ(names(*g), model ? (Names{"Neg", "SiLU", "SwiGLU"}) : (Names{"SwiGLU", "SwiGLU"}));
  }
}

TEST(Fallbacks, TheirSizeCountsWhatIsWithinThem) {
  // Four levels of 100 nodes, each node with the level below as its fallback: counted without being made.
  auto level = chain(1, {1});
  size_t want = 1;
  for (int i = 0; i < 4; ++i, want *= 100) {
    EXPECT_EQ(passes::expanded_size(*level), want);
    auto above = chain(100, {1});
    for (NodeId id : above->order()) above->node(id).fallback = level;
    level = above;
  }
  for (int i = 0; i < 40; ++i) {  // beyond any number
    auto above = chain(2, {1});
    for (NodeId id : above->order()) above->node(id).fallback = level;
    level = above;
  }
  EXPECT_GE(passes::expanded_size(*level), size_t(1) << 40);
}

}  // namespace
}  // namespace opgraft
