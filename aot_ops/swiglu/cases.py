"""Cases of SwiGLU and SwiGLUInterleaved.

A case is {"op", "inputs", "attrs", "rtol", "atol"}. An input is (dtype, shape), drawn from a seeded normal
distribution, (dtype, shape, "special") with inf, -inf, nan, 0 and large values mixed in, (dtype, shape, (low, high))
drawn uniformly, or (dtype, [values]) as given. REFERENCE maps an op to its formula over float64 arrays.
The kernel is compared with the scalar twin, which computes in double precision, and with REFERENCE. A tolerance is
|got - want| <= atol + rtol * |want| + BOUND[op](u, *inputs, **attrs), with u the unit roundoff of the inputs' type
(2^-24, 2^-11, 2^-8), inputs in float64 and one bound per output; an op that BOUND does not name has none. A rtol
counts roundings: one to float32 costs 2^-24; a half type is rounded to once, by the kernel and by the twin.
"""

import numpy as np


def silu(x):
    return x / (1.0 + np.exp(-x))


REFERENCE = {
    "SwiGLU": lambda x, gate: x * silu(gate),
    "SwiGLUInterleaved": lambda x: x[..., ::2] * silu(x[..., 1::2]),
}

# exp is good to 2 ulp, 4 roundings; the sum, the quotient and the product round, and so does the twin: 8.
TOLERANCE = {"float32": 8 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.01 * 2.0**-8}
# Half the smallest step of float16, twice; the smallest normal number of the others, below which exp gives 0.
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
# Full vectors, partial vectors of every width, a single element, none, 0-d, several dimensions.
SHAPES = [(64,), (3, 7), (1,), (33,), (0, 5), (), (2, 3, 17), (4, 11008)]

CASES = (
    [
        {"op": "SwiGLU", "inputs": [(t, s), (t, s)], "attrs": {}, "rtol": tol, "atol": SMALLEST[t]}
        for t, tol in TOLERANCE.items()
        for s in SHAPES
    ]
    + [
        {
            "op": "SwiGLUInterleaved",
            "inputs": [(t, (*s[:-1], 2 * s[-1]))],
            "attrs": {},
            "rtol": tol,
            "atol": SMALLEST[t],
        }
        for t, tol in TOLERANCE.items()
        for s in SHAPES
        if s
    ]
    + [
        {
            "op": "SwiGLU",
            "inputs": [("float32", (40,), "special"), ("float32", (40,))],
            "attrs": {},
            "rtol": TOLERANCE["float32"],
            "atol": SMALLEST["float32"],
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
