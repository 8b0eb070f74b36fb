"""Cases of MatMul, BatchMatMul, MatMulExt and their gradients; the format is that of swiglu/cases.py."""

import numpy as np


def swap(x, yes):
    return np.swapaxes(x, -1, -2) if yes else x


def matmul(a, b, transpose_a=False, transpose_b=False):
    return np.matmul(swap(a, transpose_a), swap(b, transpose_b))


def sum_bound(squares, k):
    """Of float32 sums of k products, each product and addition fused, one after another. The worst case, k 2^-24 times
    the sum of the absolute values, lets real faults pass; roundings are independent, though (Higham and Mary 2019):
    rounding i errs by at most 2^-24 |s_i| with a root mean square of 1/sqrt 3 of that, s_i^2 grows to about
    sum(a^2 b^2), half of it on average over i. Eight times the root mean square."""
    return 8 * 2.0**-24 * np.sqrt(k * squares / 6)


def bound(u, a, b, transpose_a=False, transpose_b=False):
    a, b = swap(a, transpose_a), swap(b, transpose_b)
    return sum_bound(np.matmul(a**2, b**2), a.shape[-1])


def bound_ext(u, a, b):
    return sum_bound(np.matmul(a**2, b**2), a.shape[-1])


def fold(g, shape):
    """Sums what was broadcast."""
    g = g.sum(tuple(range(g.ndim - len(shape))))
    return g.sum(tuple(i for i, n in enumerate(shape) if n == 1 != g.shape[i]), keepdims=True).reshape(shape)


def gradients(a, b, dy, transpose_a=False, transpose_b=False):
    """By the chain rule, over matrices; a vector a is a row, a vector b a column."""
    x, y = swap(np.atleast_2d(a), transpose_a), swap(b[:, None] if b.ndim == 1 else b, transpose_b)
    dy = dy.reshape(np.broadcast_shapes(x.shape[:-2], y.shape[:-2]) + (x.shape[-2], y.shape[-1]))
    da, db = swap(dy @ swap(y, True), transpose_a), swap(swap(x, True) @ dy, transpose_b)
    matrix_a = np.atleast_2d(a).shape
    matrix_b = b[:, None].shape if b.ndim == 1 else b.shape
    return fold(da, matrix_a).reshape(a.shape), fold(db, matrix_b).reshape(b.shape)


def gradients_bound(u, a, b, dy, transpose_a=False, transpose_b=False):
    """Sums as long as the products that each element of a and of b takes part in."""
    squares = gradients(a**2, b**2, dy**2, transpose_a, transpose_b)
    terms = gradients(*map(np.ones_like, (a, b, dy)), transpose_a, transpose_b)
    return [sum_bound(s, n) for s, n in zip(squares, terms)]


REFERENCE = {"MatMul": matmul, "BatchMatMul": matmul, "MatMulExt": np.matmul}
BOUND = {"MatMul": bound, "BatchMatMul": bound, "MatMulExt": bound_ext}
for name in list(REFERENCE):
    REFERENCE[name + "Grad"], BOUND[name + "Grad"] = gradients, gradients_bound
# One rounding to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24

# M, N, K: whole and partial tiles of every width, one row, one column, none.
SIZES = [
    (1, 300, 700),  # few rows by a B that is read in pieces
    (2, 300, 700),
    (16, 300, 700),
    (13, 40, 2100),  # K in pieces that stay in L2
    (12, 64, 32),
    (6, 16, 8),
    (7, 33, 5),
    (1, 70, 130),
    (2, 31, 9),
    (3, 1, 17),
    (29, 100, 64),
    (0, 5, 3),
    (4, 0, 3),
    (4, 5, 0),
    (97, 65, 1024),
]
FLAGS = [(False, False), (False, True), (True, False), (True, True)]
# Batch dimensions of a and b.
BATCHES = [((2, 3), (2, 3)), ((2, 1), (1, 3)), ((3,), ()), ((), (2,)), ((0,), (1,)), ((5, 1, 2), (4, 1))]

# Shapes of MatMulExt: vectors on either side and on both, rows of many dimensions, batches that broadcast.
SHAPES = [
    ((18,), (18,)),
    ((18,), (18, 35)),
    ((9, 18), (18,)),
    ((2, 3, 9, 18), (18,)),
    ((18,), (2, 3, 18, 35)),
    ((9, 18), (18, 35)),
    ((2, 3, 9, 18), (18, 35)),
    ((9, 18), (2, 18, 35)),
    ((5, 1, 9, 18), (4, 18, 35)),
    ((0, 18), (18,)),
    ((18,), (0, 18, 35)),
    ((0,), (0,)),
]


