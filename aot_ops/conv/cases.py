"""Cases of Conv2D and what takes in what follows it; the format is that of swiglu/cases.py."""

import numpy as np


def pair(v, default=1, format="NCHW"):  # noqa: A002
    v = [default] if v is None else [v] if isinstance(v, int) else list(v)
    if len(v) == 4:
        v = v[1:3] if format == "NHWC" else v[2:]
    return v if len(v) > 1 else v * 2


def padding(size, kernel, stride, dilation, pad_mode, before, after):
    """Padding before and behind, and the number of windows."""
    span = (kernel - 1) * dilation + 1
    if pad_mode == "same":
        total = max(0, (-(-size // stride) - 1) * stride + span - size)
        before, after = total // 2, total - total // 2
    return before, after, (size + before + after - span) // stride + 1


def conv2d(x, weight, pad_mode="valid", pad=0, stride=None, dilation=None, group=1, format="NCHW", **_):  # noqa: A002
    if format == "NHWC":
        x, weight = (np.moveaxis(a, -1, 1) for a in (x, weight))
        stride, dilation = (pair(v, format=format) for v in (stride, dilation))
        return np.moveaxis(conv2d(x, weight, pad_mode, pad, stride, dilation, group), 1, -1)
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


def given(v, none):
    """One number a channel; without elements, `none`."""
    return v.reshape(-1) if v.size else none


def channels(v, format="NCHW", **_):  # noqa: A002
    return v.reshape(-1, 1, 1) if format == "NCHW" else v.reshape(-1)


NONE = np.zeros(0)


def scaled(x, weight, scale, shift=NONE, residual=0.0, activation="none", **attrs):
    shift = channels(given(shift, np.zeros(scale.size)), **attrs)
    return ACTIVATIONS[activation](conv2d(x, weight, **attrs) * channels(scale, **attrs) + shift + residual)


def fused(x, weight, bias=NONE, *more, **attrs):
    return scaled(x, weight, np.ones(weight.shape[0]), bias, *more, **attrs)


SPREAD = {"variance": lambda v, eps: 1 / np.sqrt(v + eps), "deviation": lambda v, _: 1 / v, "inverse": lambda v, _: v}


def of_statistics(gamma, beta, mean, variance, epsilon=1e-5, spread="variance", **_):
    """The scale and the shift that BatchNorm comes to."""
    scale = given(gamma, 1.0) * SPREAD[spread](variance.reshape(-1), epsilon)
    return scale, given(beta, 0.0) - given(mean, 0.0) * scale


def normalised(x, weight, gamma, beta, mean, variance, *more, **attrs):
    return scaled(x, weight, *of_statistics(gamma, beta, mean, variance, **attrs), *more, **attrs)


def biased_normalised(x, weight, bias, gamma, beta, mean, variance, *more, **attrs):
    return normalised(x, weight, gamma, beta, given(mean, 0.0) - bias.reshape(-1), variance, *more, **attrs)


def bound(u, x, weight, **attrs):
    """Of the sum of kH kW C / group products, as matmul/cases.py derives it."""
    return 8 * 2.0**-24 * np.sqrt(weight[0].size * conv2d(x**2, weight**2, **attrs) / 6)


def scaled_bound(u, x, weight, scale, shift=NONE, residual=0.0, activation="none", **attrs):
    """The scale multiplies the sum's error and is rounded itself, as the shift is; then the sums round. ReLU and ReLU6
    enlarge nothing."""
    product = conv2d(x, weight, **attrs) * channels(scale, **attrs)
    shift = channels(given(shift, np.zeros(scale.size)), **attrs)
    rounded = np.abs(product) + np.abs(shift) + np.abs(product + shift) + np.abs(product + shift + residual)
    return bound(u, x, weight, **attrs) * np.abs(channels(scale, **attrs)) + 2.0**-24 * rounded


def fused_bound(u, x, weight, bias=NONE, *more, **attrs):
    return scaled_bound(u, x, weight, np.ones(weight.shape[0]), bias, *more, **attrs)


def normalised_bound(u, x, weight, gamma, beta, mean, variance, *more, **attrs):
    return scaled_bound(u, x, weight, *of_statistics(gamma, beta, mean, variance, **attrs), *more, **attrs)


def biased_bound(u, x, weight, bias, gamma, beta, mean, variance, *more, **attrs):
    return normalised_bound(u, x, weight, gamma, beta, given(mean, 0.0) - bias.reshape(-1), variance, *more, **attrs)


REFERENCE = {
    "Conv2D": conv2d,
    "FusedConv2D": fused,
    "FusedConv2DScale": scaled,
    "FusedConv2DBatchNorm": normalised,
    "FusedConv2DBiasBatchNorm": biased_normalised,
}
BOUND = {
    "Conv2D": bound,
    "FusedConv2D": fused_bound,
    "FusedConv2DScale": scaled_bound,
    "FusedConv2DBatchNorm": normalised_bound,
    "FusedConv2DBiasBatchNorm": biased_bound,
}
# Two roundings at the end, by the kernel and by the twin; float16's smallest step.
TOLERANCE = {"float32": 2.02 * 2.0**-24, "float16": 2.02 * 2.0**-11, "bfloat16": 2.02 * 2.0**-8}
SMALLEST = 2.0**-24

FAR = {"pad_mode": "pad", "pad": [0, 0, 10000, 10000], "dilation": [20, 20000], "stride": [1, 20000], "group": 2}
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
    ((1, 2, 50, 5), 2, (3, 2), FAR),
    ((0, 3, 8, 8), 4, (3, 3), {"pad_mode": "same"}),
    ((0, 3, 8, 8), 3, (3, 3), {"pad_mode": "same", "group": 3}),
    ((1, 1, 3, 3), 1, (3, 3), {}),
    ((1, 256, 4, 4), 20, (2, 2), {}),  # K = 1024: the weights are copied
    ((1, 300, 3, 5), 60, (3, 3), {"pad_mode": "same"}),
    ((1, 2, 1, 1), 3, (5, 5), {"pad_mode": "same"}),
]


def attributes(out, kernel, attrs):
    return {"out_channel": out, "kernel_size": list(kernel), **attrs}


def case(op, dtype, x, out, kernel, attrs, *more, residual=False):
    """x: N, C, H, W, whatever the format. All but x and the residual also come as constants, packed and folded."""
    weight = (out, x[1] // attrs.get("group", 1), *kernel)
    if attrs.get("format") == "NHWC":
        x, weight = ((s[0], *s[2:], s[1]) for s in (x, weight))
    return {
        "op": op,
        "inputs": [(dtype, x), (dtype, weight), *more],
        "constant": range(1, 2 + len(more) - residual),
        "attrs": attributes(out, kernel, attrs),
        "rtol": TOLERANCE[dtype],
        "atol": SMALLEST,
    }


PARAMETERS = {"FusedConv2D": 1, "FusedConv2DScale": 2, "FusedConv2DBatchNorm": 4, "FusedConv2DBiasBatchNorm": 5}


def follow(op, dtype, x, out, kernel, attrs, residual, activation, params=None, shape=None):
    """One of the fused operators: its parameters by channel, then the residual. shape: of bias, scale and shift."""
    norm = 4 if "BatchNorm" in op else 0
    more = [(dtype, shape or (out,))] * (PARAMETERS[op] - norm)
    if norm:
        more += [(params or dtype, (out,))] * 3 + [(params or dtype, (out,), (0.25, 2.0))]
        attrs = {**attrs, "epsilon": 1e-3}
    if residual:
        h, w = (
            padding(
                x[2 + i],
                kernel[i],
                pair(attrs.get("stride"), format=attrs.get("format"))[i],
                pair(attrs.get("dilation"), format=attrs.get("format"))[i],
                attrs.get("pad_mode", "valid"),
                *attrs.get("pad", [0, 0, 0, 0])[2 * i : 2 * i + 2],
            )[2]
            for i in range(2)
        )
        more.append((dtype, (x[0], h, w, out) if attrs.get("format") == "NHWC" else (x[0], out, h, w)))
    return case(op, dtype, x, out, kernel, {**attrs, "activation": activation}, *more, residual=residual)


def without(made, *absent, shape=None, **attrs):
    """Parameters by number left out: no elements. shape: of the others."""
    inputs = [(t, (0,) if i in absent else shape if shape and len(s) == 1 else s, *more)
              for i, (t, s, *more) in enumerate(made["inputs"])]  # fmt: skip
    return {**made, "inputs": inputs, "attrs": {**made["attrs"], **attrs}}


def nhwc(x, out, kernel, attrs):
    """The same with channels last; an attribute of four numbers has those of N and C at its ends."""
    attrs = {k: [1, *v[2:], 1] if k in ("stride", "dilation") and len(v) == 4 else v for k, v in attrs.items()}
    return x, out, kernel, {**attrs, "format": "NHWC"}


F32, FUSED = "float32", tuple(PARAMETERS)
# Two columns of x to one of y: nothing, one or more columns of padding, rows shorter than a vector, of one element.
SIZES += [
    ((1, c, *size), c, (3, 3), {"pad_mode": "pad", "pad": [1, 1, *pad], "stride": [1, 1, 2, 2], "group": g})
    for c, g in ((3, 3), (4, 2))
    for size, pad in (((11, 34), (1, 1)), ((8, 67), (2, 1)), ((9, 1), (1, 1)), ((3, 5), (9, 7)), ((4, 66), (0, 0)))
]
# No rows or columns but padding.
SIZES += [
    ((1, 4, *size), 4, (3, 3), {"pad_mode": "pad", "pad": [2, 2, 2, 2], "stride": [s, s], "group": g})
    for size in ((0, 5), (5, 0))
    for s in (1, 2)
    for g in (1, 4)
]
# Tiles with pixels in lanes and channels in lanes, several bands and parts; rows that end within a vector.
SIZES += [
    ((1, 24, 30, 41), 40, (3, 3), {"pad_mode": "same"}),
    ((3, 64, 7, 7), 70, (3, 3), {"pad_mode": "same"}),
    ((1, 512, 7, 7), 96, (1, 1), {}),
    ((2, 33, 28, 28), 50, (1, 1), {}),
    ((1, 8, 32, 32), 100, (1, 1), {}),
    ((2, 4, 6, 8), 3, (1, 1), {}),  # few output channels: four vectors to a tile, or three of them
    ((1, 4, 3, 8), 3, (1, 1), {}),
    ((1, 4, 3, 4), 2, (1, 1), {}),
    ((1, 40, 32, 32), 17, (1, 1), {}),  # channels 4 KiB apart
    ((1, 12, 14, 14), 33, (5, 5), {"pad_mode": "same", "stride": [1, 1, 2, 2], "group": 3}),
    # One row of x's channels, or columns of one block of pixels, is more than a thread has room for.
    ((1, 168, 17, 63), 8, (5, 5), {"pad_mode": "same", "dilation": [1, 1, 2, 2]}),
]
# Winograd's tiles, where the weights are constant: odd sizes, in groups, rows cut into strips, one pixel, none but
# padding; panels of output channels that are not full.
SIZES += [
    ((2, 64, 9, 13), 40, (3, 3), {"pad_mode": "same"}),
    ((1, 128, 6, 5), 96, (3, 3), {"pad_mode": "pad", "pad": [2, 1, 0, 3], "group": 2}),
    ((1, 32, 3, 230), 67, (3, 3), {"pad_mode": "same"}),
    ((2, 100, 3, 3), 32, (3, 3), {}),
    ((1, 64, 0, 2), 32, (3, 3), {"pad_mode": "pad", "pad": [2, 2, 2, 2]}),
    ((1, 40, 40, 40), 56, (3, 3), {"pad_mode": "same"}),
]
# And with a dilation, phase by phase: of different sizes, one pixel or none of them; in one direction alone; rows cut
# into strips; farther apart than Winograd's tiles take.
SIZES += [
    ((2, 64, 9, 13), 40, (3, 3), {"pad_mode": "same", "dilation": [1, 1, 2, 2]}),
    ((1, 128, 11, 8), 96, (3, 3), {"pad_mode": "pad", "pad": [2, 1, 0, 3], "dilation": [1, 1, 3, 2], "group": 2}),
    ((1, 33, 12, 17), 66, (3, 3), {"pad_mode": "same", "dilation": [1, 1, 1, 3]}),
    ((1, 64, 17, 6), 32, (3, 3), {"pad_mode": "same", "dilation": [1, 1, 5, 1]}),
    ((1, 32, 5, 470), 67, (3, 3), {"pad_mode": "same", "dilation": [1, 1, 2, 3]}),
    ((1, 64, 5, 96), 33, (3, 3), {"pad_mode": "same", "dilation": [1, 1, 1, 3]}),
    ((1, 64, 18, 19), 33, (3, 3), {"dilation": [1, 1, 8, 8]}),
    ((1, 64, 20, 21), 33, (3, 3), {"pad_mode": "same", "dilation": [1, 1, 9, 4]}),
    ((1, 64, 0, 2), 32, (3, 3), {"pad_mode": "pad", "pad": [3, 3, 3, 4], "dilation": [1, 1, 2, 3]}),
]
# Products of pixels' rows: 1 x 1 and larger windows with a stride, which need not touch; in groups.
SIZES += [
    ((2, 300, 13, 11), 140, (1, 1), {}),
    ((1, 264, 7, 6), 264, (1, 1), {"stride": [1, 1, 2, 2]}),
    ((2, 40, 9, 11), 264, (3, 3), {"pad_mode": "same", "stride": [1, 1, 2, 2]}),
    ((1, 64, 7, 9), 520, (3, 3), {"pad_mode": "pad", "pad": [2, 0, 1, 3], "stride": [1, 1, 2, 3], "group": 2}),
    ((1, 3, 32, 48), 264, (16, 16), {"stride": [1, 1, 16, 16]}),
]
# Few output channels to a group: vectors of pixels that run across the ends of lines, several of them in narrow ones,
# and padding between two lines that is wider than a vector.
SIZES += [
    ((1, 32, 30, 41), 32, (3, 3), {"pad_mode": "same", "group": 2}),
    ((2, 8, 19, 5), 4, (3, 3), {"pad_mode": "same"}),
    ((1, 16, 40, 23), 8, (1, 19), {"pad_mode": "pad", "pad": [0, 0, 20, 20]}),
    ((1, 24, 25, 31), 12, (5, 5), {"pad_mode": "same", "dilation": [1, 1, 2, 2], "group": 3}),
]
CASES = (
    [case("Conv2D", t, *s) for t in TOLERANCE for s in SIZES]
    + [case("Conv2D", t, *nhwc(*s)) for t in TOLERANCE for s in SIZES]
    + [follow("FusedConv2D", "float32", *nhwc(*s), True, "relu6") for s in SIZES]
    + [follow("FusedConv2DScale", "float32", *SIZES[1], False, "relu", shape=s) for s in ((1, 24, 1, 1), (24, 1, 1))]
    + [follow("FusedConv2DScale", F32, *nhwc(*SIZES[1]), False, "relu", shape=s) for s in ((1, 1, 1, 24), (1, 1, 24))]
    + [
        follow(op, t, *nhwc(*SIZES[k]), k == 6, ("relu", "relu6")[k == 8])
        for op in FUSED
        for t in TOLERANCE
        for k in (1, 6, 8)  # "same", in groups, depthwise
    ]
    + [case("Conv2D", F32, (1, 2, 5, 6), 3, (3, 3), {"pad_mode": "pad", "pad": [2], "stride": [2], "format": "NCHW"})]
    + [follow(op, t, *s, r, "none") for op in FUSED for t in TOLERANCE for s in SIZES[::2] for r in (False, True)]
    + [
        follow(op, t, *s, r, a)
        for op in FUSED
        for t in TOLERANCE
        for s in (SIZES[1], SIZES[2], SIZES[8])  # 3 x 3, 1 x 1, depthwise
        for r in (False, True)
        for a in ACTIVATIONS
    ]
    + [  # without a bias
        {**(made := follow("FusedConv2D", t, *s, False, a)), "inputs": made["inputs"][:2], "constant": range(1, 2)}
        for t in TOLERANCE
        for s in (SIZES[1], SIZES[2], SIZES[8], nhwc(*SIZES[1]), SIZES[3])
        for a in ACTIVATIONS
    ]
    + [  # a residual alone
        follow("FusedConv2D", t, *s, True, a, shape=(0,))
        for t in TOLERANCE
        for s in (SIZES[1], SIZES[2], SIZES[8], nhwc(*SIZES[1]), SIZES[3])
        for a in ACTIVATIONS
    ]
    + [follow("FusedConv2DBatchNorm", "float16", *SIZES[0], True, "relu6", "float32")]
    + [  # no shift, at the end or before a residual
        {**(made := follow("FusedConv2DScale", t, *s, False, "relu")), "inputs": made["inputs"][:3], "constant": [1, 2]}
        for t in TOLERANCE
        for s in (SIZES[1], nhwc(*SIZES[1]))
    ]
    + [without(follow("FusedConv2DScale", t, *SIZES[1], True, "relu"), 3) for t in TOLERANCE]
    + [
        without(follow(op, t, *SIZES[1], r, "relu"), *absent, spread=spread)
        for op, first in (("FusedConv2DBatchNorm", 2), ("FusedConv2DBiasBatchNorm", 3))
        for absent in ((first,), (first + 1,), (first + 2,), range(first, first + 3))
        for t, r, spread in (("float32", 1, "inverse"), ("float16", 0, "deviation"), ("float32", 1, "variance"))
    ]
    + [without(follow("FusedConv2DBatchNorm", "float32", *SIZES[1], True, "none"), shape=(1, 24, 1, 1))]
    + [without(follow("FusedConv2DBiasBatchNorm", "float32", *nhwc(*SIZES[1]), True, "none"), 4, shape=(1, 1, 24))]
    + [
        {
            **case("Conv2D", "float32", (1, c, 5, 40), 4, (3, 3), {"group": g}),
            "inputs": [("float32", (1, c, 5, 40), "special"), ("float32", (4, c // g, 3, 3), (0.5, 1.0))],
        }
        for c, g in ((2, 1), (4, 4))
    ]
    + [  # NaN and infinity: the first stays one under either activation, the other is cut.
        {
            **(made := follow("FusedConv2D", "float32", (1, c, 5, 40), 4, (3, 3), {"group": g}, False, a)),
            "inputs": [(F32, (1, c, 5, 40), "special"), (F32, (4, c // g, 3, 3), (0.5, 1.0)), *made["inputs"][2:]],
        }
        for c, g in ((2, 1), (4, 4))
        for a in ("relu", "relu6")
    ]
)

X, W = (F32, (1, 4, 8, 8)), (F32, (6, 4, 3, 3))


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
    refused("format must be NCHW or NHWC, got 'NCDHW'", format="NCDHW"),
    refused(r"kernel_size must be weight's \(4, 3\), got \(3, 3\)", format="NHWC"),
    refused(r"stride must be .* the first and the last of 4 being 1, got \(1, 1, 2, 2\)", format="NHWC",
            stride=[1, 1, 2, 2]),
    refused(r"x must have 4 dimensions \(N, H, W, C\), got shape \(4, 8, 8\)", [(F32, (4, 8, 8)), W], format="NHWC"),
    refused(r"FusedConv2DScale: scale.shape must be \(6,\), got \(1, 1, 6, 1\)",
            [X, W, (F32, (1, 1, 6, 1)), (F32, (6,))], "FusedConv2DScale"),
    refused(r"FusedConv2D: bias.shape must be \(6,\), got \(1, 6, 1, 1\)",
            [("float32", (1, 8, 8, 4)), ("float32", (6, 3, 3, 4)), (F32, (1, 6, 1, 1))], "FusedConv2D", format="NHWC"),
    refused("FusedConv2DBiasBatchNorm: variance.dtype must equal gamma.dtype float32, got float16",
            [X, W, *[(F32, (6,))] * 4, ("float16", (6,))], "FusedConv2DBiasBatchNorm"),
    refused("x's height with its padding must hold the window of 9, got 8", dilation=[4, 1]),
    refused("Conv2D: x.dtype must be one of float32, float16, bfloat16, got int32", [("int32", (1, 4, 8, 8)), W]),
    refused("weight.dtype must equal x.dtype float32, got float16", [X, ("float16", (6, 4, 3, 3))]),
    refused(r"FusedConv2D: bias.shape must be \(6,\), got \(5,\)", [X, W, (F32, (5,))], "FusedConv2D"),
    refused(r"FusedConv2D: bias.shape must be \(6,\), got \(0,\)", [X, W, (F32, (0,))], "FusedConv2D"),
    refused(r"FusedConv2DBatchNorm: variance.shape must be \(6,\), got \(0,\)",
            [X, W, *[(F32, (0,))] * 4], "FusedConv2DBatchNorm"),
    refused("FusedConv2DBatchNorm: .* 6 .*, got 5", [X, W, *[(F32, (6,))] * 3], "FusedConv2DBatchNorm"),
    refused("got 'root'", [X, W, *[(F32, (6,))] * 4], "FusedConv2DBatchNorm", spread="root"),
    refused("activation must be one of none, relu, relu6, got 'gelu'",
            [X, W, (F32, (6,))], "FusedConv2D", activation="gelu"),
    refused(r"FusedConv2D: residual.shape must equal the convolution's \(1, 6, 6, 6\), got \(1, 6, 1, 6\)",
            [X, W, (F32, (6,)), (F32, (1, 6, 1, 6))], "FusedConv2D"),
    refused(r"FusedConv2DBatchNorm: variance.shape must be \(6,\), got \(4,\)",
            [X, W, *[(F32, (6,))] * 3, (F32, (4,))], "FusedConv2DBatchNorm"),
]  # fmt: skip
