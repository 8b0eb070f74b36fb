"""Cases of Sepia and SepiaGrad; the format is that of swiglu/cases.py."""

import numpy as np

# The coefficients as float32 holds them.
MATRIX = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32).astype(np.float64)


def mixed(matrix, x, layout):
    return np.einsum("rc,...chw->...rhw" if layout == "NCHW" else "rc,...c->...r", matrix, x)


def by_rows(matrix, transposed):
    return matrix.reshape(3, 3).T if transposed else matrix.reshape(3, 3)


def sepia(x, matrix=MATRIX, max_value=1.0, min_value=-np.inf, transposed=False, format="NCHW"):  # noqa: A002
    y = mixed(by_rows(matrix, transposed), x, format)
    least, most = np.float64(np.float32(min_value)), np.float64(np.float32(max_value))
    return np.where(y > most, most, np.where(y < least, least, y))


def sepia_grad(dy, x, matrix=MATRIX, max_value=1.0, min_value=-np.inf, transposed=False, format="NCHW"):  # noqa: A002
    m = by_rows(matrix, transposed)
    y = mixed(m, x, format)
    kept = (y <= np.float64(np.float32(max_value))) & (y >= np.float64(np.float32(min_value)))
    return mixed(m.T, np.where(kept, dy, 0.0), format)


def bound(u, x, matrix=MATRIX, transposed=False, format="NCHW", **limits):  # noqa: A002
    """Three roundings, of a product and two sums, each at most the sum of magnitudes."""
    return 3 * 2.0**-24 * mixed(np.abs(by_rows(matrix, transposed)), np.abs(x), format)


def grad_bound(u, dy, x, matrix=MATRIX, transposed=False, format="NCHW", **limits):  # noqa: A002
    return 3 * 2.0**-24 * mixed(np.abs(by_rows(matrix, transposed)).T, np.abs(dy), format)


REFERENCE = {"Sepia": sepia, "SepiaGrad": sepia_grad}
BOUND = {"Sepia": bound, "SepiaGrad": grad_bound}
# Two roundings to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24
SHAPES = [(4, 3, 8, 8), (2, 3, 5, 13), (3, 17, 33), (2, 2, 3, 3, 7), (0, 3, 4, 4), (1, 3, 0, 5), (1, 3, 1, 1),
          (3, 3, 100, 120)]  # fmt: skip
# With the colours last: a pixel, some, whole vectors of them and a rest, more than one thread takes, none.
PIXELS = [(3,), (5, 3), (2, 4, 8, 3), (3, 17, 33, 3), (2, 75, 61, 3), (0, 4, 3), (1, 0, 5, 3)]


def case(op, dtype, shape, *matrix, **attrs):
    """Images of [0, 1.5): some are cut, and none lies at the cut, where rounding would decide."""
    images = [(dtype, shape, (0.0, 1.5))]
    inputs = [(dtype, shape)] * (op == "SepiaGrad") + images + list(matrix)
    return {"op": op, "inputs": inputs, "attrs": attrs, "rtol": TOLERANCE[dtype], "atol": SMALLEST}


CASES = [
    case(op, t, s, *m, **attrs)
    for op in REFERENCE
    for t in TOLERANCE
    for s, layout in [*((s, {}) for s in SHAPES), *((s, {"format": "NHWC"}) for s in PIXELS)]
    for m, limits in [
        ((), {"min_value": 0.0}),
        (((t, (3, 3)),), {"max_value": 0.75}),
        (((t, (3, 3, 1, 1)),), {"max_value": np.inf}),
        (((t, (3, 3)),), {"max_value": 0.0, "min_value": -0.5, "transposed": True}),
    ]
    for attrs in [limits | layout]
] + [
    {**case("Sepia", "float32", shape, **attrs), "inputs": [("float32", shape, "special")]}
    for shape, layout in (((1, 3, 4, 10), {}), ((4, 10, 3), {"format": "NHWC"}))
    for limits in ({}, {"max_value": np.inf}, {"min_value": 0.0})
    for attrs in [limits | layout]
]

X = ("float32", (2, 3, 4, 4))


def refused(error, *inputs, op="Sepia", **attrs):
    return {"op": op, "inputs": list(inputs), "attrs": attrs, "error": error}


REFUSED = [
    refused(r"Sepia: x must be images \(..., 3, H, W\), got shape \(2, 4, 4, 4\)", ("float32", (2, 4, 4, 4))),
    refused(r"Sepia: x must be images \(..., 3, H, W\), got shape \(3, 4\)", ("float32", (3, 4))),
    refused(r"Sepia: x must be pixels \(..., 3\), got shape \(3, 2, 2\)", ("float32", (3, 2, 2)), format="NHWC"),
    refused("Sepia: format must be NCHW or NHWC, got 'HWC'", ("float32", (3, 2, 2)), format="HWC"),
    refused("Sepia: x.dtype must be one of float32, float16, bfloat16, got int32", ("int32", (3, 2, 2))),
    refused(r"Sepia: matrix.shape must be \(3, 3\) or \(3, 3, 1, 1\), got \(3, 1\)", X, ("float32", (3, 1))),
    refused("Sepia: matrix.dtype must equal x.dtype float32, got float16", X, ("float16", (3, 3))),
    refused("Sepia: min_value must be at most max_value 0.5.*, got 0.75", X, max_value=0.5, min_value=0.75),
    refused(r"SepiaGrad: dy.shape must equal x.shape \(2, 3, 4, 4\), got \(2, 3, 4, 5\)", ("float32", (2, 3, 4, 5)), X,
            op="SepiaGrad"),
]  # fmt: skip
