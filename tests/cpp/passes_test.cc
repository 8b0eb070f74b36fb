#include "infer/passes/passes.h"
#include "infer/passes/subgraph.h"

#include <gtest/gtest.h>

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

TEST(Pattern, EveryRegisteredPatternParses) { EXPECT_FALSE(rules_of(ops()).empty()); }

// Names that nothing takes up would match anything and be dropped; the message tells what they can be.
TEST(Pattern, WhatAnOpCannotBeMadeOfIsRefused) {
  Manifest op;
  op.name = "Norm", op.version = "1.0.0";
  op.inputs = {{"x", "T"}, {"gamma", "T"}, {"bias", "B", true}, {"residual", "T", true}};
  op.attrs = {{"epsilon", OPGRAFT_ATTR_FLOAT, std::nullopt}, {"mode", OPGRAFT_ATTR_STRING, std::nullopt}};
  auto cause = [&](const std::string &program, bool strict) -> std::string {
    try {
      op_pattern(program, op, find_in(ops()), strict);
      return "";
    } catch (const Error &e) {
      return e.what();
    }
  };
  for (const char *right :
       {"Mul(x, Rsqrt(Add(gamma, epsilon)))", "Mul(Mul(x, _), gamma)", "m = Neg(x)\nMul(m, Add(m, gamma))",
        "Mul(x, Div(gamma, c)) -> epsilon=1/c, mode=fast", "Mul(Mul(x, a), Mul(gamma, epsilon)) -> epsilon=a*epsilon",
        "Mul(x, gamma) -> epsilon=dim(x, -1), rank(x)=2", "GeLU(Mul(x, gamma), approximate=tanh)",
        "Softmax(Mul(x, gamma), axis=a) -> epsilon=a", "Add(Mul(x, gamma), bias)",
        "s = Split(x, axis=-1, output_num=2)\nMul(s[1], gamma) -> part(gamma, x, -1)=0/2",
        "Mul(x, gamma) -> every(gamma, x, 1)=1/2, repeats(gamma, x, 0), first(x, gamma, -1), "
        "last(x, gamma, 0), causal(gamma)",
        "m = Neg(x)\nMul(m, gamma) -> shared(m)",
        "m = Neg(x)\nMul(m, gamma) -> rows(m)>=8, columns(x) >= 32, open(gamma)",
        "Mul(x, Mul(gamma, c)) -> columns(x)=c, columns( gamma ) = 1/c",
        "Mul(x, gamma) -> density(gamma)<0.25, density(x) < 1, dtype(x)=int8, shape(x)=shape(gamma)"})
    EXPECT_EQ(cause(right, true), "") << right;
  const std::tuple<const char *, const char *, bool> wrong[] = {
      {"Mul(x, Rsqrt(Add(gamma, eps)))",
       "eps must be an input of the op (x, gamma, bias, residual), an attribute "
       "of the op (epsilon, mode), a label",
       false},
      {"Mul(m, Add(x, gamma))\n", "m must be an input", false},
      {"Neg(x)", "input gamma must be bound", false},
      {"Add(Mul(x, gamma), residual)", "input bias must be bound, as residual after it is", false},
      {"m = Neg(x)\nMul(x, gamma)", "m must be computed on the way", false},
      {"Mul(x, gamma), Neg(bias)", "Neg must be computed on the way to the first result, or share an input", false},
      {"Mul(x, gamma), x", "results must be calls", false},
      {"MatMul(x, gamma, transpose_b=tranpose)", "MatMul(transpose_b=) must be a value", false},
      {"Mul(x, gamma) -> eps=1", "-> eps= must be one of the op's attributes (epsilon, mode)", false},
      {"Mul(x, gamma) -> epsilon=1/c", "-> epsilon=: c must be a value", false},
      {"Mul(x, Mul(gamma, c)) -> epsilon=c*z", "-> epsilon=: c must be a value", false},
      {"Mul(x, gamma) -> rank(z)=2", "-> rank(z): z must be a value", false},
      {"Mul(x, gamma) -> dtype(z)=int8", "-> dtype(z): z must be a value", false},
      {"Mul(x, gamma) -> shape(x)=shape(z)", "-> shape(x)=shape(z): x must be a value", false},
      {"Mul(x, gamma) -> density(z)<0.1", "-> density(z): z must be a value", false},
      {"Mul(x, gamma) -> part(z, x, -1)=0/2", "-> part(z, x, -1)=0/2: z must be a value", false},
      {"Mul(x, gamma) -> shared(x)", "-> shared(x): x must be a label", false},
      {"Mul(x, gamma) -> causal(z)", "-> causal(z): z must be a value", false},
      {"Mul(x, gamma) -> rows(z)>=8", "-> rows(z)>=8: z must be a value", false},
      {"Mul(x, Mul(gamma, c)) -> columns(z)=1/c", "-> columns(z)=1/c: z must be a value", false},
      {"Mul(x, Mul(gamma, c)) -> columns(x)=c, columns(x)=z", "must be a value", false},
      {"Mul(x, gamma) -> columns(x)=8", "a name", false},
      {"Mul(x, gamma) -> open(z)", "-> open(z): z must be a value", false},
      {"Mul(x, Nonsense(gamma))", "no registered op is named Nonsense", true},
      {"Mul(x, Neg(gamma, x))", "Neg must have inputs (x), got 2 arguments", true},
      {"Mul(x, Neg(gamma, axis=1))", "Neg(axis=) must be one of its attributes (none)", true},
  };
  for (const char *dtype : {"T", "float32"}) {  // of a tensor without elements, that stands for it
    Manifest known = op;
    known.inputs[2].dtype = dtype;
    EXPECT_NO_THROW(op_pattern("Add(Mul(x, gamma), residual)", known, find_in(ops()), true)) << dtype;
  }
  for (auto &[program, what, strict] : wrong) {
    std::string got = cause(program, true);
    EXPECT_TRUE(got.starts_with("Norm@1.0.0: pattern " + quoted(program) + ": ")) << got;
    EXPECT_NE(got.find(what), got.npos) << got;
    EXPECT_EQ(cause(program, false).empty(), strict) << program;
  }
}

