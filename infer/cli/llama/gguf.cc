#include "infer/cli/llama/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "infer/cli/text/utf8.h"
#include "infer/mindir_file.h"

namespace opgraft::llama {
namespace {

constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17}};

// Types of values in the metadata.
enum : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kText,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};
constexpr struct {
  const char *name;
  size_t bytes;  // 0: not fixed
} kKinds[] = {{"uint8", 1}, {"int8", 1},   {"uint16", 2}, {"int16", 2},  {"uint32", 4}, {"int32", 4},  {"float32", 4},
              {"bool", 1},  {"string", 0}, {"array", 0},  {"uint64", 8}, {"int64", 8},  {"float64", 8}};
constexpr uint32_t kMostKinds = std::size(kKinds);
constexpr int kMostDims = 4, kMostNested = 8;
constexpr uint64_t kAlignment = 32;  // where the file says nothing
constexpr std::string_view kMagic = "GGUF";

[[noreturn]] void bad(const std::string &why) { throw std::runtime_error(why); }

// How people see bytes of a file that should have been text.
std::string shown(std::string_view bytes) {
  std::string out;
  for (unsigned char c : bytes)
    out += c >= ' ' && c < 127 && c != '\\' ? std::string(1, char(c)) : fmt::format("\\x{:02x}", c);
  return out;
}

template <class T> T number_at(const char *bytes) {
  T n;
  std::memcpy(&n, bytes, sizeof n);
  return n;
}

bool whole_number(uint32_t type) { return type != kFloat32 && type != kFloat64 && type != kBool && kKinds[type].bytes; }

// Of a type that is a whole number; what int64 does not hold is its largest.
int64_t integer_at(const char *bytes, uint32_t type) {
  switch (type) {
    case kUint8: return number_at<uint8_t>(bytes);
    case kInt8: return number_at<int8_t>(bytes);
    case kUint16: return number_at<uint16_t>(bytes);
    case kInt16: return number_at<int16_t>(bytes);
    case kUint32: return number_at<uint32_t>(bytes);
    case kInt32: return number_at<int32_t>(bytes);
    case kInt64: return number_at<int64_t>(bytes);
    default: return int64_t(std::min<uint64_t>(number_at<uint64_t>(bytes), INT64_MAX));
  }
}

}  // namespace

// What is left of the file; nothing is taken that is not there.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : all_(bytes) {}
  size_t at() const { return at_; }
  size_t left() const { return all_.size() - at_; }
  std::string_view take(uint64_t n, const char *what) {
    if (n > left()) bad(fmt::format("{} of {} bytes at byte {}, where {} are left", what, n, at_, left()));
    at_ += n;
    return all_.substr(at_ - n, n);
  }
  template <class T> T number(const char *what) { return number_at<T>(take(sizeof(T), what).data()); }
  std::string_view text(const char *what) { return take(number<uint64_t>("a length"), what); }
  // A number of parts, each of which takes at least so many bytes.
  uint64_t count(const char *what, size_t least) {
    const auto n = number<uint64_t>("a count");
    if (n > left() / least) bad(fmt::format("{} {} cannot be in the {} bytes that are left", n, what, left()));
    return n;
  }
  std::string_view since(size_t begin) const { return all_.substr(begin, at_ - begin); }

  uint32_t kind() {
    const auto type = number<uint32_t>("a type");
    if (type >= kMostKinds) bad(fmt::format("type {} at byte {} is none of metadata", type, at_ - 4));
    return type;
  }
  void skip(uint32_t type, int depth) {
    if (type == kText) text("a text");
    else if (type != kArray) take(kKinds[type].bytes, kKinds[type].name);
    else {
      uint32_t item = 0;
      uint64_t count = 0;
      array(item, count, depth);
    }
  }
  void array(uint32_t &item, uint64_t &count, int depth) {
    if (depth >= kMostNested) bad(fmt::format("arrays are nested more than {} deep", kMostNested));
    item = kind();
    const size_t fixed = kKinds[item].bytes;
    count = this->count("items", fixed ? fixed : item == kText ? 8 : 12);
    if (fixed) take(count * fixed, "an array");
    else
      for (uint64_t i = 0; i < count; ++i) skip(item, depth + 1);
  }

 private:
  std::string_view all_;
  size_t at_ = 0;
};

