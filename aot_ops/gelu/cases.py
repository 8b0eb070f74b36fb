"""Cases of FusedGeLU and GeluExt; the format is that of swiglu/cases.py."""

from math import erf

import numpy as np


def gelu(x, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1.0 + np.vectorize(erf, otypes=[float])(x / np.sqrt(2.0)))


REFERENCE = {"FusedGeLU": gelu, "GeluExt": gelu}
# exp is good to 2 ulp, 4 roundings; the sum, the quotient, the product and the twin round: 8. Halves round
# once each.
TOLERANCE = {"float32": 8 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.01 * 2.0**-8}
SMALLEST = 2.0**-24  # float16's smallest step


def bound(u, x, approximate="none"):
    """none: 1 + erf cancels for negative x, erf is good to 3.5e-7 and its sum rounds: (3.5e-7 + 2^-24) |x| / 2, none
    where erf is -1. tanh: x e^a at large -a; a is rounded three times, y |a| <= 0.29 |x|: 2^-24 |x|."""
    return (2.1e-7 if approximate == "none" else 2.0**-24) * np.abs(x)


BOUND = {"FusedGeLU": bound, "GeluExt": bound}
SHAPES = [(64,), (3, 7), (1,), (33,), (0, 5), (), (2, 3, 17), (4, 3072), (2, 1, 2, 3, 1, 9)]

CASES = (
    [
        {"op": op, "inputs": [(t, s)], "attrs": {"approximate": a}, "rtol": tol, "atol": SMALLEST}
        for op in REFERENCE
        for t, tol in TOLERANCE.items()
        for s in SHAPES
        for a in ("none", "tanh")
    ]
    + [
        {
            "op": "FusedGeLU",
            "inputs": [("float32", (1000,), (-9.0, 9.0))],
            "attrs": {"approximate": a},
            "rtol": TOLERANCE["float32"],
            "atol": 0.0,
        }
        for a in ("none", "tanh")
    ]
    + [
        {
            "op": "FusedGeLU",
            "inputs": [("float32", (40,), "special")],
            "attrs": {"approximate": a},
            "rtol": TOLERANCE["float32"],
            "atol": 0.0,
        }
        for a in ("none", "tanh")
    ]
)

REFUSED = [
    {
        "op": "GeluExt",
        "inputs": [("int32", (4,))],
        "error": "GeluExt: input.dtype must be one of float32, float16, bfloat16, got int32",
    },
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
