"""Cases of Sepia and SepiaGrad; the format is that of swiglu/cases.py."""

import numpy as np

# The coefficients as float32 holds them.
MATRIX = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32).astype(np.float64)


def mixed(matrix, x):
    return np.einsum("rc,...chw->...rhw", matrix.reshape(3, 3), x)


def limit(max_value):
    return np.inf if max_value == 0 else np.float64(np.float32(max_value))


def sepia(x, matrix=MATRIX, max_value=1.0):
    return np.where(mixed(matrix, x) > limit(max_value), limit(max_value), mixed(matrix, x))


def sepia_grad(dy, x, matrix=MATRIX, max_value=1.0):
    return mixed(matrix.reshape(3, 3).T, np.where(mixed(matrix, x) <= limit(max_value), dy, 0.0))


def bound(u, x, matrix=MATRIX, max_value=1.0):
    """Three roundings, of a product and two sums, each at most the sum of magnitudes."""
    return 3 * 2.0**-24 * mixed(np.abs(matrix), np.abs(x))


def grad_bound(u, dy, x, matrix=MATRIX, max_value=1.0):
    return 3 * 2.0**-24 * mixed(np.abs(matrix.reshape(3, 3)).T, np.abs(dy))


REFERENCE = {"Sepia": sepia, "SepiaGrad": sepia_grad}
BOUND = {"Sepia": bound, "SepiaGrad": grad_bound}
# Two roundings to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24
SHAPES = [(4, 3, 8, 8), (2, 3, 5, 13), (3, 17, 33), (2, 2, 3, 3, 7), (0, 3, 4, 4), (1, 3, 0, 5), (1, 3, 1, 1),
          (3, 3, 100, 120)]  # fmt: skip


def case(op, dtype, shape, *matrix, **attrs):
    """Images of [0, 1.5): some are cut, and none lies at the cut, where rounding would decide."""
    images = [(dtype, shape, (0.0, 1.5))]
    inputs = [(dtype, shape)] * (op == "SepiaGrad") + images + list(matrix)
    return {"op": op, "inputs": inputs, "attrs": attrs, "rtol": TOLERANCE[dtype], "atol": SMALLEST}


CASES = [
    case(op, t, s, *m, **attrs)
    for op in REFERENCE
    for t in TOLERANCE
    for s in SHAPES
    for m, attrs in [((), {}), (((t, (3, 3)),), {"max_value": 0.75}), (((t, (3, 3, 1, 1)),), {"max_value": 0.0})]
] + [
    {**case("Sepia", "float32", (1, 3, 4, 10), **attrs), "inputs": [("float32", (1, 3, 4, 10), "special")]}
    for attrs in ({}, {"max_value": 0.0})
]

X = ("float32", (2, 3, 4, 4))


def refused(error, *inputs, op="Sepia", **attrs):
    return {"op": op, "inputs": list(inputs), "attrs": attrs, "error": error}


REFUSED = [
    refused(r"Sepia: x must be images \(..., 3, H, W\), got shape \(2, 4, 4, 4\)", ("float32", (2, 4, 4, 4))),
    refused(r"Sepia: x must be images \(..., 3, H, W\), got shape \(3, 4\)", ("float32", (3, 4))),
    refused("Sepia: x.dtype must be one of float32, float16, bfloat16, got int32", ("int32", (3, 2, 2))),
    refused(r"Sepia: matrix.shape must be \(3, 3\) or \(3, 3, 1, 1\), got \(3, 1\)", X, ("float32", (3, 1))),
    refused("Sepia: matrix.dtype must equal x.dtype float32, got float16", X, ("float16", (3, 3))),
    refused("Sepia: max_value must not be negative, got -1", X, max_value=-1.0),
    refused(r"SepiaGrad: dy.shape must equal x.shape \(2, 3, 4, 4\), got \(2, 3, 4, 5\)", ("float32", (2, 3, 4, 5)), X,
            op="SepiaGrad"),
]  # fmt: skip
