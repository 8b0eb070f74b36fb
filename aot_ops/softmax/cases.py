"""Cases of Softmax, ScaledMaskedSoftmax and their gradients;

swiglu/cases.py explains the format. REFERENCE takes the attributes as keywords."""

import numpy as np


def softmax(x, axis=-1):
    if x.size == 0:
        return x
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def bound(u, x, axis=-1):
    """exp is good to 1.75 roundings and a 15th of its argument, x - max, which rounds as well; the sum of n terms, with
    the same of their own, has run through at most n / 4 + 3 additions in a lane (SSE4 has four), its inverse and the
    product round: 8.5 with both exponentials."""
    if x.size == 0:
        return 0.0
    y, off = softmax(x, axis), (1 + 1 / 15) * np.abs(x - np.max(x, axis=axis, keepdims=True))
    off = np.where(y > 0, off, 0.0)  # -inf weighs nothing
    return y * 2.0**-24 * (off + np.sum(y * off, axis=axis, keepdims=True) + x.shape[axis] / 4 + 8.5)


def scores(x, mask=0.0, scale=1.0, fill=-np.inf, hides=False, mask_scale=1.0):
    """Bools choose; numbers are added."""
    if np.asarray(mask).dtype == bool:
        return np.where(mask != hides, x * scale, np.float32(fill) * np.float32(mask_scale))
    return x * scale + mask * mask_scale


def scaled(*inputs, axis=-1, nan_to_zero=False, **attrs):
    y = softmax(scores(*inputs, **attrs), axis)
    return np.where(np.isnan(y), 0.0, y) if nan_to_zero else y


def scaled_bound(u, x, mask=None, scale=1.0, axis=-1, **attrs):
    """As bound; besides, scale is rounded to float32. Without a mask it multiplies x - max, and that product rounds:
    both move an exponential by so much of s - max, and the sum by the mean of it under the weights. Else the score
    rounds once, and so do mask_scale and its product. What moves all scores of a row alike moves no weight, so that
    each may be taken against the row's largest: scores of what that one is made of, too, are the same number."""
    if x.size == 0:
        return 0.0
    attrs.pop("nan_to_zero", None)
    s = scores(x, 0.0 if mask is None else mask, scale, **attrs)
    y, factor = softmax(s, axis), attrs.get("mask_scale", 1.0)

    def moved(off):
        off = np.where(y > 0, 2.0**-24 * off, 0.0)
        return off + np.sum(y * off, axis=axis, keepdims=True)

    if mask is None and scale > 1e-36:
        return bound(u, s, axis) + y * moved(2 * np.abs(s - np.max(s, axis=axis, keepdims=True)))
    mask = np.broadcast_to(0.0 if mask is None else mask, x.shape)
    if mask.dtype == bool:
        off = np.where(mask != attrs.get("hides", False), 2 * np.abs(x * scale), 0.0)
    else:
        off = 2 * np.abs(x * scale) + (1 if factor == 1 else 3) * np.abs(mask * factor)
    top = np.expand_dims(np.argmax(s, axis=axis), axis)
    same = np.all([a == np.take_along_axis(a, top, axis) for a in (x, mask)], axis=0)
    apart = np.where(same, 0.0, off + np.take_along_axis(off, top, axis))
    return bound(u, s, axis) + y * np.minimum(moved(off), moved(apart))


def gradient(dout, out, dim=-1):
    return out * (dout - (dout * out).sum(axis=dim, keepdims=True))


def gradient_bound(u, dout, out, dim=-1):
    """The sum of n products goes through at most n / 8 + 6 fused or n / 8 + 7 other additions in a lane (SSE4 has four,
    two chains; a column: n); it is taken away from dout, and two factors multiply that."""
    return (dout.shape[dim] + 12) * 2.0**-24 * gradient(np.abs(dout), -np.abs(out), dim) * -1


def unbroadcast(v, shape):
    """The sum over what a mask of this shape was broadcast to."""
    v = v.sum(axis=tuple(range(v.ndim - len(shape))))
    return v.sum(axis=tuple(k for k, n in enumerate(shape) if n == 1), keepdims=True)


def scaled_gradient(dy, y, mask=None, scale=1.0, axis=-1, hides=False, mask_scale=1.0):
    dx = gradient(dy, y, axis)
    if mask is not None and mask.dtype == bool:
        return scale * np.where(mask != hides, dx, 0.0), np.zeros(mask.shape)
    return scale * dx, np.zeros(()) if mask is None else mask_scale * unbroadcast(dx, mask.shape)


