"""Cases of Conv2D, FusedConv2D and FusedConv2DBatchNorm; the format is that of swiglu/cases.py."""

import numpy as np


def pair(v, default=1):
    v = [default] if v is None else [v] if isinstance(v, int) else list(v)
    return v[-2:] if len(v) > 1 else v * 2


def padding(size, kernel, stride, dilation, pad_mode, before, after):
    """Padding before and behind, and the number of windows."""
    span = (kernel - 1) * dilation + 1
    if pad_mode == "same":
        total = max(0, (-(-size // stride) - 1) * stride + span - size)
        before, after = total // 2, total - total // 2
    return before, after, (size + before + after - span) // stride + 1


def conv2d(x, weight, pad_mode="valid", pad=0, stride=None, dilation=None, group=1, **_):
    (n, channels, *size), (out, each, *kernel) = x.shape, weight.shape
    pad = [pad] * 4 if isinstance(pad, int) else list(pad) * (4 // len(pad))
    s, d = pair(stride), pair(dilation)
    top, bottom, h = padding(size[0], kernel[0], s[0], d[0], pad_mode, *pad[:2])
    left, right, w = padding(size[1], kernel[1], s[1], d[1], pad_mode, *pad[2:])
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    x = x.reshape(n, group, channels // group, *x.shape[2:])
    weight = weight.reshape(group, out // group, each, *kernel)
    y = np.zeros((n, group, out // group, h, w))
    for k in range(kernel[0]):
        for m in range(kernel[1]):
            i, j = k * d[0], m * d[1]
            seen = x[..., i : i + (h - 1) * s[0] + 1 : s[0], j : j + (w - 1) * s[1] + 1 : s[1]]
            y += np.einsum("ngchw,goc->ngohw", seen, weight[..., k, m])
    return y.reshape(n, out, h, w)


ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
}


def channels(v):
    return v.reshape(-1, 1, 1)


def scale_of(gamma, variance, epsilon=1e-5, **_):
    return channels(gamma / np.sqrt(variance + epsilon))


def fused(x, weight, bias, residual=0.0, activation="none", **attrs):
    return ACTIVATIONS[activation](conv2d(x, weight, **attrs) + channels(bias) + residual)


def normalised(x, weight, gamma, beta, mean, variance, residual=0.0, activation="none", **attrs):
    y = (conv2d(x, weight, **attrs) - channels(mean)) * scale_of(gamma, variance, **attrs) + channels(beta)
    return ACTIVATIONS[activation](y + residual)


def bound(u, x, weight, **attrs):
    """Of the sum of kH kW C / group products, as matmul/cases.py derives it."""
    return 8 * 2.0**-24 * np.sqrt(weight[0].size * conv2d(x**2, weight**2, **attrs) / 6)


def fused_bound(u, x, weight, bias, residual=0.0, activation="none", **attrs):
    """The bias and the residual round; ReLU and ReLU6 enlarge nothing."""
    s = conv2d(x, weight, **attrs) + channels(bias)
    return bound(u, x, weight, **attrs) + 2.0**-24 * (np.abs(s) + np.abs(s + residual))


def normalised_bound(u, x, weight, gamma, beta, mean, variance, residual=0.0, activation="none", **attrs):
    """The scale multiplies the sum's error and is rounded itself, as beta - mean * scale is; then as above."""
    scale = scale_of(gamma, variance, **attrs)
    product, shift = conv2d(x, weight, **attrs) * scale, channels(beta) - channels(mean) * scale
    rounded = np.abs(product) + np.abs(shift) + np.abs(product + shift) + np.abs(product + shift + residual)
    return bound(u, x, weight, **attrs) * np.abs(scale) + 2.0**-24 * rounded


REFERENCE = {"Conv2D": conv2d, "FusedConv2D": fused, "FusedConv2DBatchNorm": normalised}
BOUND = {"Conv2D": bound, "FusedConv2D": fused_bound, "FusedConv2DBatchNorm": normalised_bound}
# Two roundings at the end, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24

# x, output channels, kernel, attributes
SIZES = [
    ((1, 3, 9, 11), 5, (3, 3), {}),
    ((2, 16, 12, 12), 24, (3, 3), {"pad_mode": "same"}),
    ((2, 5, 7, 40), 13, (1, 1), {}),
    ((1, 40, 6, 6), 100, (1, 1), {"stride": [1, 1, 2, 2]}),
    ((1, 3, 17, 19), 8, (7, 7), {"pad_mode": "pad", "pad": [3, 3, 3, 3], "stride": [1, 1, 2, 2]}),
    ((2, 4, 10, 13), 6, (2, 5), {"pad_mode": "pad", "pad": [0, 2, 3, 1], "stride": [3, 2]}),
    ((1, 6, 15, 14), 9, (3, 3), {"pad_mode": "same", "stride": [1, 1, 2, 3], "dilation": [1, 1, 2, 1], "group": 3}),
    ((1, 8, 11, 11), 8, (3, 3), {"pad_mode": "same", "dilation": [1, 1, 1, 3], "group": 2}),
    ((2, 7, 13, 37), 7, (3, 3), {"pad_mode": "same", "group": 7}),
    ((1, 5, 16, 150), 5, (5, 3), {"pad_mode": "pad", "pad": [2, 2, 1, 1], "stride": [1, 1, 2, 2], "group": 5}),
    ((1, 4, 12, 20), 8, (3, 4), {"dilation": [2, 3], "stride": [1, 3], "group": 4}),
    ((1, 3, 6, 5), 12, (3, 3), {"pad_mode": "same", "group": 3}),
    ((1, 2, 90, 300), 2, (3, 3), {"pad_mode": "same", "group": 2}),
    ((1, 3, 9, 70), 3, (2, 1), {"stride": [1, 1, 3, 4], "group": 3}),  # strides wider than the window
    ((1, 3, 40, 4000), 3, (20, 3), {"pad_mode": "same", "dilation": [2, 500], "stride": [8, 400], "group": 3}),
    # Depthwise whose padded rows would be too large to hold.
    (
        (1, 2, 50, 5),
        2,
        (3, 2),
        {"pad_mode": "pad", "pad": [0, 0, 10000, 10000], "dilation": [20, 20000], "stride": [1, 20000], "group": 2},
    ),
    ((0, 3, 8, 8), 4, (3, 3), {"pad_mode": "same"}),
    ((0, 3, 8, 8), 3, (3, 3), {"pad_mode": "same", "group": 3}),
    ((1, 1, 3, 3), 1, (3, 3), {}),
    ((1, 256, 4, 4), 20, (2, 2), {}),  # K = 1024: the weights are copied
    ((1, 300, 3, 5), 60, (3, 3), {"pad_mode": "same"}),
    ((1, 2, 1, 1), 3, (5, 5), {"pad_mode": "same"}),
]


def attributes(out, kernel, attrs):
    return {"out_channel": out, "kernel_size": list(kernel), **attrs}


def case(op, dtype, x, out, kernel, attrs, *more):
    weight = (dtype, (out, x[1] // attrs.get("group", 1), *kernel))
    return {
        "op": op,
        "inputs": [(dtype, x), weight, *more],
        "attrs": attributes(out, kernel, attrs),
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


def follow(op, dtype, x, out, kernel, attrs, residual, activation, params=None):
    """One of the fused operators: bias, or the four of BatchNorm, then the residual."""
    params = params or dtype
    more = [(params, (out,))] * (1 if op == "FusedConv2D" else 3)
    if op == "FusedConv2DBatchNorm":
        more.append((params, (out,), (0.25, 2.0)))
        attrs = {**attrs, "epsilon": 1e-3}
    if residual:
        h, w = (
            padding(
                x[2 + i],
                kernel[i],
                pair(attrs.get("stride"))[i],
                pair(attrs.get("dilation"))[i],
                attrs.get("pad_mode", "valid"),
                *attrs.get("pad", [0, 0, 0, 0])[2 * i : 2 * i + 2],
            )[2]
            for i in range(2)
        )
        more.append((dtype, (x[0], out, h, w)))
    return case(op, dtype, x, out, kernel, {**attrs, "activation": activation}, *more)


FUSED = ("FusedConv2D", "FusedConv2DBatchNorm")
CASES = (
    [case("Conv2D", t, *s) for t in TOLERANCE for s in SIZES]
    + [
        case(
            "Conv2D",
            "float32",
            (1, 2, 5, 6),
            3,
            (3, 3),
            {"pad_mode": "pad", "pad": [2], "stride": [2], "format": "NCHW"},
        )
    ]
    + [follow(op, t, *s, r, "none") for op in FUSED for t in TOLERANCE for s in SIZES[::2] for r in (False, True)]
    + [
        follow(op, t, *s, r, a)
        for op in FUSED
        for t in TOLERANCE
        for s in (SIZES[1], SIZES[8])
        for r in (False, True)
        for a in ACTIVATIONS
    ]
    + [follow("FusedConv2DBatchNorm", "float16", *SIZES[0], True, "relu6", "float32")]
    + [
        {
            **case("Conv2D", "float32", (1, c, 5, 40), 4, (3, 3), {"group": g}),
            "inputs": [("float32", (1, c, 5, 40), "special"), ("float32", (4, c // g, 3, 3), (0.5, 1.0))],
        }
        for c, g in ((2, 1), (4, 4))
    ]
)

F32, X, W = "float32", ("float32", (1, 4, 8, 8)), ("float32", (6, 4, 3, 3))


def refused(error, inputs=(X, W), op="Conv2D", **attrs):
    return {"op": op, "inputs": list(inputs), "attrs": {**attributes(6, (3, 3), {}), **attrs}, "error": error}


REFUSED = [
    refused(r"Conv2D: x must have 4 dimensions \(N, C, H, W\), got shape \(4, 8, 8\)", [(F32, (4, 8, 8)), W]),
    refused(r"Conv2D: weight must have 4 dimensions .*, got shape \(6, 4\)", [X, (F32, (6, 4))]),
    refused(r"x must have weight's 3 channels times group 1, got shape \(1, 4, 8, 8\)", [X, (F32, (6, 3, 3, 3))]),
    refused("weight's output channels must be a multiple of group 4, got 6", [X, (F32, (6, 1, 3, 3))], group=4),
    refused("pad_mode must be one of valid, same, pad, got 'full'", pad_mode="full"),
    refused(r"pad must be 0 where pad_mode is not 'pad', got \(1, 1, 1, 1\) with 'same'", pad_mode="same", pad=1),
    refused(r"pad must be 1 or 4 numbers that are not negative, got \(1, 2\)", pad_mode="pad", pad=[1, 2]),
    refused(r"stride must be 1, 2 or 4 positive numbers, .*, got \(0, 1\)", stride=[0, 1]),
    refused(r"stride must be 1, 2 or 4 positive numbers, .*, got \(2, 1, 1, 1\)", stride=[2, 1, 1, 1]),
    refused(r"kernel_size must be weight's \(3, 3\), got \(5, 3\)", kernel_size=[5, 3]),
    refused("out_channel must be weight's 6, got 7", out_channel=7),
    refused("mode must be 1, got 0", mode=0),
    refused("format must be NCHW, got 'NHWC'", format="NHWC"),
    refused("x's height with its padding must hold the window of 9, got 8", dilation=[4, 1]),
    refused("Conv2D: x.dtype must be one of float32, float16, bfloat16, got int32", [("int32", (1, 4, 8, 8)), W]),
    refused("weight.dtype must equal x.dtype float32, got float16", [X, ("float16", (6, 4, 3, 3))]),
    refused(r"FusedConv2D: bias.shape must be \(6,\), got \(5,\)", [X, W, (F32, (5,))], "FusedConv2D"),
    refused(
        "activation must be one of none, relu, relu6, got 'gelu'",
        [X, W, (F32, (6,))],
        "FusedConv2D",
        activation="gelu",
    ),
    refused(
        r"FusedConv2D: residual.shape must equal the convolution's \(1, 6, 6, 6\), got \(1, 6, 1, 6\)",
        [X, W, (F32, (6,)), (F32, (1, 6, 1, 6))],
        "FusedConv2D",
    ),
    refused(
        r"FusedConv2DBatchNorm: variance.shape must be \(6,\), got \(4,\)",
        [X, W, *[(F32, (6,))] * 3, (F32, (4,))],
        "FusedConv2DBatchNorm",
    ),
]
