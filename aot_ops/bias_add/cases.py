"""Cases of BiasAdd; swiglu/cases.py explains the format. REFERENCE takes the attributes as keywords."""


def bias_add(x, b, data_format="NCHW"):
    axis = x.ndim - 1 if data_format == "NHWC" else 1
    return x + b.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


REFERENCE = {"BiasAdd": bias_add}
# One addition in float32, then one rounding to the storage type; float16's smallest step is 2^-24.
TOLERANCE = {"float32": 1.01 * 2.0**-24, "float16": 1.01 * 2.0**-11, "bfloat16": 1.01 * 2.0**-8}
LAYOUTS = [
    ((5, 33), 33, "NCHW"),
    ((3, 64), 64, "NHWC"),
    ((2, 3, 4, 5), 3, "NCHW"),
    ((2, 4, 5, 19), 19, "NHWC"),
    ((2, 3, 2, 2, 5), 3, "NCDHW"),
    ((0, 5), 5, "NCHW"),
    ((1, 1), 1, "NCHW"),
    ((2, 7, 40), 7, "NCHW"),
]

CASES = [
    {"op": "BiasAdd", "inputs": [(t, s), (t, (n,))], "attrs": {"data_format": f}, "rtol": tol, "atol": 2.0**-25}
    for t, tol in TOLERANCE.items()
    for s, n, f in LAYOUTS
] + [
    {
        "op": "BiasAdd",
        "inputs": [("float32", (2, 40), "special"), ("float32", (40,))],
        "attrs": {},
        "rtol": TOLERANCE["float32"],
        "atol": 0.0,
    }
]

REFUSED = [
    {
        "op": "BiasAdd",
        "inputs": [("int32", (4, 8)), ("int32", (8,))],
        "error": "BiasAdd: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "BiasAdd",
        "inputs": [("float32", (4, 8)), ("float32", (7,))],
        "error": "BiasAdd: b must have 8 elements as axis 1 of x, got 7",
    },
    {
        "op": "BiasAdd",
        "inputs": [("float32", (8,)), ("float32", (8,))],
        "error": r"BiasAdd: x must have at least 2 dimensions, got shape \(8,\)",
    },
]
