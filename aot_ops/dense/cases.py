"""Cases of Dense, DenseAdd, DenseQKV and DenseSwiGLU; the format is that of swiglu/cases.py."""

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
    if np.size(bias) == 0:
        bias = 0.0
    return ACTIVATIONS[activation](np.matmul(x, weight.T if transpose_b else weight) + bias) + residual


def bound(u, x, weight, bias=0.0, residual=0.0, transpose_b=True, activation="none"):
    """The product's error as matmul/cases.py derives it, which an activation enlarges at most 1.13 times (GELU);
    the bias and the residual round; an activation errs by what gelu/cases.py derives and 8 roundings of its result."""
    w = weight.T if transpose_b else weight
    s = np.matmul(x, w) + (bias if np.size(bias) else 0.0)
    product = 8 * 2.0**-24 * np.sqrt(x.shape[-1] * np.matmul(x**2, w**2) / 6)
    more = (
        0.0
        if activation in ("none", "relu")
        else 2.1e-7 * np.abs(s) + 8 * 2.0**-24 * np.abs(ACTIVATIONS[activation](s))
    )
    return 1.13 * (product + 2.0**-24 * np.abs(s)) + more + 2.0**-24 * np.abs(residual)


def each(f):
    """f of x with each of three weights, and their biases where there are any."""

    def of(x, q, k, v, *biases, **attrs):
        return [f(x, w, *b, **attrs) for w, b in zip((q, k, v), zip(biases) if biases else [()] * 3)]

    return of


def gated(x, gate, up, gate_bias=0.0, up_bias=0.0, transpose_b=True):
    gate = dense(x, gate, gate_bias, transpose_b=transpose_b, activation="silu")
    return gate * dense(x, up, up_bias, transpose_b=transpose_b)


def gated_bound(u, x, gate, up, gate_bias=0.0, up_bias=0.0, transpose_b=True):
    """The gate's error through SiLU, whose slope is below 1.13 and which makes 8 roundings; the other's; a product."""
    off_gate, off_up = (bound(u, x, *w, transpose_b=transpose_b) for w in ((gate, gate_bias), (up, up_bias)))
    y, up = gated(x, gate, up, gate_bias, up_bias, transpose_b), dense(x, up, up_bias, transpose_b=transpose_b)
    size = np.abs(dense(x, gate, gate_bias, transpose_b=transpose_b, activation="silu")) + 1.13 * off_gate
    return 1.13 * off_gate * np.abs(up) + size * off_up + 9 * 2.0**-24 * (np.abs(y) + size * off_up)


REFERENCE = {"Dense": dense, "DenseAdd": dense, "DenseQKV": each(dense), "DenseSwiGLU": gated}
BOUND = {
    "Dense": bound, "DenseAdd": bound, "DenseSwiGLU": gated_bound,
    "DenseQKV": lambda u, x, *given, **attrs: each(lambda x, *w, **a: bound(u, x, *w, **a))(x, *given, **attrs),
}  # fmt: skip
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
    ((2, 1, 2, 3), 9, 17),
]


def row(op, dtype, shapes, **attrs):
    """Weights and biases also come as constants, which are packed."""
    constants = range(1, min(len(shapes), 3) if op in ("Dense", "DenseAdd") else len(shapes))
    inputs = [(dtype, s) for s in shapes]
    return {"op": op, "inputs": inputs, "attrs": attrs, "rtol": TOLERANCE[dtype], "atol": SMALLEST,
            "constant": constants}  # fmt: skip


def weight(k, n, transpose_b):
    return (n, k) if transpose_b else (k, n)


def case(op, dtype, lead, k, n, inputs, transpose_b, activation):
    shapes = [(*lead, k), weight(k, n, transpose_b), (n,), (*lead, n)]
    return row(op, dtype, shapes[:inputs], transpose_b=transpose_b, activation=activation)


def without_bias(dtype, lead, k, n, transpose_b):
    """DenseAdd with a tensor without elements in its place."""
    return row("DenseAdd", dtype, [(*lead, k), weight(k, n, transpose_b), (0,), (*lead, n)], transpose_b=transpose_b)


def joint(dtype, lead, k, columns, biases, transpose_b):
    """DenseQKV of three numbers of columns, DenseSwiGLU of two."""
    shapes = [(*lead, k), *(weight(k, n, transpose_b) for n in columns), *((n,) for n in columns if biases)]
    return row("DenseQKV" if len(columns) == 3 else "DenseSwiGLU", dtype, shapes, transpose_b=transpose_b)


