#include "infer/cli/llama/checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "infer/cli/llama/expand.h"
#include "infer/session.h"

namespace opgraft::llama {
namespace {

std::vector<Tensor> run(const char *op, const std::vector<Tensor> &inputs, const Attrs &attrs = {}) {
  return run_op(Registry::global().resolve(op), inputs, attrs);
}

// BlockQuantMatMul's name of a type, or null.
const char *format_of(const GgmlType &type) {
  for (auto [name, format] : {std::pair("Q4_0", "q4_0"), {"Q4_1", "q4_1"}, {"Q8_0", "q8_0"}})
    if (type.name == std::string_view(name)) return format;
  return nullptr;
}

// The numbers of a type that has no blocks, or OPGRAFT_UNKNOWN.
int32_t plain(const GgmlType &type) {
  for (auto [name, dtype] : {std::pair("F32", OPGRAFT_FLOAT32), {"F16", OPGRAFT_FLOAT16}, {"BF16", OPGRAFT_BFLOAT16}})
    if (type.name == std::string_view(name)) return dtype;
  return OPGRAFT_UNKNOWN;
}

}  // namespace

Checkpoint::Checkpoint(Gguf gguf) : gguf_(std::move(gguf)), config_(read_config(gguf_)) {}

const GgufTensor &Checkpoint::tensor(const std::string &name, const Shape &shape) const {
  const GgufTensor *t = gguf_.tensor(name);
  if (!t) gguf_.refuse(fmt::format("tensor {} is missing", name));
  if (t->dims != shape)
    gguf_.refuse(fmt::format("tensor {} must have shape {}, got {}", name, to_string(shape), to_string(t->dims)));
  return *t;
}

// Where they lie, or a copy where that is no place for such numbers.
Tensor Checkpoint::bytes(const GgufTensor &t, int32_t dtype, Shape dims) const {
  void *data = const_cast<char *>(t.bytes.data());
  if (reinterpret_cast<uintptr_t>(data) % dtype_size(dtype) == 0)
    return gguf_.owner() ? Tensor::mapped(dtype, std::move(dims), data, gguf_.owner())
                         : Tensor(dtype, std::move(dims), data, nullptr);
  Tensor copy(dtype, std::move(dims));
  std::memcpy(copy.data(), data, t.bytes.size());
  return copy;
}

Tensor Checkpoint::weight(const std::string &name, const Shape &shape, int32_t dtype) const {
  const GgufTensor &t = tensor(name, shape);
  const Attrs wanted{{"dtype", std::string(dtype_name(dtype))}};
  if (const int32_t has = plain(*t.type); has != OPGRAFT_UNKNOWN) {
    const Tensor given = bytes(t, has, shape);
    if (has == dtype) return given;
    Tensor out = run("Cast", {given}, wanted)[0];
    given.rest();
    return out;
  }
  const char *format = format_of(*t.type);
  if (!format) {
    Tensor out(OPGRAFT_FLOAT32, shape);
    if (!expand(*t.type, t.bytes, out.data<float>()))
      gguf_.refuse(fmt::format("tensor {} is of type {}, which is not known", name, t.type->name));
    bytes(t, OPGRAFT_UINT8, {int64_t(t.bytes.size())}).rest();
    return dtype == OPGRAFT_FLOAT32 ? out : run("Cast", {out}, wanted)[0];
  }
  const int64_t rows = element_count(shape) / shape.back();
  const Tensor table = bytes(t, OPGRAFT_UINT8, {rows, int64_t(t.bytes.size()) / rows});
  Tensor all(OPGRAFT_INT32, {rows});
  std::iota(all.data<int32_t>(), all.data<int32_t>() + rows, 0);
  const Tensor out = run("BlockQuantGather", {table, all}, {{"format", std::string(format)}, *wanted.begin()})[0];
  table.rest();
  return {dtype, shape, out.data(), out.owner()};
}

std::optional<Blocks> Checkpoint::stored(const std::string &name, const Shape &shape) const {
  const GgufTensor &t = tensor(name, shape);
  const char *format = format_of(*t.type);
  if (!format) return std::nullopt;
  return Blocks{bytes(t, OPGRAFT_UINT8, {shape[0], int64_t(t.bytes.size()) / shape[0]}), format};
}

Channels Checkpoint::channels(const std::string &name, const Shape &shape) const {
  const Tensor w = weight(name, shape, OPGRAFT_FLOAT32);
  auto parts = run("DynamicQuantExt", {w});
  w.rest();
  return {parts[0], parts[1]};
}

}  // namespace opgraft::llama
