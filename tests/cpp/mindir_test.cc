// MindIR: what is written reads back equal, and a hostile file is refused with a message.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <protozero/pbf_writer.hpp>
#include <random>

#include "infer/npy.h"
#include "mindir_test_util.h"

namespace opgraft {
namespace {

using namespace test;

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

// The file that is mapped where `data` lies; empty for other memory.
std::string mapped_file(const void *data) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    char *end;
    auto from = std::strtoull(line.c_str(), &end, 16), to = std::strtoull(end + 1, nullptr, 16);
    auto at = reinterpret_cast<uintptr_t>(data);
    if (from <= at && at < to && line.find('/') != line.npos) return fs::path(line.substr(line.find('/'))).filename();
  }
  return "";
}

TEST_F(MindirTest, WeightsStayInTheMappedFile) {
  // Names of every length put inline weights at every alignment.
  Graph g;
  std::string name = "w";
  for (int i = 0; i < 8; ++i, name += "w") {
    g.outputs.push_back(g.add_constant(weight({16}), name, true));
    g.output_names.push_back(name);
  }
  written(g, 0);
  auto external = read_mindir(dir / "m.mindir", registry);
  for (ValueId id : external->outputs) {
    void *data = external->value(id).constant.data();
    EXPECT_EQ(mapped_file(data), "data_0");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
  }
  written(g, SIZE_MAX, "inline.mindir");
  auto inside = read_mindir(dir / "inline.mindir", registry);
  int mapped = 0;
  for (size_t i = 0; i < g.outputs.size(); ++i) {
    const Tensor &t = inside->value(inside->outputs[i]).constant, &want = g.value(g.outputs[i]).constant;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data()) % sizeof(float), 0u);
    EXPECT_EQ(std::memcmp(t.data(), want.data(), want.bytes()), 0);
    mapped += mapped_file(t.data()) == "inline.mindir";
  }
  EXPECT_GT(mapped, 0) << "aligned ones are not copied";
  EXPECT_LT(mapped, 8) << "misaligned ones are";
}

TEST_F(MindirTest, AFallbackNamesTheWeightsOfTheModel) {
  auto fused = std::make_shared<Graph>("net");
  auto plain = std::make_shared<Graph>("fallback");
  ValueId w = kNone;
  for (auto &g : {fused, plain}) {
    ValueId x = g->add_input("x", {OPGRAFT_FLOAT32, {3, 100}, true});
    if (w == kNone) w = g->add_constant(weight({100, 200}), "w", true);
    ValueId mine = g == fused ? w : g->add_constant(fused->value(w).constant, "w", true);
    g->outputs = {g->node(g->add_node(registry, "MatMul", {x, mine}, {}, "product")).outputs[0]};
    g->output_names = {"y"};
  }
  fused->node(fused->order()[0]).fallback = plain;
  EXPECT_LT(written(*fused, 0).size(), 2000u) << "80,000 bytes of weights are in no graph";
  EXPECT_LT(fs::file_size(dir / "m_variables" / "data_0"), 90000u) << "and once in the file beside";
  auto read = read_mindir(dir / "m.mindir", registry);
  const Graph &inner = *read->node(read->order()[0]).fallback;
  int weights = 0;
  for (size_t v = 0; v < inner.value_count(); ++v)
    if (auto &value = inner.value(ValueId(v)); value.parameter) {
      EXPECT_EQ(mapped_file(value.constant.data()), "data_0");
      ++weights;
    }
  EXPECT_EQ(weights, 1);
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
