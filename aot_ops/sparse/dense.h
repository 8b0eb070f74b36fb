// The dense product of this folder (spmm.cc), between its operators and common/gemm-host.h.
#pragma once

#include "aot_ops/common/gemm.h"

namespace opgraft::sparse {

// c[m, n] = act(a[m, k] b[k, n] + bias[n]), c row-major; a and b by their strides, one of which is 1. packed: b as
// dense_pack made it, or null; bias: of the storage type, or null.
struct DenseProduct {
  int32_t dtype;
  int64_t m, n, k;
  MatrixRef a, b;
  void *c = nullptr;
  const void *packed = nullptr, *bias = nullptr;
  Activation activation = Activation::kNone;
};

void multiply_dense(Context &c, const DenseProduct &p);
uint64_t dense_workspace_bytes(const DenseProduct &p, bool packed);
uint64_t dense_packed_bytes(const DenseProduct &p);
void dense_pack(const DenseProduct &p, void *to);

}  // namespace opgraft::sparse
