"""Tensor: a NumPy array (shared, never copied without need), or a value of a graph being traced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from .dtype import bfloat16, float32, int64, to_dtype
from .dtype import name as dtype_name


class Dim:
    """A named dimension of inputs, unknown until run time."""

    def __init__(self, name: str):
        self.name = name

    def __repr__(self):
        return f"dim({self.name!r})"


def dim(name: str) -> Dim:
    """A dimension that is the same wherever this object stands: `Tensor(shape=[batch, 4], dtype=...)`."""
    return Dim(name)


class Tensor(_core.TensorBase):
    """A tensor.

    `Tensor(data, dtype=None)` shares a NumPy array's memory, or makes an array of numbers (float32 for
    Python floats, int64 for ints). `Tensor(shape=[None, 4], dtype=...)` has no data and only describes an
    input to trace: None is a dimension of its own, `opgraft.dim("batch")` one that several inputs share.
    """

    __slots__ = ("_id", "_spec", "_tracer")
    __array_priority__ = 100

    def __init__(self, data=None, dtype=None, shape=None):
        self._tracer = None
        self._spec = None
        if data is None:
            if shape is None or dtype is None:
                raise ValueError("Tensor: data, or both shape and dtype, must be given")
            self._spec = (_described(shape), to_dtype(dtype, "Tensor: dtype"))
            return
        if isinstance(data, Tensor):
            data = data.asnumpy()
        if not isinstance(data, (np.ndarray, np.generic)):
            try:
                data = np.asarray(data)
            except ValueError as e:
                raise ValueError(f"Tensor: data must be numbers of one shape: {e}") from None
            if dtype is None:
                data = data.astype({"f": float32, "i": int64}.get(data.dtype.kind, data.dtype), copy=False)
        wanted = to_dtype(data.dtype if dtype is None else dtype, "Tensor: dtype")
        array = np.asarray(data).astype(wanted, copy=False)
        if shape is not None and array.shape != tuple(shape):
            raise ValueError(f"Tensor: shape must be the data's {array.shape}, got {tuple(shape)}")
        self._array = array

    @property
    def traced(self) -> bool:
        return self._array is None and getattr(self, "_tracer", None) is not None

    @property
    def dtype(self):
        if self._array is not None:
            return self._array.dtype
        return self._tracer.dtype(self._id) if self._tracer else self._spec[1]

    @property
    def shape(self):
        if self._array is not None:
            return self._array.shape
        return self._tracer.shape(self._id) if self._tracer else self._spec[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return self._value("size").size

    def _value(self, what):
        if self._array is None:
            raise ValueError(f"Tensor.{what}: the value is not known while a graph is traced")
        return self._array

    def asnumpy(self) -> np.ndarray:
        """The data, shared."""
        return self._value("asnumpy")

    def item(self):
        """The only element, as a Python number."""
        return self._single("item")

    def _single(self, what):
        if (a := self._value(what)).size != 1:
            raise ValueError(f"Tensor.{what}: a tensor of shape {a.shape} has no single value")
        return a.item()

    def __array__(self, dtype=None, copy=None):
        a = self._value("__array__")
        return a.astype(dtype, copy=bool(copy)) if dtype is not None else a.copy() if copy else a

    def __dlpack__(self, **kwargs):
        array = self._value("__dlpack__")
        if array.dtype != bfloat16:
            return array.__dlpack__(**kwargs)
        capsule = array.view(np.uint16).__dlpack__(**kwargs)
        _core.dlpack_to_bfloat16(capsule)
        return capsule

    def __dlpack_device__(self):
        return (1, 0)

    @staticmethod
    def from_numpy(array) -> Tensor:
        """A tensor over a NumPy array's memory."""
        if not isinstance(array, np.ndarray):
            raise TypeError(f"Tensor.from_numpy: array must be a NumPy array, got {type(array).__name__}")
        return Tensor(array)

    def __reduce__(self):
        return Tensor, (self._value("__reduce__"),)

    def __len__(self):
        if not self.shape:
            raise TypeError("len: a tensor of shape () has no length")
        return self.shape[0]

    def __bool__(self):
        return bool(self._single("__bool__"))

    def __float__(self):
        return float(self._single("__float__"))

    def __int__(self):
        return int(self._single("__int__"))

    def __repr__(self):
        kind = type(self).__name__
        if self._array is None:
            return f"{kind}(shape={list(self.shape)}, dtype={dtype_name(self.dtype)})"
        return f"{kind}({np.array2string(self._array, separator=', ', threshold=100)}, dtype={dtype_name(self.dtype)})"

    __hash__ = object.__hash__

    if TYPE_CHECKING:  # operators.py gives them

        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __rmatmul__(self, other: Any) -> Tensor: ...
        def __lt__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __rand__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __ror__(self, other: Any) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __iter__(self) -> Iterator[Tensor]: ...
        def __getattr__(self, name: str) -> Any: ...  # reshape, transpose, mean …


def _described(shape):
    if not isinstance(shape, (tuple, list)):
        raise TypeError(f"Tensor: shape must be a tuple or a list, got {type(shape).__name__}")
    for n in shape:
        if n is not None and not isinstance(n, Dim) and (not isinstance(n, (int, np.integer)) or n < 0):
            raise ValueError(
                f"Tensor: a shape's sizes must be None, opgraft.dim(name) or an int of at least 0, got {n!r}"
            )
    return tuple(shape)


class Parameter(Tensor):
    """A named weight of a Cell."""

    __slots__ = ("_owner", "name", "requires_grad", "updated")

    def __init__(self, default_input, name="", requires_grad=True):
        super().__init__(default_input)
        self.name = name
        self.requires_grad = requires_grad
        self.updated = False  # whether a graph has updated it in place: then it is no constant to others
        self._owner = None

    def __reduce__(self):
        return Parameter, (self.asnumpy(), self.name, self.requires_grad)

    def set_data(self, data):
        """Puts other data of the same shape and dtype in place."""
        array = np.asarray(data)
        to_dtype(array.dtype, f"Parameter {self.name}: data.dtype")
        array = array.astype(self.dtype, copy=False)
        if array.shape != self.shape:
            raise ValueError(f"Parameter {self.name}: shape must be {self.shape}, got {array.shape}")
        self._array = np.ascontiguousarray(array).reshape(array.shape)
        owner = self._owner() if self._owner else None
        if owner is not None:
            owner._invalidate()


def from_dlpack(dlpack) -> Tensor:
    """A tensor over another library's memory (NumPy, torch, …), without a copy. Only of the CPU's memory."""
    if not hasattr(dlpack, "__dlpack__"):
        raise TypeError(f"from_dlpack: dlpack must have __dlpack__, got {type(dlpack).__name__}")
    capsule = _Capsule(dlpack)
    array = np.from_dlpack(capsule)
    return Tensor(array.view(bfloat16) if capsule.bfloat16 else array)


class _Capsule:
    """Gives NumPy what another library gives, bfloat16 as uint16."""

    bfloat16 = False

    def __init__(self, source):
        self._source = source

    def __dlpack__(self, **kwargs):
        try:
            capsule = self._source.__dlpack__(**kwargs)
        except TypeError:  # a library that knows only the protocol's first form
            capsule = self._source.__dlpack__()
        self.bfloat16 = _core.dlpack_from_bfloat16(capsule)
        return capsule

    def __dlpack_device__(self):
        return self._source.__dlpack_device__()


_core.set_tensor_type(Tensor)
