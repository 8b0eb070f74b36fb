// MindIR: what is written reads back equal, and a hostile file is refused with a message.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <protozero/pbf_writer.hpp>
#include <random>

#include "infer/mindir.h"
#include "infer/npy.h"

namespace opgraft {
namespace {

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
        std::string t = v.name + ":" + dtype_name(v.type.dtype) + "(";
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

TEST_F(MindirTest, RoundTrip) {
  for (bool grafted : {false, true})
    for (size_t external : {size_t(0), SIZE_MAX}) {
      auto g = model(grafted);
      written(*g, external);
      auto back = read_mindir(dir / "m.mindir", registry);
      expect_equal(*g, *back);
      EXPECT_EQ(back->value(back->inputs[0]).type.dims[0], back->value(back->inputs[1]).type.dims[0]);
      EXPECT_EQ(fs::exists(dir / "m_variables" / "data_0"), external == 0);
      // A second time over the mapped file: the first reader's weights stay.
      written(*back, external);
      expect_equal(*g, *back);
      expect_equal(*g, *read_mindir(dir / "m.mindir", registry));
      fs::remove_all(dir / "m_variables");
    }
  for (auto &e : fs::directory_iterator(dir)) EXPECT_EQ(e.path().filename(), "m.mindir");
}

TEST_F(MindirTest, TruncatedAtEveryLength) {
  std::string whole = written(*model(true), SIZE_MAX);
  EXPECT_EQ(error(whole), "");
  if (const char *corpus = std::getenv("OPGRAFT_WRITE_CORPUS")) {  // seeds for tests/fuzz
    fs::create_directories(corpus);
    written(*model(false), SIZE_MAX, "plain.mindir");
    for (auto *name : {"m.mindir", "plain.mindir"})
      fs::copy_file(dir / name, fs::path(corpus) / name, fs::copy_options::overwrite_existing);
  }
  for (size_t n = 0; n < whole.size(); ++n)
    EXPECT_THROW(parse_mindir(std::string_view(whole).substr(0, n), registry, "cut"), MindirError)
        << n << " of " << whole.size();
}

TEST_F(MindirTest, BitFlips) {
  std::string whole = written(*model(true), SIZE_MAX);
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string bad = whole;
    bad[random() % bad.size()] ^= char(1 << random() % 8);
    try {
      parse_mindir(bad, registry, "flipped");
    } catch (const MindirError &) {
    }
  }
}

TEST_F(MindirTest, EncryptedIsRefused) {
  EXPECT_NE(error("\xd8\x5e\x3a\x7f and more").find("encrypted"), std::string::npos);
}

TEST_F(MindirTest, ExternalData) {
  std::string whole = written(*model(false), 0);
  auto refused = [&](const std::string &part) {
    try {
      read_mindir(dir / "m.mindir", registry);
      ADD_FAILURE() << "expected: " << part;
    } catch (const MindirError &e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("layer.weight"), std::string::npos) << e.what();
    }
  };
  EXPECT_NE(error(whole).find("external data"), std::string::npos);
  fs::path data = dir / "m_variables" / "data_0";
  fs::resize_file(data, 100);
  refused("holds 100 bytes");
  fs::remove(data);
  refused("No such file");
  fs::create_directory(data);
  refused("not a regular file");
  auto at = whole.find("m_variables/data_0");
  ASSERT_NE(at, std::string::npos);
  std::ofstream(dir / "m.mindir", std::ios::binary) << whole.replace(at, 18, "../variables/../da");
  refused("leaves the model's directory");
}

TEST_F(MindirTest, UnknownOpNamesNode) {
  std::string node, graph, primitive, m;
  protozero::pbf_writer n(node), g(graph), p(primitive), w(m);
  n.add_string(2, "n0");
  n.add_string(4, "REF::p0");
  n.add_string(7, "net/strange-op0");
  g.add_message(1, node);
  p.add_string(1, "p0");
  p.add_string(2, "Strange");
  w.add_message(7, graph);
  w.add_message(12, primitive);
  std::string e = error(m);
  EXPECT_NE(e.find("net/strange-op0"), std::string::npos) << e;
  EXPECT_NE(e.find("Strange"), std::string::npos) << e;
}

TEST_F(MindirTest, Npy) {
  for (int32_t d = OPGRAFT_BOOL; d <= OPGRAFT_COMPLEX64; ++d) {
    if (!dtype_size(d)) continue;
    for (Shape dims : {Shape{}, Shape{3}, Shape{0, 2}, Shape{2, 3, 5}}) {
      Tensor t(d, dims);
      std::memset(t.data(), 1, t.bytes());
      write_npy(dir / "t.npy", t);
      Tensor back = read_npy(dir / "t.npy");
      EXPECT_EQ(back.type(), t.type());
      EXPECT_EQ(std::memcmp(back.data(), t.data(), t.bytes()), 0);
    }
  }
  std::string whole = bytes(dir / "t.npy");
  for (size_t k = 0; k < whole.size(); ++k) {
    std::ofstream(dir / "cut.npy", std::ios::binary) << whole.substr(0, k);
    EXPECT_THROW(read_npy(dir / "cut.npy"), Error);
  }
}

}  // namespace
}  // namespace opgraft
