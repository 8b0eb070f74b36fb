"""Cases of the gradients of activations; swiglu/cases.py explains the format."""

from math import erf, pi, sqrt

import numpy as np

U = 2.0**-24
K, CUBIC = 2 * sqrt(2 / pi), 0.044715


def logistic(x):
    """1 / (1 + e^-x) and 1 / (1 + e^x)."""
    return 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))


def silu_slope(x):
    """0 and 1 at -inf and inf: beyond 800 the rest is below float64's smallest number."""
    x = np.clip(x, -800, 800)
    s, rest = logistic(x)
    return s * (1 + x * rest)


def gelu_parts(x):
    x = np.clip(x, -20, 20)
    return (K * (x + CUBIC * x**3), K * (x + 3 * CUBIC * x**3))


def gelu_slope(x, approximate="tanh"):
    if approximate == "none":
        x = np.clip(x, -40, 40)
        return 0.5 + 0.5 * np.vectorize(erf, otypes=[float])(x / sqrt(2)) + x * np.exp(-0.5 * x * x) / sqrt(2 * pi)
    argument, steep = gelu_parts(x)
    s, rest = logistic(argument)
    return s * (1 + steep * rest)


REFERENCE = {
    "GeLUGrad": lambda x, dy, *y, **attrs: dy * gelu_slope(x, **attrs) if x.size else x,
    "SiLUGrad": lambda x, dout: dout * silu_slope(x),
    "ReluGrad": lambda x, dy: np.where(x > 0, dy, 0),
    "ReLU6Grad": lambda x, dy: np.where((x > 0) & (x <= 6), dy, 0),
}


def through_logistic(u, argument, steep, roundings):
    """What s (1 + steep (1 - s)) is off by, s the logistic function of `argument`: e^-argument is good to 2 ulp, 4
    roundings, and to as many of the argument as it has, times its size (half types: 3.7e-6). Both
    s and 1 - s take that times s (1 - s). Then the quotient, the product and steep itself round, 2 + 1 + 3 each; what
    is relative to the whole is the case's rtol."""
    s, rest = logistic(argument)
    off = (4 + roundings * np.abs(argument)) * U + (4e-6 if u > U else 0.0)
    return s * rest * (off * np.abs(1 + steep * rest) + np.abs(steep) * (off * s + 6 * U))


def gelu_bound(u, x, dy, *y, approximate="tanh"):
    """none: erf is good to 3.5e-7, half of it counts; its argument rounds twice and its sum once, and x phi(x) <= 0.25
    four times, the exponent's two roundings count x^2 / 2 times, x^3 phi(x) / 2 <= 0.24: below 4 in all. tanh:
    below x = -10.0 the logistic function is not normal and off by up to 2^-127, times 232."""
    if approximate == "none":
        return (1.75e-7 + 4 * U) * np.abs(dy)
    argument, steep = gelu_parts(x)
    return (through_logistic(u, argument, steep, 3) + 2.0**-118) * np.abs(dy)


def silu_bound(u, x, dout):
    """Below x = -87.33 the logistic function is not normal and off by up to 2^-127, times 88."""
    x = np.clip(x, -800, 800)
    return (through_logistic(u, x, x, 0) + 2.0**-120) * np.abs(dout)


BOUND = {"GeLUGrad": gelu_bound, "SiLUGrad": silu_bound}
# Sum, quotient, two products of the slope, dy's, and the twin's. Halves round once each, the kernel's in float32 first.
TOLERANCE = {"float32": 8 * U, "float16": 2.02 * 2.0**-11, "bfloat16": 2.01 * 2.0**-8}
# Half of float16's smallest step, twice; the smallest normal number of the others.
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
SHAPES = [(64,), (3, 7), (1,), (33,), (0, 5), (), (2, 3, 17), (4, 3072)]
OPS = [("GeLUGrad", {}), ("GeLUGrad", {"approximate": "none"}), ("SiLUGrad", {}), ("ReluGrad", {}), ("ReLU6Grad", {})]
SPECIAL = [float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 6.0, 3e38, -3e38, 1e30, -1e30, 30.0, -30.0, 1e-40]


def case(op, inputs, attrs, dtype):
    return {"op": op, "inputs": inputs, "attrs": attrs, "rtol": TOLERANCE[dtype], "atol": SMALLEST[dtype]}


CASES = (
    [case(op, [(t, s), (t, s)], attrs, t) for op, attrs in OPS for t in TOLERANCE for s in SHAPES]
    # Both tails, what lies around the slope's minimum and its zero, and nearly nothing.
    + [
        case(op, [(t, (3000,), (-w, w)), (t, (3000,))], attrs, t)
        for op, attrs in OPS
        for t in TOLERANCE
        for w in (100.0, 12.0, 2.0, 1e-3)
    ]
    + [case(op, [(t, SPECIAL), (t, (len(SPECIAL),))], attrs, t) for op, attrs in OPS for t in TOLERANCE]
    + [case("GeLUGrad", [("float32", (5, 9))] * 3, {}, "float32")]
    # A gradient that is no number stays out where the slope is 0.
    + [
        case(op, [("float32", [-1.0, 2.0]), ("float32", [float("nan")] * 2)], {}, "float32")
        for op in ("ReluGrad", "ReLU6Grad")
    ]
)

REFUSED = [
    {
        "op": "GeLUGrad",
        "inputs": [("int32", (4,)), ("int32", (4,))],
        "error": "GeLUGrad: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "GeLUGrad",
        "inputs": [("float32", (4,)), ("float32", (5,))],
        "error": r"GeLUGrad: dy.shape must equal x.shape \(4,\), got \(5,\)",
    },
    {
        "op": "GeLUGrad",
        "inputs": [("float32", (4,)), ("float32", (4,)), ("float32", (3,))],
        "error": r"GeLUGrad: y.shape must equal x.shape \(4,\), got \(3,\)",
    },
    {
        "op": "GeLUGrad",
        "inputs": [("float32", (4,)), ("float32", (4,))],
        "attrs": {"approximate": "fast"},
        "error": "GeLUGrad: approximate must be 'tanh' or 'none', got 'fast'",
    },
    {
        "op": "SiLUGrad",
        "inputs": [("float32", (4,)), ("float16", (4,))],
        "error": "SiLUGrad: dout.dtype must equal x.dtype float32, got float16",
    },
    {
        "op": "ReluGrad",
        "inputs": [("float32", (2, 4)), ("float32", (4,))],
        "error": r"ReluGrad: y_backprop.shape must equal x.shape \(2, 4\), got \(4,\)",
    },
]
