#include "infer/passes/pattern.h"

#include <gtest/gtest.h>

#include "engine_test_util.h"
#include "infer/passes/passes.h"

namespace opgraft {
namespace {
using namespace test;
using namespace passes;

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
       {"Mul(x, Rsqrt(Add(gamma, epsilon)))",
        "Mul(Mul(x, _), gamma)",
        "m = Neg(x)\nMul(m, Add(m, gamma))",
        "Mul(x, Div(gamma, c)) -> epsilon=1/c, mode=fast",
        "Mul(Mul(x, a), Mul(gamma, epsilon)) -> epsilon=a*epsilon",
        "Mul(x, gamma) -> epsilon=dim(x, -1), rank(x)=2",
        "GeLU(Mul(x, gamma), approximate=tanh)",
        "Softmax(Mul(x, gamma), axis=a) -> epsilon=a",
        "Add(Mul(x, gamma), bias)",
        "s = Split(x, axis=-1, output_num=2)\nMul(s[1], gamma) -> part(gamma, x, -1)=0/2",
        "Mul(x, gamma) -> every(gamma, x, 1)=1/2, repeats(gamma, x, 0), first(x, gamma, -1), "
        "last(x, gamma, 0), causal(gamma)",
        "m = Neg(x)\nMul(m, gamma) -> shared(m)",
        "Mul(x, r) -> repeats(r, gamma, 0), rank(gamma)=1",
        "Mul(x, gamma) -> dim(x, 0)=1, dim(gamma, -1)=4",
        "Mul(Div(x, a), Div(gamma, epsilon)) -> epsilon=1/a/epsilon",
        "m = Neg(x)\nMul(m, gamma) -> rows(m)>=8, columns(x) >= 32, open(gamma)",
        "Mul(x, Mul(gamma, c)) -> columns(x)=c, columns( gamma ) = 1/c",
        "Mul(x, gamma) -> along(gamma, x, 1), along( gamma , x ), along(x, gamma, -1), fixed(gamma)",
        "Mul(x, MatMul(gamma, m)) -> turns(m)=halves, turns( m ) = -pairs, late, epsilon=1",
        "Mul(x, Sub(Mul(gamma, b), c)) -> bias=bools(b), epsilon=off(c, b)",
        "Mul(x, Sub(Mul(gamma, b), c)) -> epsilon = -off(c, b), causal(gamma)",
        "Mul(x, GeLU(gamma, approximate=a)) -> causal(gamma, a), causal( -gamma , a )",
        "Mul(x, gamma) -> density(gamma)<0.25, density(x) < 1, dtype(x)=int8, dtype(gamma)=int8/uint8, "
        "shape(x)=shape(gamma)"})
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
      {"Mul(x, Mul(gamma, c)) -> epsilon=1/c/z", "-> epsilon=: c must be a value", false},
      {"Mul(x, Mul(gamma, c)) -> epsilon=c*z", "-> epsilon=: c must be a value", false},
      {"Mul(x, gamma) -> rank(z)=2", "-> rank(z): z must be a value", false},
      {"Mul(x, gamma) -> dtype(z)=int8", "-> dtype(z): z must be a value", false},
      {"Mul(x, gamma) -> shape(x)=shape(z)", "-> shape(x)=shape(z): x must be a value", false},
      {"Mul(x, gamma) -> density(z)<0.1", "-> density(z): z must be a value", false},
      {"Mul(x, gamma) -> part(z, x, -1)=0/2", "-> part(z, x, -1)=0/2: z must be a value", false},
      {"Mul(x, r) -> repeats(r, z, 0), dim(gamma, 0)=1", "-> repeats(r, z, 0): r must be a value", false},
      {"Mul(x, _) -> repeats(r, gamma, 0)", "-> repeats(r, gamma, 0): r must be a value", false},
      {"Mul(x, gamma) -> dim(z, 0)=1", "-> dim(z, 0)=1: z must be a value", false},
      {"Mul(x, gamma) -> shared(x)", "-> shared(x): x must be a label", false},
      {"Mul(x, gamma) -> causal(z)", "-> causal(z): z must be a value", false},
      {"Mul(x, Softmax(gamma, axis=a)) -> causal(z, a)", "-> causal(z, a): z must be a value", false},
      {"Mul(x, gamma) -> causal(-x, z)", "-> causal(-x, z): x must be a value", false},
      {"Mul(x, gamma) -> bias=bools(z)", "-> bias=: z must be a value", false},
      {"Mul(x, gamma) -> beta=bools(x)", "-> beta= must be one of the op's", false},
      {"Mul(x, gamma) -> epsilon=bools(x)", "-> epsilon=: x must be a value", false},
      {"Mul(x, gamma) -> epsilon=-off(x, z)", "-> epsilon=: x must be a value", false},
      {"Mul(x, gamma) -> rows(z)>=8", "-> rows(z)>=8: z must be a value", false},
      {"Mul(x, Mul(gamma, c)) -> columns(z)=1/c", "-> columns(z)=1/c: z must be a value", false},
      {"Mul(x, Mul(gamma, c)) -> columns(x)=c, columns(x)=z", "must be a value", false},
      {"Mul(x, gamma) -> columns(x)=8", "a name", false},
      {"Mul(x, gamma) -> open(z)", "-> open(z): z must be a value", false},
      {"Mul(x, gamma) -> turns(z)=-halves", "-> turns(z)=-halves: z must be a value", false},
      {"Mul(x, gamma) -> late=1", "-> late= must be one of the op's attributes (epsilon, mode)", false},
      {"Mul(x, gamma) -> fixed(z)", "-> fixed(z): z must be a value", false},
      {"Mul(x, gamma) -> along(z, x)", "-> along(z, x): z must be a value", false},
      {"Mul(x, gamma) -> along(x, z, 1)", "-> along(x, z, 1): x must be a value", false},
      {"Mul(x, Nonsense(gamma))", "no registered op is named Nonsense", true},
      {"Mul(x, Neg(gamma, x))", "Neg must have inputs (x), got 2 arguments", true},
      {"Mul(x, Neg(gamma, axis=1))", "Neg(axis=) must be one of its attributes (none)", true},
  };
  for (const char *dtype : {"T", "float32"}) {  // of a tensor without elements, that stands for it
    Manifest known = op;
    known.inputs[2].dtype = dtype;
    EXPECT_NO_THROW(op_pattern("Add(Mul(x, gamma), residual)", known, find_in(ops()), true)) << dtype;
  }
  Manifest first = op;  // or of the first dtype that its variable may be
  first.dtypes = {{"B", {OPGRAFT_FLOAT16, OPGRAFT_INT32}}};
  EXPECT_NO_THROW(op_pattern("Add(Mul(x, gamma), residual)", first, find_in(ops()), true));
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
                           "Mul(x) -> a=1/x/",
                           "Mul(x) -> dim(x, 0)=a",
                           "Mul(x) -> dim(x, 0)<1",
                           "Mul(x) -> last(x, x)",
                           "Mul(x) -> causal()",
                           "Mul(x) -> causal(-x)",
                           "Mul(x) -> causal(x, )",
                           "Mul(x) -> a=bools()",
                           "Mul(x) -> a=-bools(x)",
                           "Mul(x) -> a=off(x)",
                           "Mul(x) -> a=-off(x, )",
                           "Mul(x) -> row()",
                           "Mul(x) -> row(x)=1",
                           "Mul(x) -> turns(x)",
                           "Mul(x) -> turns()=halves",
                           "Mul(x) -> turns(x)=1/2",
                           "Mul(x) -> turns(x)=-",
                           "Mul(x) -> late(x)",
                           "Mul(x) -> fixed()",
                           "Mul(x) -> along(x)",
                           "Mul(x) -> along(x, )",
                           "Mul(x) -> along(x, x, 1",
                           "Mul(x, y*)",
                           "Mul(x*, y)",
                           "Mul(x**)",
                           "m = Neg(x)\nMul(m, x) -> shared()",
                           "m = Neg(x)\nMul(m, x) -> shared(m, x)",
                           "Mul(x) -> density(x)=0.1",
                           "Mul(x) -> density()<0.1",
                           "Mul(x) -> density(x)<0",
                           "Mul(x) -> dtype(x)=int7",
                           "Mul(x) -> dtype(x)=int8/",
                           "Mul(x) -> dtype(x)=int8/int7",
                           "Mul(x) -> dtype(x)<int8",
                           "Mul(x) -> shape(x)=y",
                           "Mul(x) -> shape(x)=shape()",
                           "Mul(x) -> density(x)<1.5",
                           "Mul(x) -> density(x)<a",
                           "Mul(Neg(x)[-1], x)",
                           "Mul(Neg(x)[1, x)"})
    EXPECT_THROW(parse_pattern(text, "test"), Error) << text;
}

