"""Running one primitive: eagerly, or recorded where a graph is traced."""

import functools

import numpy as np

from . import _core
from . import dtype as dt
from . import trace as _trace
from .symint import SymInt, numbers
from .tensor import Parameter, Tensor


@functools.cache
def signature(name):
    op = _core.resolve(name)
    manifest = op.manifest
    return op, [i["name"] for i in manifest["inputs"]], manifest["attrs"]


@functools.cache
def _states(name):
    """Positions of the inputs that the operator updates in place."""
    return tuple(k for k, i in enumerate(_core.resolve(name).manifest["inputs"]) if i["state"])


def _updated(name, inputs):
    """Whether the call updates something, or reads a Parameter that some graph updates."""
    return bool(_states(name)) or any(isinstance(x, Parameter) and x.updated for x in inputs)


def _quantised(inputs):
    """Whether a Parameter of eight bits is among them: widened at once it would take the memory that it saves, and
    no operator for such weights could take its place."""
    return any(isinstance(x, Parameter) and x.dtype in (np.int8, np.uint8) for x in inputs)


def _is_traced(x):
    return (
        isinstance(x, SymInt)
        or (isinstance(x, Tensor) and x._array is None)
        or (isinstance(x, (tuple, list)) and any(isinstance(i, SymInt) for i in x))
    )


def _array(x):
    return x._array if isinstance(x, Tensor) else x if isinstance(x, np.ndarray) else np.asarray(x)


def run(name, inputs, attrs):
    """Runs or records one primitive. inputs: tensors, arrays, or sequences of int (int64 vectors)."""
    op = signature(name)[0]
    tracer = _trace.active()
    recorded = tracer is not None and (_updated(name, inputs) or _quantised(inputs))
    if recorded or any(_is_traced(x) for x in inputs):
        tracer = next((x._tracer for x in inputs if isinstance(x, Tensor) and x._array is None), tracer)
        if tracer is None:
            raise ValueError(f"{name}: {_trace.NO_VALUE}")
        values = []
        for x in inputs:
            if isinstance(x, (tuple, list)):
                values.append(tracer.shape_value(x))
            elif isinstance(x, SymInt):
                values.append(x.value)
            else:
                values.append(tracer.lift(x))
        for i in _states(name):
            if i < len(inputs):
                tracer.updates(name, inputs[i])
        out = [tracer.tensor(v) for v in tracer.node(name, values, attrs)]
    else:
        if tracer is not None:
            tracer.folds(inputs)
        for i in _states(name):
            if i < len(inputs) and isinstance(inputs[i], Parameter):
                inputs[i].updated = True
        arrays = [numbers(name, x) if isinstance(x, (tuple, list)) else _array(x) for x in inputs]
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


def _size(op, n, other):
    """A size that is not known yet as a Tensor, of the dtype that the number would take from `other`."""
    t = _trace.active().tensor(n.value)
    if not isinstance(other, (Tensor, np.ndarray)) or other.dtype in (dt.bool_, t.dtype):
        return t
    if other.dtype.kind in "iu" and other.dtype != dt.int32:
        fits = f"whether dimension {n!r} fits {dt.name(other.dtype)}"
        raise ValueError(f"{op}: {fits} is not known before the graph runs")
    return primitive("Cast", t, dtype=dt.name(other.dtype))


def _number(op, v, dtype):
    """A number as a Tensor of the other operand's dtype; a fraction beside integers is float32, an int beside bool
    int64.

    ValueError: an integer that this dtype has not; TypeError: no number, or one that would lose its imaginary part.
    """
    given = v.dtype if isinstance(v, np.generic) else None
    if not isinstance(v, (bool, int, float)) and (given is None or given.kind not in "biufc" and given != dt.bfloat16):
        raise TypeError(f"{op}: expected a Tensor or a number, got {type(v).__name__}")
    if isinstance(v, (int, np.integer)) and not isinstance(v, bool):
        wanted = dt.int64 if dtype == dt.bool_ else dtype
        if wanted.kind in "iu" and not np.iinfo(wanted).min <= v <= np.iinfo(wanted).max:
            raise _too_large(op, v, wanted)
    elif isinstance(v, (bool, np.bool_, np.complexfloating)):
        wanted = dtype
        if isinstance(v, np.complexfloating) and dtype.kind != "c":
            raise TypeError(f"{op}: a number beside {dt.name(dtype)} must be real, got {v}")
    else:
        wanted = dt.float32 if dtype.kind in "iub" else dtype
    try:
        return Tensor(np.asarray(v).astype(wanted))
    except OverflowError:
        raise _too_large(op, v, wanted) from None


def _too_large(op, v, dtype):
    bits = int(v).bit_length()
    return ValueError(f"{op}: a number beside {dt.name(dtype)} must fit it, got {v if bits < 128 else f'{bits} bits'}")


def pair(op, x, y):
    """Two operands of one dtype: a Python number takes the tensor's."""
    if isinstance(x, SymInt) or isinstance(y, SymInt):
        x, y = (_size(op, a, b) if isinstance(a, SymInt) else a for a, b in ((x, y), (y, x)))
    xs, ys = isinstance(x, (Tensor, np.ndarray)), isinstance(y, (Tensor, np.ndarray))
    if not xs and not ys:
        raise TypeError(f"{op}: x or y must be a Tensor, got {type(x).__name__} and {type(y).__name__}")
    x = tensor(x, f"{op}: x") if xs else _number(op, x, y.dtype)
    y = tensor(y, f"{op}: y") if ys else _number(op, y, x.dtype)
    if x.dtype != y.dtype:
        wanted = dt.promote(x.dtype, y.dtype)
        x, y = (t if t.dtype == wanted else primitive("Cast", t, dtype=dt.name(wanted)) for t in (x, y))
    return x, y
