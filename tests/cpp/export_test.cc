// MindSpore's faces of operators, called as MindSpore calls them, and what is thrown behind either face.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>

#include "infer/native.h"
#include "infer/session.h"

namespace opgraft {
namespace {

std::filesystem::path test_file(const std::string &name) { return std::filesystem::path(OPGRAFT_BAD_OPS_DIR) / name; }
std::filesystem::path op_file(const std::string &name) { return std::filesystem::path(OPGRAFT_OPS_DIR) / name; }

class Opened {
 public:
  explicit Opened(const std::filesystem::path &file) : handle_(dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    if (!handle_) throw std::runtime_error(dlerror());
  }
  template <class F> F *get(const std::string &name) const {
    auto *p = dlsym(handle_, name.c_str());
    if (!p) throw std::runtime_error(name + " is not exported");
    return reinterpret_cast<F *>(p);
  }

 private:
  void *handle_;  // stays open, as in MindSpore
};

using Entry = int(int, void **, int *, int64_t **, const char **, void *, void *);
using Init = int(int *, int64_t **, const char **, void *);
using InferShapeOne = Shape(int *, int64_t **, void *);
using InferShapeMany = std::vector<Shape>(int *, int64_t **, void *);
using InferTypeOne = int32_t(std::vector<int32_t>, void *);
using InferTypeMany = std::vector<int32_t>(std::vector<int32_t>, void *);

// An AotExtra made by a host of one std::string ABI (tests/bad_ops/host.cc).
class Extra {
 public:
  explicit Extra(const std::string &host) : host_(test_file(host)), extra_(host_.get<void *()>("host_new")()) {}
  ~Extra() { host_.get<void(void *)>("host_delete")(extra_); }
  Extra &text(const char *name, const char *value) {
    host_.get<void(void *, const char *, const char *)>("host_text")(extra_, name, value);
    return *this;
  }
  Extra &numbers(const char *name, std::vector<float> v) {
    host_.get<void(void *, const char *, const float *, int)>("host_numbers")(extra_, name, v.data(), int(v.size()));
    return *this;
  }
  void *get() const { return extra_; }