TEST(Pattern, WhatLiesAlongAnAxisHasItsNumberOfElements) {
  const auto fits = [](Shape x, Shape a, const std::string &condition) {
    Graph g("along");
    for (Shape *s : {&x, &a})
      for (int64_t &d : *s) d = d == -2 ? g.symbols.fresh("open") : d;
    ValueId v = g.add_input("x", {OPGRAFT_FLOAT32, x, true}), w = g.add_input("a", {OPGRAFT_FLOAT32, a, true});
    g.outputs = {one(g, "Sub", {v, w})};
    const Pattern p = parse_pattern("Sub(x, a) -> " + condition, "test");
    Match m;
    return match(g, g.users(), p, nullptr, g.value(g.outputs[0]).producer, m) && applies(g, p, m);
  };
  const std::string second = "along(a, x, 1)", last = "along(a, x, -1)", any = "along(a, x)";
  EXPECT_TRUE(fits({2, 6, 5, 6}, {1, 6, 1, 1}, second));
  EXPECT_TRUE(fits({-2, 6, -2, 5}, {6, 1, 1}, second));
  EXPECT_TRUE(fits({2, 6, 5, 6}, {6}, last));
  EXPECT_TRUE(fits({2, 1, 5, 6}, {1, 1, 1}, second));
  for (auto &a : {Shape{1, 6, 1, 1}, Shape{6, 1, 1}, Shape{5, 1}, Shape{1, 6}, Shape{6}, Shape{2, 1, 1, 1}})
    EXPECT_TRUE(fits({2, 6, 5, 6}, a, any));
  for (auto &a :
       {Shape{6}, Shape{1, 1, 1, 6}, Shape{1, 6, 5, 1}, Shape{2, 6, 1, 1}, Shape{}, Shape{1}, Shape{1, 1, 1, 1}})
    EXPECT_FALSE(fits({2, 6, 5, 6}, a, second));
  for (auto &a : {Shape{}, Shape{1}, Shape{5, 6}, Shape{2, 6, 1, 1}, Shape{2, 6, 5, 6}})
    EXPECT_FALSE(fits({2, 6, 5, 6}, a, any));
  EXPECT_FALSE(fits({2, 1, 5, 6}, {}, second));             // a number, and no axis
  EXPECT_FALSE(fits({2, 1, 5, 6}, {1, 6, 1, 1}, any));      // x is what is broadcast
  EXPECT_FALSE(fits({6, 5}, {1, 6, 5}, last));              // y has a dimension more
  EXPECT_FALSE(fits({2, -2, 5, 6}, {1, 6, 1, 1}, second));  // 6 or 1
  EXPECT_FALSE(fits({2, 6}, {1, 6}, "along(a, x, 2)"));
}

