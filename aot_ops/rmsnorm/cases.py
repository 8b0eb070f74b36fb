"""Cases of RmsNorm, AddRmsNorm, the fused forms and their gradients; the format is that of swiglu/cases.py."""

import numpy as np


def row_rank(gamma):
    """Of how many dimensions a row is: gamma's without the ones before it."""
    shape = (1,) if gamma is None else gamma.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return len(shape)


def rms_norm(x, gamma=None, epsilon=1e-6):
    axes = tuple(range(x.ndim - row_rank(gamma), x.ndim))
    n = np.prod([float(x.shape[a]) for a in axes])
    rstd = 1 / np.sqrt((x * x).sum(axis=axes, keepdims=True) / n + epsilon)
    return x * rstd * (1.0 if gamma is None else gamma), rstd


def add_rms_norm(x1, x2, gamma=None, epsilon=1e-6):
    return *rms_norm(x1 + x2, gamma, epsilon), x1 + x2


def gradients(dy, x, rstd, gamma, dsum):
    """Of x and gamma; and what their roundings are relative to: the sums of magnitudes."""
    axes = tuple(range(x.ndim - row_rank(gamma), x.ndim))
    n, over = np.prod([float(x.shape[a]) for a in axes]), tuple(a for a in range(x.ndim) if a not in axes)
    h, g = x * rstd, dy * (1.0 if gamma is None else gamma)
    dx = rstd * (g - h * ((g * h).sum(axis=axes, keepdims=True) / n)) + dsum
    scale = np.abs(rstd) * (np.abs(g) + np.abs(h) * (np.abs(g * h).sum(axis=axes, keepdims=True) / n)) + np.abs(dsum)
    shape = x.shape[-1:] if gamma is None else gamma.shape
    return [dx, (dy * h).sum(axis=over).reshape(shape)], [scale, np.abs(dy * h).sum(axis=over).reshape(shape)], n


def gradient(dy, x, gamma=None, dsum=0.0, epsilon=1e-6):
    return gradients(dy, x, rms_norm(x, gamma, epsilon)[1], gamma, dsum)[0]


def gradient_bounds(u, dy, x, gamma=None, dsum=0.0, epsilon=1e-6):
    """rstd is off by n / 32 + 8 roundings as above, and enters dx twice; the mean of products goes through n / 8 + 6
    additions in a lane (SSE4, two chains); each product has two roundings more, and four combine the parts. The sum for
    gamma has at most 8 or rows / 32 additions in a block, and 32 of blocks."""
    _, (dx, dgamma), n = gradients(dy, x, rms_norm(x, gamma, epsilon)[1], gamma, dsum)
    error = (n / 4 + 32) * 2.0**-24
    rows = x.size / n if n else 0
    return [error * dx, (error + (rows / 32 + 48) * 2.0**-24) * dgamma]


REFERENCE = {
    "RmsNormGrad": lambda dy, x, rstd, gamma: gradients(dy, x, rstd, gamma, 0.0)[0],
    "FusedRmsNormGrad": gradient,
    "FusedAddRmsNormGrad": lambda dy, s, dsum, gamma=None, **attrs: gradient(dy, s, gamma, dsum, **attrs),
    "RmsNorm": rms_norm,
    "AddRmsNorm": add_rms_norm,
    "FusedRmsNorm": lambda *a, **k: rms_norm(*a, **k)[0],
    "FusedAddRmsNorm": lambda *a, **k: add_rms_norm(*a, **k)[::2],
}
# One rounding to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = {"float32": 0.0, "float16": 2.0**-24, "bfloat16": 0.0}


def bounds(u, x, gamma=None, epsilon=1e-6, moved=0.0):
    """The squares of a row of n numbers, none below 0, go through at most n / 16 + 8 additions in a lane (SSE4 has
    four, four chains); the root halves that; it, its inverse and two products round. All of it is relative to y.
    `moved`: how far x is off, relative; the root's part is as large."""
    axes = tuple(range(x.ndim - row_rank(gamma), x.ndim))
    n = np.prod([x.shape[a] for a in axes])
    error = (n / 32 + 8) * 2.0**-24 + 2 * moved
    y, rstd = rms_norm(x, gamma, epsilon)
    return [error * np.abs(y), error * np.abs(rstd)]


def add_bounds(u, x1, x2, gamma=None, epsilon=1e-6):
    """The op normalises the sum as it is stored, rounded to the type; REFERENCE does not round it."""
    return [*bounds(u, x1 + x2, gamma, epsilon, u), u * np.abs(x1 + x2)]


