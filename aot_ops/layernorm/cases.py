"""Cases of LayerNorm, FusedLayerNorm and AddLayerNorm; the format is that of swiglu/cases.py."""

import numpy as np


def layer_norm(x, gamma, beta, begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-5):
    axes = tuple(range(begin_norm_axis % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta, mean, variance


def add_layer_norm(x, residual, gamma, beta, epsilon=1e-5):
    return layer_norm(x + residual, gamma, beta, epsilon=epsilon)[0], x + residual


REFERENCE = {
    "LayerNorm": layer_norm,
    "FusedLayerNorm": lambda x, gamma, beta, epsilon=1e-5: layer_norm(x, gamma, beta, epsilon=epsilon)[0],
    "AddLayerNorm": add_layer_norm,
}
TOLERANCE = {"float32": (5e-6, 5e-6), "float16": (2e-3, 1e-3), "bfloat16": (1.6e-2, 8e-3)}
# AddLayerNorm normalises a sum that was rounded to the half type.
ADD_TOLERANCE = {"float32": (5e-6, 5e-6), "float16": (2e-3, 5e-3), "bfloat16": (1.6e-2, 4e-2)}
SHAPES = [(4, 64), (3, 7), (1, 2), (5, 33), (0, 5), (16,), (2, 3, 17), (9, 384), (3, 1000)]


def case(op, dtype, shapes, tolerance, **attrs):
    return {
        "op": op,
        "inputs": [s if isinstance(s[0], str) else (dtype, s) for s in shapes],
        "attrs": attrs,
        "rtol": tolerance[0],
        "atol": tolerance[1],
    }


CASES = (
    [case("LayerNorm", t, [s, s[-1:], s[-1:]], tol) for t, tol in TOLERANCE.items() for s in SHAPES]
    + [
        case("FusedLayerNorm", t, [s, s[-1:], s[-1:]], tol, epsilon=1e-6)
        for t, tol in TOLERANCE.items()
        for s in SHAPES
    ]
    + [case("AddLayerNorm", t, [s, s, s[-1:], s[-1:]], tol) for t, tol in ADD_TOLERANCE.items() for s in SHAPES]
    + [
        case(
            "LayerNorm", "float32", [(4, 3, 10), (3, 10), (3, 10)], (5e-6, 5e-6), begin_norm_axis=1, begin_params_axis=1
        ),
        case("LayerNorm", "float32", [(4, 3, 10), (10,), (10,)], (5e-6, 5e-6), begin_norm_axis=1, begin_params_axis=2),
        # A mean far above the deviation: the values themselves are exact in float32.
        case(
            "FusedLayerNorm",
            "float32",
            [("float32", [[10000.0 + (i * 7 % 13) / 4 for i in range(100)]]), (100,), (100,)],
            (2e-5, 2e-5),
        ),
        case("FusedLayerNorm", "float32", [("float32", (3, 40), "special"), (40,), (40,)], (5e-6, 5e-6)),
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
        "op": "AddLayerNorm",
        "inputs": [("float32", (4, 8)), ("float32", (4, 7)), ("float32", (8,)), ("float32", (8,))],
        "error": r"AddLayerNorm: residual.shape must equal x.shape \(4, 8\), got \(4, 7\)",
    },
]
