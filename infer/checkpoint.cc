#include "infer/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <protozero/pbf_writer.hpp>
#include <protozero/varint.hpp>
#include <set>

#include "infer/mindir_file.h"
#include "infer/mindir_wire.h"
#include "infer/wire.h"

namespace opgraft {
namespace {

using mindir::Message;

constexpr std::pair<std::string_view, int32_t> kTypes[] = {
    {"Bool", OPGRAFT_BOOL},         {"Int8", OPGRAFT_INT8},          {"Int16", OPGRAFT_INT16},
    {"Int32", OPGRAFT_INT32},       {"Int64", OPGRAFT_INT64},        {"UInt8", OPGRAFT_UINT8},
    {"UInt16", OPGRAFT_UINT16},     {"UInt32", OPGRAFT_UINT32},      {"UInt64", OPGRAFT_UINT64},
    {"Float16", OPGRAFT_FLOAT16},   {"Float32", OPGRAFT_FLOAT32},    {"Float64", OPGRAFT_FLOAT64},
    {"BFloat16", OPGRAFT_BFLOAT16}, {"Complex64", OPGRAFT_COMPLEX64}};
constexpr std::string_view kText = "str";  // of UTF-32
constexpr std::string_view kCrc = "crc_num";
constexpr size_t kCrcDigits = 10;  // bytes of the number, the first one first

// CRC-32 as zlib has it, polynomial 0xEDB88320, bits reversed.
class Crc32 {
 public:
  void add(std::string_view bytes) {
    static const auto table = [] {
      std::array<uint32_t, 256> t;
      for (uint32_t i = 0; i < 256; ++i) {
        t[i] = i;
        for (int bit = 0; bit < 8; ++bit) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0xEDB88320u : 0);
      }
      return t;
    }();
    for (unsigned char c : bytes) value_ = table[(value_ ^ c) & 255] ^ value_ >> 8;
  }
  uint32_t value() const { return ~value_; }

 private:
  uint32_t value_ = ~0u;
};

// One Checkpoint.Value.
struct Piece {
  std::string_view tag, type, content;
  std::vector<int64_t> dims;
  bool tensor = false, map = false;
};

Piece parse_piece(std::string_view bytes) {
  Piece p;
  for (Message m(bytes); m.next();) switch (m.tag()) {
      case 1: p.tag = m.bytes(); break;
      case 2:
        p.tensor = true;
        for (Message t(m.bytes()); t.next();) switch (t.tag()) {
            case 1: t.integers(p.dims); break;
            case 2: p.type = t.bytes(); break;
            case 3: p.content = t.bytes(); break;
            default: t.skip();
          }
        break;
      case 3: p.map = true, m.skip(); break;
      default: m.skip();
    }
  return p;
}

// The pieces of one parameter, which lie one after another.
CheckpointEntry joined(std::span<const Piece> pieces) {
  const Piece &first = pieces[0];
  CheckpointEntry e{std::string(first.tag), {}, {}};
  size_t bytes = 0;
  for (auto &p : pieces) {
    if (p.map) mindir::refuse("is a MapParameter, which opgraft does not read");
    if (!p.tensor) mindir::refuse("has no tensor");
    if (p.type != first.type || p.dims != first.dims) mindir::refuse("has pieces of different shapes or dtypes");
    bytes += p.content.size();
  }
  auto copy_to = [&](void *to) {
    for (auto &p : pieces) to = std::copy(p.content.begin(), p.content.end(), static_cast<char *>(to));
  };
  if (first.type == kText) {
    if (bytes % sizeof(char32_t)) mindir::refuse(fmt::format("is a text of {} bytes, expected 4 per character", bytes));
    e.text.resize(bytes / sizeof(char32_t));
    copy_to(e.text.data());
    return e;
  }
  auto type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](auto &t) { return t.first == first.type; });
  if (type == std::end(kTypes)) mindir::refuse(fmt::format("has the unsupported dtype '{}'", first.type));
  const int32_t dtype = type->second;
  if (first.dims.size() > OPGRAFT_MAX_RANK)
    mindir::refuse(fmt::format("has rank {}, at most {} is supported", first.dims.size(), OPGRAFT_MAX_RANK));
  int64_t needed = int64_t(dtype_size(dtype));
  for (int64_t d : first.dims)
    if (d < 0 || __builtin_mul_overflow(needed, d, &needed))
      mindir::refuse(fmt::format("has the impossible shape ({})", fmt::join(first.dims, ", ")));
  Shape dims = first.dims;
  if (dims == Shape{0} && bytes == dtype_size(dtype)) dims.clear(), needed = int64_t(bytes);  // older files' 0-d
  if (uint64_t(needed) != bytes)
    mindir::refuse(
        fmt::format("{}{} needs {} bytes, the file has {}", dtype_name(dtype), to_string(dims), needed, bytes));
  e.tensor = Tensor(dtype, std::move(dims));
  copy_to(e.tensor.data());
  if (dtype == OPGRAFT_BOOL)  // C++ and NumPy know no other values
    for (char *b = e.tensor.data<char>(), *end = b + bytes; b != end; ++b) *b = *b != 0;
  return e;
}

