"""Normalisations over the last dimensions, as functions by MindSpore's names."""

import numpy as np

from .primitive import primitive
from .primitive import signature as _signature
from .primitive import tensor as _tensor
from .tensor import Tensor


def norm(x, weight, bias, begin_norm_axis, begin_params_axis, epsilon):
    """The results of LayerNorm, as a tuple."""
    _, _, attrs = _signature("LayerNorm")
    params = {"begin_norm_axis": begin_norm_axis, "begin_params_axis": begin_params_axis, "epsilon": epsilon}
    out = primitive(
        "LayerNorm", _tensor(x, "LayerNorm: x"), weight, bias, **{k: v for k, v in params.items() if k in attrs}
    )
    return out if isinstance(out, tuple) else (out,)


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """LayerNorm over the last dimensions, of shape normalized_shape (an int: the last alone); weight and bias have it,
    too (None: 1 and 0)."""
    x, shape = _tensor(x, "layer_norm: x"), normalized_shape
    if not isinstance(shape, (int, np.integer, tuple, list)) or isinstance(shape, bool):
        raise TypeError(f"layer_norm: normalized_shape must be an int, a tuple or a list, got {shape!r}")
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (int(shape),)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(f"layer_norm: normalized_shape must be x's last dimensions, got {shape} for shape {x.shape}")
    weight = Tensor(np.ones(shape, x.dtype)) if weight is None else weight
    bias = Tensor(np.zeros(shape, x.dtype)) if bias is None else bias
    return norm(x, weight, bias, -len(shape), -len(shape), eps)[0]


def rms_norm(x, gamma, epsilon=1e-6):
    """(y, rstd): x / sqrt(mean of x^2 + epsilon) * gamma over gamma's dimensions, the last of x."""
    return primitive("RmsNorm", _tensor(x, "rms_norm: x"), _tensor(gamma, "rms_norm: gamma"), epsilon=epsilon)


def add_rms_norm(x1, x2, gamma, epsilon=1e-6):
    """(y, rstd, x): rms_norm of x = x1 + x2, and this sum."""
    given = [_tensor(a, f"add_rms_norm: {n}") for n, a in zip(("x1", "x2", "gamma"), (x1, x2, gamma))]
    return primitive("AddRmsNorm", *given, epsilon=epsilon)