CASES = (
    [case("Dense", t, *s, i, b, "none") for t in TOLERANCE for s in SIZES for i in (2, 3) for b in (True, False)]
    + [case("Dense", t, (13,), 24, 45, 3, True, a) for t in TOLERANCE for a in ACTIVATIONS]
    # Ones before the bias, as it broadcasts.
    + [row("Dense", t, [(2, 7, 9), (33, 9), b]) for t in TOLERANCE for b in ((1, 33), (1, 1, 33))]
    + [case("DenseAdd", t, *s, 4, b, "none") for t in TOLERANCE for s in SIZES for b in (True, False)]
    + [case("DenseAdd", "float32", (13,), 24, 45, 4, True, a) for a in ACTIVATIONS]
    # So few columns that several rows make a vector of the result: of one block of rows and of several.
    + [
        case(op, t, (rows,), 37, n, i, n != 2, a)
        for op, i in (("Dense", 3), ("DenseAdd", 4))
        for t in TOLERANCE
        for rows in (3, 17, 300)
        for n in (1, 2, 3, 4, 5)
        for a in (ACTIVATIONS if rows == 17 else ["none", "silu"])
    ]
    + [without_bias(t, *s, i % 2 == 1) for t in TOLERANCE for i, s in enumerate(SIZES)]
    + [
        joint(t, lead, k, (n, kv, kv + i % 2), i % 2, i % 3 > 0)
        for t in TOLERANCE
        for i, (lead, k, n) in enumerate(SIZES)
        for kv in [(n + 1) // 3]
    ]
    + [joint(t, *s[:2], (s[2],) * 2, b, i % 2 == 1) for t in TOLERANCE for i, s in enumerate(SIZES) for b in (0, 1)]
    + [joint("float32", (40,), 300, (0, 20, 33), True, True)]
    # Of several blocks of rows, each of which a thread copies for itself where weights are not packed.
    + [joint(t, (300,), 64, (172,) * n, b, b) for t in TOLERANCE for n in (2, 3) for b in (False, True)]
    + [joint("float32", (1,), 700, (520, 520), b, False) for b in (False, True)]
    + [
        {
            "op": op,
            "inputs": [("float32", (3, 40), "special"), ("float32", (20, 40)), ("float32", more)],
            "attrs": attrs,
            "rtol": TOLERANCE["float32"],
            "atol": SMALLEST,
        }
        for op, more, attrs in [("Dense", (20,), {"activation": "relu"}), ("DenseSwiGLU", (20, 40), {})]
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
    {
        "op": "DenseQKV",
        "inputs": [("float32", (4, 8)), ("float32", (3, 8)), ("float32", (3, 7)), ("float32", (3, 8))],
        "error": "DenseQKV: x's last dimension must equal k_weight's K of 7, got 8",
    },
    {
        "op": "DenseQKV",
        "inputs": [("float32", (4, 8)), *[("float32", (3, 8))] * 3, ("float32", (3,))],
        "error": "DenseQKV: takes 4 inputs, or 7 with biases, got 5",
    },
    {
        "op": "DenseQKV",
        "inputs": [("float32", (4, 8)), *[("float32", (3, 8))] * 3, *[("float32", (n,)) for n in (3, 3, 4)]],
        "error": r"DenseQKV: v_bias.shape must be \(3,\), got \(4,\)",
    },
    {
        "op": "DenseQKV",
        "inputs": [("float32", (4, 8)), ("float32", (3, 8)), ("float16", (3, 8)), ("float32", (3, 8))],
        "error": "DenseQKV: k_weight.dtype must equal x.dtype float32, got float16",
    },
    {
        "op": "DenseSwiGLU",
        "inputs": [("float32", (4, 8)), ("float32", (3, 8)), ("float32", (5, 8))],
        "error": "DenseSwiGLU: gate_weight and up_weight must have one N, got 3 and 5",
    },
    {
        "op": "DenseAdd",
        "inputs": [("float32", (4, 8)), ("float32", (3, 8)), ("float32", (1,)), ("float32", (4, 3))],
        "error": r"DenseAdd: bias.shape must be \(3,\), got \(1,\)",
    },
    {
        "op": "DenseSwiGLU",
        "inputs": [("float32", (4, 8)), *[("float32", (3, 8))] * 2, ("float32", (3,))],
        "error": "DenseSwiGLU: takes 3 inputs, or 5 with biases, got 4",
    },
    {
        "op": "DenseSwiGLU",
        "inputs": [("float32", (4, 8)), *[("float32", (3, 8))] * 2, ("float32", (3,)), ("float32", (4,))],
        "error": r"DenseSwiGLU: up_bias.shape must be \(3,\), got \(4,\)",
    },
    {
        "op": "DenseSwiGLU",
        "inputs": [("float32", (4, 8)), ("float32", (8, 3)), ("float32", (8,))],
        "attrs": {"transpose_b": False},
        "error": r"DenseSwiGLU: up_weight must have 2 dimensions, got shape \(8,\)",
    },
]
