"""The layers of convolutional networks, under MindSpore's names."""

import numbers

import numpy as np

from . import dtype as dt
from . import ops, windows
from .cell import Cell
from .tensor import Parameter, Tensor


def initial(name, argument, init, shape, dtype, fan=(1, 1)):
    """A Parameter as `init` says: a Tensor, a number or the name of one of MindSpore's initializers.

    fan: (fan_in, fan_out) of what scales with them.
    """
    rng, named = np.random.default_rng(0), init.lower() if isinstance(init, str) else None
    limits = {"uniform": 0.07, "he_uniform": (6 / fan[0]) ** 0.5, "xavier_uniform": (6 / (fan[0] + fan[1])) ** 0.5}
    limits |= {"heuniform": limits["he_uniform"], "xavieruniform": limits["xavier_uniform"]}
    if isinstance(init, (Tensor, np.ndarray)):
        value = np.asarray(init)
        if value.shape != shape:
            raise ValueError(f"{name}: {argument}.shape must be {shape}, got {value.shape}")
        if isinstance(init, Tensor):  # keeps its dtype, as in MindSpore
            return Parameter(np.array(value))
    elif isinstance(init, numbers.Real) and not isinstance(init, bool):
        value = np.full(shape, init)
    elif named in ("zeros", "zero", "ones", "one"):
        value = np.full(shape, float(named[0] == "o"))
    elif named == "normal":
        value = rng.normal(0.0, 0.01, shape)
    elif named in limits:
        value = rng.uniform(-limits[named], limits[named], shape)
    else:
        raise ValueError(f"{name}: {argument} must be a Tensor, a number, 'zeros', 'ones', 'normal', 'uniform', "
                         f"'he_uniform' or 'xavier_uniform', got {init!r}")  # fmt: skip
    return Parameter(np.ascontiguousarray(value).astype(dt.to_dtype(dtype, f"{name}: dtype")))


class Conv2d(Cell):
    """Convolution; weight is (out_channels, in_channels / group, kH, kW), x (N, in_channels, H, W).

    NHWC, which MindSpore takes on GPU alone: (out_channels, kH, kW, in_channels / group), (N, H, W, in_channels).
    """

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, pad_mode="same", padding=0, dilation=1,
                 group=1, has_bias=False, weight_init=None, bias_init=None, data_format="NCHW",
                 dtype=dt.float32):  # fmt: skip
        super().__init__()
        for name, value in ("in_channels", in_channels), ("out_channels", out_channels), ("group", group):
            windows.positive("Conv2d", name, value)
        if in_channels % group or out_channels % group:
            raise ValueError(f"Conv2d: in_channels and out_channels must be multiples of group {group}, got "
                             f"{in_channels} and {out_channels}")  # fmt: skip
        if not isinstance(has_bias, bool):
            raise TypeError(f"Conv2d: has_bias must be a bool, got {type(has_bias).__name__}")
        self.in_channels, self.out_channels, self.group, self.has_bias = in_channels, out_channels, group, has_bias
        self.kernel_size = windows.pair("Conv2d", "kernel_size", kernel_size)
        self.stride = windows.pair("Conv2d", "stride", stride)
        self.dilation = windows.pair("Conv2d", "dilation", dilation)
        windows.padding("Conv2d", "padding", pad_mode, padding)
        self.pad_mode, self.padding, self.data_format = pad_mode, padding, data_format
        self.conv2d = windows.Conv2D(out_channels, self.kernel_size, 1, pad_mode, padding, self.stride, self.dilation,
                                     group, data_format)  # fmt: skip
        taps = self.kernel_size[0] * self.kernel_size[1]
        fan_in = in_channels // group * taps
        fan, limit = (fan_in, out_channels * taps), fan_in**-0.5  # HeUniform(sqrt(5)), as MindSpore's default
        rng, each = np.random.default_rng(0), in_channels // group
        shape = (out_channels, each, *self.kernel_size)
        if data_format == "NHWC":
            shape = (out_channels, *self.kernel_size, each)
        drawn = rng.uniform(-limit, limit, shape) if weight_init is None else weight_init
        self.weight = initial("Conv2d", "weight_init", drawn, shape, dtype, fan)
        self.bias = None
        if has_bias:
            drawn = rng.uniform(-limit, limit, out_channels) if bias_init is None else bias_init
            self.bias = initial("Conv2d", "bias_init", drawn, (out_channels,), dtype)

    def construct(self, x):
        y = self.conv2d(x, self.weight)
        return ops.bias_add(y, self.bias, data_format=self.data_format) if self.has_bias else y

    def __repr__(self):
        return (f"Conv2d(input_channels={self.in_channels}, output_channels={self.out_channels}, "
                f"kernel_size={self.kernel_size}, stride={self.stride}, pad_mode={self.pad_mode}, "
                f"padding={self.padding}, dilation={self.dilation}, group={self.group}, "
                f"has_bias={self.has_bias})")  # fmt: skip


