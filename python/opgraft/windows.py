"""Primitives over the height and width of tensors: convolution, normalisation by channel, pools, Flatten."""

from .dtype import int32, int64, to_dtype
from .primitive import primitive
from .primitive import tensor as _tensor

ONES = (1, 1)
FORMATS = ("NCHW", "NHWC")


def _is_int(value):
    return isinstance(value, int) and not isinstance(value, bool)


def positive(name, argument, value):
    if not _is_int(value):
        raise TypeError(f"{name}: {argument} must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name}: {argument} must be positive, got {value}")
    return value


def numbers(name, argument, value, count, least):
    """One number for all, or a tuple of `count` of them, as a tuple of `count`."""
    items = (value,) * count if _is_int(value) else value
    if not isinstance(items, (tuple, list)) or not all(map(_is_int, items)):
        raise TypeError(f"{name}: {argument} must be an int or a tuple of ints, got {value!r}")
    items = tuple(items) * (count if len(items) == 1 else 1)
    if len(items) != count or min(items) < least:
        what = "positive" if least else "not negative"
        raise ValueError(f"{name}: {argument} must be {what}, an int or a tuple of {count}, got {value!r}")
    return items


def pair(name, argument, value):
    """A number for height and width, or a tuple whose last two they are, the first two of four being 1."""
    if isinstance(value, (tuple, list)) and len(value) == 4 and tuple(value[:2]) == ONES:
        value = tuple(value[2:])
    return numbers(name, argument, value, 2, 1)


def flag(name, argument, value):
    if not isinstance(value, bool):
        raise TypeError(f"{name}: {argument} must be a bool, got {type(value).__name__}")
    return value


def choice(name, argument, value, allowed):
    if not isinstance(value, str):
        raise TypeError(f"{name}: {argument} must be a str, got {type(value).__name__}")
    if value not in allowed:
        raise ValueError(f"{name}: {argument} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def padding(name, argument, pad_mode, pad):
    """`pad` as (top, bottom, left, right); only pad_mode 'pad' may have one."""
    items = (pad,) * 4 if _is_int(pad) else pad
    if not isinstance(items, tuple) or not all(map(_is_int, items)):
        raise TypeError(f"{name}: {argument} must be an int or a tuple of ints, got {pad!r}")
    if len(items) != 4 or min(items) < 0:
        raise ValueError(f"{name}: {argument} must be an int or a tuple of 4, none negative, got {pad!r}")
    if choice(name, "pad_mode", pad_mode, ("valid", "same", "pad")) != "pad" and any(items):
        raise ValueError(f"{name}: {argument} must be 0 where pad_mode is not 'pad', got {pad!r} with {pad_mode!r}")
    return items


class _Primitive:
    """Attributes to the constructor, tensors to the call, as MindSpore's primitives take them."""

    attrs: dict

    def _run(self, **tensors):
        name = type(self).__name__
        return primitive(name, *[_tensor(t, f"{name}: {key}") for key, t in tensors.items()], **self.attrs)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.attrs.items())})"


class Conv2D(_Primitive):
    """Convolution of x (N, C, H, W) with weight (out_channel, C / group, kH, kW); pad: top, bottom, left, right.

    NHWC, which MindSpore takes on GPU alone: x (N, H, W, C), weight (out_channel, kH, kW, C / group).
    """

    def __init__(self, out_channel, kernel_size, mode=1, pad_mode="valid", pad=0, stride=1, dilation=1, group=1,
                 data_format="NCHW"):  # fmt: skip
        if mode != 1:
            raise ValueError(f"Conv2D: mode must be 1, got {mode!r}")
        choice("Conv2D", "data_format", data_format, FORMATS)

        def four(argument, value):
            sizes = pair("Conv2D", argument, value)
            return (1, *sizes, 1) if data_format == "NHWC" else ONES + sizes

        self.attrs = {
            "out_channel": positive("Conv2D", "out_channel", out_channel),
            "kernel_size": pair("Conv2D", "kernel_size", kernel_size),
            "pad_mode": pad_mode,
            "pad": padding("Conv2D", "pad", pad_mode, pad),
            "stride": four("stride", stride),
            "dilation": four("dilation", dilation),
            "group": positive("Conv2D", "group", group),
            "format": data_format,
        }

    def __call__(self, x, w):
        return self._run(x=x, w=w)