Gguf::Gguf(const std::filesystem::path &file) : name_(file.string()) {
  std::shared_ptr<mindir::Mapping> mapping;
  try {
    mapping = mindir::map_file(file);
  } catch (const MindirError &e) {
    throw GgufError(e.what());
  }
  owner_ = mapping;
  parse(mapping->bytes());
}

Gguf::Gguf(std::string_view bytes, std::string name) : name_(std::move(name)) { parse(bytes); }

void Gguf::refuse(const std::string &why) const { throw GgufError(name_ + ": " + why); }

void Gguf::parse(std::string_view bytes) {
  if (!bytes.starts_with(kMagic))
    refuse(fmt::format("is no GGUF file: it begins with '{}'", shown(bytes.substr(0, kMagic.size()))));
  try {
    Cursor in(bytes);
    in.take(kMagic.size(), "GGUF");
    const auto version = in.number<uint32_t>("the version");
    if (version && version % 65536 == 0) bad("is of big endian");
    if (version != 2 && version != 3) bad(fmt::format("its version must be 2 or 3, got {}", version));
    // Names, types, offsets of tensors and keys, all of them empty.
    const auto tensors = in.count("tensors", 24), keys = in.count("keys", 13);
    for (uint64_t i = 0; i < keys; ++i) {
      const std::string key(in.text("a key"));
      if (!text::is_utf8(key)) bad(fmt::format("key {} is no UTF-8 text", i));
      try {
        read_value(in, key);
      } catch (const std::runtime_error &e) {
        bad(fmt::format("{}: {}", key, e.what()));
      }
    }
    for (uint64_t i = 0; i < tensors; ++i) read_tensor(in);
    uint64_t alignment = kAlignment;
    if (const auto found = values_.find("general.alignment"); found != values_.end()) {
      if (found->second.type != kUint32)
        bad(fmt::format("general.alignment must be uint32, got {}", kKinds[found->second.type].name));
      alignment = uint64_t(integer_at(found->second.bytes.data(), kUint32));
      if (!std::has_single_bit(alignment))
        bad(fmt::format("general.alignment must be a power of two, got {}", alignment));
    }
    const size_t data = (in.at() + alignment - 1) / alignment * alignment;
    place_tensors(bytes.substr(std::min(data, bytes.size())), alignment);
  } catch (const std::runtime_error &e) {
    refuse(fmt::format("cannot be read, cut short or damaged: {}", e.what()));
  }
}

void Gguf::read_value(Cursor &in, const std::string &key) {
  Value v{in.kind(), 0, 1, {}};
  size_t begin = in.at();
  if (v.type != kArray) in.skip(v.type, 0);
  else {
    in.array(v.item, v.count, 0);
    begin += 12;  // type and count of its items
  }
  v.bytes = in.since(begin);
  if (!values_.emplace(key, v).second) bad("stands there twice");
}

void Gguf::read_tensor(Cursor &in) {
  const std::string name(in.text("a tensor's name"));
  if (!text::is_utf8(name)) bad("a tensor's name is no UTF-8 text");
  const auto refuse_tensor = [&](const std::string &why) { bad(fmt::format("tensor {} {}", name, why)); };
  GgufTensor t{nullptr, {}, {}};
  const auto rank = in.number<uint32_t>("a rank");
  if (rank > kMostDims) refuse_tensor(fmt::format("has {} dimensions, at most {} are known", rank, kMostDims));
  uint64_t elements = 1;
  bool fits = true;
  for (uint32_t i = 0; i < rank; ++i) {
    const auto n = in.number<uint64_t>("a dimension");
    fits &= n <= INT64_MAX && !__builtin_mul_overflow(elements, n, &elements) && elements <= INT64_MAX;
    t.dims.insert(t.dims.begin(), int64_t(n));
  }
  const auto type = in.number<uint32_t>("a type");
  const auto found = std::ranges::find(kTypes, type, &GgmlType::id);
  if (found == std::end(kTypes)) refuse_tensor(fmt::format("is of type {}, which is not known", type));
  t.type = found;
  uint64_t bytes = 0;
  fits = fits && !__builtin_mul_overflow(elements / uint64_t(t.type->block), uint64_t(t.type->bytes), &bytes);
  if (!fits) refuse_tensor(fmt::format("has the impossible shape {}", to_string(t.dims)));
  const int64_t row = t.dims.empty() ? 1 : t.dims.back();
  if (row % t.type->block)
    refuse_tensor(fmt::format("has rows of {}, no whole blocks of {}'s {}", row, t.type->name, t.type->block));
  t.bytes = {nullptr, bytes};
  const auto offset = in.number<uint64_t>("an offset");
  if (!tensors_.emplace(name, t).second) refuse_tensor("stands there twice");
  offsets_.emplace(name, offset);
}