def case(op, dtype, batch_a, batch_b, m, n, k, ta, tb):
    a = (*batch_a, k, m) if ta else (*batch_a, m, k)
    b = (*batch_b, n, k) if tb else (*batch_b, k, n)
    return {
        "op": op,
        "inputs": [(dtype, a), (dtype, b)],
        "attrs": {"transpose_a": ta, "transpose_b": tb},
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
        "constant": [1],  # b, which is packed
    }


def grad_case(case):
    """The gradient's case of a product's."""
    a, b = (np.ones(i[1]) for i in case["inputs"])
    y = np.matmul(a, b) if case["op"] == "MatMulExt" else matmul(a, b, **case["attrs"])
    return case | {"op": case["op"] + "Grad", "inputs": [*case["inputs"], (case["inputs"][0][0], y.shape)]}


CASES = (
    [case("MatMul", t, (), (), *s, *f) for t in TOLERANCE for s in SIZES for f in FLAGS]
    + [case("MatMul", t, (2, 3), (), 5, 40, 20, False, True) for t in TOLERANCE]
    + [case("BatchMatMul", t, *b, 9, 35, 18, *f) for t in TOLERANCE for b in BATCHES for f in FLAGS]
    + [
        {
            "op": "MatMulExt",
            "inputs": [(t, a), (t, b)],
            "attrs": {},
            "rtol": TOLERANCE[t],
            "atol": SMALLEST,
            "constant": [1],
        }
        for t in TOLERANCE
        for a, b in SHAPES
    ]
    + [
        {
            "op": "MatMul",
            "inputs": [("float32", (3, 40), "special"), ("float32", (40, 20))],
            "attrs": {},
            "rtol": TOLERANCE["float32"],
            "atol": SMALLEST,
            "constant": [1],
        }
    ]
)

# Of every case of a product without special values, but the one with the longest sums.
CASES += [grad_case(c) for c in CASES if len(c["inputs"][0]) == 2 and max(c["inputs"][0][1]) < 2000]

REFUSED = [
    {
        "op": "MatMulGrad",
        "inputs": [("float32", (4, 8)), ("float32", (8, 3)), ("float32", (4, 4))],
        "error": r"MatMulGrad: dy.shape must equal the product's shape \(4, 3\), got \(4, 4\)",
    },
    {
        "op": "BatchMatMulGrad",
        "inputs": [("float32", (4, 8)), ("float32", (8, 3)), ("float16", (4, 3))],
        "error": "BatchMatMulGrad: dy.dtype must equal a.dtype float32, got float16",
    },
    {
        "op": "MatMul",
        "inputs": [("float32", (4, 8)), ("float32", (7, 3))],
        "error": r"MatMul: a's K must equal b's K of 7, got 8",
    },
    {
        "op": "MatMul",
        "inputs": [("float32", (4, 8)), ("float32", (2, 8, 3))],
        "error": r"MatMul: b must have 2 dimensions, got shape \(2, 8, 3\)",
    },
    {
        "op": "MatMul",
        "inputs": [("int32", (4, 8)), ("int32", (8, 3))],
        "error": "MatMul: a.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "MatMulExt",
        "inputs": [("float32", ()), ("float32", (8,))],
        "error": r"MatMulExt: a must have at least 1 dimension, got shape \(\)",
    },
    {
        "op": "MatMulExt",
        "inputs": [("float32", (7,)), ("float32", (2, 8, 3))],
        "error": r"MatMulExt: a's K must equal b's K of 8, got 7 \(a \(7,\), b \(2, 8, 3\)\)",
    },
    {
        "op": "BatchMatMul",
        "inputs": [("float32", (4, 8)), ("float16", (8, 3))],
        "error": "BatchMatMul: b.dtype must equal a.dtype float32, got float16",
    },
    {
        "op": "BatchMatMul",
        "inputs": [("float32", (2, 4, 8)), ("float32", (3, 8, 3))],
        "error": r"BatchMatMul: shapes \(2,\) and \(3,\) do not broadcast",
    },
]
