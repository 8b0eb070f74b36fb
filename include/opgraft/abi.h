/* opgraft's native operator ABI. C only: no C++ type and no exception crosses it.
 *
 * Every operator `Op` of a shared object exports one data symbol `opgraft_op_Op` of type
 * `const opgraft_op`. Beside it the file carries an ELF note (owner "opgraft", type 1) that holds
 * the ABI version and the op.yaml, so that a host can refuse the file without running any of it.
 *
 * Versioning. A host refuses a descriptor whose major version is not its own. Within a major
 * version, structs that begin with `struct_size` only grow at their end: a reader looks at a member
 * only when `struct_size` covers it. opgraft_tensor, opgraft_attr and opgraft_shape are array
 * elements and never change within a major version. tests/cpp/layout_test.cc pins every size and
 * offset; a change there means a new major version.
 */
#ifndef OPGRAFT_ABI_H_
#define OPGRAFT_ABI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPGRAFT_ABI_MAJOR 1
#define OPGRAFT_ABI_MINOR 3
#define OPGRAFT_ABI_VERSION ((OPGRAFT_ABI_MAJOR << 16) | OPGRAFT_ABI_MINOR)

#define OPGRAFT_NOTE_OWNER "opgraft"
/* Note descriptor: uint32_t abi_version (host byte order), then the op.yaml, not terminated. */
#define OPGRAFT_NOTE_TYPE 1

#define OPGRAFT_MAX_RANK 8
/* Ids of symbolic dimensions are this and below. */
#define OPGRAFT_FIRST_SYMBOL (-((int64_t)1 << 40))
/* Most elements of an int64 output that an infer function may state the values of. */
#define OPGRAFT_MAX_VALUES 64

/* Element types; the numbers are MindSpore's TypeId. */
typedef enum opgraft_dtype {
  OPGRAFT_UNKNOWN = 0,
  OPGRAFT_BOOL = 30,
  OPGRAFT_INT8 = 32,
  OPGRAFT_INT16 = 33,
  OPGRAFT_INT32 = 34,
  OPGRAFT_INT64 = 35,
  OPGRAFT_UINT8 = 37,
  OPGRAFT_UINT16 = 38,
  OPGRAFT_UINT32 = 39,
  OPGRAFT_UINT64 = 40,
  OPGRAFT_FLOAT16 = 42,
  OPGRAFT_FLOAT32 = 43,
  OPGRAFT_FLOAT64 = 44,
  OPGRAFT_BFLOAT16 = 45,
  OPGRAFT_COMPLEX64 = 48
} opgraft_dtype;

/* What every int-returning function of an op returns. */
typedef enum opgraft_status {
  OPGRAFT_OK = 0,
  OPGRAFT_INVALID_VALUE = 1, /* a shape, an attribute or a value does not fit */
  OPGRAFT_INVALID_TYPE = 2,  /* a dtype is not one the op takes */
  OPGRAFT_UNSUPPORTED = 3,   /* right arguments that this implementation does not serve */
  OPGRAFT_OUT_OF_MEMORY = 4,
  OPGRAFT_INTERNAL = 5, /* the op failed; outputs may be half written */
  /* Added to a kernel's status: no output byte was written, another implementation may take over. */
  OPGRAFT_NOTHING_WRITTEN = 0x100
} opgraft_status;

/* One tensor, row-major and contiguous; 32 bytes. Data is aligned to its element, no more is
 * promised. In infer, `data` is null unless the value is known (a constant), and a negative
 * dimension is a symbol: -1 is unknown (equal to nothing, not even to itself), OPGRAFT_FIRST_SYMBOL and
 * below are ids: equal ids are equal dimensions. A known int64 value may hold such ids as well; they
 * are far from any position or size that a model names. */
typedef struct opgraft_tensor {
  void *data;
  const int64_t *shape;
  int32_t ndim;
  int32_t dtype;    /* opgraft_dtype */
  int64_t elements; /* product of shape; -1 where a dimension is a symbol */
} opgraft_tensor;

typedef enum opgraft_attr_kind {
  OPGRAFT_ATTR_BOOL = 1,    /* data: int64_t, 0 or 1 */
  OPGRAFT_ATTR_INT = 2,     /* data: int64_t */
  OPGRAFT_ATTR_FLOAT = 3,   /* data: double */
  OPGRAFT_ATTR_STRING = 4,  /* data: char[count + 1], terminated */
  OPGRAFT_ATTR_INTS = 5,    /* data: int64_t[count] */
  OPGRAFT_ATTR_FLOATS = 6,  /* data: double[count] */
  OPGRAFT_ATTR_INTS2D = 7,  /* data: int64_t[sum of rows], rows: int64_t[count] */
  OPGRAFT_ATTR_FLOATS2D = 8 /* data: double[sum of rows], rows: int64_t[count] */
} opgraft_attr_kind;

/* One attribute; 40 bytes. */
typedef struct opgraft_attr {
  const char *name; /* terminated */
  const void *data; /* see opgraft_attr_kind */
  const int64_t *rows;
  int64_t count;
  int32_t kind;
  int32_t reserved;
} opgraft_attr;

/* One output as infer states it; dims is room for OPGRAFT_MAX_RANK, values for OPGRAFT_MAX_VALUES.
 * An op that knows the values of an int64 output from shapes alone (Shape, MakeTuple) writes them
 * and sets n_values; otherwise n_values stays -1. */
