"""Cases of BlockQuantMatMul, BlockQuantQKV, BlockQuantSwiGLU, BlockQuantGather; the format is that of
swiglu/cases.py."""

import numpy as np

BYTES = {"q4_0": 18, "q4_1": 20, "q8_0": 34}


def blocks_of(rows, format):
    rows = np.asarray(rows).astype(np.uint8)
    return rows.reshape(rows.shape[0], rows.shape[1] // BYTES[format], BYTES[format])


def values(rows, format):
    """What rows of blocks mean, (N, K) in float64: d (code - 8), d code + m, d code (ggml's Q4_0, Q4_1, Q8_0)."""
    blocks = blocks_of(rows, format)
    d = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    if format == "q8_0":
        y = d * np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    else:
        codes = blocks[..., -16:].astype(np.float64)
        codes = np.concatenate([codes % 16, codes // 16], -1)
        m = np.ascontiguousarray(blocks[..., 2:4]).view(np.float16).astype(np.float64)
        y = d * (codes - 8) if format == "q4_0" else d * codes + m
    return y.reshape(y.shape[0], y.shape[1] * 32)


def product(x, weight, format="q4_0"):
    return x @ values(weight, format).T


def bound(u, x, weight, format="q4_0"):
    """x in eight bits: of a block of 32 the largest size is 127 steps, so that an element is off by half a step, and by
    the two roundings that scale it; then, of every block, the sum's conversion, three products and sums, and one
    addition of each of the blocks: counted as roundings of sums of sizes. Codes of 8 and of 4 bits with a least value
    cancel: what is added up is d times code, and m, on their own."""
    k, w = x.shape[-1], values(weight, format)
    step = np.abs(x).reshape(*x.shape[:-1], k // 32, 32).max(-1, initial=0.0) / 127
    rows = blocks_of(weight, format)
    d = np.abs(np.ascontiguousarray(rows[..., :2]).view(np.float16).astype(np.float64))
    largest = np.repeat({"q4_0": 8, "q4_1": 15, "q8_0": 128}[format] * d[..., 0], 32, -1)
    if format == "q4_1":
        largest = largest + np.repeat(
            np.abs(np.ascontiguousarray(rows[..., 2:4]).view(np.float16).astype(float))[..., 0], 32, -1
        )
    size = np.abs(x) + np.repeat(step, 32, -1)
    return np.repeat(step, 32, -1) @ np.abs(w).T * (0.5 + 2.0**-16) + (6 + k / 32) * 2.0**-24 * (size @ largest.T)


def three_products(x, q, k, v, format="q4_0"):
    return [product(x, w, format) for w in (q, k, v)]


def three_bounds(u, x, q, k, v, format="q4_0"):
    return [bound(u, x, w, format) for w in (q, k, v)]


def gated(x, gate, up, format="q4_0"):
    gate, up = product(x, gate, format), product(x, up, format)
    return gate / (1 + np.exp(-gate)) * up


SILU = 7  # roundings of SiLU as in aot_ops/elementwise/cases.py; and one of the product


def gated_bound(u, x, gate, up, format="q4_0"):
    """What SiLU makes of the gate's bound, its slope being below 1.1, and of the other's."""
    off_gate, off_up = bound(u, x, gate, format), bound(u, x, up, format)
    y, gate, up = gated(x, gate, up, format), product(x, gate, format), product(x, up, format)
    size = np.abs(gate / (1 + np.exp(-gate))) + 1.1 * off_gate
    return 1.1 * off_gate * np.abs(up) + size * off_up + (SILU + 1) * 2.0**-24 * (np.abs(y) + size * off_up)


def gather(table, indices, format="q4_0", dtype="float32"):
    return values(table, format)[indices.astype(np.int64)]


REFERENCE = {
    "BlockQuantMatMul": product, "BlockQuantQKV": three_products, "BlockQuantSwiGLU": gated, "BlockQuantGather": gather,
}  # fmt: skip
BOUND = {"BlockQuantMatMul": bound, "BlockQuantQKV": three_bounds, "BlockQuantSwiGLU": gated_bound}
# One rounding to the storage type, by the kernel and by the twin; a gathered value rounds in float32 twice.
TOLERANCE = {"float32": 4.04 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24


def weight(n, k, format, seed=0):
    """Rows of blocks with every code in them, as bytes."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n, k // 32, BYTES[format]), dtype=np.uint8)
    halves = rng.uniform(-0.02, 0.02, (n, k // 32, 2 if format == "q4_1" else 1)).astype(np.float16)
    blocks[..., : 2 * halves.shape[-1]] = halves.view(np.uint8)
    return ("uint8", blocks.reshape(n, -1).tolist()) if blocks.size else ("uint8", (n, k // 32 * BYTES[format]))


def case(x, n, k, format, dtype="float32", op="BlockQuantMatMul"):
    """n: rows of the weight, or of several."""
    weights = [weight(rows, k, format, i) for i, rows in enumerate([n] if isinstance(n, int) else n)]
    return {"op": op, "inputs": [(dtype, (*x, k)), *weights], "attrs": {"format": format},
            "rtol": TOLERANCE[dtype], "atol": SMALLEST if dtype == "float16" else 0.0}  # fmt: skip


CASES = [case(x, n, 96, format, dtype) for format in BYTES for dtype in TOLERANCE
         for x, n in [((1,), 16), ((3,), 37), ((2, 9), 5)]]  # fmt: skip
CASES += [case((41,), 33, 64, format) for format in BYTES]  # more rows of x than are taken at once
CASES += [case(x, n, k, "q4_1") for x, n, k in [((), 40, 32), ((0,), 3, 32), ((2,), 0, 32), ((1,), 1, 1024)]]
CASES += [
    {"op": "BlockQuantMatMul", "inputs": [("float32", np.zeros((2, 32)).tolist()), weight(3, 32, f)],
     "attrs": {"format": f}, "rtol": 0.0, "atol": 0.0} for f in BYTES
]  # fmt: skip
CASES += [case(x, n, 96, format, dtype, "BlockQuantQKV") for format in BYTES for dtype in TOLERANCE
          for x, n in [((1,), (32, 16, 16)), ((3,), (37, 5, 18))]]  # fmt: skip
CASES += [case(x, n, 64, "q4_1", op="BlockQuantQKV") for x, n in
          [((41,), (33, 1, 16)), ((0,), (3, 2, 1)), ((2, 3), (0, 20, 0)), ((), (3, 40, 5))]]  # fmt: skip
CASES += [case(x, (n, n), 96, format, dtype, "BlockQuantSwiGLU") for format in BYTES for dtype in TOLERANCE
          for x, n in [((1,), 16), ((3,), 37), ((2, 9), 5)]]  # fmt: skip
CASES += [case(x, (n, n), 64, "q4_1", op="BlockQuantSwiGLU") for x, n in
          [((41,), 33), ((70,), 48), ((0,), 3), ((2,), 0), ((), 21)]]  # fmt: skip
CASES += [
    {"op": "BlockQuantGather", "inputs": [weight(7, 64, f), (i, [[0, 6], [-1, 3]])],
     "attrs": {"format": f, "dtype": d}, "rtol": TOLERANCE[d], "atol": SMALLEST if d == "float16" else 1e-9}
    for f in BYTES for d in TOLERANCE for i in ("int32", "int64")
]  # fmt: skip


def refused(error, x, *weights, op="BlockQuantMatMul", **attrs):
    return {"op": op, "inputs": [x, *weights], "attrs": attrs, "error": f"{op}: {error}"}


ONE = ("float32", (1, 32))
REFUSED = [
    refused("format must be one of q4_0, q4_1, q8_0, got 'q2_k'", ONE, ("uint8", (2, 18)), format="q2_k"),
    refused(r"weight's rows must be whole blocks of 18 bytes, got shape \(2, 19\)", ONE, ("uint8", (2, 19))),
    refused(r"x's K must be weight's 64, got 32", ONE, ("uint8", (2, 36))),
    refused(r"weight must have 2 dimensions, got shape \(36,\)", ONE, ("uint8", (36,))),
    refused(r"k_weight's rows must be whole blocks of 18 bytes, got shape \(2, 19\)", ONE,
            *[("uint8", (2, n)) for n in (18, 19, 18)], op="BlockQuantQKV"),
    refused(r"x's K must be v_weight's 64, got 32", ONE, *[("uint8", (2, n)) for n in (18, 18, 36)],
            op="BlockQuantQKV"),
    refused("gate_weight and up_weight must have as many rows, got 2 and 3", ONE, ("uint8", (2, 18)),
            ("uint8", (3, 18)), op="BlockQuantSwiGLU"),
]  # fmt: skip
