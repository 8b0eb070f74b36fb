"""Cases of MaxPool and AvgPool; the format is that of swiglu/cases.py."""

import numpy as np


def windows(x, fill, kernel_size=1, strides=1, pad_mode="VALID", **_):
    """The windows of padded x along a new last axis."""
    kernel, stride = (
        [v, v] if isinstance(v, int) else list(v)[-2:] * (3 - len(v[-2:])) for v in (kernel_size, strides)
    )
    pads, counts = [], []
    for size, k, s in zip(x.shape[2:], kernel, stride):
        out = -(-size // s) if pad_mode.upper() == "SAME" else (size - k) // s + 1
        total = max(0, (out - 1) * s + k - size) if pad_mode.upper() == "SAME" else 0
        pads.append((total // 2, total - total // 2))
        counts.append(out)
    x = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=fill)
    h, w = ((n - 1) * s + 1 for n, s in zip(counts, stride))
    return np.stack(
        [x[:, :, i : i + h : stride[0], j : j + w : stride[1]] for i in range(kernel[0]) for j in range(kernel[1])], -1
    )


def max_pool(x, **attrs):
    return windows(x, -np.inf, **attrs).max(-1)


def avg_pool(x, **attrs):
    return windows(x, 0.0, **attrs).sum(-1) / windows(np.ones_like(x), 0.0, **attrs).sum(-1)


def avg_bound(u, x, **attrs):
    """A sum of k terms one after another, and the quotient: k roundings of the terms' magnitudes at most."""
    each = windows(x, 0.0, **attrs)
    return 2.0**-24 * each.shape[-1] * avg_pool(np.abs(x), **attrs)


REFERENCE = {"MaxPool": max_pool, "AvgPool": avg_pool}
BOUND = {"AvgPool": avg_bound}
# Two roundings to the storage type, by the kernel and by the twin, of a mean; the largest element is exact.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24
SIZES = [
    ((1, 3, 8, 8), [2, 2], [2, 2], "VALID"),
    ((2, 4, 13, 71), [3, 3], [1, 1], "VALID"),
    ((2, 3, 112, 11), [3, 3], [2, 2], "SAME"),
    ((1, 2, 9, 50), [3, 2], [2, 3], "SAME"),
    ((1, 2, 7, 40), [5, 9], [1, 1], "same"),
    ((2, 2, 6, 90), [2, 3], [3, 2], "valid"),
    ((1, 5, 7, 7), [7, 7], [1, 1], "VALID"),
    ((0, 2, 4, 4), [2, 2], [2, 2], "VALID"),
    ((1, 1, 2, 2), [4, 5], [3, 3], "SAME"),
    ((3, 1, 1, 1), [1, 1], [1, 1], "VALID"),
]


def case(op, dtype, x, kernel, strides, pad_mode, special=()):
    rtol, atol = (TOLERANCE[dtype], SMALLEST) if op == "AvgPool" else (0.0, 0.0)
    attrs = {"kernel_size": kernel, "strides": strides, "pad_mode": pad_mode}
    return {"op": op, "inputs": [(dtype, x, *special)], "attrs": attrs, "rtol": rtol, "atol": atol}


OPS = ("MaxPool", "AvgPool")
CASES = (
    [case(op, t, *s) for op in OPS for t in TOLERANCE for s in SIZES]
    + [case(op, "float32", (1, 2, 5, 40), [1, 1, 2, 3], [1, 1, 1, 2], "SAME") for op in OPS]
    + [
        case(op, "float32", (1, 2, 5, 40), k, s, "VALID", ("special",))
        for op in OPS
        for k, s in (([2, 2], [1, 1]), ([1, 3], [1, 2]))
    ]
)

X = ("float32", (1, 2, 4, 4))


def refused(error, x=X, **attrs):
    return [{"op": op, "inputs": [x], "attrs": attrs, "error": f"{op}: {error}"} for op in OPS]


REFUSED = (
    refused(r"x must have 4 dimensions \(N, C, H, W\), got shape \(2, 4, 4\)", ("float32", (2, 4, 4)))
    + refused("x.dtype must be one of float32, float16, bfloat16, got int32", ("int32", (1, 2, 4, 4)))
    + refused("pad_mode must be one of valid, same, got 'pad'", pad_mode="PAD")
    + refused(r"kernel_size must be 1, 2 or 4 positive numbers, .*, got \(0, 2\)", kernel_size=[0, 2])
    + refused("x's width with its padding must hold the window of 5, got 4", kernel_size=[2, 5])
)
