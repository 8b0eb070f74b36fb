"""Cases of ReduceMean, ReduceSum and ReduceMax; swiglu/cases.py explains the format. REFERENCE
functions take the attributes as keywords."""

import numpy as np


def over(f):
    return lambda x, axis=(), keep_dims=False: f(x, axis=tuple(axis) or None, keepdims=keep_dims)


def total(x, axis=(), keep_dims=False):
    return np.sum(x, axis=tuple(axis) or None, keepdims=keep_dims, dtype=x.dtype)  # integers wrap


REFERENCE = {"ReduceMean": over(np.mean), "ReduceSum": total, "ReduceMax": over(np.max)}

# One rounding to the storage type at the end, by the kernel and by the twin.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8, "int32": 0, "int64": 0}


def sum_bound(u, x, axis=(), keep_dims=False, mean=False):
    """Of a float32 sum of n terms in any order: n 2^-24 times the sum of |x| (Higham 2002, section 4.2). No more than
    4096 rows, or 1024 elements in each of 16 accumulators, add up in float32; the rest do in double."""
    if x.dtype.kind == "i":
        return 0.0  # exact
    size = over(np.sum)(np.ones_like(x), axis, keep_dims)
    bound = np.minimum(size, 4096 + 16) * 2.0**-24 * over(np.sum)(np.abs(x), axis, keep_dims)
    return bound / np.maximum(size, 1) if mean else bound


BOUND = {"ReduceSum": sum_bound, "ReduceMean": lambda *a, **attrs: sum_bound(*a, **attrs, mean=True)}

# Last, first, middle, both ends, inner two, all, negative, none named; rows long and short; the last two are cut
# into parts that are folded by several threads.
LAYOUTS = [
    ((5, 777), [-1]),
    ((9, 300), [0]),
    ((3, 40, 7), [1]),
    ((3, 5, 70), [0, 2]),
    ((2, 3, 4, 5), [1, 2]),
    ((4, 33), []),
    ((1,), [0]),
    ((), []),
    ((2, 1, 9), [1]),
    ((70, 300), [0, 1]),
    ((0, 5), [1]),
    ((20001, 8), [0]),
    ((11, 700, 2, 9), [1, 2]),
    ((3, 140000), [1]),
    ((2, 70001, 3), [0, 1, 2]),
]


def case(op, x, axis, keep=False):
    # float16's smallest step is 2^-24; ReduceMax rounds nothing.
    rtol, atol = (0.0, 0.0) if op == "ReduceMax" or "int" in x[0] else (TOLERANCE[x[0]], 2.0**-24)
    return {"op": op, "inputs": [x], "attrs": {"axis": axis, "keep_dims": keep}, "rtol": rtol, "atol": atol}


FLOATS = ["float32", "float16", "bfloat16"]
CASES = (
    [case(op, (t, s), a, k) for op in REFERENCE for t in FLOATS for s, a in LAYOUTS for k in [False, True]]
    + [
        case(op, (t, s, (-50, 50)), a)
        for op in ["ReduceSum", "ReduceMax"]
        for t in ["int32", "int64"]
        for s, a in LAYOUTS
    ]
    + [case("ReduceSum", ("int32", [2**31 - 1, 5, -(2**31), 7]), [0])]  # wraps
    + [case("ReduceMax", (t, [-7, -9, -8]), [0]) for t in ["int32", "int64"]]
    + [case("ReduceSum", ("float32", (3, 0)), [1])]
    # Many rows of nearly the same number: in one float32 accumulator the roundings would all go the same way.
    + [case("ReduceSum", ("float32", (60000, 130), (0.1, 0.100001)), [0])]
    + [case(op, ("float32", (4, 40), "special"), a) for op in REFERENCE for a in ([1], [0])]
)

REFUSED = [
    {
        "op": "ReduceMean",
        "inputs": [("int32", (4,))],
        "error": "ReduceMean: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "ReduceSum",
        "inputs": [("float32", (4, 3))],
        "attrs": {"axis": [2]},
        "error": r"ReduceSum: axis must be in \[-2, 2\), got 2",
    },
    {
        "op": "ReduceMax",
        "inputs": [("float32", (4, 0))],
        "attrs": {"axis": [1]},
        "error": r"ReduceMax: the reduced axes hold no element, shape \(4, 0\)",
    },
]
