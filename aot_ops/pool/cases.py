"""Cases of MaxPool, AvgPool, AdaptiveAvgPool2D, MaxPool3DWithArgmax and AvgPool3D; swiglu/cases.py has the format."""

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


def either_layout(pool):
    """The same of NHWC, too, under either of the attribute's names."""

    def laid_out(*args, format="NCHW", data_format="NCHW", **attrs):  # noqa: A002
        if "NHWC" not in (format, data_format):
            return pool(*args, **attrs)
        *before, x = args
        return np.moveaxis(pool(*before, np.moveaxis(x, -1, 1), **attrs), 1, -1)

    return laid_out


@either_layout
def max_pool(x, **attrs):
    return windows(x, -np.inf, **attrs).max(-1)


@either_layout
def avg_pool(x, **attrs):
    return windows(x, 0.0, **attrs).sum(-1) / windows(np.ones_like(x), 0.0, **attrs).sum(-1)


@either_layout
def avg_bound(u, x, **attrs):
    """A sum of k terms one after another, times 1 over k: k + 1 roundings of the terms' magnitudes at most."""
    each = windows(x, 0.0, **attrs)
    return 2.0**-24 * (each.shape[-1] + 1) * avg_pool(np.abs(x), **attrs)


def counts_3d(size, kernel, stride, dilation, before, after, ceil_mode):
    """The number of windows along an axis: none begins in the padding behind x."""
    free = size + before + after - dilation * (kernel - 1) - 1
    out = (-(-free // stride) if ceil_mode else free // stride) + 1
    return out - (ceil_mode and (out - 1) * stride >= size + before)


def windows_3d(x, fill, kernel, stride, dilation, pad, ceil_mode):
    """The windows along a new last axis; what ceil_mode adds behind the padding is `fill`, too."""
    out = [
        counts_3d(x.shape[2 + i], kernel[i], stride[i], dilation[i], pad[2 * i], pad[2 * i + 1], ceil_mode)
        for i in range(3)
    ]
    more = [(pad[2 * i], pad[2 * i + 1] + stride[i] + dilation[i] * kernel[i]) for i in range(3)]
    x = np.pad(x, ((0, 0), (0, 0), *more), constant_values=fill)
    seen = []
    for tap in np.ndindex(*kernel):
        begin = [t * d for t, d in zip(tap, dilation)]
        cut = tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(begin, out, stride))
        seen.append(x[(slice(None), slice(None), *cut)])
    return np.stack(seen, -1)


def max_pool_3d(x, ksize, strides, pads, dilation, ceil_mode=False, **_):
    pad = [p for p in pads for _ in range(2)]
    seen = windows_3d(x, -np.inf, ksize, strides, dilation, pad, ceil_mode)
    places = np.broadcast_to(np.arange(np.prod(x.shape[2:])).reshape(x.shape[2:]), x.shape)
    where = windows_3d(places, -1, ksize, strides, dilation, pad, ceil_mode)
    return seen.max(-1), np.take_along_axis(where, seen.argmax(-1)[..., None], -1)[..., 0]


def avg_pool_3d(x, kernel_size, strides, pad, ceil_mode=False, count_include_pad=True, divisor_override=0, **_):
    ones = (1, 1, 1)
    total = windows_3d(x, 0.0, kernel_size[2:], strides[2:], ones, pad, ceil_mode).sum(-1)
    counted = np.ones_like(x)
    if count_include_pad:  # then what is padding counts as x does
        around = [(0, 0), (0, 0), *((pad[2 * i], pad[2 * i + 1]) for i in range(3))]
        counted, pad = np.pad(counted, around, constant_values=1.0), [0] * 6
        count = windows_3d(counted, 0.0, kernel_size[2:], strides[2:], ones, pad, ceil_mode).sum(-1)
        count = count[tuple(slice(n) for n in total.shape)]
    else:
        count = windows_3d(counted, 0.0, kernel_size[2:], strides[2:], ones, pad, ceil_mode).sum(-1)
    return total / (divisor_override or count)


def avg_bound_3d(u, x, **attrs):
    return 2.0**-24 * (np.prod(attrs["kernel_size"]) + 1) * avg_pool_3d(np.abs(x), **attrs)


@either_layout
def padded_max_pool(x, ksize, strides, pads, ceil_mode=False):
    return max_pool_3d(x[:, :, None], ksize, strides, pads, [1, 1, 1], ceil_mode)[0][:, :, 0]


def adaptive_windows(size, count):
    """Of each window, the first element and the one behind the last."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def adaptive(x, output_size=(1, 1)):
    sizes = [m if n == -1 else n for n, m in zip(tuple(output_size) * (3 - len(output_size)), x.shape[-2:])]
    rows, columns = (adaptive_windows(m, n) for m, n in zip(x.shape[-2:], sizes))
    means = [x[..., a:b, c:d].mean((-2, -1)) for a, b in rows for c, d in columns]
    return np.stack(means, -1).reshape(*x.shape[:-2], *sizes)


def adaptive_bound(u, x, output_size=(1, 1)):
    """A sum of k terms in any order, no more than 16384 of them in float32, over k."""
    return 2.0**-24 * (min(16384, x.shape[-2] * x.shape[-1]) + 1) * adaptive(np.abs(x), output_size)


REFERENCE = {
    "AdaptiveAvgPool2D": adaptive,
    "PaddedMaxPool": padded_max_pool,
    "MaxPool": max_pool,
    "AvgPool": avg_pool,
    "MaxPool3DWithArgmax": max_pool_3d,
    "AvgPool3D": avg_pool_3d,
}
BOUND = {"AdaptiveAvgPool2D": adaptive_bound, "AvgPool": avg_bound, "AvgPool3D": avg_bound_3d}
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
    ((2, 3, 9, 21), [4, 21], [2, 1], "VALID"),  # over the whole width
    ((0, 2, 4, 4), [2, 2], [2, 2], "VALID"),
    ((1, 1, 2, 2), [4, 5], [3, 3], "SAME"),
    ((3, 1, 1, 1), [1, 1], [1, 1], "VALID"),
]


def nhwc(op):
    """The attribute, which AvgPool names otherwise."""
    return {"data_format" if op == "AvgPool" else "format": "NHWC"}


def moved(shape):
    """N, C, H, W as N, H, W, C."""
    return (shape[0], *shape[2:], shape[1])


def case(op, dtype, x, kernel, strides, pad_mode, special=(), last=False):
    rtol, atol = (TOLERANCE[dtype], SMALLEST) if op == "AvgPool" else (0.0, 0.0)
    attrs = {"kernel_size": kernel, "strides": strides, "pad_mode": pad_mode}
    if last:
        x, attrs = moved(x), attrs | nhwc(op)
    return {"op": op, "inputs": [(dtype, x, *special)], "attrs": attrs, "rtol": rtol, "atol": atol}


# x, window, strides, padding (front, back, top, bottom, left, right)
SIZES_3D = [
    ((1, 2, 1, 7, 9), [1, 3, 3], [1, 2, 2], [0, 0, 1, 1, 1, 1]),
    ((2, 3, 1, 8, 10), [1, 2, 3], [1, 3, 2], [0, 0, 0, 0, 1, 1]),
    ((1, 2, 4, 5, 6), [2, 3, 2], [2, 1, 3], [1, 1, 1, 1, 0, 0]),
    ((0, 2, 1, 4, 4), [1, 2, 2], [1, 2, 2], [0, 0, 0, 0, 0, 0]),
    ((1, 1, 3, 1, 1), [3, 1, 1], [1, 1, 1], [0, 0, 0, 0, 0, 0]),
    ((2, 3, 1, 13, 71), [1, 3, 3], [1, 1, 1], [0, 0, 1, 1, 1, 1]),
    ((1, 2, 1, 9, 40), [1, 2, 4], [1, 3, 5], [0, 0, 1, 1, 2, 2]),
]


def case_3d(op, dtype, x, kernel, strides, pad, special=(), **attrs):
    if op == "AvgPool3D":
        attrs = {"kernel_size": [1, 1, *kernel], "strides": [1, 1, *strides], "pad": pad, **attrs}
    else:
        attrs = {"ksize": kernel, "strides": strides, "pads": pad[::2], "dilation": [1, 1, 1], **attrs}
    rtol, atol = (TOLERANCE[dtype], SMALLEST) if op == "AvgPool3D" else (0.0, 0.0)
    return {"op": op, "inputs": [(dtype, x, *special)], "attrs": attrs, "rtol": rtol, "atol": atol}


def padded(dtype, x, ksize, strides, pads, *special, last=False, **attrs):
    attrs = {"ksize": [1, *ksize], "strides": [1, *strides], "pads": [0, *pads], **attrs}
    if last:
        x, attrs = moved(x), attrs | nhwc("PaddedMaxPool")
    return {"op": "PaddedMaxPool", "inputs": [(dtype, x, *special)], "rtol": 0.0, "atol": 0.0, "attrs": attrs}


PADDED = [
    ((1, 3, 16, 16), [3, 3], [2, 2], [1, 1]),
    ((2, 2, 13, 71), [4, 3], [1, 1], [2, 1]),
    ((1, 2, 9, 40), [2, 5], [3, 4], [1, 2]),
    ((1, 1, 1, 1), [3, 3], [1, 1], [1, 1]),
    ((0, 2, 4, 4), [2, 2], [2, 2], [0, 1]),
    ((1, 2, 0, 6), [2, 2], [2, 2], [1, 1]),  # nothing but padding
    ((2, 3, 5, 0), [2, 2], [2, 1], [1, 1]),
]
# One window; as many as x has, of one size, or not; more than x has; vectors and less; a plane of several parts.
ADAPTIVE = [
    ((2, 5, 7, 7), [1, 1]),
    ((2, 3, 9, 37), [1]),
    ((1, 2, 150, 223), [1, 1]),
    ((3, 8, 12), [4, 3]),
    ((2, 3, 9, 13), [3, -1]),
    ((2, 3, 9, 13), [4, 1]),
    ((1, 3, 9, 70), [4, 7]),
    ((2, 2, 3, 2), [7, 5]),
    ((2, 2, 1, 33), [1, 10]),
    ((4, 1, 1), [1, 1]),
    ((0, 2, 5, 4), [2, 3]),
    ((2, 0, 5, 4), [1, 1]),
]


def adapted(dtype, x, output_size, *special):
    case = {"op": "AdaptiveAvgPool2D", "inputs": [(dtype, x, *special)], "attrs": {"output_size": output_size}}
    return {**case, "rtol": TOLERANCE[dtype], "atol": SMALLEST}


OPS = ("MaxPool", "AvgPool")
# With the channels last: whole vectors and odd ones, several runs of pixels, several parts of the channels, windows
# wider than a line or than x, strides wider than the window, no channel.
LAST = [
    ((2, 16, 9, 11), [3, 3], [2, 2], "SAME"),
    ((1, 70, 5, 6), [2, 3], [1, 1], "SAME"),
    ((1, 64, 3, 300), [3, 3], [2, 2], "VALID"),
    ((2, 1300, 7, 7), [7, 7], [1, 1], "VALID"),
    ((1, 130, 2, 200), [2, 90], [1, 40], "SAME"),
    ((1, 200, 4, 5), [9, 11], [1, 1], "SAME"),
    ((1, 33, 11, 14), [1, 2], [3, 5], "SAME"),
    ((2, 0, 4, 4), [2, 2], [2, 2], "VALID"),
]
CASES = (
    [adapted(t, *s) for t in TOLERANCE for s in ADAPTIVE]
    + [adapted("float32", (1, 2, 5, 40), n, "special") for n in ([1, 1], [5, 40], [3, 7])]
    + [padded(t, *s) for t in TOLERANCE for s in PADDED]
    + [padded("float32", *s, last=i, ceil_mode=True) for s in PADDED for i in (False, True)]
    + [padded(t, (2, 3, 14, 37), [3, 2], [2, 4], [1, 0], ceil_mode=True) for t in TOLERANCE]
    + [padded("float32", *s, last=True) for s in PADDED]
    + [padded(t, (2, 19, 12, 9), [3, 4], [2, 1], [1, 2], last=True) for t in TOLERANCE]
    + [case(op, t, *s, last=True) for op in OPS for t in TOLERANCE for s in LAST]
    + [case(op, "float32", *s, last=True) for op in OPS for s in SIZES[::2]]
    + [case(op, "float32", (1, 40, 5, 2), [1, 1, 2, 3], [1, 1, 1, 2], "SAME", last=True) for op in OPS]
    + [
        case(op, "float32", (1, 2, 5, 40), k, [1, 1], "VALID", ("special",), True)
        for op in OPS
        for k in ([2, 2], [1, 3])
    ]
    + [padded("float32", (1, 1, 5, 40), [3, 3], [2, 2], [1, 1], "special")]
    + [case_3d("MaxPool3DWithArgmax", t, *s, ceil_mode=c) for t in TOLERANCE for s in SIZES_3D for c in (False, True)]
    + [case_3d("MaxPool3DWithArgmax", "float32", *SIZES_3D[0], dilation=[1, 2, 3], ceil_mode=c) for c in (False, True)]
    + [case_3d("MaxPool3DWithArgmax", "float32", (1, 1, 1, 1, 40), [1, 1, 1], [1, 1, 1], [0] * 6, ("special",))]
    + [
        case_3d("AvgPool3D", t, *s, ceil_mode=c, count_include_pad=i, divisor_override=d)
        for t in TOLERANCE
        for s in SIZES_3D
        for c in (False, True)
        for i, d in ((True, 0), (False, 0), (True, 5))
    ]
    + [case_3d("AvgPool3D", "float32", (1, 2, 1, 6, 7), [1, 3, 3], [1, 2, 2], [0, 0, 0, 2, 1, 0])]
    + [
        case_3d("AvgPool3D", "float32", (1, 2, 1, 6, 7), [1, 3, k], [1, 2, 1], pad, divisor_override=d)
        for k, pad in ((7, [0, 0, 1, 1, 0, 0]), (9, [0, 0, 1, 0, 0, 2]))
        for d in (0, 5)
    ]
    # A window that sees padding alone; strides wider than the window; a window wider than x, far apart.
    + [case_3d("AvgPool3D", "float32", (1, 2, 1, 6, 7), [1, 2, 2], [1, 1, 1], [0, 0, 0, 2, 0, 2])]
    + [case_3d("AvgPool3D", "float32", (1, 2, 1, 7, 9), [1, 2, 2], [1, 4, 5], [0] * 6, ceil_mode=True)]
    + [case_3d("AvgPool3D", "float32", (1, 2, 1, 3, 2), [1, 9, 9000], [1, 1, 1], [0, 0, 4, 4, 4500, 4499])]
    + [case(op, t, *s) for op in OPS for t in TOLERANCE for s in SIZES]
    + [case(op, "float32", (1, 2, 5, 40), [1, 1, 2, 3], [1, 1, 1, 2], "SAME") for op in OPS]
    + [
        case(op, "float32", (1, 2, 5, 40), k, s, "VALID", ("special",))
        for op in OPS
        for k, s in (([2, 2], [1, 1]), ([1, 3], [1, 2]))
    ]
)

X = ("float32", (1, 2, 4, 4))


def refused(error, x=X, last=False, **attrs):
    return [
        {"op": op, "inputs": [x], "attrs": attrs | (nhwc(op) if last else {}), "error": f"{op}: {error}"} for op in OPS
    ]


REFUSED = (
    [
        {"op": "PaddedMaxPool", "inputs": [("float32", (1, 2, 8, 8))], "attrs": attrs, "error": error}
        for attrs, error in [
            ({"ksize": [2, 2, 2]}, r"PaddedMaxPool: ksize must be 3 numbers, the first of them 1, .*, got \(2, 2, 2\)"),
            ({"pads": [0, 1]}, r"pads must be 3 numbers, the first of them 0, the others at least that, got \(0, 1\)"),
            ({"pads": [0, 1, 1]}, "the padding of both sides must be at most the window of 1, got 2"),
            ({"ksize": [1, 9, 1]}, "x's height with its padding must hold the window of 9, got 8"),
        ]
    ]
    + refused(r"x must have 4 dimensions \(N, C, H, W\), got shape \(2, 4, 4\)", ("float32", (2, 4, 4)))
    + refused(
        "x's height with its padding must hold the window of 3, got 2",
        ("float32", (1, 2, 4, 4)),
        last=True,
        kernel_size=[3, 1],
    )
    + refused(r"x must have 4 dimensions \(N, H, W, C\), got shape \(2, 4, 4\)", ("float32", (2, 4, 4)), last=True)
    + refused(
        r"kernel_size must be 1, 2 or 4 positive numbers, the first two of 4 being 1, got \(1, 2, 2, 1\)",
        last=True,
        kernel_size=[1, 2, 2, 1],
    )
    + [
        {"op": op, "inputs": [X], "attrs": {name: "NCDHW"}, "error": f"{op}: {name} must be NCHW or NHWC, got 'NCDHW'"}
        for op, name in (("MaxPool", "format"), ("AvgPool", "data_format"), ("PaddedMaxPool", "format"))
    ]
    + refused("x.dtype must be one of float32, float16, bfloat16, got int32", ("int32", (1, 2, 4, 4)))
    + refused("pad_mode must be one of valid, same, got 'pad'", pad_mode="PAD")
    + refused(r"kernel_size must be 1, 2 or 4 positive numbers, .*, got \(0, 2\)", kernel_size=[0, 2])
    + [
        {"op": "AdaptiveAvgPool2D", "inputs": [x], "attrs": {"output_size": n}, "error": f"AdaptiveAvgPool2D: {error}"}
        for x, n, error in [
            (X, [0, 1], r"output_size must be 1 or 2 positive numbers, or -1, x's own, got \(0, 1\)"),
            (X, [1, 1, 1], r"output_size must be .*, got \(1, 1, 1\)"),
            (
                ("float32", (4, 4)),
                [1],
                r"x must have 4 dimensions \(N, C, H, W\), or 3 \(C, H, W\), got shape \(4, 4\)",
            ),
            (("float32", (1, 2, 4, 0)), [1], r"x's width must not be 0, got shape \(1, 2, 4, 0\)"),
            (("int32", (1, 2, 4, 4)), [1], "x.dtype must be one of float32, float16, bfloat16, got int32"),
        ]
    ]
    + [
        {
            "op": "MaxPool3DWithArgmax",
            "inputs": [X],
            "error": r"MaxPool3DWithArgmax: x must have 5 dimensions \(N, C, D, H, W\), got shape \(1, 2, 4, 4\)",
        },
        {
            "op": "MaxPool3DWithArgmax",
            "inputs": [("float32", (1, 2, 1, 4, 4))],
            "attrs": {"ksize": [1, 2, 2], "pads": [0, 2, 0]},
            "error": "the padding of both sides must be at most the window of 2, got 2 and 2",
        },
        {
            "op": "AvgPool3D",
            "inputs": [("float32", (1, 2, 1, 4, 4))],
            "attrs": {"kernel_size": [1, 1, 1, 2, 5]},
            "error": "AvgPool3D: dimension 4 of x with its padding must hold the window of 5, got 4",
        },
        {
            "op": "AvgPool3D",
            "inputs": [("float32", (1, 2, 1, 4, 4))],
            "attrs": {"pad_mode": "SAME"},
            "error": "AvgPool3D: pad_mode must be PAD, got 'SAME'",
        },
        {
            "op": "AvgPool3D",
            "inputs": [("float32", (1, 2, 1, 4, 4))],
            "attrs": {"pad_list": [0, 0, 1, 1, 1, 1]},
            "error": r"AvgPool3D: pad_list must be pad \(0, 0, 0, 0, 0, 0\), got \(0, 0, 1, 1, 1, 1\)",
        },
    ]
    + refused("x's width with its padding must hold the window of 5, got 4", kernel_size=[2, 5])
)
