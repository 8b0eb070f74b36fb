// Model files made message by message, in the words that MindSpore's exporter uses.
#pragma once

#include <protozero/pbf_writer.hpp>
#include <string>
#include <vector>

#include "infer/mindir_wire.h"
#include "infer/session.h"
#include "mindir_test_util.h"

namespace opgraft::test {

using protozero::pbf_writer;

// AttributeProto.type and TensorProto.data_type as mind_ir.proto numbers them.
enum { kAttrInt64 = 7, kAttrBool = 9, kAttrTensors = 19, kAttrTuple = 20, kAttrUmonad = 23, kAttrFunctor = 38 };
enum { kDataFloat = 1 };

inline std::string attr(const std::string &name, int type, int64_t value = 0) {
  std::string out;
  pbf_writer a(out);
  a.add_string(1, name);
  if (type == kAttrInt64 || type == kAttrBool) a.add_int64(3, value);
  a.add_int32(16, type);
  return out;
}

inline std::string tuple_attr(const std::string &name, std::initializer_list<int64_t> values) {
  std::string out;
  pbf_writer a(out);
  a.add_string(1, name);
  for (int64_t v : values) a.add_message(17, attr("", kAttrInt64, v));
  a.add_int32(16, kAttrTuple);
  return out;
}

struct File {
  std::string graph, model;
  int primitives = 0;

  static std::string tensor_proto(const std::string &name, const Shape &dims, const Tensor *data) {
    std::string out;
    pbf_writer t(out);
    for (int64_t d : dims) t.add_int64(1, d);
    t.add_int32(2, data ? mindir::data_type_of(data->dtype()) : kDataFloat);
    t.add_string(7, name);
    if (data) t.add_bytes(9, data->data<char>(), data->bytes());
    return out;
  }
  void input(const std::string &name, const Shape &dims) { value_info(5, name, dims); }
  void output(const std::string &name) { value_info(6, name, {}); }
  void value_info(int field, const std::string &name, const Shape &dims) {
    std::string v;
    pbf_writer w(v);
    w.add_string(1, name);
    w.add_message(2, tensor_proto(name, dims, nullptr));
    pbf_writer(graph).add_message(uint32_t(field), v);
  }
  void parameter(const std::string &name, const Tensor &t) {
    pbf_writer(graph).add_message(3, tensor_proto(name, t.dims(), &t));
  }
  void raw_node(const std::string &name, const std::string &op_type, const std::vector<std::string> &inputs,
                const std::vector<std::string> &attributes = {}) {
    std::string n;
    pbf_writer w(n);
    for (auto &i : inputs) w.add_string(1, i);
    w.add_string(2, name);
    w.add_string(3, name);
    w.add_string(4, op_type);
    for (auto &a : attributes) w.add_message(5, a);
    w.add_string(7, "Default/" + name);
    pbf_writer(graph).add_message(1, n);
  }
  void constant(const std::string &name, const std::string &value) { raw_node(name, "Constant", {}, {value}); }
  void node(const std::string &name, const std::string &op, const std::vector<std::string> &inputs,
            const std::vector<std::string> &attributes = {}) {
    std::string p, key = op + ":" + std::to_string(++primitives);
    pbf_writer w(p);
    w.add_string(1, key);
    w.add_string(2, op);
    for (auto &a : attributes) w.add_message(3, a);
    pbf_writer(model).add_message(12, p);
    raw_node(name, "REF::" + key, inputs);
  }
  std::string bytes() {
    std::string out = model;
    pbf_writer(out).add_message(7, graph);
    return out;
  }
};

struct MindirMindSpore : MindirTest {
  File f;
  std::vector<Tensor> run(const std::vector<Tensor> &inputs) {
    return Session(std::make_shared<Model>(parse_mindir(f.bytes(), registry, "test"))).run(inputs);
  }
  void expect_error(std::initializer_list<const char *> parts) {
    std::string e = error(f.bytes());
    for (auto *part : parts) EXPECT_NE(e.find(part), std::string::npos) << part << " is not in: " << e;
  }
  // The operators of the graph that the file becomes.
  using Ops = std::vector<std::string>;
  Ops ops() {
    auto graph = parse_mindir(f.bytes(), registry, "test");
    Ops out;
    for (NodeId n : graph->order()) out.push_back(graph->node(n).op);
    return out;
  }
};

}  // namespace opgraft::test