def scaled_gradient_bound(u, dy, y, mask=None, scale=1.0, axis=-1, **attrs):
    """As above, scale rounds as well; the mask's is added up in double."""
    return [np.abs(scale) * gradient_bound(u, dy, y, axis), 0.0]


REFERENCE = {
    "Softmax": softmax,
    "ScaledMaskedSoftmax": scaled,
    "SoftmaxBackward": gradient,
    "ScaledMaskedSoftmaxGrad": scaled_gradient,
}
BOUND = {
    "Softmax": bound,
    "ScaledMaskedSoftmax": scaled_bound,
    "SoftmaxBackward": gradient_bound,
    "ScaledMaskedSoftmaxGrad": scaled_gradient_bound,
}
# One rounding to the storage type, by the kernel and by the twin.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
# float16's smallest step; the smallest normal number of the others, below which exp gives 0.
SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
LAYOUTS = [
    ((64,), -1),
    ((3, 7), -1),
    ((1,), 0),
    ((2, 3, 17), 2),
    ((4, 1031), -1),
    ((0, 5), 1),
    ((5, 0), 1),
    ((3, 19, 5), 1),
    ((6, 70), 0),
    ((2, 3, 4, 33), -2),
]
# Masks that broadcast in front, behind, along the axis, or not at all; other axes than the last.
MASKED = [
    ((2, 3, 5, 33), (1, 1, 5, 33), -1),
    ((2, 3, 5, 33), (2, 1, 1, 33), 3),
    ((2, 3, 5, 33), (5, 33), -1),
    ((2, 3, 5, 33), (2, 3, 5, 1), -1),
    ((2, 3, 5, 33), (), -1),
    ((4, 64), (4, 64), -1),
    ((2, 7, 40), (7, 40), 1),
    ((2, 7, 40), (2, 1, 40), 1),
    ((2, 7, 3), (2, 7, 1), 1),
    ((5, 70), (5, 1), 0),
    ((0, 5), (1, 5), -1),
    ((5, 0), (5, 0), -1),
    ((16,), (1,), 0),
]


def masked(dtype, shapes, **attrs):
    return {
        "op": "ScaledMaskedSoftmax",
        "inputs": [s if len(s) and isinstance(s[0], str) else (dtype, s) for s in shapes],
        "attrs": attrs,
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST[dtype],
    }


CASES = (
    [
        {"op": "Softmax", "inputs": [(t, s)], "attrs": {"axis": a}, "rtol": tol, "atol": SMALLEST[t]}
        for t, tol in TOLERANCE.items()
        for s, a in LAYOUTS
    ]
    + [
        {
            "op": "Softmax",
            "inputs": [("float32", (3, 40), "special")],
            "attrs": {"axis": a},
            "rtol": TOLERANCE["float32"],
            "atol": SMALLEST["float32"],
        }
        for a in (0, 1)
    ]
    + [
        # A row of attention scores with a mask of -inf, and one without any score: all NaN.
        {
            "op": "Softmax",
            "inputs": [("float32", [[1.0, -np.inf, 3.0, -np.inf, 100.0], [-np.inf] * 5])],
            "attrs": {},
            "rtol": TOLERANCE["float32"],
            "atol": SMALLEST["float32"],
        },
    ]
)

CASES += (
    [masked(t, [s, m], scale=0.3, axis=a) for t in TOLERANCE for s, m, a in MASKED]
    + [masked(t, [s], scale=-1.7, axis=a) for t in TOLERANCE for s, a in LAYOUTS]
    + [
        # A causal mask of -inf, one of the lowest number, and a row that has no score left.
        masked(t, [(3, 4, 4), (t, [[0.0 if j <= i else low for j in range(4)] for i in range(4)])], scale=0.125)
        for t in TOLERANCE
        for low in (-np.inf, float(np.finfo(np.float16).min))
    ]
    + [
        masked("float32", [(2, 5), ("float32", [[-np.inf] * 5, [0.0, -np.inf, 1.0, 2.0, -3.0]])], scale=2.0),
        masked("float32", [("float32", (3, 40), "special"), (40,)], scale=0.5),
        masked("float32", [("float32", (3, 40), "special"), (3, 1)], axis=0),
    ]
)

