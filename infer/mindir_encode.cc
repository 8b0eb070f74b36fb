#include "infer/mindir_encode.h"

#include <fmt/format.h>

#include <cmath>
#include <protozero/pbf_writer.hpp>

#include "infer/mindir.h"
#include "infer/mindir_wire.h"

namespace opgraft::mindir {

using protozero::pbf_writer;

namespace {

// An element of a tuple: MindSpore reads those from the repeated fields.
void fill_element(pbf_writer &a, const AttrValue &value);

void fill(pbf_writer &a, const AttrValue &value) {
  std::visit(
      [&](auto &v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) a.add_int64(3, v), a.add_int32(16, kBool);
        else if constexpr (std::is_same_v<T, int64_t>) a.add_int64(3, v), a.add_int32(16, kInt64);
        else if constexpr (std::is_same_v<T, double>) {
          // MindSpore's attributes are float32; the exact double stands beside it for opgraft.
          a.add_float(2, float(v));
          if (double(float(v)) != v && !std::isnan(v)) a.add_double(4, v);
          a.add_int32(16, kFloat);
        } else if constexpr (std::is_same_v<T, std::string>) a.add_bytes(5, v), a.add_int32(16, kString);
        else {
          a.add_int32(16, kTuple);
          for (auto &item : v) {
            std::string inner;
            pbf_writer w(inner);
            fill_element(w, AttrValue(item));
            a.add_message(17, inner);
          }
        }
      },
      value);
}

void fill_element(pbf_writer &a, const AttrValue &value) {
  if (auto i = std::get_if<int64_t>(&value)) {
    a.add_int64(10, *i);
    a.add_int32(16, kInt64);
  } else if (auto d = std::get_if<double>(&value)) {
    a.add_float(8, float(*d));
    if (double(float(*d)) != *d && !std::isnan(*d)) a.add_double(4, *d);
    a.add_int32(16, kFloat);
  } else {
    fill(a, value);  // a tuple within the tuple
  }
}

std::string outputs_attribute(const TensorType &type, const char *name, const std::string &ref_key = "") {
  std::string out, tensor = encode_type(type);
  if (!ref_key.empty()) pbf_writer(tensor).add_string(13, ref_key);
  pbf_writer w(out);
  if (name) w.add_string(1, name);
  w.add_message(12, tensor);
  w.add_int32(16, kTensors);
  return out;
}

}  // namespace

std::string encode_type(const TensorType &t) {
  std::string out;
  pbf_writer p(out);
  if (!t.ranked) p.add_int64(1, -2);
  for (int64_t d : t.ranked ? t.dims : Shape{}) p.add_int64(1, d < 0 ? -1 : d);
  p.add_int32(2, data_type_of(t.dtype));
  return out;
}

uint64_t External::place(const Tensor &t) {
  auto [it, added] = placed_.try_emplace({t.data(), t.bytes()}, offset);
  if (added) {
    tensors.emplace_back(offset, t);
    offset += (t.bytes() + kDataAlign - 1) / kDataAlign * kDataAlign;
  }
  return it->second;
}

std::string encode_tensor(const Tensor &t, const std::string &name, External *external, const std::string &ref_key) {
  std::string out;
  pbf_writer p(out);
  if (!ref_key.empty()) p.add_string(13, ref_key);
  for (int64_t d : t.dims()) p.add_int64(1, d);
  p.add_int32(2, data_type_of(t.dtype()));
  p.add_string(7, name);
  if (!external || t.bytes() == 0) {
    if (t.bytes() > kMostInline)
      throw MindirError(fmt::format("constant '{}' of {} bytes is too large to be inline", name, t.bytes()));
    p.add_bytes(9, t.bytes() ? t.data<char>() : "", t.bytes());
    return out;
  }
  std::string e;
  pbf_writer w(e);
  w.add_string(1, external->location);
  w.add_int64(2, int64_t(external->place(t)));
  w.add_int64(3, int64_t(t.bytes()));
  p.add_message(12, e);
  return out;
}

std::string encode_value_info(const std::string &name, const TensorType &type, const std::string &doc,
                              const std::string &dims) {
  std::string out;
  pbf_writer v(out);
  v.add_string(1, name);
  v.add_message(2, encode_type(type));
  if (!doc.empty()) v.add_string(3, doc);
  if (!dims.empty()) v.add_string(4, dims);
  return out;
}

std::string encode_attribute(const std::string &name, const AttrValue &value) {
  std::string out;
  pbf_writer a(out);
  a.add_string(1, name);
  fill(a, value);
  return out;
}

std::string encode_attribute(const std::string &name, const Tensor &value) {
  std::string out;
  pbf_writer w(out);
  w.add_string(1, name);
  w.add_message(12, encode_tensor(value, "value0", nullptr));
  w.add_int32(16, kTensors);  // MindSpore reads constants in this form only
  return out;
}

std::string encode_attribute(const std::string &name, const std::vector<std::string> &value) {
  std::string out;
  pbf_writer w(out);
  w.add_string(1, name);
  w.add_int32(16, kList);
  for (auto &text : value) {
    std::string item;
    pbf_writer i(item);
    i.add_string(11, text);
    i.add_int32(16, kString);
    w.add_message(17, item);
  }
  return out;
}

namespace {
std::string without_value(const std::string &name, AttributeType type) {
  std::string out;
  pbf_writer w(out);
  w.add_string(1, name);
  w.add_int32(16, type);
  return out;
}
}  // namespace

std::string encode_none(const std::string &name) { return without_value(name, kNoneType); }
std::string encode_monad(const std::string &name) { return without_value(name, kUmonad); }

std::string encode_abstract(const std::vector<TensorType> &outputs, const std::string &ref_key) {
  return outputs.size() == 1 ? outputs_attribute(outputs[0], "shape", ref_key) : encode_tuple(outputs);
}

std::string encode_tuple(const std::vector<TensorType> &outputs) {
  std::string out;
  pbf_writer w(out);
  w.add_string(1, "shape");
  w.add_int32(16, kTuple);
  for (auto &type : outputs) w.add_message(17, outputs_attribute(type, nullptr));
  return out;
}

}  // namespace opgraft::mindir
