"""Cases of LogSoftmax; the format is that of swiglu/cases.py."""

import numpy as np


def log_softmax(x, axis=-1):
    if x.size == 0:
        return x
    d = x - np.max(x, axis=axis, keepdims=True)
    return d - np.log(np.sum(np.exp(d), axis=axis, keepdims=True))


def bound(u, x, axis=-1):
    """exp is good to 1.75 roundings and a 15th of its argument, x - max, which rounds as well; the sum of n terms, with
    the mean of these, runs through at most n / 4 + 3 additions in a lane (SSE4 has four), a column's through n, and
    what it is off by, relatively, its logarithm is off by; this is good to 2 roundings. Two differences round."""
    if x.size == 0:
        return 0.0
    d = x - np.max(x, axis=axis, keepdims=True)
    weight, depth = np.exp(log_softmax(x, axis)), np.where(np.isfinite(d), np.abs(d), 0.0)
    log = np.log(np.sum(np.exp(d), axis=axis, keepdims=True))
    exponentials = np.sum(weight * (16 / 15 * depth + 1.75), axis=axis, keepdims=True)
    return 2.0**-24 * (exponentials + x.shape[axis] + 3 + 2 * log + depth + np.abs(depth + log))


REFERENCE = {"LogSoftmax": log_softmax}
BOUND = {"LogSoftmax": bound}
# One rounding to the storage type, by the kernel and by the twin.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
# float16's smallest step; the smallest normal number of the others.
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
LAYOUTS = [((64,), -1), ((3, 7), -1), ((1,), 0), ((2, 3, 17), 2), ((4, 1031), -1), ((0, 5), 1), ((5, 0), 1),
           ((3, 19, 5), 1), ((6, 70), 0), ((2, 3, 4, 33), -2), ((900, 20), -1), ((2, 40, 300), 1)]  # fmt: skip


def case(dtype, *x, axis=-1):
    return {"op": "LogSoftmax", "inputs": [(dtype, *x)], "attrs": {"axis": axis}, "rtol": TOLERANCE[dtype],
            "atol": SMALLEST[dtype]}  # fmt: skip


CASES = (
    [case(t, s, axis=a) for t in TOLERANCE for s, a in LAYOUTS]
    + [case(t, (4, 333), (-w, w), axis=a) for t in TOLERANCE for w in (1e-3, 30.0, 2000.0) for a in (0, 1)]
    + [case("float32", (3, 40), "special", axis=a) for a in (0, 1)]
    # What is masked away, a row without a score, and one score far above the others.
    + [case(t, [[1.0, -np.inf, 3.0, -np.inf, 50.0], [-np.inf] * 5, [0.0, 300.0, 0.0, 0.0, 0.0]]) for t in TOLERANCE]
)

REFUSED = [
    {
        "op": "LogSoftmax",
        "inputs": [("int32", (4,))],
        "error": "LogSoftmax: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "LogSoftmax",
        "inputs": [("float32", (4, 8))],
        "attrs": {"axis": 2},
        "error": r"LogSoftmax: axis must be in \[-2, 2\), got 2",
    },
    {"op": "LogSoftmax", "inputs": [("float32", ())], "error": r"LogSoftmax: axis must be in \[0, 0\), got -1"},
]
