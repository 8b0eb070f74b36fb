"""Cases of Dense and DenseAdd; the format is that of swiglu/cases.py."""

from math import erf

import numpy as np

ACTIVATIONS = {
    "none": lambda x: x,
    "gelu": lambda x: 0.5 * x * (1.0 + np.vectorize(erf, otypes=[float])(x / np.sqrt(2.0))),
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}


def dense(x, weight, bias=0.0, residual=0.0, transpose_b=True, activation="none"):
    return ACTIVATIONS[activation](np.matmul(x, weight.T if transpose_b else weight) + bias) + residual


def bound(u, x, weight, bias=0.0, residual=0.0, transpose_b=True, activation="none"):
    """The product's error as matmul/cases.py derives it, which an activation enlarges at most 1.13 times (GELU);
    the bias and the residual round; an activation errs by what gelu/cases.py derives and 8 roundings of its result."""
    w = weight.T if transpose_b else weight
    s = np.matmul(x, w) + bias
    product = 8 * 2.0**-24 * np.sqrt(x.shape[-1] * np.matmul(x**2, w**2) / 6)
    more = (
        0.0
        if activation in ("none", "relu")
        else 2.1e-7 * np.abs(s) + 8 * 2.0**-24 * np.abs(ACTIVATIONS[activation](s))
    )
    return 1.13 * (product + 2.0**-24 * np.abs(s)) + more + 2.0**-24 * np.abs(residual)


REFERENCE = {"Dense": dense, "DenseAdd": dense}
BOUND = {"Dense": bound, "DenseAdd": bound}
# Two roundings at the end, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24
# x's leading dimensions, K, N.
SIZES = [
    ((12,), 32, 64),
    ((2, 7), 9, 33),
    ((), 16, 5),
    ((1,), 130, 70),
    ((0, 3), 4, 8),
    ((5,), 0, 3),
    ((5,), 3, 0),
    ((32,), 384, 100),
]


def case(op, dtype, lead, k, n, inputs, transpose_b, activation):
    shapes = [(*lead, k), (n, k) if transpose_b else (k, n), (n,), (*lead, n)]
    return {
        "op": op,
        "inputs": [(dtype, s) for s in shapes[:inputs]],
        "attrs": {"transpose_b": transpose_b, "activation": activation},
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


CASES = (
    [case("Dense", t, *s, i, b, "none") for t in TOLERANCE for s in SIZES for i in (2, 3) for b in (True, False)]
    + [case("Dense", t, (13,), 24, 45, 3, True, a) for t in TOLERANCE for a in ACTIVATIONS]
    + [case("DenseAdd", t, *s, 4, b, "none") for t in TOLERANCE for s in SIZES for b in (True, False)]
    + [case("DenseAdd", "float32", (13,), 24, 45, 4, True, a) for a in ACTIVATIONS]
    + [
        {
            "op": "Dense",
            "inputs": [("float32", (3, 40), "special"), ("float32", (20, 40)), ("float32", (20,))],
            "attrs": {"activation": "relu"},
            "rtol": TOLERANCE["float32"],
            "atol": SMALLEST,
        }
    ]
)

REFUSED = [
    {
        "op": "Dense",
        "inputs": [("float32", (4, 8)), ("float32", (3, 7))],
        "error": "Dense: x's last dimension must equal weight's K of 7, got 8",
    },
    {
        "op": "Dense",
        "inputs": [("float32", (4, 8)), ("float32", (3, 8)), ("float32", (4,))],
        "error": r"Dense: bias.shape must be \(3,\), got \(4,\)",
    },
    {
        "op": "Dense",
        "inputs": [("int32", (4, 8)), ("int32", (3, 8))],
        "error": "Dense: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "Dense",
        "inputs": [("float32", (4, 8)), ("float32", (3, 8))],
        "attrs": {"activation": "swish"},
        "error": "activation must be one of none, gelu, gelu_tanh, relu, silu, got 'swish'",
    },
    {
        "op": "DenseAdd",
        "inputs": [("float32", (4, 8)), ("float32", (3, 8)), ("float32", (3,)), ("float32", (4, 8))],
        "error": r"DenseAdd: residual.shape must equal the product's shape \(4, 3\), got \(4, 8\)",
    },
]
