"""Tensor's operators and slicing, in terms of `ops`."""

import builtins

import numpy as np

from . import ops
from .symint import SymInt
from .tensor import Parameter, Tensor


def _getitem(x, index):
    index = index if isinstance(index, tuple) else (index,)
    index = tuple(np.asarray(i) if isinstance(i, list) else i for i in index)
    if len(index) == 1 and isinstance(index[0], (Tensor, np.ndarray)) and index[0].dtype.kind == "i":
        return ops.gather(x, _from_the_end(x, index[0]))
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
            begin.append(0 if i.start is None else _within_64_bits(i.start))
            end.append(0 if i.stop is None else _within_64_bits(i.stop))
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
    return ops.strided_slice(x, begin, end, strides, masks[0], masks[1], 0, masks[2], masks[3])


def _within_64_bits(i):
    """A slice's bound, which may lie anywhere beyond."""
    return max(-(2**63), min(i, 2**63 - 1)) if isinstance(i, int) else i


def _from_the_end(x, index):
    """Indices below 0 counted from the end, as in NumPy."""
    size = x.shape[0] if x.shape else 0
    array = index._array if isinstance(index, Tensor) else index
    if array is not None and not (array < 0).any():
        return index
    if array is None or not isinstance(size, int):
        index = index if isinstance(index, Tensor) else Tensor(index)
        return ops.select(ops.less(index, 0), index + size, index)
    return np.where(array < 0, array + size, array)


def _operator(f):
    """f as a method: another kind of operand is refused as Python does it, with its own chance to answer."""

    def method(self, other):
        if not isinstance(other, (Tensor, np.ndarray, np.generic, builtins.bool, int, float, SymInt)):
            return NotImplemented
        return f(self, other)

    return method


for _name, _f in {"add": ops.add, "sub": ops.sub, "mul": ops.mul, "truediv": ops.div, "pow": ops.pow,
                  "matmul": ops.matmul}.items():  # fmt: skip
    setattr(Tensor, f"__{_name}__", _operator(_f))
    setattr(Tensor, f"__r{_name}__", _operator(lambda x, y, f=_f: f(y, x)))
for _name, _f in {"lt": ops.less, "gt": ops.greater, "le": ops.less_equal, "ge": ops.greater_equal, "eq": ops.equal,
                  "ne": ops.not_equal, "and": ops.logical_and, "or": ops.logical_or, "rand": ops.logical_and,
                  "ror": ops.logical_or}.items():  # fmt: skip
    setattr(Tensor, f"__{_name}__", _operator(_f))
Tensor.__invert__ = lambda self: ops.logical_not(self)
Tensor.__neg__ = lambda self: ops.neg(self)
Tensor.__hash__ = object.__hash__
Tensor.__getitem__ = _getitem
Tensor.__iter__ = lambda self: (self[i] for i in range(len(self)))
Tensor.T = property(ops.transpose)
for _name in ("reshape", "transpose", "broadcast_to", "expand_dims", "squeeze", "split", "mean", "tile", "round",
              "clamp", "clip", "unbind", "isnan", "std", "var", "log", "topk", "logical_not", "logical_and",
              "logical_or", "matmul", "narrow", "tril", "triu"):  # fmt: skip
    setattr(Tensor, _name, getattr(ops, _name))
Tensor.astype = ops.cast
Tensor.sum = lambda self, axis=None, dtype=None, keepdims=False: ops.sum(self, axis, keepdims, dtype=dtype)
Parameter.__hash__ = object.__hash__
