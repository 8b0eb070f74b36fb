"""Element types under MindSpore's names. Each is the NumPy dtype itself; bfloat16 is ml_dtypes'."""

import ml_dtypes
import numpy as np

from . import _core

bool_ = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
bfloat16 = np.dtype(ml_dtypes.bfloat16)
complex64 = np.dtype(np.complex64)

_ALL = [bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64, bfloat16, complex64]
_IDS = {d: _core.dtype_id(d.num) for d in _ALL}
_BY_ID = {i: d for d, i in _IDS.items()}
_NAMES = {_core.dtype_name(i): d for d, i in _IDS.items()}


def to_dtype(value, what="dtype") -> np.dtype:
    """The dtype that a name, a NumPy dtype, a scalar type or a Python type stands for; TypeError if none."""
    if isinstance(value, np.dtype) and value in _IDS:
        return value
    if isinstance(value, str) and value in _NAMES:
        return _NAMES[value]
    if value is float:
        return float32
    try:
        found = np.dtype(value).newbyteorder("=")
    except TypeError:
        found = None
    if found not in _IDS:
        raise TypeError(f"{what} must be one of {', '.join(_NAMES)}, got {value!r}")
    return found


def type_id(dtype) -> int:
    """MindSpore's TypeId."""
    return _IDS[to_dtype(dtype)]


def from_id(number: int) -> np.dtype:
    return _BY_ID[number]


def name(dtype) -> str:
    return _core.dtype_name(type_id(dtype))


def promote(a: np.dtype, b: np.dtype) -> np.dtype:
    """The dtype two operands are brought to: floating over integer, wider over narrower, two halves to float32."""
    if a == b:
        return a
    rank = [bool_, uint8, int8, int16, int32, int64, bfloat16, float16, float32, float64]
    if {a, b} == {float16, bfloat16}:
        return float32
    if a in rank and b in rank:
        return max(a, b, key=rank.index)
    return np.result_type(a, b)