def given_bounds(u, dy, x, rstd, gamma):
    """As gradient_bounds, but for rstd, which is exact."""
    _, (dx, dgamma), n = gradients(dy, x, rstd, gamma, 0.0)
    error = (n / 4 + 32) * 2.0**-24
    return [error * dx, (error + (x.size / n / 32 + 48 if n else 0) * 2.0**-24) * dgamma]


BOUND = {
    "RmsNormGrad": given_bounds,
    "FusedRmsNormGrad": gradient_bounds,
    "FusedAddRmsNormGrad": lambda u, dy, s, dsum, gamma=None, **attrs: gradient_bounds(u, dy, s, gamma, dsum, **attrs),
    "RmsNorm": bounds,
    "AddRmsNorm": add_bounds,
    "FusedRmsNorm": lambda *a, **k: bounds(*a, **k)[0],
    "FusedAddRmsNorm": lambda *a, **k: add_bounds(*a, **k)[::2],
}
SHAPES = [(4, 64), (3, 7), (1, 2), (5, 33), (0, 5), (16,), (2, 3, 17), (9, 384), (3, 1000), (1, 4096), (3, 0),
          (2, 1, 2, 3, 1, 9)]  # fmt: skip


def case(op, dtype, shapes, **attrs):
    return {
        "op": op,
        "inputs": [s if len(s) and isinstance(s[0], str) else (dtype, s) for s in shapes],
        "attrs": attrs,
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST[dtype],
    }


CASES = (
    [case("RmsNorm", t, [s, s[-1:]]) for t in TOLERANCE for s in SHAPES]
    + [case("AddRmsNorm", t, [s, s, s[-1:]], epsilon=1e-5) for t in TOLERANCE for s in SHAPES]
    + [case("FusedRmsNorm", t, [s, s[-1:]], epsilon=1e-5) for t in TOLERANCE for s in SHAPES]
    + [case("FusedAddRmsNorm", t, [s, s, s[-1:]][:k]) for t in TOLERANCE for s in SHAPES for k in (2, 3)]
    + [case("FusedRmsNorm", t, [s]) for t in TOLERANCE for s in SHAPES]
    + [case("RmsNorm", "float32", [(4, 3, 10), (3, 10)]), case("FusedRmsNorm", "bfloat16", [(2, 3, 10), (2, 3, 10)])]
    # Ones before gamma, as it broadcasts.
    + [case("FusedRmsNorm", t, [(2, 3, 10), s]) for t in TOLERANCE for s in ((1, 1, 10), (1, 10), (1, 3, 10))]
    + [case("FusedAddRmsNorm", "float32", [(2, 3, 10), (2, 3, 10), (1, 1, 10)])]
    + [
        c
        for t in ("float16", "bfloat16")
        for c in (
            case("FusedRmsNorm", t, [(5, 70), ("float32", (70,))]),
            case("FusedAddRmsNorm", t, [(5, 70), (5, 70), ("float32", (70,))]),
        )
    ]
    + [
        # Squares that float32 cannot hold, above and below; a row of zeros without an epsilon is 0 / 0.
        case("RmsNorm", "float32", [("float32", [[1e30, -2e30, 3e25, 0.0, 1.0]]), (5,)]),
        case("RmsNorm", "bfloat16", [("bfloat16", [[1e30, -2e30, 3e25, 0.0, 1.0]]), (5,)]),
        case("RmsNorm", "float32", [("float32", [[1e-25, -2e-25, 3e-30, 0.0, 1e-24]]), (5,)], epsilon=0.0),
        case("RmsNorm", "float32", [("float32", [[0.0] * 5]), (5,)], epsilon=0.0),
        case("RmsNorm", "float32", [("float32", [[0.0] * 5]), (5,)]),
        case("RmsNorm", "float32", [("float32", (3, 40), "special"), (40,)]),
        case("FusedAddRmsNorm", "float32", [("float32", (3, 40), "special"), (3, 40), (40,)]),
    ]
)

ROWS = [(70, 33), (300, 16), (2, 4096), (9, 5, 24)]  # for the sums over rows: several blocks, the last one short
CASES += (
    [case("RmsNormGrad", t, [s, s, ("float32", (*s[:-1], 1)), s[-1:]]) for t in TOLERANCE for s in SHAPES + ROWS]
    + [case("FusedRmsNormGrad", t, [s, s, s[-1:]], epsilon=1e-5) for t in TOLERANCE for s in SHAPES + ROWS]
    + [case("FusedAddRmsNormGrad", t, [s, s, s, s[-1:]]) for t in TOLERANCE for s in SHAPES + ROWS]
    + [case("FusedAddRmsNormGrad", t, [s, s, s]) for t in TOLERANCE for s in SHAPES]
    + [case("FusedRmsNormGrad", t, [s, s]) for t in TOLERANCE for s in SHAPES]
    + [
        case("FusedRmsNormGrad", "bfloat16", [(5, 70), (5, 70), ("float32", (70,))]),
        case("FusedRmsNormGrad", "float32", [(4, 3, 10), (4, 3, 10), (3, 10)]),
        case("FusedRmsNormGrad", "float32", [(4, 3, 10), (4, 3, 10), (1, 1, 10)]),
        case("RmsNormGrad", "float32", [(4, 3, 10), (4, 3, 10), (4, 1, 1), (3, 10)]),
    ]
)


