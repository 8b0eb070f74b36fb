"""Cases of Softmax; swiglu/cases.py explains the format. REFERENCE takes the attributes as keywords."""

import numpy as np


def softmax(x, axis=-1):
    if x.size == 0:
        return x
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def bound(u, x, axis=-1):
    """exp is good to 2 ulp, 4 roundings, and its argument x - max rounds: |x - max|; the sum of n terms has run through
    at most n / 4 + 3 additions in a lane (SSE4 has four), its inverse and the product round."""
    if x.size == 0:
        return 0.0
    return softmax(x, axis) * 2.0**-24 * (np.abs(x - np.max(x, axis=axis, keepdims=True)) + x.shape[axis] / 4 + 10)


REFERENCE = {"Softmax": softmax}
BOUND = {"Softmax": bound}
# One rounding to the storage type, by the kernel and by the twin.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
# float16's smallest step; the smallest normal number of the others, below which exp gives 0.
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
LAYOUTS = [
    ((64,), -1),
    ((3, 7), -1),
    ((1,), 0),
    ((2, 3, 17), 2),
    ((4, 1031), -1),
    ((0, 5), 1),
    ((5, 0), 1),
    ((3, 19, 5), 1),
    ((6, 70), 0),
    ((2, 3, 4, 33), -2),
]

CASES = (
    [
        {"op": "Softmax", "inputs": [(t, s)], "attrs": {"axis": a}, "rtol": tol, "atol": SMALLEST[t]}
        for t, tol in TOLERANCE.items()
        for s, a in LAYOUTS
    ]
    + [
        {
            "op": "Softmax",
            "inputs": [("float32", (3, 40), "special")],
            "attrs": {"axis": a},
            "rtol": TOLERANCE["float32"],
            "atol": SMALLEST["float32"],
        }
        for a in (0, 1)
    ]
    + [
        # A row of attention scores with a mask of -inf, and one without any score: all NaN.
        {
            "op": "Softmax",
            "inputs": [("float32", [[1.0, -np.inf, 3.0, -np.inf, 100.0], [-np.inf] * 5])],
            "attrs": {},
            "rtol": TOLERANCE["float32"],
            "atol": SMALLEST["float32"],
        },
    ]
)

REFUSED = [
    {
        "op": "Softmax",
        "inputs": [("int32", (4,))],
        "error": "Softmax: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "Softmax",
        "inputs": [("float32", (4, 8))],
        "attrs": {"axis": 2},
        "error": r"Softmax: axis must be in \[-2, 2\), got 2",
    },
    {"op": "Softmax", "inputs": [("float32", ())], "error": r"Softmax: axis must be in \[0, 0\), got -1"},
]
