// A protobuf message of a file, field by field.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <protozero/pbf_reader.hpp>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace opgraft::mindir {

// protozero trusts the caller for wire types; a hostile file does not deserve that.
class Message {
 public:
  explicit Message(std::string_view bytes) : reader_(bytes.data(), bytes.size()) {}
  bool next() { return reader_.next(); }
  uint32_t tag() const { return reader_.tag(); }
  void skip() { reader_.skip(); }
  int64_t integer() { return expect(protozero::pbf_wire_type::varint), reader_.get_int64(); }
  std::string_view bytes() {
    expect(protozero::pbf_wire_type::length_delimited);
    auto v = reader_.get_view();
    return {v.data(), v.size()};
  }
  float single() { return expect(protozero::pbf_wire_type::fixed32), reader_.get_float(); }
  double real() { return expect(protozero::pbf_wire_type::fixed64), reader_.get_double(); }
  void integers(std::vector<int64_t> &out) {
    if (reader_.wire_type() != protozero::pbf_wire_type::length_delimited) return out.push_back(integer());
    for (int64_t v : reader_.get_packed_int64()) out.push_back(v);
  }
  void singles(std::vector<double> &out) {
    if (reader_.wire_type() != protozero::pbf_wire_type::length_delimited) return out.push_back(single());
    auto range = packed(4);
    for (size_t i = 0; i < range.size(); i += 4) {
      float f;
      std::memcpy(&f, range.data() + i, 4);
      out.push_back(f);
    }
  }
  void reals(std::vector<double> &out) {
    if (reader_.wire_type() != protozero::pbf_wire_type::length_delimited) return out.push_back(real());
    auto range = packed(8);
    size_t before = out.size();
    out.resize(before + range.size() / 8);
    if (!range.empty()) std::memcpy(out.data() + before, range.data(), range.size());
  }

 private:
  void expect(protozero::pbf_wire_type type) const {
    if (reader_.wire_type() != type)
      throw std::runtime_error(fmt::format("field {} has wire type {}, expected {}", reader_.tag(),
                                           uint32_t(reader_.wire_type()), uint32_t(type)));
  }
  std::string_view packed(size_t size) {
    auto v = bytes();
    if (v.size() % size)
      throw std::runtime_error(
          fmt::format("field {}: {} bytes are no list of {}-byte numbers", reader_.tag(), v.size(), size));
    return v;
  }
  protozero::pbf_reader reader_;
};

}  // namespace opgraft::mindir