def beyond(op, dy, x, *more, dtype="float32", **attrs):
    """Rows of dy and x up to these."""
    return case(op, dtype, [(dtype, (3, 70), (-dy, dy)), (dtype, (3, 70), (-x, x)), *more], **attrs)


# Squares, and products with gamma, that float32 does not hold.
CASES += [
    c
    for t in ("float32", "bfloat16")
    for gamma in ((t, (70,), (1e15, 2e15)),)
    for c in (
        beyond("FusedRmsNormGrad", 1e25, 1e25, (70,), dtype=t),
        beyond("FusedRmsNormGrad", 1e25, 1e25, gamma, dtype=t),
        beyond("FusedRmsNormGrad", 1e36, 1e5, gamma, dtype=t),
        beyond("FusedAddRmsNormGrad", 1e25, 1e25, (t, (3, 70), (-1e15, 1e15)), gamma, dtype=t),
        beyond("RmsNormGrad", 1e25, 1e25, ("float32", (3, 1), (1e-25, 2e-25)), gamma, dtype=t),
    )
] + [beyond("FusedRmsNormGrad", 1e-10, x, epsilon=0.0) for x in (1e-25, 1e-40)]

REFUSED = [
    {
        "op": "RmsNormGrad",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), ("float32", (4,)), ("float32", (8,))],
        "error": r"RmsNormGrad: rstd.shape must be \(4, 1\), got \(4,\)",
    },
    {
        "op": "RmsNormGrad",
        "inputs": [("float32", (4, 8)), ("float32", (4, 9)), ("float32", (4, 1)), ("float32", (8,))],
        "error": r"RmsNormGrad: x.shape must equal dy.shape \(4, 8\), got \(4, 9\)",
    },
    {
        "op": "FusedAddRmsNormGrad",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), ("float32", (4, 1)), ("float32", (8,))],
        "error": r"FusedAddRmsNormGrad: dsum.shape must equal dy.shape \(4, 8\), got \(4, 1\)",
    },
    {
        "op": "RmsNorm",
        "inputs": [("float32", (4, 8)), ("float32", (7,))],
        "error": r"RmsNorm: gamma.shape must be \(8,\), got \(7,\)",
    },
    {
        "op": "RmsNorm",
        "inputs": [("float32", (4,)), ("float32", (2, 4))],
        "error": r"RmsNorm: gamma.shape must be \(4,\), got \(2, 4\)",
    },
    {
        "op": "RmsNorm",
        "inputs": [("float32", (4, 8)), ("float32", ())],
        "error": r"RmsNorm: gamma.shape must be \(8,\), got \(\)",
    },
    {
        "op": "RmsNorm",
        "inputs": [("float16", (4, 8)), ("float32", (8,))],
        "error": "RmsNorm: gamma.dtype must equal x.dtype float16, got float32",
    },
    {
        "op": "FusedRmsNorm",
        "inputs": [("float32", (4, 8)), ("float16", (8,))],
        "error": "FusedRmsNorm: gamma.dtype must equal x.dtype float32, got float16",
    },
    {
        "op": "FusedRmsNorm",
        "inputs": [("float16", (4, 8)), ("bfloat16", (8,))],
        "error": "FusedRmsNorm: gamma.dtype must be float16 or float32, got bfloat16",
    },
    {
        "op": "FusedRmsNorm",
        "inputs": [("float32", ())],
        "error": r"FusedRmsNorm: x must have at least 1 dimension, got shape \(\)",
    },
    {
        "op": "RmsNorm",
        "inputs": [("int32", (4, 8)), ("int32", (8,))],
        "error": "RmsNorm: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "AddRmsNorm",
        "inputs": [("float32", (4, 8)), ("float32", (4, 7)), ("float32", (8,))],
        "error": r"AddRmsNorm: x2.shape must equal x1.shape \(4, 8\), got \(4, 7\)",
    },
    {
        "op": "FusedAddRmsNorm",
        "inputs": [("float32", (4, 8)), ("float16", (4, 8)), ("float32", (8,))],
        "error": "FusedAddRmsNorm: residual.dtype must equal x.dtype float32, got float16",
    },
]
