"""Arguments of products, and those with a vector; `ops` has them."""

from . import dtype as dt
from .primitive import primitive
from .primitive import tensor as _tensor

_FLOATS = (dt.float32, dt.float16, dt.bfloat16)


def operands(x, y):
    """x and y of matmul as Tensors with a dimension at least; x is of a floating-point type."""
    x, y = _tensor(x, "matmul: x"), _tensor(y, "matmul: y")
    if x.dtype not in _FLOATS:
        names = ", ".join(dt.name(d) for d in _FLOATS)
        raise TypeError(f"matmul: x.dtype must be one of {names}, got {dt.name(x.dtype)}")
    for name, t in ("x", x), ("y", y):
        if not t.shape:
            raise ValueError(f"matmul: {name} must have at least 1 dimension, got shape ()")
    return x, y


def of_vectors(x, y, transpose_a, transpose_b):
    """x y of which one at least is a vector: a row on the left, a column on the right, as in NumPy."""
    turned = []
    for name, t, transpose in ("transpose_a", x, transpose_a), ("transpose_b", y, transpose_b):
        rank = len(t.shape)
        if transpose and rank == 1:
            raise ValueError(f"matmul: {name} must be False for a vector, got True for shape {tuple(t.shape)}")
        perm = [*range(rank - 2), rank - 1, rank - 2]
        turned.append(primitive("Transpose", t, perm=perm) if transpose else t)
    return primitive("MatMulExt", *turned)
