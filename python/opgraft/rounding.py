"""Rounding and limits by MindSpore's names; `ops` has them."""

from . import dtype as dt
from .primitive import pair as _pair
from .primitive import primitive, run
from .primitive import tensor as _tensor


def round(input, *, decimals=0):  # noqa: A001
    """The nearest whole number; of two, the even one. decimals must be 0."""
    return primitive("Round", _tensor(input, "round: input"), decimals=decimals)


def rint(x):
    """The nearest whole number; of two, the even one."""
    return round(x)


def clamp(input, min=None, max=None):  # noqa: A001
    """min(max(input, min), max) of two numbers or two tensors, either of which may be None."""
    x = _tensor(input, "clamp: input")
    if min is None and max is None:
        raise ValueError("clamp: min or max must be given, got None for both")
    given = {name: limit for name, limit in (("min", min), ("max", max)) if limit is not None}
    if not all(isinstance(limit, (int, float)) for limit in given.values()):
        return clip_by_value(x, min, max)
    if x.dtype.kind in "iu" and any(isinstance(limit, float) for limit in given.values()):
        x = primitive("Cast", x, dtype=dt.name(dt.float32))  # as MindSpore
    return primitive("ClampScalar", x, **{name: float(limit) for name, limit in given.items()})


def clip_by_value(x, clip_value_min=None, clip_value_max=None):
    """Maximum and Minimum with the two, either of which may be None."""
    if clip_value_min is None and clip_value_max is None:
        raise ValueError("clip_by_value: clip_value_min or clip_value_max must be given, got None for both")
    for op, limit in ("Maximum", clip_value_min), ("Minimum", clip_value_max):
        if limit is not None:
            x = run(op, list(_pair(op, x, limit)), {})
    return x