class BatchNorm(_Primitive):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias by channel, then mean and variance, twice."""

    def __init__(self, is_training=False, epsilon=1e-5, momentum=0.1, data_format="NCHW"):
        if is_training:
            raise ValueError("BatchNorm: is_training must be False: opgraft runs inference only")
        choice("BatchNorm", "data_format", data_format, FORMATS)
        if not 0 < epsilon <= 1 or not 0 <= momentum <= 1:
            raise ValueError(f"BatchNorm: epsilon must be in (0, 1] and momentum in [0, 1], got {epsilon}, {momentum}")
        self.attrs = {"is_training": False, "epsilon": float(epsilon), "momentum": float(momentum),
                      "data_format": data_format}  # fmt: skip

    def __call__(self, input_x, scale, bias, mean, variance):
        return self._run(input_x=input_x, scale=scale, bias=bias, mean=mean, variance=variance)


class _Pool(_Primitive):
    """Of x (N, C, H, W); or NHWC, which MindSpore takes on GPU alone: x (N, H, W, C)."""

    batch, layout = (), "data_format"  # MaxPool's sizes are four numbers, and it calls its layout format

    def __init__(self, kernel_size=1, strides=1, pad_mode="valid", data_format="NCHW"):
        name = type(self).__name__
        if not isinstance(pad_mode, str):
            raise TypeError(f"{name}: pad_mode must be a str, got {type(pad_mode).__name__}")
        self.attrs = {
            "kernel_size": self.batch + pair(name, "kernel_size", kernel_size),
            "strides": self.batch + pair(name, "strides", strides),
            "pad_mode": choice(name, "pad_mode", pad_mode.upper(), ("VALID", "SAME")),
            self.layout: choice(name, "data_format", data_format, FORMATS),
        }

    def __call__(self, x):
        return self._run(x=x)


class MaxPool(_Pool):
    """The largest element of each window."""

    batch, layout = ONES, "format"


class AvgPool(_Pool):
    """The mean of each window; padding is not counted."""


class AdaptiveAvgPool2D(_Primitive):
    """The mean of each of output_size windows over x (N, C, H, W) or (C, H, W), which cover it; None: as x has."""

    def __init__(self, output_size):
        sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * 2
        known = [1 if n is None else n for n in sizes]
        numbers(type(self).__name__, "output_size", tuple(known), 2, 1)
        self.attrs = {"output_size": tuple(-1 if n is None else n for n in sizes) * (3 - len(sizes))}

    def __call__(self, input_x):
        return self._run(x=input_x)


class MaxPool3DWithArgmax(_Primitive):
    """The largest element of each window of x (N, C, D, H, W) and its place in its D H W; pads are on both sides."""

    def __init__(self, ksize, strides, pads, dilation=(1, 1, 1), ceil_mode=False, data_format="NCDHW"):
        name = type(self).__name__
        choice(name, "data_format", data_format, ("NCDHW",))
        self.attrs = {
            "ksize": numbers(name, "ksize", ksize, 3, 1),
            "strides": numbers(name, "strides", strides, 3, 1),
            "pads": numbers(name, "pads", pads, 3, 0),
            "dilation": numbers(name, "dilation", dilation, 3, 1),
            "ceil_mode": flag(name, "ceil_mode", ceil_mode),
        }

    def __call__(self, x):
        return self._run(x=x)


class MaxPoolWithArgmaxV2(_Primitive):
    """The largest element of each window of x (N, C, H, W) and its place in its H W: a pool of a depth of one."""

    def __init__(self, kernel_size, strides=None, pads=0, dilation=(1, 1), ceil_mode=False, argmax_type=int64):
        name = type(self).__name__
        if to_dtype(argmax_type, f"{name}: argmax_type") not in (int32, int64):
            raise ValueError(f"{name}: argmax_type must be int32 or int64, got {argmax_type}")
        self.argmax_type = to_dtype(argmax_type, name)
        strides = kernel_size if strides is None else strides
        self.attrs = {
            "ksize": (1, *pair(name, "kernel_size", kernel_size)),
            "strides": (1, *pair(name, "strides", strides)),
            "pads": (0, *numbers(name, "pads", pads, 2, 0)),
            "dilation": (1, *pair(name, "dilation", dilation)),
            "ceil_mode": flag(name, "ceil_mode", ceil_mode),
        }

    def __call__(self, x):
        x = primitive("ExpandDims", _tensor(x, f"{type(self).__name__}: x"), axis=2)
        y, places = (primitive("Squeeze", t, axis=[2]) for t in primitive("MaxPool3DWithArgmax", x, **self.attrs))
        return y, places if self.argmax_type == int64 else primitive("Cast", places, dtype="int32")


class AvgPool3D(_Primitive):
    """The mean of each window of x (N, C, D, H, W); pad: front, back, top, bottom, left, right."""

    def __init__(self, kernel_size=1, strides=1, pad_mode="pad", pad=0, ceil_mode=False, count_include_pad=True,
                 divisor_override=0, data_format="NCDHW"):  # fmt: skip
        name = type(self).__name__
        choice(name, "data_format", data_format, ("NCDHW",))
        choice(name, "pad_mode", pad_mode.upper() if isinstance(pad_mode, str) else pad_mode, ("PAD",))
        if not _is_int(divisor_override) or divisor_override < 0:
            raise ValueError(f"{name}: divisor_override must be an int of at least 0, got {divisor_override!r}")
        self.attrs = {
            "kernel_size": ONES + numbers(name, "kernel_size", kernel_size, 3, 1),
            "strides": ONES + numbers(name, "strides", strides, 3, 1),
            "pad_mode": "PAD",
            "pad": numbers(name, "pad", pad, 6, 0),
            "pad_list": numbers(name, "pad", pad, 6, 0),
            "ceil_mode": flag(name, "ceil_mode", ceil_mode),
            "count_include_pad": flag(name, "count_include_pad", count_include_pad),
            "divisor_override": divisor_override,
        }

    def __call__(self, x):
        return self._run(x=x)


def conv2d(input, weight, bias=None, stride=1, pad_mode="valid", padding=0, dilation=1, groups=1):  # noqa: A002
    """Convolution, and the bias (out_channel,) where there is one."""
    weight = _tensor(weight, "conv2d: weight")
    if len(weight.shape) != 4:
        raise ValueError(f"conv2d: weight must have 4 dimensions, got shape {weight.shape}")
    out_channel, kernel_size = weight.shape[0], tuple(weight.shape[2:])
    y = Conv2D(out_channel, kernel_size, 1, pad_mode, padding, stride, dilation, groups)(input, weight)
    return y if bias is None else primitive("BiasAdd", y, _tensor(bias, "conv2d: bias"))


def batch_norm(input_x, running_mean, running_var, weight, bias, training=False, momentum=0.1, eps=1e-5):
    """BatchNorm by the statistics given."""
    return BatchNorm(training, eps, momentum)(input_x, weight, bias, running_mean, running_var)[0]


def avg_pool2d(input_x, kernel_size=1, stride=1, padding=0, ceil_mode=False, count_include_pad=True,
               divisor_override=0):  # fmt: skip
    """The mean of each window of x (N, C, H, W); padding: one number, or those of top, bottom, left and right."""
    kernel, step = pair("avg_pool2d", "kernel_size", kernel_size), pair("avg_pool2d", "stride", stride)
    pads = numbers("avg_pool2d", "padding", padding, 4, 0)
    if not any(pads) and not ceil_mode and not divisor_override:
        return AvgPool(kernel, step)(input_x)
    pool = AvgPool3D((1, *kernel), (1, *step), "pad", (0, 0, *pads), ceil_mode, count_include_pad, divisor_override)
    x = primitive("ExpandDims", _tensor(input_x, "avg_pool2d: input_x"), axis=2)
    return primitive("Squeeze", pool(x), axis=[2])


def max_pool2d(x, kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False):
    """The largest element of each window of x (N, C, H, W), with return_indices its place in its H W as well."""
    y, places = MaxPoolWithArgmaxV2(kernel_size, stride, padding, dilation, ceil_mode)(x)
    return (y, places) if flag("max_pool2d", "return_indices", return_indices) else y


def adaptive_avg_pool2d(input, output_size):  # noqa: A002
    """The mean of each of output_size windows over height and width, which cover them; 1: of all."""
    return AdaptiveAvgPool2D(output_size)(input)


def flatten(input, order="C", *, start_dim=1, end_dim=-1):  # noqa: A002
    """The dimensions from start_dim to end_dim as one."""
    x = _tensor(input, "flatten: input")
    choice("flatten", "order", order, ("C", "F"))
    rank = max(1, len(x.shape))
    for name, axis in ("start_dim", start_dim), ("end_dim", end_dim):
        if not _is_int(axis):
            raise TypeError(f"flatten: {name} must be an int, got {axis!r}")
    if order == "F" and len(x.shape) > 1:
        x = primitive("Transpose", x, perm=list(range(rank))[::-1])
    if (start_dim, end_dim) == (1, -1):
        return primitive("Flatten", x) if len(x.shape) > 1 else primitive("Reshape", x, shape=(-1,))
    for name, axis in ("start_dim", start_dim), ("end_dim", end_dim):
        if not -rank <= axis < rank:
            raise ValueError(f"flatten: {name} must be in [{-rank}, {rank}), got {axis}")
    first, last = start_dim % rank, end_dim % rank
    if first > last:
        raise ValueError(f"flatten: start_dim cannot come after end_dim, got {start_dim} and {end_dim}")
    if len(x.shape) < 2:
        return primitive("Reshape", x, shape=(-1,))
    if first == last:
        return x
    size = 1
    for d in x.shape[first : last + 1]:
        size = size * d
    return primitive("Reshape", x, shape=(*x.shape[:first], size, *x.shape[last + 1 :]))