TEST(Pattern, WhatStandsInBracesIsEachOfItsAlternatives) {
  using Spellings = std::vector<std::string>;
  EXPECT_EQ(spellings("Mul(x, y)", "test"), (Spellings{"Mul(x, y)"}));
  EXPECT_EQ(spellings("{Add|Sub}(x, {y|Neg({y|z})|})", "test"),
            (Spellings{"Add(x, y)", "Add(x, Neg(y))", "Add(x, Neg(z))", "Add(x, )", "Sub(x, y)", "Sub(x, Neg(y))",
                       "Sub(x, Neg(z))", "Sub(x, )"}));
  EXPECT_EQ(spellings("{a = Neg(x)\n|}Mul(x, p=\"{|}\")", "test"),
            (Spellings{"a = Neg(x)\nMul(x, p=\"{|}\")", "Mul(x, p=\"{|}\")"}));
  // An alternative's own settings come behind those of all.
  EXPECT_EQ(spellings("Neg({Mul(x, s)|Div(x, s) -> s=1/s, t={1|2} }) -> rank(x)=2", "test"),
            (Spellings{"Neg(Mul(x, s)) -> rank(x)=2", "Neg(Div(x, s)) -> rank(x)=2, s=1/s, t=1",
                       "Neg(Div(x, s)) -> rank(x)=2, s=1/s, t=2"}));
  EXPECT_EQ(spellings("Neg({x|y -> a=-1})\n", "test"), (Spellings{"Neg(x)", "Neg(y) -> a=-1"}));
}

TEST(Pattern, BracesThatDoNotMatchOrSayTooMuchAreRefused) {
  std::string many;
  for (int i = 0; i < 11; ++i) many += "{a|b}";  // 2048
  const std::pair<std::string, const char *> wrong[] = {
      {"Mul({x|y)", "'}' to close '{'"}, {"Mul(x|y)", "'|' within '{' and '}'"},
      {"Mul(x}, y)", "'{' before '}'"},  {"Mul(x, p=\"{)", "a closing quote"},
      {many, "at most 1024 spellings"},  {std::string(65, '{'), "at most 64 braces"}};
  for (auto &[program, what] : wrong) try {
      spellings(program, "Norm@1.0.0");
      ADD_FAILURE() << program;
    } catch (const Error &e) {
      EXPECT_EQ(std::string(e.what()), "Norm@1.0.0: pattern " + quoted(program) + ": expected " + what);
    }
}

TEST(Pattern, BrokenProgramsAreRefusedWithThePlace) {
  for (const char *text : {"",
                           "Mul(",
                           "Mul(x,",
                           "x",
                           "a = ",
                           "Mul(x, y) ->",
                           "Mul(x y)",
                           "Mul(x, p=[1, )",
                           "Mul(x, p=\"a)",
                           "Mul(x) -> rank(x)",
                           "Mul(x) -> rank()=2",
                           "Mul(x) -> rank(x)=a",
                           "Mul(x) -> part(x, x, 1)",
                           "Mul(x) -> every(x, x, 1)=2/2",
                           "Mul(x) -> repeats(x, 1)",
                           "Mul(x) -> first(x, 1)",
                           "Mul(x) -> last(x, x)",
                           "Mul(x) -> causal()",
                           "Mul(x) -> row()",
                           "Mul(x) -> row(x)=1",
                           "Mul(x, y*)",
                           "Mul(x*, y)",
                           "Mul(x**)",
                           "m = Neg(x)\nMul(m, x) -> shared()",
                           "m = Neg(x)\nMul(m, x) -> shared(m, x)",
                           "Mul(x) -> density(x)=0.1",
                           "Mul(x) -> density()<0.1",
                           "Mul(x) -> density(x)<0",
                           "Mul(x) -> dtype(x)=int7",
                           "Mul(x) -> dtype(x)<int8",
                           "Mul(x) -> shape(x)=y",
                           "Mul(x) -> shape(x)=shape()",
                           "Mul(x) -> density(x)<1.5",
                           "Mul(x) -> density(x)<a",
                           "Mul(Neg(x)[-1], x)",
                           "Mul(Neg(x)[1, x)"})
    EXPECT_THROW(parse_pattern(text, "test"), Error) << text;
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
