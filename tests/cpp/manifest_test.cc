#include "registry/manifest.h"

#include <gtest/gtest.h>
#include <ostream>

#include "opgraft/abi.h"

namespace opgraft {
namespace {

const std::string kGood = R"(name: Scale
version: 2.1.3
doc: "x * factor"
inputs:
  - {name: x, dtype: T}
  - {name: axes, dtype: int64, optional: true, value: true}
outputs:
  - {name: y, dtype: T}
attrs:
  - {name: factor, type: float, default: 2.5}
  - {name: mode, type: str, default: fast, ours: true}
  - {name: sizes, type: ints, default: [1, -2], axis_of: x}
  - {name: grid, type: floats2d, default: [[1, 2], []]}
  - {name: strict, type: bool}
dtypes:
  T: [float32, bfloat16]
inplace:
  - {output: y, input: x}
deterministic: false
mindir: [x, factor, axes]
backward: ScaleGrad
replaces:
  - Mul(x, factor)
)";

TEST(Manifest, ReadsEveryField) {
  auto all = parse_manifests(kGood, "op.yaml");
  ASSERT_EQ(all.size(), 1u);
  auto &m = all[0];
  EXPECT_EQ(m.name, "Scale");
  EXPECT_EQ(m.attr("sizes")->axis_of, "x");
  EXPECT_TRUE(m.attr("mode")->ours);
  EXPECT_FALSE(m.attr("factor")->ours);
  EXPECT_EQ(m.version, "2.1.3");
  EXPECT_EQ(m.least_inputs(), 1);
  EXPECT_EQ(m.input_index("axes"), 1);
  EXPECT_EQ(m.input_index("absent"), -1);
  EXPECT_TRUE(m.inputs[1].value);
  EXPECT_EQ(std::get<double>(*m.attr("factor")->fallback), 2.5);
  EXPECT_EQ(std::get<std::string>(*m.attr("mode")->fallback), "fast");
  EXPECT_EQ(std::get<std::vector<int64_t>>(*m.attr("sizes")->fallback), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(std::get<std::vector<std::vector<double>>>(*m.attr("grid")->fallback),
            (std::vector<std::vector<double>>{{1, 2}, {}}));
  EXPECT_FALSE(m.attr("strict")->fallback);
  EXPECT_EQ(m.attr("absent"), nullptr);
  ASSERT_EQ(m.dtypes.size(), 1u);
  EXPECT_EQ(m.dtypes[0].second, (std::vector<int32_t>{OPGRAFT_FLOAT32, OPGRAFT_BFLOAT16}));
  EXPECT_EQ(m.inplace, (std::vector<std::pair<int, int>>{{0, 0}}));
  EXPECT_FALSE(m.deterministic);
  EXPECT_EQ(m.backward, "ScaleGrad");
  EXPECT_EQ(m.mindir, (std::vector<std::string>{"x", "factor", "axes"}));
  EXPECT_EQ(m.replaces, std::vector<std::string>{"Mul(x, factor)"});
}

TEST(Manifest, SeveralOperatorsInOneFile) {
  auto other = kGood;
  other.replace(other.find("Scale"), 5, "Other");
  EXPECT_EQ(parse_manifests(kGood + "---\n" + other, "op.yaml").size(), 2u);
  EXPECT_THROW(parse_manifests(kGood + "---\n" + kGood, "op.yaml"), ManifestError);
}

struct Bad {
  const char *what, *from, *to, *message;  // kGood with `from` replaced by `to`
};
void PrintTo(const Bad &bad, std::ostream *out) { *out << bad.what; }
class BadManifest : public testing::TestWithParam<Bad> {};

TEST_P(BadManifest, IsRefusedWithItsPlace) {
  auto yaml = kGood;
  auto at = yaml.find(GetParam().from);
  ASSERT_NE(at, yaml.npos);
  yaml.replace(at, std::string(GetParam().from).size(), GetParam().to);
  try {
    parse_manifests(yaml, "dir/op.yaml");
    FAIL() << "accepted: " << GetParam().what;
  } catch (const ManifestError &e) {
    EXPECT_NE(std::string(e.what()).find(GetParam().message), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find("dir/op.yaml:"), 0u) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadManifest,
    testing::Values(
        Bad{"no name", "name: Scale\n", "", "field 'name' is missing"},
        Bad{"name", "Scale", "a-b", "must be a C identifier"}, Bad{"version", "2.1.3", "2.1", "MAJOR.MINOR.PATCH"},
        Bad{"negative version", "2.1.3", "2.-1.3", "MAJOR.MINOR.PATCH"},
        Bad{"huge version", "2.1.3", "2.1.99999999999", "MAJOR.MINOR.PATCH"},
        Bad{"unknown field", "doc:", "docs:", "unknown field 'docs'"},
        Bad{"no outputs", "outputs:\n  - {name: y, dtype: T}\n", "", "at least one output"},
        Bad{"dtype", "bfloat16", "float17", "unknown dtype 'float17'"},
        Bad{"type variable", "{name: x, dtype: T}", "{name: x, dtype: U}", "dtype of x"},
        Bad{"order", "dtype: int64, optional: true", "dtype: int64, optional: true}\n  - {name: z, dtype: T",
            "must be optional"},
        Bad{"attribute type", "type: float,", "type: real,", "got 'real'"},
        Bad{"ours without a default", "default: 2.5", "ours: true", "ours goes with a default"},
        Bad{"axis of a float", "default: 2.5", "default: 2.5, axis_of: x", "axis_of goes with type int or ints"},
        Bad{"axis of nothing", "type: float, default: 2.5", "type: int, axis_of: q", "axis_of must name an input"},
        Bad{"default", "default: 2.5", "default: x", "default must be"},
        Bad{"in-place input", "{output: y, input: x}", "{output: y, input: q}", "no input is named 'q'"},
        Bad{"in-place output", "{output: y, input: x}", "{output: q, input: x}", "no output is named 'q'"},
        Bad{"flag", "deterministic: false", "deterministic: maybe", "true or false"},
        Bad{"mindir", "mindir: [x,", "mindir: [q,", "mindir names 'q'"},
        Bad{"names", "deterministic: false", "names: [{name: A, mindir: [x, q]}]", "'q' is no input"},
        Bad{"names without operands", "deterministic: false", "names: [{name: A}]", "field 'mindir' is missing"},
        Bad{"names of something else", "deterministic: false", "names: [[A]]", "list of text or {name, mindir}"},
        Bad{"tuple of a float", "default: 2.5", "default: 2.5, tuple: true", "tuple goes with type int"},
        Bad{"syntax", "[float32, bfloat16]", "[float32, bfloat16", ""},
        Bad{"list", "replaces:\n  - Mul", "replaces: {a: b}\nx:\n  - Mul", "unknown field 'x'"}));

TEST(Manifest, RefusesWhatIsNoManifest) {
  EXPECT_THROW(parse_manifests("", "x"), ManifestError);
  EXPECT_THROW(parse_manifests("---\n---\n", "x"), ManifestError);
  EXPECT_THROW(parse_manifests("- a\n- b\n", "x"), ManifestError);
  EXPECT_THROW(parse_manifests("just text", "x"), ManifestError);
  EXPECT_THROW(parse_manifests(std::string("\0\1\2", 3), "x"), ManifestError);
}

TEST(Manifest, RefusesWhatWouldExhaustTheParser) {
  EXPECT_THROW(parse_manifests("name: " + std::string(100'000, '['), "x"), ManifestError);
  EXPECT_THROW(parse_manifests(std::string(100'000, '-'), "x"), ManifestError);
  std::string dashes;
  for (int i = 0; i < 100'000; ++i) dashes += "- ";
  EXPECT_THROW(parse_manifests(dashes, "x"), ManifestError);
  EXPECT_THROW(parse_manifests(kGood + std::string(2 << 20, ' '), "x"), ManifestError);
}

TEST(Manifest, EveryTruncationIsReadOrRefused) {
  for (size_t n = 0; n < kGood.size(); ++n) try {
      parse_manifests(kGood.substr(0, n), "x");
    } catch (const ManifestError &) {
    }
}

TEST(Version, Orders) {
  auto v = [](const char *t) { return Version::parse(t, "x"); };
  EXPECT_LT(v("1.9.9"), v("1.10.0"));
  EXPECT_LT(v("1.10.0"), v("2.0.0"));
  EXPECT_EQ(v("1.2.3"), v("1.2.3"));
  for (auto bad : {"", "1", "1.", "1.2.", "1.2.3.4", "a.b.c", "1.2.3-rc1", " 1.2.3"})
    EXPECT_THROW(v(bad), ManifestError) << bad;
}

}  // namespace
}  // namespace opgraft
