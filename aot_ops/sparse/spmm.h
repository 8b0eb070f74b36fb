// Sparse times dense, between the operators of this folder and the SIMD kernels (spmm.cc).
#pragma once

#include "aot_ops/common/gemm.h"
#include "aot_ops/sparse/csr.h"
#include "aot_ops/sparse/packed.h"

namespace opgraft::sparse {

// Y = act(S D + bias) with S sparse [rows, inner] and D, Y dense, [inner, columns] and [rows, columns] by their
// strides: of D and of Y one stride is 1. D, bias and Y are of storage type `dtype`, products are summed in float32.
struct Product {
  int32_t dtype;
  int64_t rows, inner, columns;
  MatrixRef d, y;              // y.data is written
  const void *bias = nullptr;  // [rows], or null
  Activation activation = Activation::kNone;
  bool follows() const { return bias || activation != Activation::kNone; }
  const void *bias_of(int64_t row) const {
    return bias ? static_cast<const char *>(bias) + row * int64_t(dtype_size(dtype)) : nullptr;
  }
};

// Rows of S that are written at a time where Y is transposed.
constexpr int64_t kStoreRows = 64;

// Bytes of workspace for a packed S.
uint64_t workspace_bytes(const Product &p, int64_t threads);

// The packed form of a matrix; may_be_dense: the caller has a dense product for what is not sparse enough.
class Packing {
 public:
  Packing(Csr &m, bool may_be_dense = true);  // tidies m, which must outlive it
  Strategy strategy() const { return packer_.strategy(); }
  uint64_t bytes() const { return packer_.bytes(); }
  void write(void *blob) const { packer_.write(blob); }

 private:
  Packer packer_;
};

// S packed with the sparse strategy.
void multiply(Context &c, const Product &p, const Packed &s);
// S as arrays whose indices were checked; I is int32_t or int64_t, values are of the type `dtype`.
template <class I> struct CsrView {
  const I *begin;
  const I *columns;
  const void *values;
};
template <class I> void multiply(Context &c, const Product &p, const CsrView<I> &s);
void multiply(Context &c, const Product &p, const Csr &s);
// The scalar twin: sums in double, rounds once.
void reference(const Context &c, const Product &p, const Csr &s);

// ds[r, k] = the sum over j of dy[r, j] d[k, j] where s[r, k] is not 0, else 0; s and ds by the same strides.
void sampled_product(Context &c, const Product &p, const MatrixRef &dy, const MatrixRef &s, const MatrixRef &ds);
// The same for single elements: (row(i), column(i)) gives ds[i].
void sampled_entries(Context &c, const Product &p, const MatrixRef &dy, const int32_t *rows, const int32_t *columns,
                     int64_t count, void *ds);

bool all_finite(Context &c, int32_t dtype, const void *data, int64_t size);

}  // namespace opgraft::sparse
