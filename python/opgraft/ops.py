"""Primitives by MindSpore's names, as functions; and ops.Custom, an operator from a shared object."""

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from . import assign as _assign
from . import decoding as _decoding
from . import deviations as _deviations
from . import dtype as dt
from . import einsum as _einsum
from . import norms as _norms
from . import parts as _parts
from . import products as _products
from . import quantised as _quantised
from . import rotary as _rotary
from . import rounding as _rounding
from . import sparse as _sparse
from . import windows as _windows
from .custom import Custom, CustomRegOp, DataType
from .primitive import pair as _pair
from .primitive import primitive
from .primitive import run as _run
from .primitive import signature as _signature
from .primitive import tensor as _tensor

__all__ = ["Custom", "CustomRegOp", "DataType", "primitive"]


if TYPE_CHECKING:  # made from tables below

    def __getattr__(name: str) -> Any: ...


def _export(f):
    __all__.append(f.__name__)
    return f


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


add, sub, mul, pow = (_binary(o.lower(), o) for o in ["Add", "Sub", "Mul", "Pow"])  # noqa: A001
maximum, minimum = _binary("maximum", "Maximum"), _binary("minimum", "Minimum")
less, equal, greater = _binary("less", "Less"), _binary("equal", "Equal"), _binary("greater", "Greater")
not_equal, less_equal = _binary("not_equal", "NotEqual"), _binary("less_equal", "LessEqual")
greater_equal, logical_and = _binary("greater_equal", "GreaterEqual"), _binary("logical_and", "LogicalAnd")
logical_or, logical_not = _binary("logical_or", "LogicalOr"), _unary("logical_not", "LogicalNot")
isnan = _unary("isnan", "IsNan")
sqrt, rsqrt, exp, log, erf, tanh = (_unary(f.lower(), f) for f in ["Sqrt", "Rsqrt", "Exp", "Log", "Erf", "Tanh"])
abs, cos, sin = (_unary(f.lower(), f) for f in ["Abs", "Cos", "Sin"])  # noqa: A001
reciprocal, erfc = _unary("reciprocal", "Reciprocal"), _unary("erfc", "Erfc")
fast_gelu, hardswish = _unary("fast_gelu", "FastGeLU"), _unary("hardswish", "HSwish")
hardsigmoid = _unary("hardsigmoid", "HSigmoid")
sigmoid, silu, relu = _unary("sigmoid", "Sigmoid"), _unary("silu", "SiLU"), _unary("relu", "ReLU")
relu6, neg, square = _unary("relu6", "ReLU6"), _unary("neg", "Neg"), _unary("square", "Square")
round, clamp, clip, clip_by_value = _rounding.round, _rounding.clamp, _rounding.clamp, _rounding.clip_by_value  # noqa: A001
__all__ += ["clamp", "clip", "clip_by_value", "round"]


@_export
def div(x, y):
    """Div of two tensors (or a tensor and a number), broadcast as in NumPy; integers are brought to float32."""
    x, y = _pair("Div", x, y)
    if x.dtype.kind in "iub":
        x, y = cast(x, dt.float32), cast(y, dt.float32)
    return _run("Div", [x, y], {})


@_export
def gelu(x, approximate="none"):
    """GELU; approximate is "tanh" or "none" (erf)."""
    return primitive("GeLU", _tensor(x, "gelu: x"), approximate=approximate)


@_export
def swiglu(input, dim=-1):
    """SiLU of the first half of a dimension times the second half."""
    return primitive("Swiglu", _tensor(input, "swiglu: input"), dim=dim)


@_export
def matmul(x, y, transpose_a=False, transpose_b=False):
    """Matrix product over the last two dimensions, of which a vector has one; MatMul where y is a matrix, MatMulExt of
    a vector, else BatchMatMul."""
    x, y = _products.operands(x, y)
    if len(x.shape) == 1 or len(y.shape) == 1:
        return _products.of_vectors(x, y, transpose_a, transpose_b)
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
def bias_add(x, bias, *, data_format="NCHW"):
    """BiasAdd: bias of shape (c,) along dimension 1 of x, as in MindSpore (NCHW)."""
    return primitive("BiasAdd", _tensor(x, "bias_add: x"), _tensor(bias, "bias_add: bias"), data_format=data_format)


@_export
def softmax(x, axis=-1, *, dtype=None):
    """Softmax along axis; of x as dtype, where that is given."""
    x = _tensor(x, "softmax: x") if dtype is None else cast(x, dtype)
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool):
        raise TypeError(f"softmax: axis must be an int, got {axis!r}")
    _, _, attrs = _signature("Softmax")
    return primitive("Softmax", x, axis=[axis] if isinstance(attrs.get("axis"), list) else axis)


@_export
def log_softmax(logits, axis=-1):
    """The logarithm of softmax along axis."""
    return primitive("LogSoftmax", _tensor(logits, "log_softmax: logits"), axis=axis)


layer_norm, rms_norm, add_rms_norm = _norms.layer_norm, _norms.rms_norm, _norms.add_rms_norm
__all__ += ["add_rms_norm", "layer_norm", "rms_norm"]


