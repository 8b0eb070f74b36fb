"""Running one primitive: eagerly, or recorded where a graph is traced."""

import builtins
import functools
import operator

import numpy as np

from . import _core
from . import dtype as dt
from . import trace as _trace
from .symint import SymInt
from .tensor import Tensor


@functools.cache
def signature(name):
    op = _core.resolve(name)
    manifest = op.manifest
    return op, [i["name"] for i in manifest["inputs"]], manifest["attrs"]


def _is_traced(x):
    return (
        isinstance(x, SymInt)
        or (isinstance(x, Tensor) and x._array is None)
        or (isinstance(x, (tuple, list)) and any(isinstance(i, SymInt) for i in x))
    )


def _array(x):
    return x._array if isinstance(x, Tensor) else x if isinstance(x, np.ndarray) else np.asarray(x)


def _numbers(name, items):
    try:
        return np.array([operator.index(i) for i in items], dtype=np.int64)
    except TypeError:
        raise TypeError(f"{name}: sizes and positions must be int, got {items!r}") from None


def run(name, inputs, attrs):
    """Runs or records one primitive. inputs: tensors, arrays, or sequences of int (int64 vectors)."""
    op = signature(name)[0]
    if any(_is_traced(x) for x in inputs):
        tracer = next((x._tracer for x in inputs if isinstance(x, Tensor) and x._array is None), _trace.active())
        if tracer is None:
            raise ValueError(f"{name}: inputs must have values, got a Tensor that only describes an input's shape")
        values = []
        for x in inputs:
            if isinstance(x, (tuple, list)):
                values.append(tracer.shape_value(x))
            elif isinstance(x, SymInt):
                values.append(x.value)
            else:
                values.append(tracer.lift(x))
        out = [tracer.tensor(v) for v in tracer.node(name, values, attrs)]
    else:
        arrays = [_numbers(name, x) if isinstance(x, (tuple, list)) else _array(x) for x in inputs]
        out = [Tensor(a) for a in _core.run_op(op, arrays, attrs)]
    return out[0] if len(out) == 1 else tuple(out)


def primitive(name, *inputs, **params):
    """Calls a registered operator by name.

    params are its attributes, or inputs by name (axes, shapes), wherever the operator's manifest has them.
    """
    _, input_names, attr_names = signature(name)
    inputs = list(inputs)
    attrs = {}
    for key, value in params.items():
        if key in attr_names:
            attrs[key] = value
        elif key in input_names and input_names.index(key) == len(inputs):
            inputs.append(
                value
                if isinstance(value, (tuple, list, Tensor, np.ndarray))
                else [value]
                if isinstance(value, (int, SymInt))
                else value
            )
        else:
            raise TypeError(
                f"{name}: takes no argument {key!r}; it has inputs {input_names} and attributes {list(attr_names)}"
            )
    return run(name, inputs, attrs)


def tensor(x, what):
    """x as a Tensor; TypeError where it is none."""
    if isinstance(x, (Tensor, np.ndarray)):
        return x if isinstance(x, Tensor) else Tensor(x)
    raise TypeError(f"{what} must be a Tensor, got {type(x).__name__}")


def pair(op, x, y):
    """Two operands of one dtype: a Python number takes the tensor's."""
    if isinstance(x, SymInt) or isinstance(y, SymInt):

        def lift(v):
            return _trace.active().tensor(v.value) if isinstance(v, SymInt) else v

        x, y = lift(x), lift(y)
    xs, ys = isinstance(x, (Tensor, np.ndarray)), isinstance(y, (Tensor, np.ndarray))
    if not xs and not ys:
        raise TypeError(f"{op}: x or y must be a Tensor, got {type(x).__name__} and {type(y).__name__}")

    def scalar(v, other):
        if not isinstance(v, (builtins.bool, int, float, np.generic)):
            raise TypeError(f"{op}: expected a Tensor or a number, got {type(v).__name__}")
        integral = other.dtype.kind in "iub" and other.dtype != dt.bfloat16
        kind = dt.float32 if integral and isinstance(v, (float, np.floating)) else other.dtype
        return Tensor(np.asarray(v).astype(dt.int64 if kind == dt.bool_ and not isinstance(v, builtins.bool) else kind))

    x = tensor(x, f"{op}: x") if xs else scalar(x, y)
    y = tensor(y, f"{op}: y") if ys else scalar(y, x)
    if x.dtype != y.dtype:
        wanted = dt.promote(x.dtype, y.dtype)
        x, y = (t if t.dtype == wanted else primitive("Cast", t, dtype=dt.name(wanted)) for t in (x, y))
    return x, y
