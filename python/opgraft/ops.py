"""Primitives by MindSpore's names, as functions; and ops.Custom, an operator from a shared object."""

import builtins
import functools

import numpy as np

from . import _core
from . import dtype as dt
from . import trace as _trace
from .custom import Custom, CustomRegOp, DataType
from .tensor import Parameter, Tensor
from .trace import SymInt

__all__ = ["Custom", "CustomRegOp", "DataType"]


def _export(f):
    __all__.append(f.__name__)
    return f


@functools.cache
def _signature(name):
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


def _run(name, inputs, attrs):
    """Runs or records one primitive. inputs: tensors, arrays, or sequences of int (int64 vectors)."""
    op = _signature(name)[0]
    if any(_is_traced(x) for x in inputs):
        tracer = next(
            (
                x._tracer if isinstance(x, Tensor) else None
                for x in inputs
                if isinstance(x, Tensor) and x._array is None
            ),
            None,
        )
        tracer = tracer or _trace.active()
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
        arrays = [
            np.array([int(i) for i in x], dtype=np.int64) if isinstance(x, (tuple, list)) else _array(x) for x in inputs
        ]
        out = [Tensor(a) for a in _core.run_op(op, arrays, attrs)]
    return out[0] if len(out) == 1 else tuple(out)


def primitive(name, *inputs, **params):
    """Calls a registered operator by name.

    params are its attributes, or inputs by name (axes, shapes), wherever the operator's manifest has them.
    """
    _, input_names, attr_names = _signature(name)
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
    return _run(name, inputs, attrs)


_export(primitive)


def _tensor(x, what):
    if isinstance(x, (Tensor, np.ndarray)):
        return x if isinstance(x, Tensor) else Tensor(x)
    raise TypeError(f"{what} must be a Tensor, got {type(x).__name__}")


def _pair(op, x, y):
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

    x = _tensor(x, f"{op}: x") if xs else scalar(x, y)
    y = _tensor(y, f"{op}: y") if ys else scalar(y, x)
    if x.dtype != y.dtype:
        wanted = dt.promote(x.dtype, y.dtype)
        x, y = cast(x, wanted), cast(y, wanted)
    return x, y


def _binary(function, op):
    def f(x, y):
        return _run(op, list(_pair(op, x, y)), {})

    f.__name__ = f.__qualname__ = function
    f.__doc__ = f"{op} of two tensors (or a tensor and a number), broadcast as in NumPy."
    return _export(f)


def _unary(function, op):
    def f(x):
        return _run(op, [_tensor(x, f"{op}: x")], {})

    f.__name__ = f.__qualname__ = function
    f.__doc__ = f"{op} of every element."
    return _export(f)


add, sub, mul, div, pow = (
    _binary(f, o)
    for f, o in [("add", "Add"), ("sub", "Sub"), ("mul", "Mul"), ("div", "Div"), ("pow", "Pow")]  # noqa: A001
)
maximum, minimum = _binary("maximum", "Maximum"), _binary("minimum", "Minimum")
less, equal, greater = _binary("less", "Less"), _binary("equal", "Equal"), _binary("greater", "Greater")
sqrt, rsqrt, exp, erf, tanh = (_unary(f.lower(), f) for f in ["Sqrt", "Rsqrt", "Exp", "Erf", "Tanh"])
sigmoid, silu, relu = _unary("sigmoid", "Sigmoid"), _unary("silu", "SiLU"), _unary("relu", "ReLU")
neg, square = _unary("neg", "Neg"), _unary("square", "Square")


@_export
def gelu(x, approximate="tanh"):
    """GELU; approximate is "tanh" or "none" (erf)."""
    return primitive("GeLU", _tensor(x, "gelu: x"), approximate=approximate)


@_export
def matmul(x, y, transpose_a=False, transpose_b=False):
    """Matrix product over the last two dimensions; MatMul where y is a matrix, else BatchMatMul."""
    x, y = _tensor(x, "matmul: x"), _tensor(y, "matmul: y")
    if len(y.shape) == 2 and (len(x.shape) == 2 or not transpose_a):
        return primitive("MatMul", x, y, transpose_a=transpose_a, transpose_b=transpose_b)
    return bmm(x, y, transpose_a, transpose_b)


@_export
def bmm(x, y, transpose_a=False, transpose_b=False):
    """BatchMatMul: leading dimensions broadcast."""
    return primitive(
        "BatchMatMul", _tensor(x, "bmm: x"), _tensor(y, "bmm: y"), transpose_a=transpose_a, transpose_b=transpose_b
    )


@_export
def bias_add(x, bias):
    """BiasAdd: bias of shape (c,) along dimension 1 of x, as in MindSpore (NCHW)."""
    return primitive("BiasAdd", _tensor(x, "bias_add: x"), _tensor(bias, "bias_add: bias"))