bool encrypted(std::string_view bytes) {  // the first four bytes tell the mode
  return bytes.size() >= 4 && bytes.substr(1, 3) == "\x5e\x3a\x7f" && (bytes[0] & 0xfc) == (char(0xd8) & 0xfc);
}

std::string_view without_crc(std::string_view bytes, bool &has_crc) {
  if (bytes.size() < kCrc.size() + kCrcDigits) return bytes;
  const std::string_view body = bytes.substr(0, bytes.size() - kCrc.size() - kCrcDigits);
  if (bytes.substr(body.size(), kCrc.size()) != kCrc) return bytes;
  uint64_t told = 0;
  bool fits = true;
  for (unsigned char c : bytes.substr(body.size() + kCrc.size())) fits &= told < 1u << 24, told = told << 8 | c;
  Crc32 crc;
  crc.add(body);
  if (!fits || told != crc.value())
    mindir::refuse(fmt::format("is damaged: its CRC-32 is {:08x}, the file says {:08x}", crc.value(), told));
  has_crc = true;
  return body;
}

Checkpoint parse(std::string_view bytes) {
  Checkpoint out;
  if (encrypted(bytes)) mindir::refuse("is encrypted, which opgraft does not read; save it without enc_key");
  bytes = without_crc(bytes, out.has_crc);
  if (bytes.empty()) mindir::refuse("holds no parameters");
  std::vector<Piece> pieces;
  try {
    for (Message m(bytes); m.next();) {
      if (m.tag() != 1) mindir::refuse(fmt::format("unknown field {}", m.tag()));
      pieces.push_back(parse_piece(m.bytes()));
      if (pieces.back().tag.empty()) mindir::refuse("a parameter without a name");
    }
  } catch (const protozero::end_of_buffer_exception &) {
    mindir::refuse(fmt::format("is cut off after {} whole parts, or no checkpoint", pieces.size()));
  } catch (const std::exception &e) {
    mindir::refuse(fmt::format("is no checkpoint, or damaged: {}", e.what()));
  }
  std::set<std::string_view> seen;
  for (size_t i = 0, n; i < pieces.size(); i += n) {
    for (n = 1; i + n < pieces.size() && pieces[i + n].tag == pieces[i].tag;) ++n;
    try {
      if (!seen.insert(pieces[i].tag).second) mindir::refuse("stands there twice");
      out.entries.push_back(joined({&pieces[i], n}));
    } catch (const std::runtime_error &e) {
      mindir::refuse(fmt::format("parameter '{}' {}", pieces[i].tag, e.what()));
    }
  }
  return out;
}

// A length-delimited field whose `size` bytes follow.
void begin_field(std::string &out, uint32_t field, size_t size) {
  out.push_back(char(field << 3 | uint32_t(protozero::pbf_wire_type::length_delimited)));
  protozero::write_varint(std::back_inserter(out), size);
}

}  // namespace

Checkpoint parse_checkpoint(std::string_view bytes, const std::string &origin) {
  try {
    return parse(bytes);
  } catch (const std::runtime_error &e) {
    throw MindirError(fmt::format("{}: {}", origin, e.what()));
  }
}

Checkpoint read_checkpoint(const std::filesystem::path &file) {
  return parse_checkpoint(mindir::map_file(file)->bytes(), file.string());
}

void write_checkpoint(std::span<const CheckpointEntry> entries, const std::filesystem::path &file, bool crc,
                      size_t slice) {
  mindir::Replacement out(file);
  Crc32 sum;
  auto write = [&](std::string_view bytes) {
    if (crc) sum.add(bytes);
    out.write(bytes.data(), bytes.size());
  };
  for (auto &e : entries) {
    const bool text = !e.tensor;
    std::string_view type = kText;
    std::string_view data(reinterpret_cast<const char *>(e.text.data()), e.text.size() * sizeof(char32_t));
    std::string head;
    protozero::pbf_writer w(head);
    if (text) w.add_int64(1, 0);
    else {
      type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](auto &t) {
               return t.second == e.tensor.dtype();
             })->first;
      data = {e.tensor.data<char>(), e.tensor.bytes()};
      for (int64_t d : e.tensor.dims()) w.add_int64(1, d);
    }
    w.add_string(2, type.data(), type.size());
    // One piece at least, also of nothing: the name and the shape stand in it.
    for (size_t at = 0; at == 0 || at < data.size(); at += slice) {
      const std::string_view part = data.substr(at, slice);
      std::string content, tag, value, message;
      begin_field(content, 3, part.size());
      protozero::pbf_writer(tag).add_string(1, e.name);
      begin_field(value, 2, head.size() + content.size() + part.size());
      begin_field(message, 1, tag.size() + value.size() + head.size() + content.size() + part.size());
      write(message + tag + value + head + content);
      write(part);
    }
  }
  if (crc) {
    std::string end(kCrc);
    for (size_t i = kCrcDigits; i-- > 0;) end.push_back(i < 4 ? char(sum.value() >> 8 * i) : '\0');
    out.write(end.data(), end.size());
  }
  out.finish();
  out.commit();
}

}  // namespace opgraft