# Large scores, all the same: whatever rounds, the weights are equal. As a row is where a finite number hides it whole.
HUGE = {"float32": (-1e9, -1e30, -3e38), "float16": (-6e4,), "bfloat16": (-1e9, -1e30, -3e38)}
CASES += [
    masked(t, [(t, s, (low, low)), *more], scale=scale, axis=axis)
    for t, lows in HUGE.items()
    for low in lows
    for scale in (0.3, 1 / 3, 80**-0.5, -0.3)
    for s, axis, masks in (
        ((3, 33), -1, ([(t, (33,), (0, 0))], [(t, (3, 1), (0, 0))], [("bool", [True] * 33)], [("bool", True)])),
        ((33, 70), 0, ([(t, (70,), (0, 0))], [(t, (33, 1), (0, 0))], [("bool", [True] * 70)], [("bool", True)])),
        ((2, 33, 5), 1, ()),
        ((2100, 9), 0, ([("bool", True)],)),
    )
    for more in ([], *masks)
]
# A mask off the last axis that lies along the columns, of many and few; that broadcasts among, before and behind them.
CASES += [
    masked(t, [s, *more], scale=0.3, axis=axis, **attrs)
    for t in TOLERANCE
    for s, m, axis in (
        ((5, 150), (5, 150), 0),
        ((5, 150), (150,), 0),
        ((2, 6, 4, 33), (2, 6, 1, 33), 1),
        ((2, 6, 3, 70), (6, 3, 1), 1),
        ((2, 6, 30, 4), (30, 1), 1),
        ((2, 6, 30, 4), (2, 1, 30, 4), 1),
        ((2100, 20), (2100, 20), 0),
        ((300, 80), (80,), 0),
        ((2, 3, 4, 5, 2, 7), (3, 1, 5, 1, 7), 2),
    )
    for more, attrs in (
        ([m], {}),
        ([m], {"mask_scale": -1.7}),
        ([("bool", m)], {}),
        ([("bool", m)], {"hides": True, "fill": -7.5}),
    )
]
# By no scale x may differ by more than float32 holds; by next to none: tests/python/test_softmax.py.
CASES += [
    masked(t, [(t, [[-3e38, 3e38, 1.0], [3e38, 3e38, -2.0]])], scale=scale, axis=axis)
    for t in ("float32", "bfloat16")
    for scale in (0.0, 0.3)
    for axis in (0, 1)
]

LOW = float(np.finfo(np.float32).min)
# Bools choose: the scores, or a number; a row that is hidden whole is NaN or of equal weights. A mask that is scaled,
# or taken away; what would be NaN as 0.
CASES += (
    [
        masked(t, [s, ("bool", m or True)], scale=0.3, axis=a, fill=fill, hides=hides)
        for t in TOLERANCE
        for s, m, a in MASKED
        for fill, hides in ((-np.inf, False), (LOW, True), (0.5, False))
    ]
    + [
        masked(t, [(2, 3, 37), ("bool", [[[i == 1] * 37] for i in range(2)])], fill=fill, hides=hides, axis=axis)
        for t in TOLERANCE
        for fill in (-np.inf, -1e4)
        for hides in (False, True)
        for axis in (1, 2)
    ]
    + [masked("float32", [("float32", (3, 40), "special"), ("bool", (40,))], scale=0.5, axis=a) for a in (0, 1)]
    + [masked(t, [s, m], scale=0.3, axis=a, mask_scale=-1.7) for t in TOLERANCE for s, m, a in MASKED]
    + [masked("float32", [(4, 33), ("bool", (33,))], scale=0.3, fill=-7.5, mask_scale=0.3)]
    + [
        masked(t, [s, (t, np.where(np.arange(3)[:, None] == 1, -np.inf, np.zeros(40)).tolist())], nan_to_zero=True)
        for t in TOLERANCE
        for s in ((3, 40), (2, 3, 40))
    ]
    + [
        masked(t, [(t, (3, 40), "special"), *more], nan_to_zero=True, axis=axis)
        for t in TOLERANCE
        for more in ([], [("bool", [[True], [False], [True]])], [("bool", (3, 40))])
        for axis in (0, 1)
    ]
)