@_export
def softmax(x, axis=-1):
    x = _tensor(x, "softmax: x")
    _, _, attrs = _signature("Softmax")
    return primitive("Softmax", x, axis=[axis] if isinstance(attrs.get("axis"), list) else axis)


@_export
def layer_norm(x, weight, bias, begin_norm_axis=-1, epsilon=1e-5):
    """LayerNorm over the dimensions from begin_norm_axis on."""
    _, _, attrs = _signature("LayerNorm")
    params = {"begin_norm_axis": begin_norm_axis, "begin_params_axis": begin_norm_axis, "epsilon": epsilon}
    out = primitive(
        "LayerNorm", _tensor(x, "layer_norm: x"), weight, bias, **{k: v for k, v in params.items() if k in attrs}
    )
    return out[0] if isinstance(out, tuple) else out


def _reduce(op, x, axis, keep_dims):
    x = _tensor(x, f"{op}: x")
    axis = [] if axis is None else list(axis) if isinstance(axis, (tuple, list)) else [axis]
    return primitive(op, x, axis=axis, keep_dims=keep_dims)


@_export
def mean(x, axis=None, keep_dims=False):
    """ReduceMean; axis None: over all dimensions."""
    return _reduce("ReduceMean", x, axis, keep_dims)


@_export
def sum(x, axis=None, keep_dims=False):  # noqa: A001
    """ReduceSum; axis None: over all dimensions."""
    return _reduce("ReduceSum", x, axis, keep_dims)


reduce_mean, reduce_sum = mean, sum
__all__ += ["reduce_mean", "reduce_sum"]


def _shape(shape):
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else tuple(shape)


@_export
def reshape(x, *shape):
    """The same elements in another shape; one dimension may be -1."""
    return primitive("Reshape", _tensor(x, "reshape: x"), shape=_shape(shape))


@_export
def broadcast_to(x, shape):
    return primitive("BroadcastTo", _tensor(x, "broadcast_to: x"), shape=tuple(shape))


@_export
def tile(x, multiples):
    return primitive("Tile", _tensor(x, "tile: x"), multiples=tuple(multiples))


@_export
def transpose(x, *perm):
    """Permutes dimensions; reversed where perm is not given."""
    x = _tensor(x, "transpose: x")
    return primitive("Transpose", x, perm=list(_shape(perm)) if perm else list(range(len(x.shape)))[::-1])


@_export
def expand_dims(x, axis):
    return primitive("ExpandDims", _tensor(x, "expand_dims: x"), axis=axis)


@_export
def squeeze(x, axis=None):
    return primitive(
        "Squeeze",
        _tensor(x, "squeeze: x"),
        axis=[] if axis is None else [axis] if isinstance(axis, int) else list(axis),
    )


@_export
def gather(params, indices, axis=0):
    """Slices of params along axis, at int indices."""
    return primitive("Gather", _tensor(params, "gather: params"), _tensor(indices, "gather: indices"), axis=axis)


@_export
def concat(tensors, axis=0):
    return primitive("Concat", *[_tensor(t, "concat: tensors") for t in tensors], axis=axis)


@_export
def split(x, output_num, axis=0):
    """output_num equal parts along axis, as a tuple."""
    out = primitive("Split", _tensor(x, "split: x"), axis=axis, output_num=output_num)
    return out if isinstance(out, tuple) else (out,)


@_export
def cast(x, dtype):
    x = _tensor(x, "cast: x")
    return x if x.dtype == dt.to_dtype(dtype) else primitive("Cast", x, dtype=dt.name(dtype))


@_export
def select(cond, x, y):
    """x where cond, else y."""
    x, y = _pair("Select", x, y)
    return primitive("Select", _tensor(cond, "select: cond"), x, y)


where = select
__all__.append("where")


@_export
def strided_slice(
    x, begin, end, strides, begin_mask=0, end_mask=0, ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0
):
    return primitive(
        "StridedSlice",
        _tensor(x, "strided_slice: x"),
        begin=tuple(begin),
        end=tuple(end),
        strides=tuple(strides),
        begin_mask=begin_mask,
        end_mask=end_mask,
        ellipsis_mask=ellipsis_mask,
        new_axis_mask=new_axis_mask,
        shrink_axis_mask=shrink_axis_mask,
    )


