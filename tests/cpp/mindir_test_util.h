// A folder for model files, a small model, and the comparison of two graphs.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "infer/mindir.h"

namespace opgraft::test {

namespace fs = std::filesystem;

struct MindirTest : testing::Test {
  fs::path dir = fs::temp_directory_path() / ("mindir_test_" + std::to_string(getpid()));
  Registry &registry = Registry::global();
  void SetUp() override { fs::create_directories(dir); }
  void TearDown() override { fs::remove_all(dir); }

  static std::string bytes(const fs::path &file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static Tensor weight(Shape dims) {
    Tensor t(OPGRAFT_FLOAT32, dims);
    for (int64_t i = 0; i < t.size(); ++i) t.data<float>()[i] = float(i) * 0.25f;
    return t;
  }
  // gate and value of a feed-forward layer, reduced: attributes, operands, symbols, a Custom.
  std::shared_ptr<Graph> model(bool grafted) {
    auto g = std::make_shared<Graph>("net");
    int64_t n = g->symbols.fresh("batch");
    ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {n, 4}, true});
    ValueId y = g->add_input("y", {OPGRAFT_FLOAT32, {n, 4}, true});
    ValueId w = g->add_constant(weight({4, 6}), "layer.weight", true);
    ValueId a = g->node(g->add_node(registry, "MatMul", {x, w}, {}, "up")).outputs[0];
    ValueId b = g->node(g->add_node(registry, "MatMul", {y, w}, {}, "gate")).outputs[0];
    NodeId s = g->add_node(registry, grafted ? "SwiGLU@1.0.0" : "SwiGLU", {a, b}, {}, "act");
    if (grafted) {
      auto f = std::make_shared<Graph>("fallback");
      int64_t m = f->symbols.fresh("batch");
      ValueId p = f->add_input("x", {OPGRAFT_FLOAT32, {m, 6}, true}),
              q = f->add_input("gate", {OPGRAFT_FLOAT32, {m, 6}, true});
      ValueId t = f->node(f->add_node(registry, "SiLU", {q}, {}, "silu")).outputs[0];
      f->outputs = {f->node(f->add_node(registry, "Mul", {t, p}, {}, "mul")).outputs[0]};
      f->output_names = {"y"};
      g->node(s).fallback = f;
    }
    ValueId r = g->node(g->add_node(registry, "ReduceMean", {g->node(s).outputs[0]},
                                    {{"axis", std::vector<int64_t>{-1}}, {"keep_dims", true}}, "mean"))
                    .outputs[0];
    g->outputs = {r, g->node(s).outputs[0]};
    g->output_names = {"mean", "hidden"};
    return g;
  }
  static void expect_equal(const Graph &a, const Graph &b) {
    // Value ids depend on the order of constants; the text without them does not.
    auto signature = [](const Graph &g) {
      std::string s = g.name;
      auto show = [&](ValueId id) {
        const Value &v = g.value(id);
        bool anonymous = v.kind == Value::kConstant && !v.parameter;
        std::string t = (anonymous ? "" : v.name) + ":" + dtype_name(v.type.dtype) + "(";
        for (int64_t d : v.type.dims) t += g.symbols.text(d) + ",";
        if (v.kind == Value::kConstant) t += std::string(v.constant.data<char>(), v.constant.bytes());
        if (v.known) t += to_string(*v.known);
        return t + ")\n";
      };
      for (ValueId i : g.inputs) s += show(i);
      for (NodeId n : g.order()) {
        s += g.node(n).op + "|" + g.node(n).spec + "|" + g.node(n).name;
        for (auto &[k, v] : g.node(n).attrs) s += " " + k + "=" + attr_text(v);
        for (ValueId i : g.node(n).inputs) s += "<" + show(i);
        for (ValueId o : g.node(n).outputs) s += ">" + show(o);
      }
      for (size_t i = 0; i < g.outputs.size(); ++i) s += g.output_names.at(i) + show(g.outputs[i]);
      return s;
    };
    EXPECT_EQ(signature(a), signature(b));
    ASSERT_EQ(a.order().size(), b.order().size());
    for (size_t i = 0; i < a.order().size(); ++i) {
      auto &f = a.node(a.order()[i]).fallback, &h = b.node(b.order()[i]).fallback;
      ASSERT_EQ(bool(f), bool(h));
      if (f) expect_equal(*f, *h);
    }
  }
  std::string written(const Graph &g, size_t external_from, const std::string &name = "m.mindir") {
    write_mindir(g, dir / name, {external_from});
    return bytes(dir / name);
  }
  std::string error(const std::string &model) {
    try {
      parse_mindir(model, registry, "test");
    } catch (const MindirError &e) {
      return e.what();
    }
    return "";
  }
};

}  // namespace opgraft::test