def _reduce(op, x, axis, keep_dims, **more):
    x = _tensor(x, f"{op}: x")
    axis = [] if axis is None else list(axis) if isinstance(axis, (tuple, list)) else [axis]
    return primitive(op, x, axis=axis, keep_dims=keep_dims, **more)


@_export
def mean(x, axis=None, keep_dims=False):
    """ReduceMean; axis None: over all dimensions."""
    return _reduce("ReduceMean", x, axis, keep_dims)


@_export
def reduce_sum(x, axis=None, keep_dims=False):
    """ReduceSum; axis None: over all dimensions."""
    return _reduce("ReduceSum", x, axis, keep_dims)


@_export
def sum(x, dim=None, keepdim=False, *, dtype=None):  # noqa: A001
    """The sum over dim (None: all dimensions), in dtype; without it integers and bool are added as int64."""
    x = _tensor(x, "sum: x")
    return reduce_sum(cast(x, dtype or (dt.int64 if x.dtype.kind in "iub" else x.dtype)), dim, keepdim)


reduce_mean = mean
std, var, std_mean, var_mean = _deviations.std, _deviations.var, _deviations.std_mean, _deviations.var_mean
__all__ += ["reduce_mean", "std", "std_mean", "var", "var_mean"]


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
def gather(params, indices, axis=0, batch_dims=0):
    """Slices of params along axis, at int indices."""
    if batch_dims:
        raise ValueError(f"gather: batch_dims must be 0, got {batch_dims}")
    return primitive("Gather", _tensor(params, "gather: params"), _tensor(indices, "gather: indices"), axis=axis)


@_export
def stack(tensors, axis=0):
    """The tensors, which have one shape, along a new axis."""
    return primitive("Stack", *[_tensor(t, "stack: tensors") for t in tensors], axis=axis)


@_export
def concat(tensors, axis=0):
    return primitive("Concat", *[_tensor(t, "concat: tensors") for t in tensors], axis=axis)


def _flatten_rest(x):
    """All dimensions but the first as one; of a vector a column."""
    x = _tensor(x, "Flatten: x")
    return expand_dims(x, 1) if len(x.shape) == 1 else primitive("Flatten", x)


split, unstack, unbind = _parts.split, _parts.unstack, _parts.unbind
slice, narrow, triu, tril, topk = _parts.cut, _parts.narrow, _parts.triu, _parts.tril, _parts.topk  # noqa: A001
__all__ += ["narrow", "slice", "split", "topk", "tril", "triu", "unbind", "unstack"]


@_export
def cast(x, dtype):
    x = _tensor(x, "cast: x")
    dtype = dt.to_dtype(dtype, "cast: dtype")
    return x if x.dtype == dtype else primitive("Cast", x, dtype=dt.name(dtype))


@_export
def select(cond, x, y):
    """x where cond, else y."""
    x, y = _pair("Select", x, y)
    return primitive("Select", _tensor(cond, "select: cond"), x, y)


where = select
__all__.append("where")
rotary_position_embedding, apply_rotary_pos_emb = _rotary.rotary_position_embedding, _rotary.apply_rotary_pos_emb
assign, assign_add, assign_sub = _assign.assign, _assign.assign_add, _assign.assign_sub
cached_attention, kv_cache_append = _decoding.cached_attention, _decoding.kv_cache_append
block_quant_matmul, block_quant_gather = _decoding.block_quant_matmul, _decoding.block_quant_gather
sample_token = _decoding.sample_token
sparse_dense, sparse_matmul = _sparse.sparse_dense, _sparse.sparse_matmul
quant_batch_matmul, weight_quant_batch_matmul = _quantised.quant_batch_matmul, _quantised.weight_quant_batch_matmul
__all__ += ["apply_rotary_pos_emb", "assign", "assign_add", "assign_sub", "block_quant_gather", "block_quant_matmul",
            "cached_attention", "kv_cache_append", "rotary_position_embedding", "sample_token",
            "sparse_dense", "sparse_matmul"]  # fmt: skip
einsum = _einsum.einsum
__all__ += ["einsum", "quant_batch_matmul", "weight_quant_batch_matmul"]
Conv2D, BatchNorm, MaxPool, AvgPool = _windows.Conv2D, _windows.BatchNorm, _windows.MaxPool, _windows.AvgPool
AdaptiveAvgPool2D, adaptive_avg_pool2d = _windows.AdaptiveAvgPool2D, _windows.adaptive_avg_pool2d
conv2d, batch_norm, flatten = _windows.conv2d, _windows.batch_norm, _windows.flatten
avg_pool2d, AvgPool3D, MaxPool3DWithArgmax = _windows.avg_pool2d, _windows.AvgPool3D, _windows.MaxPool3DWithArgmax
max_pool2d, MaxPoolWithArgmaxV2 = _windows.max_pool2d, _windows.MaxPoolWithArgmaxV2
__all__ += [
    "AdaptiveAvgPool2D",
    "AvgPool",
    "AvgPool3D",
    "BatchNorm",
    "Conv2D",
    "MaxPool",
    "MaxPool3DWithArgmax",
    "MaxPoolWithArgmaxV2",
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "batch_norm",
    "conv2d",
    "flatten",
    "max_pool2d",
]


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