def _getitem(x, index):
    index = index if isinstance(index, tuple) else (index,)
    if len(index) == 1 and isinstance(index[0], (Tensor, np.ndarray)) and index[0].dtype.kind == "i":
        return gather(x, index[0])
    rank = len(x.shape)
    used = builtins.sum(i is not None and i is not Ellipsis for i in index)
    if used > rank:
        raise IndexError(f"slice: at most {rank} indices for shape {x.shape}, got {used}")
    if builtins.sum(i is Ellipsis for i in index) > 1:
        raise IndexError("slice: at most one Ellipsis")
    if not any(i is Ellipsis for i in index):
        index += (Ellipsis,)
    at = next(k for k, i in enumerate(index) if i is Ellipsis)
    index = index[:at] + (slice(None),) * (rank - used) + index[at + 1 :]
    begin, end, strides, masks, axis = [], [], [], [0, 0, 0, 0], 0
    for k, i in enumerate(index):
        if i is None:
            begin.append(0), end.append(1), strides.append(1)
            masks[2] |= 1 << k
            continue
        if isinstance(i, slice):
            step = 1 if i.step is None else int(i.step)
            if step <= 0:
                raise ValueError(f"slice: the step of dimension {axis} must be positive, got {step}")
            begin.append(0 if i.start is None else i.start)
            end.append(0 if i.stop is None else i.stop)
            strides.append(step)
            masks[0] |= (i.start is None) << k
            masks[1] |= (i.stop is None) << k
        elif isinstance(i, (int, np.integer, SymInt)) and not isinstance(i, builtins.bool):
            size = x.shape[axis]
            if isinstance(size, int) and not isinstance(i, SymInt) and not -size <= i < size:
                raise IndexError(f"slice: index {i} is out of range for dimension {axis} of size {size}")
            begin.append(i), end.append(0 if isinstance(i, int) and i == -1 else i + 1), strides.append(1)
            masks[1] |= (isinstance(i, int) and i == -1) << k
            masks[3] |= 1 << k
        else:
            raise TypeError(
                f"slice: an index must be an int, a slice, None, Ellipsis or an integer Tensor, got {type(i).__name__}"
            )
        axis += 1
    if all(isinstance(i, slice) and i == slice(None) for i in index):
        return x
    return strided_slice(x, begin, end, strides, masks[0], masks[1], 0, masks[2], masks[3])


def _reflected(f):
    return lambda self, other: f(other, self)


for _name, _f in {"add": add, "sub": sub, "mul": mul, "truediv": div, "pow": pow}.items():
    setattr(Tensor, f"__{_name}__", _f)
    setattr(Tensor, f"__r{_name}__", _reflected(_f))
Tensor.__matmul__ = lambda self, other: matmul(self, other)
Tensor.__neg__ = lambda self: neg(self)
Tensor.__lt__, Tensor.__gt__ = less, greater
Tensor.__eq__ = equal
Tensor.__hash__ = object.__hash__
Tensor.__getitem__ = _getitem
Tensor.__iter__ = lambda self: (self[i] for i in range(len(self)))
Tensor.T = property(transpose)
for _f in (reshape, transpose, broadcast_to, expand_dims, squeeze, split, mean, sum, tile):
    setattr(Tensor, _f.__name__, _f)
Tensor.astype = cast
Parameter.__hash__ = object.__hash__


def _class(name, function, *arguments):
    """A primitive as MindSpore's class: attributes to the constructor, tensors to the call."""

    class Primitive:
        def __init__(self, *args, **kwargs):
            self.kwargs = dict(zip(arguments, args), **kwargs)
            unknown = set(self.kwargs) - set(arguments)
            if unknown:
                raise TypeError(f"{name}: takes no attribute {sorted(unknown)[0]!r}; it has {list(arguments)}")

        def __call__(self, *inputs):
            return function(*inputs, **self.kwargs)

        def __repr__(self):
            return f"{name}({', '.join(f'{k}={v!r}' for k, v in self.kwargs.items())})"

    Primitive.__name__ = Primitive.__qualname__ = name
    Primitive.__doc__ = function.__doc__
    return Primitive


for _name, _f, *_arguments in [
    ("Add", add), ("Sub", sub), ("Mul", mul), ("Div", div), ("Pow", pow), ("Less", less), ("Equal", equal), ("Sqrt", sqrt),
    ("Rsqrt", rsqrt), ("Exp", exp), ("Erf", erf), ("Tanh", tanh), ("Sigmoid", sigmoid), ("SiLU", silu), ("ReLU", relu),
    ("GeLU", functools.partial(gelu, approximate="tanh")), ("MatMul", matmul, "transpose_a", "transpose_b"),
    ("BatchMatMul", bmm, "transpose_a", "transpose_b"), ("BiasAdd", bias_add), ("Softmax", softmax, "axis"),
    ("ReduceMean", lambda x, axis=None, keep_dims=False: mean(x, axis, keep_dims), "keep_dims"),
    ("ReduceSum", lambda x, axis=None, keep_dims=False: sum(x, axis, keep_dims), "keep_dims"),
    ("Reshape", reshape), ("Transpose", transpose), ("ExpandDims", expand_dims), ("Squeeze", squeeze, "axis"),
    ("Gather", gather), ("Concat", concat, "axis"), ("Cast", cast), ("Tile", tile), ("BroadcastTo", broadcast_to, "shape"),
    ("Select", select), ("StridedSlice", strided_slice), ("Neg", neg), ("Square", square),
    ("Split", lambda x, axis=0, output_num=1: split(x, output_num, axis), "axis", "output_num"),
]:  # fmt: skip
    globals()[_name] = _class(_name, _f, *_arguments)
    __all__.append(_name)
