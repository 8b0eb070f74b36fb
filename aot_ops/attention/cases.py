"""Cases of ScaledDotProductAttention; the format is that of swiglu/cases.py."""

import numpy as np


def attention(q, k, v, mask=0.0, scale=np.nan, heads=0, layout="BHSD"):
    if layout != "BHSD":
        q, k, v = (x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) * (1.0 / np.sqrt(q.shape[-1]) if np.isnan(scale) else scale) + mask
    w = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.inf))
    y = w / w.sum(axis=-1, keepdims=True) @ v
    return y if layout == "BHSD" else y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], y.shape[1] * y.shape[3])


def bound(u, q, k, v, mask=0.0, scale=np.nan, heads=0, layout="BHSD"):
    """A score is a float32 sum of D products, with the error that matmul/cases.py derives, and rounds when scaled,
    masked and reduced by the maximum; a weight takes over the largest error of its row's scores twice (numerator and
    sum), exp's 4 roundings and those of a sum of T terms in at least four lanes; the weighted sum of |v| makes one
    rounding per term."""
    if layout != "BHSD":
        q, k, v = (x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3) for x in (q, k, v))
    scale = 1.0 / np.sqrt(q.shape[-1]) if np.isnan(scale) else scale
    t = k.shape[-2]
    s = q @ k.swapaxes(-1, -2) * scale + mask
    seen = np.isfinite(s)
    products = scale * 8 * np.sqrt(q.shape[-1] * (q**2 @ k.swapaxes(-1, -2) ** 2) / 6)
    size = np.where(seen, np.abs(q @ k.swapaxes(-1, -2) * scale) + 2 * np.abs(s), 0.0)
    score = np.max(np.where(seen, products + 2 * size, 0.0), axis=-1, keepdims=True, initial=0.0)
    w = np.exp(s - s.max(axis=-1, keepdims=True, initial=-np.inf))
    y = w / w.sum(axis=-1, keepdims=True) @ np.abs(v) * 2.0**-24 * (2 * score + 1.25 * t + 16)
    return y if layout == "BHSD" else y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], y.shape[1] * y.shape[3])


REFERENCE = {"ScaledDotProductAttention": attention}
BOUND = {"ScaledDotProductAttention": bound}
# One rounding to the storage type, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24
# B, H, S, T, D: partial tiles of queries and keys, several key tiles, few queries (read without packing), none.
SIZES = [
    (2, 3, 5, 7, 9),
    (1, 2, 24, 32, 32),
    (2, 2, 128, 128, 32),
    (1, 1, 50, 300, 64),
    (1, 2, 1, 77, 40),
    (2, 2, 1, 300, 32),
    (1, 3, 2, 513, 128),
    (1, 2, 4, 9, 100),
    (1, 1, 1, 1, 3),
    (1, 2, 1, 0, 8),
    (1, 1, 30, 600, 100),
    (0, 2, 3, 4, 5),
    (1, 2, 0, 4, 8),
    (1, 1, 3, 1, 1),
]


def case(dtype, size, layout, mask=None, **attrs):
    b, h, s, t, d = size
    if layout == "BHSD":
        shapes = [(b, h, s, d), (b, h, t, d), (b, h, t, d)]
    else:
        shapes = [(b, s, h * d), (b, t, h * d), (b, t, h * d)]
        attrs["heads"] = h
    inputs = [(dtype, x) for x in shapes] + (
        [mask if mask and isinstance(mask[0], str) else (dtype, mask)] if mask is not None else []
    )
    return {
        "op": "ScaledDotProductAttention",
        "inputs": inputs,
        "attrs": {**attrs, "layout": layout},
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


INF = float("inf")
CASES = (
    [case(t, s, layout) for t in TOLERANCE for s in SIZES for layout in ("BHSD", "BSE")]
    + [
        case("float32", (2, 3, 5, 7, 9), "BHSD", m, scale=0.25)
        for m in [(2, 1, 1, 7), (2, 1, 5, 7), (5, 7), (7,), (3, 1, 1), (2, 3, 5, 7), ()]
    ]
    + [case(t, (2, 4, 40, 33, 16), "BSE", (2, 1, 1, 33)) for t in TOLERANCE]
    + [case(t, (2, 3, 2, 33, 24), layout, (2, 1, 2, 33)) for t in TOLERANCE for layout in ("BHSD", "BSE")]
    # The first key tile masked out entirely, then a row with no key at all: NaN, as softmax gives.
    + [case("float32", (1, 1, 4, 300, 8), "BHSD", ("float32", [-INF] * 270 + [0.0] * 30))]
    + [case("float32", (1, 1, 6, 300, 8), "BHSD", ("float32", [-INF] * 270 + [0.0] * 30))]
    + [case("float32", (1, 1, 2, 3, 8), "BHSD", ("float32", [[0.0, -INF, 0.5], [-INF, -INF, -INF]]))]
    + [case("float32", (1, 1, 5, 3, 8), "BHSD", ("float32", [[0.0, -INF, 0.5]] * 4 + [[-INF] * 3]))]
)

REFUSED = [
    {
        "op": "ScaledDotProductAttention",
        "inputs": [("float32", (1, 2, 3, 4)), ("float32", (1, 2, 5, 6)), ("float32", (1, 2, 5, 4))],
        "error": r"k.shape must agree with q.shape \(1, 2, 3, 4\) in all but the sequence, got \(1, 2, 5, 6\)",
    },
    {
        "op": "ScaledDotProductAttention",
        "inputs": [("int32", (1, 2, 3, 4))] * 3,
        "error": "q.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "ScaledDotProductAttention",
        "inputs": [("float32", (1, 3, 8))] * 3,
        "attrs": {"layout": "BSE", "heads": 3},
        "error": "heads must divide q's last dimension 8, got 3",
    },
    {
        "op": "ScaledDotProductAttention",
        "inputs": [("float32", (1, 2, 3, 4))] * 3 + [("float32", (1, 1, 3, 4))],
        "error": r"mask.shape must broadcast to \(1, 2, 3, 3\), got \(1, 1, 3, 4\)",
    },
]