def _class(name, function, *arguments):
    """A primitive as MindSpore's class: attributes to the constructor, tensors to the call."""

    class Primitive:
        def __init__(self, *args, **kwargs):
            if len(args) > len(arguments):
                raise TypeError(f"{name}: takes {len(arguments)} attributes {list(arguments)}, got {len(args)}")
            self.kwargs = dict(zip(arguments, args), **kwargs)
            unknown = set(self.kwargs) - set(arguments)
            if unknown:
                raise TypeError(f"{name}: takes no attribute {sorted(unknown)[0]!r}; it has {list(arguments)}")

        def __call__(self, *inputs):
            return function(*inputs, **self.kwargs)

        def __repr__(self):
            return f"{name}({', '.join(f'{k}={v!r}' for k, v in self.kwargs.items())})"

    Primitive.__name__ = Primitive.__qualname__ = name
    Primitive.arguments = arguments
    Primitive.__doc__ = function.__doc__
    return Primitive


for _f in (add, sub, mul, div, pow, less, equal, maximum, minimum, greater):
    _name = _f.__name__.capitalize()
    globals()[_name] = _class(_name, _f)
    __all__.append(_name)
for _name, _f, *_arguments in [
    ("NotEqual", not_equal), ("LessEqual", less_equal), ("GreaterEqual", greater_equal), ("IsNan", isnan),
    ("LogicalAnd", logical_and), ("LogicalOr", logical_or), ("LogicalNot", logical_not), ("Sqrt", sqrt),
    ("Rsqrt", rsqrt), ("Exp", exp), ("Erf", erf), ("Tanh", tanh), ("Sigmoid", sigmoid), ("SiLU", silu), ("ReLU", relu),
    ("GeLU", functools.partial(gelu, approximate="tanh")), ("MatMul", matmul, "transpose_a", "transpose_b"),
    ("BatchMatMul", bmm, "transpose_a", "transpose_b"), ("BiasAdd", bias_add, "data_format"),
    ("Softmax", softmax, "axis"), ("Reciprocal", reciprocal), ("RmsNorm", rms_norm, "epsilon"),
    ("Log", log), ("LogSoftmax", log_softmax, "axis"), ("TopK", _parts.largest, "sorted"),
    ("LayerNorm", lambda x, gamma, beta, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-7: _norms.norm(
        x, gamma, beta, begin_norm_axis, begin_params_axis, epsilon),
     "begin_norm_axis", "begin_params_axis", "epsilon"),
    ("ReduceMean", lambda x, axis=None, keep_dims=False: mean(x, axis, keep_dims), "keep_dims"),
    ("ReduceSum", lambda x, axis=None, **more: _reduce("ReduceSum", x, axis, **{"keep_dims": False, **more}),
     "keep_dims", "skip_mode"),
    ("Reshape", reshape), ("Transpose", transpose), ("ExpandDims", expand_dims), ("Squeeze", squeeze, "axis"),
    ("Gather", gather, "batch_dims"), ("Concat", concat, "axis"), ("Stack", stack, "axis"), ("Cast", cast),
    ("Tile", tile),
    ("BroadcastTo", broadcast_to, "shape"), ("Select", select),
    ("StridedSlice", strided_slice, "begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"),
    ("Neg", neg), ("Abs", abs), ("Cos", cos), ("Sin", sin),
    ("Square", square), ("ReLU6", relu6), ("Flatten", _flatten_rest), ("Rint", _rounding.rint),
    ("Einsum", lambda operands, equation: einsum(equation, *operands), "equation"),
    ("Round", lambda x, decimals=0: round(x, decimals=decimals)),
    ("Erfc", erfc), ("FastGeLU", fast_gelu), ("HSwish", hardswish), ("HSigmoid", hardsigmoid),
    ("Slice", slice), ("Triu", triu, "diagonal"), ("Tril", tril, "diagonal"),
    ("Split", _parts.equal, "axis", "output_num"), ("Unstack", _parts.slices, "axis", "num"),
    ("SparseTensorDenseMatmul", _sparse.sparse_tensor_dense_matmul, "adjoint_st", "adjoint_dt"),
    ("QuantBatchMatmul", quant_batch_matmul, "transpose_x1", "transpose_x2", "dtype"),
    ("WeightQuantBatchMatmul", weight_quant_batch_matmul, "transpose_x", "transpose_weight", "antiquant_group_size"),
    ("QuantV2", _quantised.quant_v2), ("DynamicQuantExt", _quantised.dynamic_quant_ext),
    ("AntiQuant", _quantised.anti_quant, "sqrt_mode", "dtype"),
    ("Dequant", _quantised.dequant, "sqrt_mode", "relu_flag", "dtype"),
]:  # fmt: skip
    globals()[_name] = _class(_name, _f, *_arguments)
    __all__.append(_name)