// An axis of a reduction, a list, for an op's number; several calls may count the same one from either end.
TEST(Pattern, AnAxisIsBoundAsANumber) {
  Manifest op;
  op.name = "Share";
  op.inputs = {{"x", "T"}};
  op.attrs = {{"axis", OPGRAFT_ATTR_INT, std::nullopt}};
  using Axes = std::vector<int64_t>;
  const auto bound = [&](Axes of_sum, Axes of_max, Shape x = {2, 3, 4}) -> int64_t {
    Graph g("share");
    const ValueId v = g.add_input("x", {OPGRAFT_FLOAT32, x, true});
    const auto reduced = [&](const char *how, const Axes &axis) {
      return one(g, how, {v}, {{"axis", axis}, {"keep_dims", true}});
    };
    g.outputs = {one(g, "Div", {reduced("ReduceSum", of_sum), reduced("ReduceMax", of_max)})};
    const Pattern p = op_pattern("Div(ReduceSum(x, axis=axis), ReduceMax(x, axis=axis))", op, find_in(ops()), true);
    Match m;
    if (!match(g, g.users(), p, &op, g.value(g.outputs[0]).producer, m)) return 99;
    return std::get<int64_t>(m.attrs.at("axis"));
  };
  EXPECT_EQ(bound({1}, {1}), 1);
  EXPECT_EQ(bound({-1}, {-1}), -1);
  EXPECT_EQ(bound({-1}, {2}), -1);
  EXPECT_EQ(bound({0}, {-3}), 0);
  EXPECT_EQ(bound({0}, {-3}, {2, 3, 4, 5}), 99);
  EXPECT_EQ(bound({1}, {2}), 99);
  EXPECT_EQ(bound({1, 2}, {1, 2}), 99);  // no number
  EXPECT_EQ(bound({}, {}), 99);
}

