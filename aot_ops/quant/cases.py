"""Cases of the operators with tensors of eight bits; the format is that of swiglu/cases.py."""

import numpy as np


def swap(x, yes):
    return np.swapaxes(x, -1, -2) if yes else x


def by_column(s):
    return np.reshape(s, (1, -1))


def weight_quant(x, weight, scale, offset=None, bias=0.0, transpose_x=False, transpose_weight=False):
    w = swap(weight, transpose_weight).astype(float)
    if offset is not None and offset.size:
        w = w + by_column(offset)
    return swap(x, transpose_x) @ (w * by_column(scale)) + bias


def weight_quant_bound(u, x, weight, scale, offset=None, bias=0.0, transpose_x=False, transpose_weight=False):
    """The products' sum as matmul/cases.py derives it; one rounding each of the scale's product and of the bias' sum;
    an offset is a rounded sum of x (in double), times the offset, added: two roundings of what they are."""
    x, w = swap(x, transpose_x), swap(weight, transpose_weight).astype(float)
    scale = np.abs(by_column(scale))
    sums = 8 * 2.0**-24 * np.sqrt(x.shape[-1] * (x**2 @ w**2) / 6) * scale
    y = np.abs(weight_quant(x, w, scale)) + np.abs(bias)
    if offset is not None and offset.size:
        y = y + 2 * np.abs(x.sum(-1, keepdims=True) * by_column(offset)) * scale
    return sums + 3 * 2.0**-24 * y


REFERENCE = {"WeightQuantBatchMatmul": weight_quant}
BOUND = {"WeightQuantBatchMatmul": weight_quant_bound}
# One rounding to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24
# x's leading dimensions, K, N: whole and partial tiles, none, pieces of K.
SIZES = [
    ((12,), 32, 64),
    ((2, 7), 9, 33),
    ((1,), 130, 70),
    ((1,), 900, 300),
    ((5,), 900, 300),
    ((17,), 2100, 40),
    ((0, 3), 4, 8),
    ((5,), 0, 3),
    ((5,), 3, 0),
]


def weight_case(dtype, lead, k, n, inputs=3, scale_dtype="float32", per="channel", offset=True, tx=False, tw=False):
    flat = {"channel": (n,), "tensor": (1,), "2d": (n, 1) if tw else (1, n)}[per]
    shapes = [
        (dtype, (k, *lead) if tx else (*lead, k)),
        ("int8", (n, k) if tw else (k, n), (-128, 128)),
        (scale_dtype, flat, (0.001, 0.01)),
        (scale_dtype, flat if offset else (0,), (-8, 8)),
        (dtype, (n,)),
    ]
    return {
        "op": "WeightQuantBatchMatmul",
        "inputs": shapes[:inputs],
        "attrs": {"transpose_x": tx, "transpose_weight": tw},
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


CASES = (
    [weight_case(t, *s, tw=tw) for t in TOLERANCE for s in SIZES for tw in (False, True)]
    + [weight_case(t, (19,), 24, 45, i, t, per, o, False, tw) for t in TOLERANCE for i in (3, 4, 5)
       for per in ("channel", "tensor", "2d") for o in (False, True) for tw in (False, True)]
    + [weight_case(t, (3,), 24, 45, 5) for t in TOLERANCE]
    + [weight_case(t, (m,), 24, 45, tx=True, tw=tw) for t in TOLERANCE for m in (3, 29) for tw in (False, True)]
)  # fmt: skip


def refused(error, *inputs, op="WeightQuantBatchMatmul", **attrs):
    return {"op": op, "inputs": list(inputs), "attrs": attrs, "error": error}


X, W, S = ("float32", (4, 8)), ("int8", (8, 3)), ("float32", (3,))
REFUSED = [
    refused(
        r"WeightQuantBatchMatmul: x's K must equal weight's K of 7, got 8 \(x \(4, 8\), weight \(7, 3\)\)",
        X, ("int8", (7, 3)), S,
    ),
    refused("WeightQuantBatchMatmul: weight.dtype must be one of int8, got float32", X, ("float32", (8, 3)), S),
    refused(
        r"WeightQuantBatchMatmul: antiquant_scale.shape must be \(1,\), \(3,\) or \(1, 3\), got \(8,\)",
        X, W, ("float32", (8,)),
    ),
    refused(
        r"WeightQuantBatchMatmul: antiquant_offset.shape must be \(1,\), \(3,\) or \(3, 1\), got \(1, 3\)",
        X, ("int8", (3, 8)), S, ("float32", (1, 3)), transpose_weight=True,
    ),
    refused("WeightQuantBatchMatmul: antiquant_scale.dtype must equal x.dtype float32, got float16",
            X, W, ("float16", (3,))),
    refused(r"WeightQuantBatchMatmul: bias.shape must be \(3,\), got \(4,\)",
            X, W, S, ("float32", (0,)), ("float32", (4,))),
    refused("WeightQuantBatchMatmul: antiquant_group_size must be 0, got 32", X, W, S, antiquant_group_size=32),
    refused(r"WeightQuantBatchMatmul: x must have 2 dimensions with transpose_x, got shape \(2, 4, 8\)",
            ("float32", (2, 4, 8)), W, S, transpose_x=True),
]  # fmt: skip
