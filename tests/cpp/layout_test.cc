// Pins the layout of every struct that crosses the native ABI. A failure here means that operators
// already built would be misread.
#include <gtest/gtest.h>

#include <cstddef>

#include "opgraft/abi.h"

// Array elements: they never change within a major version.
#define PIN_ELEMENT(expression) \
  static_assert(expression, "an array element of the ABI changed: raise OPGRAFT_ABI_MAJOR")
// Structs that begin with struct_size: what exists stays in place; growing at the end is a new minor.
#define PIN_MEMBER(expression) \
  static_assert(expression, "a member of the ABI moved or changed its size: raise OPGRAFT_ABI_MAJOR")
#define PIN_SIZE(expression) \
  static_assert(expression, "a struct grew: raise OPGRAFT_ABI_MINOR, pin the new members, then this size")

#define AT(type, member, offset) (offsetof(type, member) == (offset))

PIN_ELEMENT(sizeof(opgraft_tensor) == 32);
PIN_ELEMENT(AT(opgraft_tensor, data, 0) && AT(opgraft_tensor, shape, 8) && AT(opgraft_tensor, ndim, 16) &&
            AT(opgraft_tensor, dtype, 20) && AT(opgraft_tensor, elements, 24));

PIN_ELEMENT(sizeof(opgraft_attr) == 40);
PIN_ELEMENT(AT(opgraft_attr, name, 0) && AT(opgraft_attr, data, 8) && AT(opgraft_attr, rows, 16) &&
            AT(opgraft_attr, count, 24) && AT(opgraft_attr, kind, 32) && AT(opgraft_attr, reserved, 36));

PIN_ELEMENT(sizeof(opgraft_shape) == 32);
PIN_ELEMENT(AT(opgraft_shape, dims, 0) && AT(opgraft_shape, values, 8) && AT(opgraft_shape, ndim, 16) &&
            AT(opgraft_shape, dtype, 20) && AT(opgraft_shape, n_values, 24));

PIN_MEMBER(AT(opgraft_host, magic, 0) && AT(opgraft_host, struct_size, 8) && AT(opgraft_host, abi_version, 12) &&
           AT(opgraft_host, context, 16) && AT(opgraft_host, parallel_for, 24) && AT(opgraft_host, threads, 32) &&
           AT(opgraft_host, log, 40) && AT(opgraft_host, touch, 48) && AT(opgraft_host, state_context, 56) &&
           AT(opgraft_host, parallel_for_sized, 64));
PIN_SIZE(sizeof(opgraft_host) == 72);

PIN_MEMBER(AT(opgraft_infer_args, struct_size, 0) && AT(opgraft_infer_args, n_inputs, 4) &&
           AT(opgraft_infer_args, n_attrs, 8) && AT(opgraft_infer_args, n_outputs, 12) &&
           AT(opgraft_infer_args, inputs, 16) && AT(opgraft_infer_args, attrs, 24) &&
           AT(opgraft_infer_args, outputs, 32) && AT(opgraft_infer_args, dim_op, 40) &&
           AT(opgraft_infer_args, dim_context, 48));
PIN_SIZE(sizeof(opgraft_infer_args) == 56);

PIN_MEMBER(AT(opgraft_call, struct_size, 0) && AT(opgraft_call, n_inputs, 4) && AT(opgraft_call, n_outputs, 8) &&
           AT(opgraft_call, n_attrs, 12) && AT(opgraft_call, inputs, 16) && AT(opgraft_call, outputs, 24) &&
           AT(opgraft_call, attrs, 32) && AT(opgraft_call, state, 40) && AT(opgraft_call, workspace, 48) &&
           AT(opgraft_call, workspace_bytes, 56) && AT(opgraft_call, host, 64) && AT(opgraft_call, packed, 72) &&
           AT(opgraft_call, unread, 80));
PIN_SIZE(sizeof(opgraft_call) == 88);

PIN_MEMBER(AT(opgraft_op, struct_size, 0) && AT(opgraft_op, abi_version, 4) && AT(opgraft_op, name, 8) &&
           AT(opgraft_op, version, 16) && AT(opgraft_op, manifest, 24) && AT(opgraft_op, manifest_end, 32) &&
           AT(opgraft_op, infer, 40) && AT(opgraft_op, kernel, 48) && AT(opgraft_op, last_error, 56) &&
           AT(opgraft_op, reference, 64) && AT(opgraft_op, score, 72) && AT(opgraft_op, workspace, 80) &&
           AT(opgraft_op, init, 88) && AT(opgraft_op, release, 96) && AT(opgraft_op, prepare, 104) &&
           AT(opgraft_op, backward, 112));
PIN_SIZE(sizeof(opgraft_op) == 120);

// Numbers that files and descriptors carry.
PIN_ELEMENT(OPGRAFT_NOTE_TYPE == 1 && OPGRAFT_MAX_RANK == 8 && OPGRAFT_MAX_VALUES == 64);
PIN_ELEMENT(OPGRAFT_BOOL == 30 && OPGRAFT_INT8 == 32 && OPGRAFT_INT64 == 35 && OPGRAFT_UINT8 == 37 &&
            OPGRAFT_UINT64 == 40 && OPGRAFT_FLOAT16 == 42 && OPGRAFT_FLOAT32 == 43 && OPGRAFT_FLOAT64 == 44 &&
            OPGRAFT_BFLOAT16 == 45 && OPGRAFT_COMPLEX64 == 48);
PIN_ELEMENT(OPGRAFT_OK == 0 && OPGRAFT_INVALID_VALUE == 1 && OPGRAFT_INVALID_TYPE == 2 && OPGRAFT_UNSUPPORTED == 3 &&
            OPGRAFT_OUT_OF_MEMORY == 4 && OPGRAFT_INTERNAL == 5 && OPGRAFT_NOTHING_WRITTEN == 0x100);
PIN_ELEMENT(OPGRAFT_ATTR_BOOL == 1 && OPGRAFT_ATTR_FLOATS2D == 8);

TEST(Layout, VersionIsTheOneThatIsPinned) { EXPECT_EQ(OPGRAFT_ABI_VERSION, 0x10003); }