TEST(Pattern, WhatIsFixedTakesNoInputOfTheModel) {
  Graph g("fixed");
  const ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {2, 6}, true});
  const ValueId p = g.add_constant(floats({6}), "p", true), a = one(g, "Neg", {p});
  const auto fits = [&](ValueId of) {
    const ValueId y = one(g, "Sub", {x, of});
    const Pattern pattern = parse_pattern("Sub(x, a) -> fixed(a)", "test");
    Match m;
    return match(g, g.users(), pattern, nullptr, g.value(y).producer, m) && applies(g, pattern, m);
  };
  EXPECT_TRUE(fits(p));
  EXPECT_TRUE(fits(a));
  EXPECT_TRUE(fits(one(g, "Mul", {a, one(g, "Neg", {a})})));
  EXPECT_FALSE(fits(x));
  EXPECT_FALSE(fits(one(g, "Mul", {a, one(g, "Neg", {x})})));
}

// x m of a row x of 4 elements, by the constant m.
TEST(Pattern, AMatrixThatTurnsIsOneOfItsFour) {
  Graph g("test");
  const auto matrix = [&](const std::vector<float> &m, Shape dims = {4, 4}) -> const Value & {
    Tensor t(OPGRAFT_FLOAT32, dims);
    std::copy(m.begin(), m.end(), t.data<float>());
    return g.value(g.add_constant(t));
  };
  const std::vector<float> halves{0, 0, 1, 0, 0, 0, 0, 1, -1, 0, 0, 0, 0, -1, 0, 0};
  const std::vector<float> pairs{0, 1, 0, 0, -1, 0, 0, 0, 0, 0, 0, 1, 0, 0, -1, 0};
  for (const bool back : {false, true})
    for (const bool of_pairs : {false, true}) {
      std::vector<float> m = of_pairs ? pairs : halves;
      for (float &v : m) v = back ? 0 - v : v;
      for (int which = 0; which < 4; ++which)
        EXPECT_EQ(turns(matrix(m), which & 1, which & 2), which == of_pairs + 2 * back) << which;
      EXPECT_TRUE(turns(matrix(m, {1, 1, 4, 4}), of_pairs, back));
      for (const Shape &dims : {Shape{16}, Shape{2, 8}, Shape{4, 2, 2}, Shape{1, 16}})
        EXPECT_FALSE(turns(matrix(m, dims), of_pairs, back));
      for (size_t i = 0; i < 16; ++i) {
        std::vector<float> other = m;
        other[i] += 0.5f;
        EXPECT_FALSE(turns(matrix(other), of_pairs, back)) << i;
      }
    }
  EXPECT_FALSE(turns(matrix({0}, {1, 1}), false, false));
  EXPECT_FALSE(turns(matrix({}, {0, 0}), false, false));
  const ValueId input = g.add_input("x", g.value(g.add_constant(Tensor(OPGRAFT_FLOAT32, {4, 4}))).type);
  EXPECT_FALSE(turns(g.value(input), false, false));
}

