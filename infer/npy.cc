#include "infer/npy.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <fstream>

namespace opgraft {
namespace {

constexpr struct {
  const char *descr;
  int32_t dtype;
} kDescr[] = {{"|b1", OPGRAFT_BOOL},     {"|i1", OPGRAFT_INT8},     {"<i2", OPGRAFT_INT16},    {"<i4", OPGRAFT_INT32},
              {"<i8", OPGRAFT_INT64},    {"|u1", OPGRAFT_UINT8},    {"<u2", OPGRAFT_UINT16},   {"<u4", OPGRAFT_UINT32},
              {"<u8", OPGRAFT_UINT64},   {"<f2", OPGRAFT_FLOAT16},  {"<f4", OPGRAFT_FLOAT32},  {"<f8", OPGRAFT_FLOAT64},
              {"<V2", OPGRAFT_BFLOAT16}, {"|V2", OPGRAFT_BFLOAT16}, {"<c8", OPGRAFT_COMPLEX64}};
constexpr uint32_t kMostHeader = 1 << 20;

}  // namespace

Tensor read_npy(const std::filesystem::path &file) {
  auto fail = [&](const std::string &what) {
    throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: {}", file.string(), what));
  };
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) fail("no such file");
  std::ifstream in(file, std::ios::binary);
  if (!in) fail("cannot open");
  uint64_t size = std::filesystem::file_size(file, error);
  unsigned char head[12] = {};
  in.read(reinterpret_cast<char *>(head), 10);
  if (!in || std::memcmp(head, "\x93NUMPY", 6) != 0) fail("not a .npy file");
  uint32_t length = head[8] | uint32_t(head[9]) << 8, start = 10;
  if (head[6] < 1 || head[6] > 3) fail(fmt::format("version {} of .npy is not known", head[6]));
  if (head[6] >= 2) {
    in.read(reinterpret_cast<char *>(head) + 10, 2);
    length |= uint32_t(head[10]) << 16 | uint32_t(head[11]) << 24;
    start = 12;
  }
  if (!in || length > kMostHeader || start + length > size) fail("the header is cut short");
  std::string header(length, '\0');
  in.read(header.data(), length);
  if (!in) fail("the header is cut short");
  auto field = [&](const char *name) -> std::string_view {
    auto at = header.find(fmt::format("'{}'", name));
    if (at != std::string::npos) at = header.find(':', at);
    if (at == std::string::npos) fail(fmt::format("the header has no '{}'", name));
    at = header.find_first_not_of(' ', at + 1);
    return at == std::string::npos ? std::string_view() : std::string_view(header).substr(at);
  };
  auto descr = field("descr"), shape = field("shape");
  int32_t dtype = OPGRAFT_UNKNOWN;
  for (auto &d : kDescr)
    if (descr.size() > 5 && descr.substr(1, 3) == d.descr && descr[4] == descr[0]) dtype = d.dtype;
  if (dtype == OPGRAFT_UNKNOWN) fail(fmt::format("dtype {} is not supported", descr.substr(0, descr.find(','))));
  if (!field("fortran_order").starts_with("False")) fail("must be row-major, got Fortran order");
  Shape dims;
  if (!shape.starts_with('(') || shape.find(')') == shape.npos) fail("the header's shape is malformed");
  shape = shape.substr(1, shape.find(')') - 1);
  int64_t bytes = int64_t(dtype_size(dtype));
  while (true) {
    shape.remove_prefix(std::min(shape.find_first_not_of(", "), shape.size()));
    if (shape.empty()) break;
    int64_t d = -1;
    auto [end, ec] = std::from_chars(shape.data(), shape.data() + shape.size(), d);
    if (ec != std::errc() || d < 0 || __builtin_mul_overflow(bytes, d, &bytes)) fail("the header's shape is malformed");
    if (dims.size() == OPGRAFT_MAX_RANK) fail(fmt::format("rank is above {}", OPGRAFT_MAX_RANK));
    dims.push_back(d);
    shape.remove_prefix(size_t(end - shape.data()));
  }
  if (uint64_t(bytes) > size - start - length)
    fail(fmt::format("{}{} needs {} bytes, the file has {}", dtype_name(dtype), to_string(dims), bytes,
                     size - start - length));
  Tensor t(dtype, dims);
  in.read(t.data<char>(), bytes);
  if (!in) fail("cannot read");
  return t;
}

void write_npy(const std::filesystem::path &file, const Tensor &tensor) {
  auto fail = [&](const std::string &what) {
    throw Error(OPGRAFT_INVALID_VALUE, fmt::format("{}: {}", file.string(), what));
  };
  const char *descr = nullptr;
  for (auto &d : kDescr)
    if (d.dtype == tensor.dtype() && !descr) descr = d.descr;
  if (!descr) fail("a tensor without a dtype");
  std::string dims;
  for (int64_t d : tensor.dims()) dims += fmt::format("{}, ", d);
  if (tensor.dims().size() > 1) dims.resize(dims.size() - 2);
  else if (!dims.empty()) dims.pop_back();
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, dims);
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string start("\x93NUMPY\x01\x00", 8);
  start += char(header.size() & 0xff);
  start += char(header.size() >> 8);
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << start << header;
  if (tensor.bytes()) out.write(tensor.data<char>(), std::streamsize(tensor.bytes()));
  out.close();
  if (!out) fail("cannot write");
}

}  // namespace opgraft
