#include "infer/mindir_data.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace opgraft::mindir {

namespace fs = std::filesystem;

namespace {

// Copies what will not be read again: a large part of a mapped file is fetched ahead, and leaves memory after.
void copy_once(void *to, std::string_view from, bool mapped) {
  if (from.empty()) return;
  constexpr size_t kLarge = 1 << 20;
  const auto page = uintptr_t(sysconf(_SC_PAGESIZE)), address = reinterpret_cast<uintptr_t>(from.data());
  mapped = mapped && from.size() >= kLarge;
  if (mapped) madvise(reinterpret_cast<void *>(address & ~(page - 1)), from.size() + address % page, MADV_WILLNEED);
  std::memcpy(to, from.data(), from.size());
  if (mapped) forget_pages(from.data(), from.size());
}

Tensor typed_tensor(const TensorProto &t, int32_t dtype, int64_t count) {
  bool real = dtype == OPGRAFT_FLOAT32 || dtype == OPGRAFT_FLOAT64;
  if (int64_t(real ? t.floats.size() : t.ints.size()) != count)
    refuse(fmt::format("tensor '{}': expected {} elements of {}", t.name, count, dtype_name(dtype)));
  Tensor out(dtype, t.dims);
  size_t size = dtype_size(dtype);
  for (size_t k = 0; k < size_t(count); ++k) {
    float f = real ? float(t.floats[k]) : 0;
    const void *from = dtype == OPGRAFT_FLOAT32 ? static_cast<const void *>(&f)
                       : real                   ? static_cast<const void *>(&t.floats[k])
                                                : &t.ints[k];
    std::memcpy(out.data<char>() + k * size, from, std::min(size, size_t(8)));  // little-endian integers are cut
  }
  return out;
}

}  // namespace

std::string_view DataReader::external(const TensorProto &t, std::shared_ptr<void> &owner) {
  fs::path location{std::string(t.location)};
  if (!external_) refuse("external data in a model that was read from memory");
  if (location.empty() || location.is_absolute())
    refuse(fmt::format("external data location '{}' must be relative", t.location));
  for (auto &part : location)
    if (part == "..") refuse(fmt::format("external data location '{}' leaves the model's directory", t.location));
  if (t.location.find('\0') != std::string_view::npos) refuse("external data location holds a zero byte");
  auto &mapping = files_[std::string(t.location)];
  try {
    if (!mapping) mapping = map_file(dir_ / location);
  } catch (const MindirError &e) {
    refuse(fmt::format("external data: {}", e.what()));
  }
  if (t.offset < 0 || t.length < 0 || uint64_t(t.offset) > mapping->size ||
      uint64_t(t.length) > mapping->size - uint64_t(t.offset))
    refuse(fmt::format("external data '{}' holds {} bytes, expected {} at offset {}", t.location, mapping->size,
                       t.length, t.offset));
  owner = mapping;
  return mapping->bytes().substr(size_t(t.offset), size_t(t.length));
}

Tensor DataReader::tensor(const TensorProto &t) {
  int32_t dtype = dtype_of(t.data_type);
  if (dtype == OPGRAFT_UNKNOWN) refuse(fmt::format("tensor '{}': unsupported data type {}", t.name, t.data_type));
  if (t.compression)
    refuse(fmt::format("tensor '{}' is compressed (type {}), which opgraft does not read", t.name, t.compression));
  if (t.dims.size() > OPGRAFT_MAX_RANK)
    refuse(fmt::format("tensor '{}': rank {} is above {}", t.name, t.dims.size(), OPGRAFT_MAX_RANK));
  int64_t count = 1, bytes = 0;
  for (int64_t d : t.dims)
    if (d < 0 || __builtin_mul_overflow(count, d, &count))
      refuse(fmt::format("tensor '{}': impossible shape {}", t.name, to_string(t.dims)));
  if (__builtin_mul_overflow(count, int64_t(dtype_size(dtype)), &bytes))
    refuse(fmt::format("tensor '{}': impossible shape", t.name));
  bool typed = !t.ints.empty() || !t.floats.empty();
  if (typed && !t.has_raw && !t.external) return typed_tensor(t, dtype, count);
  std::shared_ptr<void> owner = owner_;
  std::string_view data = t.external ? external(t, owner) : t.raw;
  if (data.size() != size_t(bytes))
    refuse(fmt::format("tensor '{}': {}{} needs {} bytes, the file has {}", t.name, dtype_name(dtype),
                       to_string(t.dims), bytes, data.size()));
  bool aligned = reinterpret_cast<uintptr_t>(data.data()) % dtype_size(dtype) == 0;
  if (owner && aligned && bytes) return Tensor::mapped(dtype, t.dims, const_cast<char *>(data.data()), owner);
  Tensor copy(dtype, t.dims);
  copy_once(copy.data(), data, owner != nullptr);
  return copy;
}

Literal DataReader::literal(const AttributeProto &a, int depth) {
  if (depth > kMostNesting) refuse("attribute values nested too deep");
  Literal l;
  switch (a.type) {
    case kBool:
      if (!a.ints.empty()) break;
      l.kind = Literal::kBool;
      l.i = a.i != 0;
      return l;
    case kUint8:
    case kInt8:
    case kUint16:
    case kInt16:
    case kInt32:
    case kInt64:
    case kUint32:
    case kUint64:
      if (a.ints.empty()) return Literal::of(a.i);
      break;
    case kFloat:  // `d` beside `f`: the double that our writer rounded
      if (!a.floats.empty()) break;
      l.kind = Literal::kFloat, l.d = float(a.d) == a.f ? a.d : double(a.f);
      return l;
    case kDouble:
      if (!a.floats.empty()) break;
      l.kind = Literal::kFloat, l.d = a.d;
      return l;
    case kString:
      if (!a.strings.empty()) break;
      l.kind = Literal::kString, l.s = a.s;
      return l;
    case kTensor:
    case kTensors: {
      if (a.tensors.size() != 1) break;
      TensorProto t = parse_tensor(a.tensors[0]);
      if (t.is_type() && a.type == kTensors) return Literal::of(dtype_of(t.data_type));
      l.kind = Literal::kTensor, l.tensor = tensor(t);
      return l;
    }
    case kUmonad:
    case kIomonad: l.kind = Literal::kMonad; return l;
    case kTuple:
    case kList: break;
    default: return l;  // none, and what opgraft has no use for
  }
  l.kind = Literal::kTuple;
  for (auto v : a.values) {
    AttributeProto value = parse_attribute(v);
    Literal item = literal(value, depth + 1);
    // MindSpore writes a tuple of numbers as values with a list each, of one number or more.
    const bool listed = item.kind == Literal::kTuple && value.type != kTuple && value.type != kList;
    // `d` beside one float: the double that our writer rounded.
    if (listed && item.items.size() == 1 && value.floats.size() == 1 && float(value.d) == float(value.floats[0]))
      item.items[0].d = value.d;
    if (listed) std::move(item.items.begin(), item.items.end(), std::back_inserter(l.items));
    else l.items.push_back(std::move(item));
  }
  for (int64_t v : a.ints) l.items.push_back(Literal::of(v));
  for (double v : a.floats) l.items.emplace_back(), l.items.back().kind = Literal::kFloat, l.items.back().d = v;
  for (auto v : a.strings) l.items.emplace_back(), l.items.back().kind = Literal::kString, l.items.back().s = v;
  return l;
}

}  // namespace opgraft::mindir