class BatchNorm2d(Cell):
    """Normalises x (N, num_features, H, W) by channel with moving_mean and moving_variance: opgraft runs inference.

    NHWC, which MindSpore takes on GPU alone: x (N, H, W, num_features).
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.9, affine=True, gamma_init="ones", beta_init="zeros",
                 moving_mean_init="zeros", moving_var_init="ones", use_batch_statistics=None, data_format="NCHW",
                 dtype=dt.float32):  # fmt: skip
        super().__init__()
        windows.positive("BatchNorm2d", "num_features", num_features)
        if not 0 <= momentum <= 1:
            raise ValueError(f"BatchNorm2d: momentum must be in [0, 1], got {momentum}")
        if use_batch_statistics:
            raise ValueError("BatchNorm2d: use_batch_statistics must be None or False: opgraft runs inference only")
        self.num_features, self.eps, self.momentum = num_features, eps, 1.0 - momentum
        for name, init, trained in [
            ("moving_mean", moving_mean_init, False), ("moving_variance", moving_var_init, False),
            ("gamma", gamma_init, affine), ("beta", beta_init, affine),
        ]:  # fmt: skip
            parameter = initial("BatchNorm2d", f"{name} initializer", init, (num_features,), dtype)
            parameter.requires_grad = trained
            setattr(self, name, parameter)
        self.bn_infer = windows.BatchNorm(epsilon=eps, data_format=data_format)

    def construct(self, x):
        if len(x.shape) != 4:
            raise ValueError(f"BatchNorm2d: x must have 4 dimensions, got shape {x.shape}")
        return self.bn_infer(x, self.gamma, self.beta, self.moving_mean, self.moving_variance)[0]

    def __repr__(self):
        return f"BatchNorm2d(num_features={self.num_features}, eps={self.eps}, momentum={1.0 - self.momentum})"


class _Pool2d(Cell):
    """A pool of x (N, C, H, W) or (C, H, W). Given padding makes it one in three dimensions, as in MindSpore.

    NHWC, which MindSpore takes on GPU alone and without given padding: (N, H, W, C) or (H, W, C).
    """

    def _sizes(self, kernel_size, stride, pad_mode, data_format, changed):
        """Whether pad_mode is "pad"; without, what `changed` names must have its default."""
        name = type(self).__name__
        windows.choice(name, "data_format", data_format, windows.FORMATS)
        self.kernel_size = windows.pair(name, "kernel_size", kernel_size)
        self.stride = windows.pair(name, "stride", stride)
        upper = pad_mode.upper() if isinstance(pad_mode, str) else pad_mode
        self.pad_mode = windows.choice(name, "pad_mode", upper, ("VALID", "SAME", "PAD"))
        self.padded = self.pad_mode == "PAD"
        if self.padded and data_format != "NCHW":
            raise ValueError(f"{name}: data_format must be 'NCHW' where pad_mode is 'pad', got {data_format!r}")
        if changed and not self.padded:
            raise ValueError(f"{name}: {', '.join(changed)} must be left out where pad_mode is not 'pad', "
                             f"got pad_mode {pad_mode!r}")  # fmt: skip
        return self.padded

    def construct(self, x):
        single = len(x.shape) == 3
        if single:
            x = ops.expand_dims(x, 0)
        y = self.pool(ops.expand_dims(x, 2) if self.padded else x)
        drop = (0,) * single + (2,) * self.padded
        found = y if isinstance(y, tuple) else (y,)
        if drop:
            found = tuple(ops.squeeze(t, drop) for t in found)
        return found if getattr(self, "return_indices", False) else found[0]

    def __repr__(self):
        return f"{type(self).__name__}(kernel_size={self.kernel_size}, stride={self.stride}, pad_mode={self.pad_mode})"


class MaxPool2d(_Pool2d):
    """The largest element of each window; with return_indices its place in its H W as well."""

    def __init__(self, kernel_size=1, stride=1, pad_mode="valid", padding=0, dilation=1, return_indices=False,
                 ceil_mode=False, data_format="NCHW"):  # fmt: skip
        super().__init__()
        given = {"padding": padding != 0, "dilation": dilation != 1, "return_indices": return_indices,
                 "ceil_mode": ceil_mode}  # fmt: skip
        self.return_indices = return_indices
        if self._sizes(kernel_size, stride, pad_mode, data_format, [k for k, v in given.items() if v]):
            pads = windows.numbers("MaxPool2d", "padding", padding, 2, 0)
            dilation = windows.pair("MaxPool2d", "dilation", dilation)
            sizes = [(1, *self.kernel_size), (1, *self.stride), (0, *pads), (1, *dilation)]
            self.pool = windows.MaxPool3DWithArgmax(*sizes, ceil_mode)
        else:
            self.pool = windows.MaxPool(self.kernel_size, self.stride, pad_mode, data_format)


class AvgPool2d(_Pool2d):
    """The mean of each window; padding that "same" adds is not counted."""

    def __init__(self, kernel_size=1, stride=1, pad_mode="valid", padding=0, ceil_mode=False, count_include_pad=True,
                 divisor_override=None, data_format="NCHW"):  # fmt: skip
        super().__init__()
        given = {"padding": padding != 0, "ceil_mode": ceil_mode, "count_include_pad": not count_include_pad,
                 "divisor_override": divisor_override is not None}  # fmt: skip
        if divisor_override is not None:
            windows.positive("AvgPool2d", "divisor_override", divisor_override)
        if self._sizes(kernel_size, stride, pad_mode, data_format, [k for k, v in given.items() if v]):
            h, w = windows.numbers("AvgPool2d", "padding", padding, 2, 0)
            sizes = [(1, *self.kernel_size), (1, *self.stride), "pad", (0, 0, h, h, w, w)]
            self.pool = windows.AvgPool3D(*sizes, ceil_mode, count_include_pad, divisor_override or 0)
        else:
            self.pool = windows.AvgPool(self.kernel_size, self.stride, pad_mode, data_format)


class AdaptiveAvgPool2d(Cell):
    """The mean of each of output_size windows over x (N, C, H, W) or (C, H, W), which cover it."""

    def __init__(self, output_size):
        super().__init__()
        self.output_size, self.pool = output_size, windows.AdaptiveAvgPool2D(output_size)

    def construct(self, input):  # noqa: A002
        return self.pool(input)

    def __repr__(self):
        return f"AdaptiveAvgPool2d(output_size={self.output_size})"


class ReLU6(Cell):
    """min(max(x, 0), 6)"""

    def construct(self, x):
        return ops.relu6(x)


class Flatten(Cell):
    """The dimensions from start_dim to end_dim as one."""

    def __init__(self, start_dim=1, end_dim=-1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def construct(self, x):
        rank = max(1, len(x.shape))
        for name, axis in ("start_dim", self.start_dim), ("end_dim", self.end_dim):
            if not -rank <= axis < rank:
                raise ValueError(f"Flatten: {name} must be in [{-rank}, {rank}), got {axis}")
        return ops.flatten(x, start_dim=self.start_dim, end_dim=self.end_dim)
