"""Cases of ReduceMean, ReduceSum and ReduceMax; swiglu/cases.py explains the format. REFERENCE
functions take the attributes as keywords."""

import numpy as np


def over(f):
    return lambda x, axis=(), keep_dims=False: f(x, axis=tuple(axis) or None, keepdims=keep_dims)


REFERENCE = {"ReduceMean": over(np.mean), "ReduceSum": over(np.sum), "ReduceMax": over(np.max)}

TOLERANCE = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "int32": 0, "int64": 0}
# Last, first, middle, both ends, inner two, all, negative, none named; rows long and short.
LAYOUTS = [((5, 777), [-1]), ((9, 300), [0]), ((3, 40, 7), [1]), ((3, 5, 70), [0, 2]), ((2, 3, 4, 5), [1, 2]), ((4, 33), []),
           ((1,), [0]), ((), []), ((2, 1, 9), [1]), ((70, 300), [0, 1]), ((0, 5), [1])]  # fmt: skip


def case(op, x, axis, keep=False, rtol=0.0, atol=0.0):
    return {"op": op, "inputs": [x], "attrs": {"axis": axis, "keep_dims": keep}, "rtol": rtol, "atol": atol}


CASES = (
    [case(op, (t, s), a, k, TOLERANCE[t], 3e-6 if op == "ReduceMean" else 2e-4 if op == "ReduceSum" else 0)
     for op in REFERENCE for t in ["float32", "float16", "bfloat16"] for s, a in LAYOUTS for k in [False, True]]
    + [case(op, (t, s, (-50, 50)), a) for op in ["ReduceSum", "ReduceMax"] for t in ["int32", "int64"] for s, a in LAYOUTS]
    + [case("ReduceSum", ("float32", (3, 0)), [1])]
    + [case(op, ("float32", (4, 40), "special"), a, rtol=3e-6, atol=1e-5) for op in REFERENCE for a in ([1], [0])]
)  # fmt: skip

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
