"""Standard deviations and variances by MindSpore's names; `ops` has them."""

from .primitive import primitive
from .primitive import tensor as _tensor


def _pair(name, x, axis, ddof, keepdims):
    if ddof not in (0, 1):
        raise ValueError(f"{name}: ddof must be 0 or 1, got {ddof!r}")
    axis = [] if axis is None else list(axis) if isinstance(axis, (tuple, list)) else [axis]
    x = _tensor(x, f"{name}: input")
    return primitive("ReduceStd", x, axis=axis, unbiased=bool(ddof), keep_dims=keepdims)


def std_mean(input, axis=None, ddof=0, keepdims=False):  # noqa: A002
    """The standard deviation and the mean over axis (None: all dimensions); ddof: taken off the number of elements."""
    return _pair("std_mean", input, axis, ddof, keepdims)


def var_mean(input, axis=None, ddof=0, keepdims=False):  # noqa: A002
    """The variance and the mean over axis, as std_mean."""
    deviation, mean = _pair("var_mean", input, axis, ddof, keepdims)
    return primitive("Square", deviation), mean


def std(input, axis=None, ddof=0, keepdims=False):  # noqa: A002
    """The standard deviation over axis (None: all dimensions); ddof: what is taken off the number of elements."""
    return _pair("std", input, axis, ddof, keepdims)[0]


def var(input, axis=None, ddof=0, keepdims=False):  # noqa: A002
    """The variance over axis, as std."""
    return primitive("Square", _pair("var", input, axis, ddof, keepdims)[0])
