"""Convolutions with what follows them, and pools."""

import numpy as np

from . import Row

U = 2.0**-24
KINDS = ("weight", "gamma", "beta", "mean", "variance")


def windows(x, kernel, stride, pad, fill=0.0, dilation=1):
    """The kernel * kernel views of x (N, C, H, W) that the windows see, by element."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    h, w = ((s - dilation * (kernel - 1) - 1) // stride + 1 for s in x.shape[2:])
    for k in range(kernel):
        for m in range(kernel):
            top, left = dilation * k, dilation * m
            yield k, m, x[:, :, top : top + (h - 1) * stride + 1 : stride, left : left + (w - 1) * stride + 1 : stride]


def convolve(x, weight, stride, pad, dilation=1):
    y = 0.0
    groups = x.shape[1] // weight.shape[1]
    for k, m, seen in windows(x, weight.shape[2], stride, pad, dilation=dilation):
        n, c, h, w = seen.shape
        if weight.shape[1] > 1 and groups > 1:
            parts = zip(np.split(weight[:, :, k, m], groups), np.split(seen.reshape(n, c, h * w), groups, 1))
            y = y + np.concatenate([np.matmul(a, b) for a, b in parts], 1).reshape(n, -1, h, w)
        elif groups > 1:  # depthwise
            y = y + seen * weight[:, 0, k, m].reshape(1, -1, 1, 1)
        else:
            y = y + np.matmul(weight[:, :, k, m], seen.reshape(n, c, h * w)).reshape(n, -1, h, w)
    return y


def channels(v):
    return v.reshape(1, -1, 1, 1)


def fused(x, weight, gamma, beta, mean, variance, stride, pad, relu, residual=0.0):
    scale = gamma / np.sqrt(variance + np.asarray(1e-5, x.dtype))
    y = convolve(x, weight, stride, pad) * channels(scale) + channels(beta - mean * scale) + residual
    return np.clip(y, 0, {"relu": np.inf, "relu6": 6.0}[relu])


def parameters(out, each, kernel):
    """He-initialised weights and statistics as after training."""

    def make(rng):
        sigma = np.sqrt(2 / (each * kernel * kernel))
        weight = (sigma * rng.standard_normal((out, each, kernel, kernel))).astype(np.float32)
        gamma, beta, mean = ((k + 0.2 * rng.standard_normal(out)).astype(np.float32) for k in (1, 0, 0))
        return [weight, gamma, beta, mean, rng.uniform(0.5, 2.0, out).astype(np.float32)]

    return make


def errors(terms):
    """K products of magnitudes of mean 0.64 sigma, sigma^2 = 2 / K, summed in any order: K 2^-24 of their sum, twice
    where the scale of BatchNorm is at its largest, 2."""
    return 2 * terms * U * np.sqrt(2 * terms)


def conv_bn(name, x, out, kernel, stride=1, relu="relu", group=1, residual=False, **more):
    """The row of Conv, BatchNorm, then ReLU or ReLU6; padded so that the size stays, or is halved."""
    pad, shape = kernel // 2, tuple(x)
    n, c, h, w = shape
    y, terms = (n, out, -(-h // stride), -(-w // stride)), c // group * kernel * kernel
    count = 2 if residual else 1

    def arrays(rng):
        return [rng.standard_normal(s, np.float32) for s in [shape, y][:count]]

    def split(given):
        """x, residual or None, and the five parameters."""
        return given[0], given[1] if residual else None, given[count:]

    def exact(*given):
        x, r, weights = split(given)
        return fused(x, *weights, stride, pad, relu, 0.0 if r is None else r)

    def with_torch(torch):
        f = torch.nn.functional

        def run(*given):
            x, r, (weight, gamma, beta, mean, variance) = split(given)
            y = f.batch_norm(f.conv2d(x, weight, None, stride, pad, 1, group), mean, variance, gamma, beta)
            y = y if r is None else y + r
            return f.relu(y) if relu == "relu" else f.relu6(y)

        return run

    def with_onnx(g, *given):
        x, r, (weight, *params) = split(given)
        y = g.node("Conv", x, weight, kernel_shape=[kernel] * 2, pads=[pad] * 4, strides=[stride] * 2, group=group)
        y = g.node("BatchNormalization", y, *params, epsilon=1e-5)
        y = y if r is None else g.node("Add", y, r)
        if relu == "relu":
            return g.node("Relu", y)
        return g.node("Clip", y, g.const(np.array(0.0)), g.const(np.array(6.0)))

    def with_mindspore(ms):
        conv = ms.ops.Conv2D(out, kernel, 1, "pad", pad, stride, 1, group)
        norm, six = ms.ops.BatchNorm(False, 1e-5), relu == "relu6"

        def plain(x, weight, gamma, beta, mean, variance):
            y = norm(conv(x, weight), gamma, beta, mean, variance)[0]
            return ms.ops.relu6(y) if six else ms.ops.relu(y)

        def added(x, r, weight, gamma, beta, mean, variance):
            y = norm(conv(x, weight), gamma, beta, mean, variance)[0] + r
            return ms.ops.relu6(y) if six else ms.ops.relu(y)

        return added if residual else plain

    attrs = {"out_channel": out, "kernel_size": [kernel] * 2, "pad_mode": "pad", "pad": [pad] * 4,
             "stride": [1, 1, stride, stride], "group": group, "epsilon": 1e-5, "activation": relu}  # fmt: skip

    def with_opgraft(og):
        def run(x, r, *weights):
            return og.ops.primitive("FusedConv2DBatchNorm", x, *weights, r, **attrs)

        return run

    return Row(
        name, "" if residual else "FusedConv2DBatchNorm", arrays, exact, rtol=8 * U, atol=errors(terms),
        weights=parameters(out, c // group, kernel), attrs={} if residual else attrs,
        flops=2.0 * np.prod(y) * terms, numpy=exact, torch=with_torch, onnx=with_onnx, mindspore=with_mindspore,
        opgraft=with_opgraft if residual else None, **more,
    )  # fmt: skip


def unfused(og):
    """The same three operators one after another, as a network runs before it is grafted."""

    def run(x, weight, gamma, beta, mean, variance):
        y = og.ops.primitive("Conv2D", x, weight, out_channel=64, kernel_size=[1, 1])
        y = og.ops.primitive("BatchNorm", y, gamma, beta, mean, variance, epsilon=1e-5)[0]
        return og.ops.relu(y)

    return run


def stem(dtype="float32", **more):
    def with_torch(torch):
        return lambda x, w: torch.nn.functional.conv2d(x, w, None, 2, 3)

    def with_mindspore(ms):
        conv = ms.ops.Conv2D(64, 7, 1, "pad", 3, 2)

        def f(x, weight):
            return conv(x, weight)

        return f

    return Row(
        "Conv2D 7x7 s2 1x3x224x224" + (" bf16" if dtype == "bfloat16" else ""), "Conv2D",
        lambda rng: [rng.standard_normal((1, 3, 224, 224), np.float32)],
        lambda x, w: convolve(x, w, 2, 3), dtype=dtype,
        rtol=8 * U + (2.0**-8 if dtype == "bfloat16" else 0), atol=errors(147),
        weights=lambda rng: parameters(64, 3, 7)(rng)[:1],
        attrs={"out_channel": 64, "kernel_size": [7, 7], "pad_mode": "pad", "pad": [3] * 4, "stride": [1, 1, 2, 2]},
        flops=2.0 * 64 * 112 * 112 * 147, target=1.0,
        numpy=(lambda x, w: convolve(x, w, 2, 3)) if dtype == "float32" else None, torch=with_torch,
        onnx=lambda g, x, w: g.node("Conv", x, w, kernel_shape=[7, 7], pads=[3] * 4, strides=[2, 2]),
        mindspore=with_mindspore if dtype == "float32" else None, **more,
    )  # fmt: skip


def plain(name, group=1, dilation=1, last=False, dtype="float32"):
    """A 3 x 3 convolution of 64 channels to 64 that keeps the size; last: of NHWC."""
    shape, pad = ((1, 56, 56, 64) if last else (1, 64, 56, 56)), dilation
    half = dtype != "float32"
    terms = 64 // group * 9

    def turned(f):
        return lambda x, w: f(x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)

    def exact(x, w):
        return convolve(x, w, 1, pad, dilation)

    def with_torch(torch):
        def run(x, w):
            return torch.nn.functional.conv2d(x, w, None, 1, pad, dilation, group)

        def run_last(x, w):  # views, in torch's memory format channels_last
            return run(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

        return run_last if last else run

    def with_onnx(g, x, w):
        if last:
            x, w = (g.node("Transpose", v, perm=[0, 3, 1, 2]) for v in (x, w))
        y = g.node("Conv", x, w, kernel_shape=[3, 3], pads=[pad] * 4, dilations=[dilation] * 2, group=group)
        return g.node("Transpose", y, perm=[0, 2, 3, 1]) if last else y

    def with_mindspore(ms):
        conv = ms.ops.Conv2D(64, 3, 1, "pad", pad, 1, dilation, group)

        def f(x, weight):
            return conv(x, weight)

        return f

    def weights(rng):
        w = parameters(64, 64 // group, 3)(rng)[0]
        return [w.transpose(0, 2, 3, 1) if last else w]

    return Row(
        f"Conv2D 3x3 {'x'.join(map(str, shape))} {name}", "Conv2D", image(*shape), turned(exact) if last else exact,
        dtype=dtype, rtol=8 * U + (2.0**-8 if half else 0), atol=errors(terms), weights=weights,
        attrs={"out_channel": 64, "kernel_size": [3, 3], "pad_mode": "pad", "pad": [pad] * 4,
               "dilation": [1, 1, dilation, dilation], "group": group, "format": "NHWC" if last else "NCHW"},
        flops=2.0 * 64 * 56 * 56 * terms, target=1.0,
        numpy=None if half else turned(exact) if last else exact,
        torch=with_torch, onnx=with_onnx, mindspore=None if last or half else with_mindspore,
        missing={"mindspore": "its CPU refuses NHWC"} if last and not half else {},
    )  # fmt: skip


def mean_of_nine(x):
    return sum(seen for _, _, seen in windows(x, 3, 1, 1)) / np.asarray(9.0, x.dtype)


def mindspore_avg_pool(ms):
    pool = ms.nn.AvgPool2d(3, 1, "pad", 1)

    def f(x):
        return pool(x)

    return f


def normalised(x, gamma, beta, mean, variance):
    scale = gamma / np.sqrt(variance + np.asarray(1e-5, x.dtype))
    return x * channels(scale) + channels(beta - mean * scale)


def torch_batch_norm(torch):
    return lambda x, gamma, beta, mean, var: torch.nn.functional.batch_norm(x, mean, var, gamma, beta)


def mindspore_batch_norm(ms):
    norm = ms.ops.BatchNorm(False, 1e-5)

    def f(x, gamma, beta, mean, variance):
        return norm(x, gamma, beta, mean, variance)[0]

    return f


def batch_norm(og):
    return lambda *given: og.ops.primitive("BatchNorm", *given, epsilon=1e-5)[0]


def largest(x):
    """3 x 3 windows, two apart, those at the lower and right edge cut off: what "same" is for an even size."""
    y = None
    x = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=-np.inf)
    for _, _, seen in windows(x, 3, 2, 0):
        y = seen if y is None else np.maximum(y, seen)
    return y


def mindspore_max_pool(ms):
    pool = ms.ops.MaxPool(3, 2, "same")

    def f(x):
        return pool(x)

    return f


def padded_largest(x):
    y = None
    for _, _, seen in windows(x, 3, 2, 1, -np.inf):
        y = seen if y is None else np.maximum(y, seen)
    return y


def mindspore_padded(ms):
    pool = ms.nn.MaxPool2d(3, 2, "pad", 1)

    def f(x):
        return pool(x)

    return f


def mindspore_mean(ms):
    def f(x):
        return ms.ops.mean(x, (2, 3), True)

    return f


def image(*shape):
    return lambda rng: [rng.standard_normal(shape, np.float32)]


MAPS = (56, 56)
BASE = "Conv+BN+ReLU"
UNFUSED = "Conv, BN, ReLU 1x1 32x64x56x56 unfused"
AGAINST = {"against": UNFUSED, "target_against": 1 - 0.394}  # at 1 x 1 the passes that follow count
ROWS = [
    stem(twin=3.2, quick=True),
    stem("bfloat16"),
    *(
        conv_bn(
            f"{BASE} {k}x{k} {n}x64x56x56", (n, 64, *MAPS), 64, k, target=1.0, quick=(n, k) == (1, 3),
            **(AGAINST if (n, k) == (32, 1) else {}),
        )
        for k in (3, 1)
        for n in (1, 8, 32)
    ),
    Row(
        UNFUSED, "", image(32, 64, *MAPS),
        lambda x, *w: fused(x, *w, 1, 0, "relu"), rtol=8 * U, atol=errors(64), weights=parameters(64, 64, 1),
        flops=2.0 * 32 * 64 * 56 * 56 * 64, opgraft=unfused,
    ),
    conv_bn(f"{BASE} 3x3 1x64x56x56 residual", (1, 64, *MAPS), 64, 3, residual=True, target=1.0),
    conv_bn(f"{BASE} 1x1 1x2048x7x7 to 512", (1, 2048, 7, 7), 512, 1, target=1.0),
    conv_bn(f"{BASE} 3x3 1x512x7x7", (1, 512, 7, 7), 512, 3, target=1.0),
    conv_bn("Depthwise+BN+ReLU6 3x3 1x96x56x56", (1, 96, *MAPS), 96, 3, relu="relu6", group=96, target=1.0),
    conv_bn("Depthwise+BN+ReLU6 3x3 s2 1x96x112x112", (1, 96, 112, 112), 96, 3, 2, "relu6", 96, target=1.0),
    conv_bn("MobileNet 1x1 1x16x112x112 to 96", (1, 16, 112, 112), 96, 1, relu="relu6", target=1.0),
    conv_bn("MobileNet 1x1 1x144x28x28 to 32", (1, 144, 28, 28), 32, 1, relu="relu6", target=1.0),
    conv_bn("MobileNet 1x1 1x320x7x7 to 1280", (1, 320, 7, 7), 1280, 1, relu="relu6", target=1.0),
    plain("in 4 groups", group=4),
    plain("dilated by 2", dilation=2),
    plain("NHWC", last=True),
    plain("bf16", dtype="bfloat16"),
    plain("NHWC bf16", last=True, dtype="bfloat16"),
    Row(
        # A product and a sum, each of numbers up to 30.
        "BatchNorm 8x64x56x56", "", image(8, 64, *MAPS), normalised, rtol=8 * U, atol=8 * 30 * U,
        weights=lambda rng: parameters(64, 1, 1)(rng)[1:], opgraft=batch_norm, flops=2.0 * 8 * 64 * 56 * 56,
        target=1.0, numpy=normalised, torch=torch_batch_norm, mindspore=mindspore_batch_norm,
        onnx=lambda g, *given: g.node("BatchNormalization", *given, epsilon=1e-5),
    ),
    Row(
        "ReLU6 8x96x56x56", "ReLU6", image(8, 96, *MAPS), lambda x: np.clip(x, 0, 6), rtol=0.0, atol=0.0,
        flops=2.0 * 8 * 96 * 56 * 56, target=1.0, numpy=lambda x: np.clip(x, 0, 6),
        torch=lambda torch: torch.nn.functional.relu6, mindspore=lambda ms: ms.ops.relu6,
        onnx=lambda g, x: g.node("Clip", x, g.const(np.array(0.0)), g.const(np.array(6.0))),
    ),
    Row(
        # A sum of 9 terms up to 5, and a quotient.
        "AvgPool 3x3 s1 pad 1 1x64x56x56", "", image(1, 64, *MAPS), mean_of_nine, rtol=U, atol=9 * 5 * U,
        flops=9.0 * 64 * 56 * 56, target=1.0, cell=lambda og: og.nn.AvgPool2d(3, 1, "pad", 1), numpy=mean_of_nine,
        torch=lambda torch: lambda x: torch.nn.functional.avg_pool2d(x, 3, 1, 1),
        onnx=lambda g, x: g.node("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
        mindspore=mindspore_avg_pool, note="the padding counts",
    ),
    Row(
        "MaxPool 3x3 s2 1x64x112x112", "MaxPool", image(1, 64, 112, 112), largest, rtol=0.0, atol=0.0,
        attrs={"kernel_size": [1, 1, 3, 3], "strides": [1, 1, 2, 2], "pad_mode": "SAME"},
        flops=9.0 * 64 * 56 * 56, target=1.0, numpy=largest,
        torch=lambda torch: lambda x: torch.nn.functional.max_pool2d(x, 3, 2, ceil_mode=True),
        onnx=lambda g, x: g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        mindspore=mindspore_max_pool,
    ),
    Row(
        "MaxPool 3x3 s2 pad 1 1x64x112x112", "PaddedMaxPool", image(1, 64, 112, 112), padded_largest,
        rtol=0.0, atol=0.0, attrs={"ksize": [1, 3, 3], "strides": [1, 2, 2], "pads": [0, 1, 1]},
        flops=9.0 * 64 * 56 * 56, target=1.0, numpy=padded_largest,
        torch=lambda torch: lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
        onnx=lambda g, x: g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        mindspore=mindspore_padded, note="as ResNet has it; what a padded MaxPool2d is grafted to",
    ),
    Row(
        "GlobalAvgPool 1x2048x7x7", "ReduceMean", image(1, 2048, 7, 7), lambda x: x.mean((2, 3), keepdims=True),
        # A sum of 49 terms and a quotient.
        rtol=U, atol=50 * U, attrs={"axis": [2, 3], "keep_dims": True},
        flops=2048.0 * 49, target=1.0, numpy=lambda x: x.mean((2, 3), keepdims=True),
        torch=lambda torch: lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 1),
        onnx=lambda g, x: g.node("GlobalAveragePool", x), mindspore=mindspore_mean,
    ),
]  # fmt: skip
