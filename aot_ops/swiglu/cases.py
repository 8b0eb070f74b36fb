"""Cases of SwiGLU and SwiGLUInterleaved.

A case is {"op", "inputs", "attrs", "rtol", "atol"}. An input is (dtype, shape), drawn from a seeded normal
distribution, (dtype, shape, "special") with inf, -inf, nan, 0 and large values mixed in, (dtype, shape, (low, high))
drawn uniformly, or (dtype, [values]) as given. REFERENCE maps an op to its formula over float64 arrays.
A tolerance is |got - want| <= atol + rtol * |want|.
"""

import numpy as np


def silu(x):
    return x / (1.0 + np.exp(-x))


REFERENCE = {
    "SwiGLU": lambda x, gate: x * silu(gate),
    "SwiGLUInterleaved": lambda x: x[..., ::2] * silu(x[..., 1::2]),
}

# float32: exp is good to 2 ulp, three more operations round; half types: one rounding at the end.
TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
# Full vectors, partial vectors of every width, a single element, none, 0-d, several dimensions.
SHAPES = [(64,), (3, 7), (1,), (33,), (0, 5), (), (2, 3, 17), (4, 11008)]

CASES = (
    [
        {"op": "SwiGLU", "inputs": [(t, s), (t, s)], "attrs": {}, "rtol": tol, "atol": 1e-6}
        for t, tol in TOLERANCE.items()
        for s in SHAPES
    ]
    + [
        {"op": "SwiGLUInterleaved", "inputs": [(t, (*s[:-1], 2 * s[-1]))], "attrs": {}, "rtol": tol, "atol": 1e-6}
        for t, tol in TOLERANCE.items()
        for s in SHAPES
        if s
    ]
    + [
        {
            "op": "SwiGLU",
            "inputs": [("float32", (40,), "special"), ("float32", (40,))],
            "attrs": {},
            "rtol": 2e-6,
            "atol": 1e-6,
        },
    ]
)

REFUSED = [
    {
        "op": "SwiGLU",
        "inputs": [("float32", (4, 8)), ("float32", (4, 7))],
        "error": r"SwiGLU: gate.shape must equal x.shape \(4, 8\), got \(4, 7\)",
    },
    {
        "op": "SwiGLU",
        "inputs": [("int32", (4,)), ("int32", (4,))],
        "error": "SwiGLU: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "SwiGLU",
        "inputs": [("float32", (4,)), ("float16", (4,))],
        "error": "SwiGLU: gate.dtype must equal x.dtype float32, got float16",
    },
    {"op": "SwiGLUInterleaved", "inputs": [("float32", (4, 7))], "error": "last dimension must be even, got 7"},
]
