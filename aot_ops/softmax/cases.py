"""Cases of Softmax; swiglu/cases.py explains the format. REFERENCE takes the attributes as keywords."""

import numpy as np


def softmax(x, axis=-1):
    if x.size == 0:
        return x
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


REFERENCE = {"Softmax": softmax}
TOLERANCE = {"float32": 4e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
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
        {"op": "Softmax", "inputs": [(t, s)], "attrs": {"axis": a}, "rtol": tol, "atol": 1e-7}
        for t, tol in TOLERANCE.items()
        for s, a in LAYOUTS
    ]
    + [
        {"op": "Softmax", "inputs": [("float32", (3, 40), "special")], "attrs": {"axis": a}, "rtol": 4e-6, "atol": 1e-7}
        for a in (0, 1)
    ]
    + [
        # A row of attention scores with a mask of -inf, and one without any score: all NaN.
        {
            "op": "Softmax",
            "inputs": [("float32", [[1.0, -np.inf, 3.0, -np.inf, 100.0], [-np.inf] * 5])],
            "attrs": {},
            "rtol": 4e-6,
            "atol": 1e-7,
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