void Gguf::place_tensors(std::string_view data, uint64_t alignment) {
  for (auto &[name, t] : tensors_) {
    const uint64_t offset = offsets_.at(name);
    if (offset % alignment)
      bad(fmt::format("tensor {} begins at {}, which is no multiple of {}", name, offset, alignment));
    if (offset > data.size() || t.bytes.size() > data.size() - offset)
      bad(fmt::format("tensor {} takes {} bytes from {} on, the file has {} of all tensors", name, t.bytes.size(),
                      offset, data.size()));
    t.bytes = data.substr(offset, t.bytes.size());
  }
  offsets_.clear();
}

const Gguf::Value *Gguf::find(const std::string &key, bool (*fits)(const Value &), const char *wanted) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return nullptr;
  const Value &v = found->second;
  if (!fits(v))
    refuse(fmt::format("{} must be {}, got {}{}", key, wanted, kKinds[v.type].name,
                       v.type == kArray ? fmt::format(" of {}", kKinds[v.item].name) : ""));
  return &v;
}

std::optional<int64_t> Gguf::integer(const std::string &key) const {
  const Value *v = find(
      key, [](const Value &x) { return whole_number(x.type); }, "a whole number");
  if (!v) return std::nullopt;
  return integer_at(v->bytes.data(), v->type);
}

std::optional<double> Gguf::real(const std::string &key) const {
  const auto number = [](const Value &x) { return whole_number(x.type) || x.type == kFloat32 || x.type == kFloat64; };
  const Value *v = find(key, number, "a number");
  if (!v) return std::nullopt;
  if (v->type == kFloat32) return number_at<float>(v->bytes.data());
  if (v->type == kFloat64) return number_at<double>(v->bytes.data());
  return double(integer_at(v->bytes.data(), v->type));
}

std::optional<std::string> Gguf::text(const std::string &key) const {
  const Value *v = find(
      key, [](const Value &x) { return x.type == kText; }, "a text");
  if (!v) return std::nullopt;
  if (!text::is_utf8(v->bytes.substr(8))) refuse(key + " must be UTF-8 text");
  return std::string(v->bytes.substr(8));
}

std::optional<std::vector<std::string>> Gguf::texts(const std::string &key) const {
  const auto fits = [](const Value &x) { return x.type == kArray && (x.item == kText || !x.count); };
  const Value *v = find(key, fits, "an array, each a text");
  if (!v) return std::nullopt;
  std::vector<std::string> out;
  Cursor in(v->bytes);
  for (uint64_t i = 0; i < v->count; ++i) {
    out.emplace_back(in.text("a text"));
    if (!text::is_utf8(out.back())) refuse(key + " must be UTF-8 text");
  }
  return out;
}

std::optional<std::vector<int64_t>> Gguf::integers(const std::string &key) const {
  const auto fits = [](const Value &x) { return x.type == kArray && (whole_number(x.item) || !x.count); };
  const Value *v = find(key, fits, "an array, each a whole number");
  if (!v) return std::nullopt;
  std::vector<int64_t> out(v->count);
  for (size_t i = 0; i < out.size(); ++i) out[i] = integer_at(v->bytes.data() + i * kKinds[v->item].bytes, v->item);
  return out;
}

const GgufTensor *Gguf::tensor(const std::string &name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace opgraft::llama