CASES += (
    [
        {"op": "SoftmaxBackward", "inputs": [(t, s), (t, s)], "attrs": {"dim": a}, "rtol": tol, "atol": SMALLEST[t]}
        for t, tol in TOLERANCE.items()
        for s, a in LAYOUTS
    ]
    + [
        {
            "op": "ScaledMaskedSoftmaxGrad",
            "inputs": [(t, s), (t, s), (t, m)],
            "attrs": {"scale": 0.3, "axis": a},
            "rtol": tol,
            "atol": SMALLEST[t],
        }
        for t, tol in TOLERANCE.items()
        # Masks of one element and of many, so that sums and elements of the mask are shared among threads.
        for s, m, a in MASKED + [((3, 40, 700), (700,), -1), ((3, 40, 700), (1,), 1), ((2, 90, 160), (90, 160), -1)]
    ]
    + [
        {
            "op": "ScaledMaskedSoftmaxGrad",
            "inputs": [(t, s), (t, s), (kind, m or True if kind == "bool" else m)],
            "attrs": {"scale": 0.3, "axis": a, **attrs},
            "rtol": tol,
            "atol": SMALLEST[t],
        }
        for t, tol in TOLERANCE.items()
        for s, m, a in MASKED
        for kind, attrs in (("bool", {}), ("bool", {"hides": True}), (t, {"mask_scale": -1.7}))
    ]
    + [
        {
            "op": "ScaledMaskedSoftmaxGrad",
            "inputs": [(t, s), (t, s)],
            "attrs": {"scale": 0.3, "axis": a},
            "rtol": tol,
            "atol": SMALLEST[t],
        }
        for t, tol in TOLERANCE.items()
        for s, a in LAYOUTS
    ]
)

REFUSED = [
    {
        "op": "SoftmaxBackward",
        "inputs": [("float32", (4, 8)), ("float32", (4, 1))],
        "error": r"SoftmaxBackward: out.shape must equal dout.shape \(4, 8\), got \(4, 1\)",
    },
    {
        "op": "SoftmaxBackward",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8))],
        "attrs": {"dim": 2},
        "error": r"SoftmaxBackward: dim must be in \[-2, 2\), got 2",
    },
    {
        "op": "ScaledMaskedSoftmaxGrad",
        "inputs": [("float32", (4, 8)), ("float32", (4, 8)), ("float32", (3, 8))],
        "error": r"ScaledMaskedSoftmaxGrad: mask.shape must broadcast to dy.shape \(4, 8\), got \(3, 8\)",
    },
    {
        "op": "ScaledMaskedSoftmax",
        "inputs": [("float32", (4, 8)), ("float32", (4, 7))],
        "error": r"ScaledMaskedSoftmax: mask.shape must broadcast to x.shape \(4, 8\), got \(4, 7\)",
    },
    {
        "op": "ScaledMaskedSoftmax",
        "inputs": [("float32", (4, 8)), ("float32", (2, 4, 8))],
        "error": r"ScaledMaskedSoftmax: mask.shape must broadcast to x.shape \(4, 8\), got \(2, 4, 8\)",
    },
    {
        "op": "ScaledMaskedSoftmax",
        "inputs": [("float32", (4, 8)), ("float16", (4, 8))],
        "error": "ScaledMaskedSoftmax: mask.dtype must equal x.dtype float32, got float16",
    },
    {
        "op": "ScaledMaskedSoftmax",
        "inputs": [("float32", (4, 8)), ("bool", (4, 7))],
        "error": r"ScaledMaskedSoftmax: mask.shape must broadcast to x.shape \(4, 8\), got \(4, 7\)",
    },
    {
        "op": "ScaledMaskedSoftmax",
        "inputs": [("float32", (4, 8)), ("int32", (4, 8))],
        "error": "mask.*float32.*got int32",
    },
    {
        "op": "ScaledMaskedSoftmax",
        "inputs": [("float32", (4, 8))],
        "attrs": {"axis": 2},
        "error": r"ScaledMaskedSoftmax: axis must be in \[-2, 2\), got 2",
    },
    {
        "op": "Softmax",
        "inputs": [("int32", (4,))],
        "error": "Softmax: x.dtype must be one of float32, float16, bfloat16, got int32",
    },
    {
        "op": "Softmax",
        "inputs": [("float32", (4, 8))],
        "attrs": {"axis": 2},
        "error": r"Softmax: axis must be in \[-2, 2\), got 2",
    },
    {"op": "Softmax", "inputs": [("float32", ())], "error": r"Softmax: axis must be in \[0, 0\), got -1"},
]
