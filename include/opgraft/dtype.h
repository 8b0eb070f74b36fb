// The dtypes of the ABI: name, size, and the C++ type of an element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "opgraft/abi.h"
#include "opgraft/half.h"

namespace opgraft {

inline const char *dtype_name(int32_t dtype) {
  switch (dtype) {
    case OPGRAFT_BOOL: return "bool";
    case OPGRAFT_INT8: return "int8";
    case OPGRAFT_INT16: return "int16";
    case OPGRAFT_INT32: return "int32";
    case OPGRAFT_INT64: return "int64";
    case OPGRAFT_UINT8: return "uint8";
    case OPGRAFT_UINT16: return "uint16";
    case OPGRAFT_UINT32: return "uint32";
    case OPGRAFT_UINT64: return "uint64";
    case OPGRAFT_FLOAT16: return "float16";
    case OPGRAFT_FLOAT32: return "float32";
    case OPGRAFT_FLOAT64: return "float64";
    case OPGRAFT_BFLOAT16: return "bfloat16";
    case OPGRAFT_COMPLEX64: return "complex64";
    default: return "unknown";
  }
}

inline int32_t dtype_from_name(std::string_view name) {
  for (int32_t d = OPGRAFT_BOOL; d <= OPGRAFT_COMPLEX64; ++d)
    if (name == dtype_name(d)) return d;
  return OPGRAFT_UNKNOWN;
}

// Bytes of one element; 0 for an unknown dtype.
inline size_t dtype_size(int32_t dtype) {
  switch (dtype) {
    case OPGRAFT_BOOL:
    case OPGRAFT_INT8:
    case OPGRAFT_UINT8: return 1;
    case OPGRAFT_INT16:
    case OPGRAFT_UINT16:
    case OPGRAFT_FLOAT16:
    case OPGRAFT_BFLOAT16: return 2;
    case OPGRAFT_INT32:
    case OPGRAFT_UINT32:
    case OPGRAFT_FLOAT32: return 4;
    case OPGRAFT_INT64:
    case OPGRAFT_UINT64:
    case OPGRAFT_FLOAT64:
    case OPGRAFT_COMPLEX64: return 8;
    default: return 0;
  }
}

template <class T> struct DtypeOf;
template <> struct DtypeOf<bool> { static constexpr int32_t value = OPGRAFT_BOOL; };
template <> struct DtypeOf<int8_t> { static constexpr int32_t value = OPGRAFT_INT8; };
template <> struct DtypeOf<int16_t> { static constexpr int32_t value = OPGRAFT_INT16; };
template <> struct DtypeOf<int32_t> { static constexpr int32_t value = OPGRAFT_INT32; };
template <> struct DtypeOf<int64_t> { static constexpr int32_t value = OPGRAFT_INT64; };
template <> struct DtypeOf<uint8_t> { static constexpr int32_t value = OPGRAFT_UINT8; };
template <> struct DtypeOf<float> { static constexpr int32_t value = OPGRAFT_FLOAT32; };
template <> struct DtypeOf<double> { static constexpr int32_t value = OPGRAFT_FLOAT64; };
template <> struct DtypeOf<float16> { static constexpr int32_t value = OPGRAFT_FLOAT16; };
template <> struct DtypeOf<bfloat16> { static constexpr int32_t value = OPGRAFT_BFLOAT16; };

}  // namespace opgraft