// What a condition says a value is made of, and no call takes, is looked for: behind whatever moves values.
TEST(Pattern, WhatIsMadeOfAValueIsLookedFor) {
  const auto indices = [](std::vector<int32_t> of) {
    Tensor t(OPGRAFT_INT32, {int64_t(of.size())});
    std::copy(of.begin(), of.end(), t.data<int32_t>());
    return t;
  };
  // Sub(x, what is made of k), whose rows are 3: the nodes that lead from k to it; -1: it is not found.
  const auto between = [&](auto &&make, const char *rows = "", bool holds = true) {
    Graph g("sought");
    const ValueId x = g.add_input("x", {OPGRAFT_FLOAT32, {2, 6, 5}, true});
    const ValueId k = g.add_input("k", {OPGRAFT_FLOAT32, {2, 3, 5}, true});
    const ValueId y = one(g, "Sub", {x, make(g, k)});
    const Pattern p = parse_pattern(std::string("Sub(x, r) -> repeats(r, k, 1)") + rows, "test");
    Match m;
    EXPECT_TRUE(match(g, g.users(), p, nullptr, g.value(y).producer, m));
    if (!find_sources(g, p, m) || !applies(g, p, m)) return -1;
    EXPECT_EQ(m.values.at("k"), k);
    if (holds) EXPECT_NO_THROW(check_arranged(g, m.values.at("r"), k, p.settings[0]));
    else EXPECT_THROW(check_arranged(g, m.values.at("r"), k, p.settings[0]), Error);
    return int(m.nodes.size()) - 1;
  };
  const auto gather = [&](std::vector<int32_t> of) {
    return [=](Graph &g, ValueId k) {
      return one(g, "Gather", {k, g.add_constant(indices(of))}, {{"axis", int64_t(1)}});
    };
  };
  EXPECT_EQ(between(gather({0, 0, 1, 1, 2, 2})), 1);
  EXPECT_EQ(between(gather({0, 0, 1, 1, 2, 2}), ", dim(k, 1)=3"), 1);
  EXPECT_EQ(between(gather({0, 0, 1, 1, 2, 2}), ", dim(k, 1)=6"), -1);
  EXPECT_EQ(between(gather({0, 1, 2, 0, 1, 2}), "", false), 1);
  const auto stacked = [](Graph &g, ValueId k) {
    const ValueId s = one(g, "Stack", {k, k}, {{"axis", int64_t(2)}});
    Tensor target(OPGRAFT_INT64, {3});
    for (int64_t i = 0; i < 3; ++i) target.data<int64_t>()[i] = i == 0 ? 2 : i == 1 ? 6 : 5;
    return one(g, "Reshape", {s, g.add_constant(target)});
  };
  EXPECT_EQ(between(stacked), 2);
  EXPECT_EQ(between(
                [](Graph &g, ValueId k) {
                  return one(g, "Concat", {k, k}, {{"axis", int64_t(1)}});
                },
                "", false),
            1);
  // Of several whose shapes fit the smallest that it is made of: no piece of k is.
  const auto pieces = [&](Graph &g, ValueId k) {
    std::vector<ValueId> rows;
    for (int32_t i = 0; i < 6; ++i) rows.push_back(gather({i / 2})(g, k));
    return one(g, "Concat", rows, {{"axis", int64_t(1)}});
  };
  EXPECT_EQ(between(pieces), 7);
  // Nothing moves what is computed, and what has the same shape is no repetition.
  EXPECT_EQ(between([&](Graph &g, ValueId k) { return one(g, "Neg", {gather({0, 0, 1, 1, 2, 2})(g, k)}); }), -1);
  EXPECT_EQ(between([](Graph &g, ValueId) { return g.add_constant(floats({2, 6, 5})); }), -1);
}

// A pattern that says it is late stands behind those of all others but siblings, whatever it is made of.
TEST(Pattern, LateOnesComeLast) {
  bool late = false;
  for (auto &rule : rules_of(ops())) {
    if (rule.parsed->siblings()) break;
    EXPECT_TRUE(rule.parsed->late || !late) << rule.program;
    late = rule.parsed->late;
  }
  EXPECT_TRUE(late);
}

}  // namespace
}  // namespace opgraft