 private:
  Opened host_;
  void *extra_;
};

// Ranks, shapes and names as MindSpore hands them over: nothing beyond inputs and outputs.
struct Call {
  std::vector<Shape> shapes;
  std::vector<int> ndims;
  std::vector<int64_t *> pointers;
  std::vector<const char *> dtypes;
  Call(std::vector<Shape> s, std::vector<const char *> d) : shapes(std::move(s)), dtypes(std::move(d)) {
    for (auto &x : shapes) {
      ndims.push_back(int(x.size()));
      pointers.push_back(x.data());
    }
  }
};

class Faces : public testing::TestWithParam<const char *> {};

TEST_P(Faces, AttributesOfAnyLengthReachTheOperator) {
  Opened so(op_file("shape.so"));
  Extra extra(GetParam());
  extra.numbers("begin", {1, 0}).numbers("end", {2, 3}).numbers("strides", {1, 1}).numbers("shrink_axis_mask", {1});
  Call call({{2, 3}, {3}}, {"float32", "float32"});
  float x[] = {1, 2, 3, 4, 5, 6}, y[3] = {};
  void *params[] = {x, y};
  EXPECT_EQ(so.get<Init>("StridedSliceInit")(call.ndims.data(), call.pointers.data(), call.dtypes.data(), extra.get()),
            0);
  EXPECT_EQ(so.get<InferShapeOne>("StridedSliceInferShape")(call.ndims.data(), call.pointers.data(), extra.get()),
            Shape{3});
  EXPECT_EQ(so.get<InferTypeOne>("StridedSliceInferType")({OPGRAFT_INT8}, extra.get()), OPGRAFT_INT8);
  ASSERT_EQ(so.get<Entry>("StridedSlice")(2, params, call.ndims.data(), call.pointers.data(), call.dtypes.data(),
                                          nullptr, extra.get()),
            0);
  EXPECT_EQ((std::vector<float>(y, y + 3)), (std::vector<float>{4, 5, 6}));
}

TEST_P(Faces, TextAttributesAndUnknownDimensions) {
  Opened so(op_file("dense.so"));
  Extra extra(GetParam());
  extra.text("activation", "relu").numbers("n_inputs", {3});
  Call call({{-1, 2}, {3, 2}, {3}}, {"float32", "float32", "float32"});
  EXPECT_EQ(so.get<InferShapeOne>("DenseInferShape")(call.ndims.data(), call.pointers.data(), extra.get()),
            (Shape{-1, 3}));
  Call unknown({{-2}, {3, 2}, {3}}, {"float32", "float32", "float32"});
  EXPECT_EQ(so.get<InferShapeOne>("DenseInferShape")(unknown.ndims.data(), unknown.pointers.data(), extra.get()),
            Shape{-2});
  Call full({{1, 2}, {3, 2}, {3}, {1, 3}}, {"float32", "float32", "float32", "float32"});
  float x[] = {1, 1}, w[] = {1, 2, 3, 4, -5, -6}, b[] = {0, 1, 2}, y[3] = {};
  void *params[] = {x, w, b, y};
  ASSERT_EQ(so.get<Entry>("Dense")(4, params, full.ndims.data(), full.pointers.data(), full.dtypes.data(), nullptr,
                                   extra.get()),
            0);
  EXPECT_EQ((std::vector<float>(y, y + 3)), (std::vector<float>{3, 8, 0}));
}

TEST_P(Faces, SeveralOutputsAndIntegerInputs) {
  Opened shape(op_file("shape.so")), norm(op_file("layernorm.so"));
  Extra extra(GetParam());
  extra.numbers("output_num", {2}).numbers("axis", {0}).numbers("batch_dims", {0});
  Call call({{4, 3}, {2}}, {"float32", "int32"});
  EXPECT_EQ(shape.get<InferShapeMany>("SplitInferShape")(call.ndims.data(), call.pointers.data(), extra.get()),
            (std::vector<Shape>{{2, 3}, {2, 3}}));
  EXPECT_EQ(shape.get<InferTypeMany>("SplitInferType")({OPGRAFT_INT64}, extra.get()),
            (std::vector<int32_t>{OPGRAFT_INT64, OPGRAFT_INT64}));
  EXPECT_EQ(shape.get<InferShapeOne>("GatherInferShape")(call.ndims.data(), call.pointers.data(), extra.get()),
            (Shape{2, 3}));
  EXPECT_EQ(shape.get<InferTypeOne>("GatherInferType")({OPGRAFT_FLOAT16, OPGRAFT_INT64}, extra.get()), OPGRAFT_FLOAT16);
  Call rows({{4, 3}, {3}, {3}}, {"float32", "float32", "float32"});
  Extra plain(GetParam());
  auto shapes = norm.get<InferShapeMany>("LayerNormInferShape")(rows.ndims.data(), rows.pointers.data(), plain.get());
  ASSERT_EQ(shapes.size(), 3u);
  EXPECT_EQ(shapes[0], (Shape{4, 3}));
}

TEST_P(Faces, DocumentedDtypeNamesAndRefusals) {
  Opened so(op_file("elementwise.so"));
  Extra extra(GetParam());
  float x[] = {1, 2}, y[2] = {};
  void *params[] = {x, x, y};
  auto add = [&](std::vector<const char *> dtypes, Shape out) {
    Call call({{2}, {2}, std::move(out)}, std::move(dtypes));
    return so.get<Entry>("Add")(3, params, call.ndims.data(), call.pointers.data(), call.dtypes.data(),
                                const_cast<opgraft_host *>(host()), extra.get());
  };
  EXPECT_EQ(add({"float", "float", "float"}, {2}), 0);
  EXPECT_EQ(y[1], 4);
  EXPECT_EQ(add({"float32", "int32", "float32"}, {2}), OPGRAFT_INVALID_TYPE);
  EXPECT_EQ(add({"float32", "float32", "float32"}, {1}), OPGRAFT_INVALID_VALUE);
  EXPECT_EQ(add({"float32", "float32", "nonsense"}, {2}), OPGRAFT_INVALID_VALUE);
}

struct Throw {
  const char *what;
  int status;
  const char *message;
};
constexpr Throw kThrows[] = {{"error", OPGRAFT_INVALID_VALUE, "Thrower: x must be right, got wrong"},
                             {"runtime_error", OPGRAFT_INTERNAL, "Thrower: a runtime error"},
                             {"bad_alloc", OPGRAFT_OUT_OF_MEMORY, "Thrower: out of memory"},
                             {"int", OPGRAFT_INTERNAL, "Thrower: unknown exception"}};

// Host and operator each catch the other's; the text is what the host of an AotExtra shows.
template <class F> std::string thrown(F &&f) {
  try {
    f();
  } catch (const std::exception &e) {
    return e.what();
  }
  return {};
}

TEST_P(Faces, WhatIsThrownReachesAHostOfAotExtraAsText) {
  Opened so(test_file("thrower.so"));
  for (auto &t : kThrows)
    for (const char *where : {"infer", "workspace", "init", "kernel", "body"}) {
      SCOPED_TRACE(std::string(where) + " " + t.what);
      Extra extra(GetParam());
      extra.text("where", where).text("what", t.what);
      Call call({{2}, {2}}, {"float32", "float32"});
      float x[2] = {}, y[2] = {};
      void *params[] = {x, y};
      auto launch = [&](void *stream, void *with) {
        return so.get<Entry>("Thrower")(2, params, call.ndims.data(), call.pointers.data(), call.dtypes.data(), stream,
                                        with);
      };
      EXPECT_EQ(thrown([&] { launch(nullptr, extra.get()); }), t.message);
      // A host of opgraft's, and whoever has given a stream, gets the status.
      EXPECT_EQ(launch(const_cast<opgraft_host *>(host()), extra.get()), t.status);
      EXPECT_EQ(launch(nullptr, nullptr), OPGRAFT_OK);  // no attributes: nothing fails
      EXPECT_EQ(so.get<Init>("ThrowerInit")(call.ndims.data(), call.pointers.data(), call.dtypes.data(), extra.get()),
                0);
      auto shape = [&] {
        return so.get<InferShapeOne>("ThrowerInferShape")(call.ndims.data(), call.pointers.data(), extra.get());
      };
      auto type = [&] { return so.get<InferTypeOne>("ThrowerInferType")({OPGRAFT_FLOAT32}, extra.get()); };
      if (std::strcmp(where, "infer") == 0) {
        EXPECT_EQ(thrown(shape), t.message);
        EXPECT_EQ(thrown(type), t.message);
      } else {
        EXPECT_EQ(shape(), Shape{2});
        EXPECT_EQ(type(), OPGRAFT_FLOAT32);
      }
    }
}

TEST(PlainFace, WithoutAotExtraAnErrorIsAStatusAndUnknownShapes) {
  Opened so(op_file("swiglu.so"));
  Call call({{2}, {3}, {2}}, {"float32", "float32", "float32"});
  float x[3] = {}, y[3] = {};
  void *params[] = {x, x, y};
  EXPECT_EQ(
      so.get<Entry>("SwiGLU")(3, params, call.ndims.data(), call.pointers.data(), call.dtypes.data(), nullptr, nullptr),
      OPGRAFT_INVALID_VALUE);
  EXPECT_EQ(so.get<InferShapeOne>("SwiGLUInferShape")(call.ndims.data(), call.pointers.data(), nullptr), Shape{-2});
  EXPECT_EQ(so.get<InferTypeOne>("SwiGLUInferType")({OPGRAFT_FLOAT32, OPGRAFT_INT32}, nullptr), 0);
}

TEST_P(Faces, LongTexts) {
  Opened so(test_file("thrower.so"));
  Extra extra(GetParam());
  extra.text("where", "a text of more than fifteen characters, and once more than fifteen").text("what", "");
  extra.numbers("an_attribute_of_more_than_fifteen_characters", {7});
  Call call({{2}, {2}}, {"float32", "float32"});
  for (int i = 0; i < 100; ++i) {
    float x[2] = {float(i), 1}, y[2] = {};
    void *params[] = {x, y};
    ASSERT_EQ(so.get<Entry>("Thrower")(2, params, call.ndims.data(), call.pointers.data(), call.dtypes.data(), nullptr,
                                       extra.get()),
              0);
    ASSERT_EQ(y[0], float(i) + 1);
  }
}
INSTANTIATE_TEST_SUITE_P(StringAbi, Faces, testing::Values("host_abi0.so", "host_abi1.so"));

TEST(NativeFace, WhatIsThrownBecomesStatusAndMessage) {
  Opened so(test_file("thrower.so"));
  auto &op = *so.get<const opgraft_op>("opgraft_op_Thrower");
  const std::vector<int64_t> shape{1 << 12};
  std::vector<float> x(1 << 12), y(1 << 12);
  for (auto &t : kThrows)
    for (const char *where : {"infer", "workspace", "init", "kernel", "body", "reference"}) {
      FlatAttrs attrs(Attrs{{"where", std::string(where)}, {"what", std::string(t.what)}});
      opgraft_tensor in{x.data(), shape.data(), 1, OPGRAFT_FLOAT32, shape[0]};
      opgraft_tensor out{y.data(), shape.data(), 1, OPGRAFT_FLOAT32, shape[0]};
      int64_t dims[OPGRAFT_MAX_RANK];
      opgraft_shape room{dims, nullptr, 0, 0, -1};
      opgraft_infer_args args{sizeof args, 1, attrs.size(), 1, &in, attrs.data(), &room, nullptr, nullptr};
      std::string_view w = where;
      uint64_t bytes = 0;
      int status = op.infer(&args);
      if (w == "infer") {
        EXPECT_EQ(status, t.status);
        EXPECT_STREQ(op.last_error(), t.message);
        continue;
      }
      ASSERT_EQ(status, OPGRAFT_OK);
      args.outputs = nullptr;
      status = op.workspace(&args, &bytes);
      void *state = nullptr;
      if (w != "workspace") status = op.init(&args, &state);
      std::vector<char> scratch(bytes);
      opgraft_call call{sizeof call,    1,     1,      attrs.size(), &in, &out, attrs.data(), state,
                        scratch.data(), bytes, host(), nullptr,      0};
      if (w == "kernel" || w == "body") status = op.kernel(&call);
      if (w == "reference") status = op.reference(&call);
      EXPECT_EQ(status, t.status) << where << " " << t.what;
      EXPECT_STREQ(op.last_error(), t.message) << where;
      if (state) op.release(state);
    }
}

TEST(Arguments, AMessageIsItsPartsInTheirOrder) {
  const Arguments a("Op", 0, nullptr, 0, nullptr);
  const std::string name = "x";
  const int64_t wanted[] = {4};
  const Shape got{2, -1, OPGRAFT_FIRST_SYMBOL};
  a.check(true, name, " is right");
  try {
    a.check(false, name, ".shape must be ", wanted, ", got ", got, " of ", ~size_t(0), " at ", -3, " by ", 0.5f);
    FAIL();
  } catch (const Error &e) {
    EXPECT_STREQ(e.what(), "Op: x.shape must be (4,), got (2, ?, s0) of 18446744073709551615 at -3 by 0.500000");
    EXPECT_EQ(e.status, OPGRAFT_INVALID_VALUE);
  }
  try {
    a.fail(OPGRAFT_UNSUPPORTED | OPGRAFT_NOTHING_WRITTEN, "rank must be ", std::string_view("small"), ", got ",
           Shape{});
    FAIL();
  } catch (const Error &e) {
    EXPECT_STREQ(e.what(), "Op: rank must be small, got ()");
    EXPECT_EQ(e.status, OPGRAFT_UNSUPPORTED | OPGRAFT_NOTHING_WRITTEN);
  }
}

// A kernel that fails having written nothing hands over to the reference; any other failure does not.
TEST(NativeFace, TheReferenceTakesOverWhereNothingWasWritten) {
  Registry registry;
  auto op = registry.load(test_file("thrower.so")).at(0);
  Tensor x(OPGRAFT_FLOAT32, {3});
  for (int i = 0; i < 3; ++i) x.data<float>()[i] = float(i);
  const Attrs attrs{{"where", std::string("kernel")}, {"what", std::string("nothing_written")}};
  testing::internal::CaptureStderr();
  auto out = run_op(op, {x}, attrs);
  auto log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(out.at(0).data<float>()[2], 3);
  EXPECT_EQ(op->failures, 1);
  EXPECT_NE(log.find("Thrower@1.0.0: Thrower: not here; the reference takes over"), std::string::npos) << log;

  auto graph = std::make_shared<Graph>();
  auto in = graph->add_input("x", {OPGRAFT_FLOAT32, {3}});
  graph->outputs = graph->node(graph->add_node(registry, "Thrower", {in}, attrs)).outputs;
  Session session(std::make_shared<Model>(graph));
  testing::internal::CaptureStderr();
  EXPECT_EQ(session.run({x}).at(0).data<float>()[1], 2);
  EXPECT_EQ(session.run({x}).at(0).data<float>()[1], 2);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(op->failures, 3);

  EXPECT_THROW(run_op(op, {x}, {{"where", std::string("kernel")}, {"what", std::string("runtime_error")}}), Error);
  EXPECT_EQ(op->failures, 3);
}

}  // namespace
}  // namespace opgraft
