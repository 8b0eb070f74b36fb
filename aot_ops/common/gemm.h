// What a GEMM call consists of, shared by the SIMD kernels (gemm-inl.h) and the ops (gemm-host.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "opgraft/op.h"

namespace opgraft {

enum class Activation : int32_t { kNone, kGelu, kGeluTanh, kRelu, kSilu };

inline Activation activation_from_name(const Arguments &c, const std::string &name) {
  static constexpr const char *kNames[] = {"none", "gelu", "gelu_tanh", "relu", "silu"};
  for (int i = 0; i < 5; ++i)
    if (name == kNames[i]) return Activation(i);
  c.fail(OPGRAFT_INVALID_VALUE, "activation must be one of none, gelu, gelu_tanh, relu, silu, got '", name, "'");
}

// Scalar twin of the activations.
inline double activate(Activation a, double x) {
  switch (a) {
    case Activation::kGelu: return 0.5 * x * (1 + std::erf(x * 0.70710678118654752));
    case Activation::kGeluTanh: return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case Activation::kRelu: return x > 0 || x != x ? x : 0;
    case Activation::kSilu: return x / (1 + std::exp(-x));
    default: return x;
  }
}

// A unit of work: the most rows of A that stay in L2, and the most panels whose sums do. 48 KiB of sums with AVX-512.
// AMX multiplies so much faster that B, which comes anew for every block, is to come for more rows.
constexpr int64_t kBlockRows = 96, kBlockPanels = 4, kAmxBlockRows = 192, kMostBlockRows = kAmxBlockRows;
constexpr int64_t kAmxGain =
    8;  // products of AMX in the time of one of vectors, roughly: for what work is worth sharing
// So few rows that B is better read where it lies, and their sums, 64 KiB of columns at a time.
constexpr int64_t kSkinnyRows = 16, kSkinnyFloats = 16384;

// C[m, n] = act((A[m, k] B[k, n] + row_sums[m] offset[n]) scale[n] + bias[n]) + residual[m, n]. A is float32, or rows
// of Bf16Pair, of which k counts the pairs; B is packed (PackPanels); C, bias and residual are of the storage type T.
// Rows of C and residual are `ldc` apart.
struct GemmTile {
  const float *a;
  int64_t lda;
  const void *b;
  void *c;
  int64_t ldc;
  const void *bias;      // or null
  const void *residual;  // or null; may be c
  int64_t m, n, k;
  Activation activation;
  int64_t kc;  // K is worked through in pieces of kc
  // Of weights of eight bits: offset, or scale and offset, may be null. row_sums[i] is the sum of A's row i.
  const float *scale = nullptr, *offset = nullptr, *row_sums = nullptr;
};

// Elements of a matrix at row * row_stride + column * column_stride.
struct MatrixRef {
  const void *data;
  int64_t row_stride, column_stride;
};

}  // namespace opgraft
