"""Cases of LayerNorm, FusedLayerNorm and AddLayerNorm; the format is that of swiglu/cases.py."""

import numpy as np


def layer_norm(x, gamma=1.0, beta=0.0, begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5):
    axes = tuple(range(begin_norm_axis % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta, mean, variance


def add_layer_norm(x, residual, gamma, beta, epsilon=1e-5):
    return layer_norm(x + residual, gamma, beta, epsilon=epsilon)[0], x + residual


REFERENCE = {
    "LayerNorm": layer_norm,
    "FusedLayerNorm": lambda *inputs, **attrs: layer_norm(*inputs, **attrs)[0],
    "AddLayerNorm": add_layer_norm,
}
# One rounding to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24


def norm_bounds(x, gamma=1.0, beta=0.0, shaken=0.0, begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5):
    """Bounds of y, mean and variance in float32. A row of n numbers goes through at most n / 8 + 8 additions in a lane
    (SSE4 has four, two chains); two sweeps leave the mean's error relative to the mean deviation, not to the mean, and
    the variance's relative to itself. In the normalised row that is (n / 8 + 8) 2^-24 of 1 + |row|, then gamma
    multiplies it and beta's sum rounds. `shaken` is how far x itself may be off: it moves a row by three times itself,
    the mean's and the deviation's part included."""
    axes = tuple(range(begin_norm_axis % x.ndim, x.ndim))
    n = np.prod([x.shape[a] for a in axes])
    y, mean, variance = layer_norm(x, 1.0, 0.0, begin_norm_axis, begin_params_axis, epsilon)
    error = (n / 8 + 8) * 2.0**-24
    off = shaken / np.sqrt(variance + epsilon)
    moved = 3 * np.max(off * np.ones_like(x), axis=axes, keepdims=True, initial=0.0)
    bound = (error + moved) * (1 + np.abs(y)) * np.abs(gamma) + 2.0**-23 * np.abs(beta)
    spread = np.mean(np.abs(x - mean), axis=axes, keepdims=True)
    return [bound, error * spread + 2.0**-24 * np.abs(mean), error * variance]


def add_bounds(u, x, residual, gamma, beta, epsilon=1e-5):
    """The op normalises the sum as it is stored, rounded to the type; REFERENCE does not round it."""
    s = x + residual
    return [norm_bounds(s, gamma, beta, u * np.abs(s), epsilon=epsilon)[0], u * np.abs(s)]


BOUND = {
    "LayerNorm": lambda u, *inputs, **attrs: norm_bounds(*inputs, **attrs),
    "FusedLayerNorm": lambda u, *inputs, **attrs: norm_bounds(*inputs, **attrs)[0],
    "AddLayerNorm": add_bounds,
}
SHAPES = [(4, 64), (3, 7), (1, 2), (5, 33), (0, 5), (16,), (2, 3, 17), (9, 384), (3, 1000)]


def case(op, dtype, shapes, **attrs):
    return {
        "op": op,
        "inputs": [s if isinstance(s[0], str) else (dtype, s) for s in shapes],
        "attrs": attrs,
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


CASES = (
    [case("LayerNorm", t, [s, s[-1:], s[-1:]]) for t in TOLERANCE for s in SHAPES]
    + [case("FusedLayerNorm", t, [s, s[-1:], s[-1:]], epsilon=1e-6) for t in TOLERANCE for s in SHAPES]
    + [case("AddLayerNorm", t, [s, s, s[-1:], s[-1:]]) for t in TOLERANCE for s in SHAPES]
    + [case("FusedLayerNorm", t, [s, s[-1:]][:k], epsilon=1e-6) for t in TOLERANCE for s in SHAPES for k in (1, 2)]
    + [
        c
        for t in ("float16", "bfloat16")
        for c in (
            case("FusedLayerNorm", t, [(5, 70), ("float32", (70,)), ("float32", (70,))]),
            case("AddLayerNorm", t, [(5, 70), (5, 70), ("float32", (70,)), ("float32", (70,))]),
        )
    ]
    + [
        case("LayerNorm", "float32", [(4, 3, 10), (3, 10), (3, 10)], begin_norm_axis=1, begin_params_axis=1),
        case("LayerNorm", "float32", [(4, 3, 10), (10,), (10,)], begin_norm_axis=1, begin_params_axis=2),
        # A mean far above the deviation: the values themselves are exact in float32.
        case(
            "FusedLayerNorm",
            "float32",
            [("float32", [[10000.0 + (i * 7 % 13) / 4 for i in range(100)]]), (100,), (100,)],
        ),
        case("FusedLayerNorm", "float32", [("float32", (3, 40), "special"), (40,), (40,)]),
    ]
)

REFUSED = [
    {
        "op": "LayerNorm",
        "inputs": [("float32", (4, 8)), ("float32", (7,)), ("float32", (8,))],
        "error": r"LayerNorm: gamma.shape must be \(8,\), got \(7,\)",
    },
    {
        "op": "LayerNorm",
        "inputs": [("int32", (4, 8)), ("int32", (8,)), ("int32", (8,))],
        "error": "LayerNorm: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "LayerNorm",
        "inputs": [("float32", (4, 8)), ("float32", (8,)), ("float32", (8,))],
        "attrs": {"begin_norm_axis": 2},
        "error": r"begin_norm_axis must be in \[-2, 2\), got 2",
    },
    {
        "op": "FusedLayerNorm",
        "inputs": [("float32", (4, 8)), ("float32", (8,)), ("float16", (8,))],
        "error": "FusedLayerNorm: beta.dtype must equal x.dtype float32, got float16",
    },
    {
        "op": "FusedLayerNorm",
        "inputs": [("float16", (4, 8)), ("float32", (8,)), ("float16", (8,))],
        "error": "FusedLayerNorm: beta.dtype must equal gamma.dtype float32, got float16",
    },
    {
        "op": "AddLayerNorm",
        "inputs": [("float32", (4, 8)), ("float32", (4, 7)), ("float32", (8,)), ("float32", (8,))],
        "error": r"AddLayerNorm: residual.shape must equal x.shape \(4, 8\), got \(4, 7\)",
    },
]
