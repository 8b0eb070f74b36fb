// BlockQuantGather: rows of a table whose rows are blocks of 4 or 8 bits, by index, as numbers.
#include <algorithm>
#include <string>

#include "aot_ops/block_quant/formats.h"

namespace {
using namespace opgraft;

enum { kTable, kIndices };

int32_t output_dtype(const Arguments &c) {
  const std::string name = c.attr_string("dtype", "float32");
  const int32_t d = dtype_from_name(name);
  c.check(d == OPGRAFT_FLOAT32 || d == OPGRAFT_FLOAT16 || d == OPGRAFT_BFLOAT16,
          "dtype must be one of float32, float16, bfloat16, got '", name, "'");
  return d;
}

void Infer(InferContext &c) {
  const BlockFormat &f = format_of(c);
  check_rows(c, kTable, "table", f, -1);
  c.check_dtype(kIndices, "indices", {OPGRAFT_INT32, OPGRAFT_INT64});
  const auto i = c.input(kIndices).shape();
  const int64_t bytes = c.input(kTable).dim(1);
  Shape out(i.begin(), i.end());
  out.push_back(bytes < 0 ? -1 : bytes / f.bytes() * kBlock);
  c.output(output_dtype(c), out);
}

template <class T> void Rows(const Context &c, const BlockFormat &f, int64_t begin, int64_t end) {
  const int64_t rows = c.input(kTable).dim(0), bytes = c.input(kTable).dim(1), blocks = bytes / f.bytes();
  for (int64_t r = begin; r < end; ++r) {
    const int64_t index = c.input(kIndices).dtype() == OPGRAFT_INT64 ? c.input(kIndices).data<int64_t>()[r]
                                                                     : c.input(kIndices).data<int32_t>()[r];
    T *to = c.output(0).data<T>() + r * blocks * kBlock;
    if (index < -rows || index >= rows)
      c.fail(OPGRAFT_INVALID_VALUE, "indices must be in [", -rows, ", ", rows, "), got ", index);
    const uint8_t *row = c.input(kTable).data<uint8_t>() + (index < 0 ? index + rows : index) * bytes;
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t i = 0; i < kBlock; ++i) to[b * kBlock + i] = T(f.value(row + b * f.bytes(), i));
  }
}

void Kernel(Context &c) {
  const BlockFormat &f = format_of(c);
  const int64_t width = c.input(kTable).dim(1);
  dispatch<float, float16, bfloat16>(c, c.output(0).dtype(), [&](auto zero) {
    c.parallel_for(c.input(kIndices).size(), std::max<int64_t>(1, 16384 / std::max<int64_t>(width, 1)),
                   [&](int64_t begin, int64_t end) { Rows<decltype(zero)>(c, f, begin, end); });
  });
}

void Reference(Context &c) {
  const BlockFormat &f = format_of(c);
  dispatch<float, float16, bfloat16>(c, c.output(0).dtype(),
                                     [&](auto zero) { Rows<decltype(zero)>(c, f, 0, c.input(kIndices).size()); });
}

}  // namespace

OPGRAFT_OP(BlockQuantGather, .inputs = 2, .infer = Infer, .kernel = Kernel, .reference = Reference)