typedef struct opgraft_shape {
  int64_t *dims;
  int64_t *values;
  int32_t ndim;
  int32_t dtype;
  int64_t n_values;
} opgraft_shape;

/* The logarithm of n, below 2^63, in quarters of an octave: 4 * its bits, and the two that follow the first. Below 256.
 */
static inline uint32_t opgraft_magnitude(uint64_t n) {
  const uint32_t bits = n ? 64 - (uint32_t)__builtin_clzll(n) : 0;
  return bits < 3 ? (uint32_t)n : 4 * bits + (uint32_t)(n >> (bits - 3) & 3);
}

/* Services of the host; they may be called from the thread that runs the kernel. In MindSpore's
 * entry a host passes it as `stream`; `magic` tells it from anything else. */
#define OPGRAFT_HOST_MAGIC 0x54534f4854465247ULL
typedef struct opgraft_host {
  uint64_t magic;
  uint32_t struct_size;
  uint32_t abi_version;
  void *context;
  /* Runs body over [0, n) in chunks of about `grain` at least, on any thread of the pool, and returns
   * when all are done. `worker` is in [0, threads). Must not be called from within a body. */
  void (*parallel_for)(void *context, int64_t n, int64_t grain,
                       void (*body)(void *arg, int64_t begin, int64_t end, int32_t worker), void *arg);
  int32_t (*threads)(void *context);
  void (*log)(void *context, int32_t level, const char *message);
  /* `bytes` from `data` on, of an input that op.yaml calls a state, are about to be written; for the kernel's thread.
   * Not 0: the state may not grow so far, and nothing must be written. May be null. Since 1.1. */
  int (*touch)(void *state_context, void *data, uint64_t bytes);
  void *state_context;
  /* parallel_for of a loop that the host may tell by `sizes` from those of the same body, n and grain that have more or
   * less to do: it learns what pays. The upper eight bits are opgraft_magnitude of the bytes that the call's tensors
   * have together, or 0; the others are any number. May be null. Since 1.2. */
  void (*parallel_for_sized)(void *context, uint64_t sizes, int64_t n, int64_t grain,
                             void (*body)(void *arg, int64_t begin, int64_t end, int32_t worker), void *arg);
} opgraft_host;

/* Arguments of infer, workspace, init and prepare. */
typedef struct opgraft_infer_args {
  uint32_t struct_size;
  int32_t n_inputs;
  int32_t n_attrs;
  int32_t n_outputs; /* room in `outputs`; infer sets it to the number it wrote */
  const opgraft_tensor *inputs;
  const opgraft_attr *attrs;
  opgraft_shape *outputs; /* infer only, else null */
  /* Symbolic arithmetic, null where the host has none: returns the id (or number) of a OP b,
   * OP one of '+', '-', '*', '/' (exact division; -1 where it cannot be told). */
  int64_t (*dim_op)(void *dim_context, char op, int64_t a, int64_t b);
  void *dim_context;
} opgraft_infer_args;

/* Arguments of one kernel call. Outputs arrive allocated with the shapes infer gave. */
typedef struct opgraft_call {
  uint32_t struct_size;
  int32_t n_inputs;
  int32_t n_outputs;
  int32_t n_attrs;
  const opgraft_tensor *inputs;
  const opgraft_tensor *outputs;
  const opgraft_attr *attrs;
  void *state;     /* from init, else null */
  void *workspace; /* 64-byte aligned, workspace_bytes long, contents undefined */
  uint64_t workspace_bytes;
  const opgraft_host *host;  /* null: run on the calling thread */
  const void *const *packed; /* per input what prepare made of it, or null; may be null itself */
  /* Bit i < 64: output i leaves the graph for memory of the caller's, and no operator of the graph reads it. 0: one
   * may, or it is not known. Since 1.3. */
  uint64_t unread;
} opgraft_call;

/* The descriptor. Members after `kernel` may be null. All functions are reentrant. */
typedef struct opgraft_op {
  uint32_t struct_size;
  uint32_t abi_version; /* OPGRAFT_ABI_VERSION of the op's headers */
  const char *name;
  const char *version;  /* semver, as in op.yaml */
  const char *manifest; /* the embedded op.yaml (all ops of the file), not terminated */
  const char *manifest_end;
  int (*infer)(opgraft_infer_args *args);
  int (*kernel)(const opgraft_call *call);
  /* Message of the last failure on this thread; valid until the next call into the op. */
  const char *(*last_error)(void);
  /* The scalar twin: same contract as kernel, needs no workspace, state or packed inputs. */
  int (*reference)(const opgraft_call *call);
  /* Fitness for this machine, higher is better; 0 = cannot run here. Null counts as 1. */
  int32_t (*score)(void);
  int (*workspace)(const opgraft_infer_args *args, uint64_t *bytes);
  int (*init)(const opgraft_infer_args *args, void **state);
  void (*release)(void *state);
  /* Packed form of constant input `input` (its data is set in args). With dst null sets *bytes
   * (0: no packing wanted); else fills dst, *bytes long, 64-byte aligned. */
  int (*prepare)(const opgraft_infer_args *args, int32_t input, void *dst, uint64_t *bytes);
  const char *backward; /* name of the op that computes the gradient, or null */
} opgraft_op;

#ifdef __cplusplus
}
#endif
#endif /* OPGRAFT_ABI_H_ */
