"""Cases of FusedGeLU; the format is that of swiglu/cases.py."""

from math import erf

import numpy as np


def gelu(x, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + np.vectorize(erf, otypes=[float])(x / np.sqrt(2.0)))


REFERENCE = {"FusedGeLU": gelu}
TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
SHAPES = [(64,), (3, 7), (1,), (33,), (0, 5), (), (2, 3, 17), (4, 3072)]

CASES = (
    [
        {"op": "FusedGeLU", "inputs": [(t, s)], "attrs": {"approximate": a}, "rtol": tol, "atol": 1e-6}
        for t, tol in TOLERANCE.items()
        for s in SHAPES
        for a in ("none", "tanh")
    ]
    + [
        {
            "op": "FusedGeLU",
            "inputs": [("float32", (1000,), (-9.0, 9.0))],
            "attrs": {"approximate": a},
            "rtol": 2e-6,
            "atol": 1e-6,
        }
        for a in ("none", "tanh")
    ]
    + [
        {
            "op": "FusedGeLU",
            "inputs": [("float32", (40,), "special")],
            "attrs": {"approximate": a},
            "rtol": 2e-6,
            "atol": 1e-6,
        }
        for a in ("none", "tanh")
    ]
)

REFUSED = [
    {
        "op": "FusedGeLU",
        "inputs": [("int32", (4,))],
        "error": "FusedGeLU: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "FusedGeLU",
        "inputs": [("float32", (4,))],
        "attrs": {"approximate": "sigmoid"},
        "error": "approximate must be none or tanh, got 'sigmoid'",
    },
]
