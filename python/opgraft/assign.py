"""Updates of Parameters in place, as MindSpore's functions of these names: each gives the variable itself."""

import numpy as np

from .primitive import primitive
from .tensor import Tensor


def _update(op, variable, value):
    if not isinstance(variable, Tensor):
        raise TypeError(f"{op}: variable must be a Parameter or a Tensor, got {type(variable).__name__}")
    if not isinstance(value, (Tensor, np.ndarray)):
        value = np.asarray(value, variable.dtype)
    primitive(op, variable, value)
    return variable


def assign(variable, value):
    """The variable becomes value, of its shape and dtype."""
    return _update("Assign", variable, value)


def assign_add(variable, value):
    """The variable becomes variable + value; value has its shape and dtype."""
    return _update("AssignAdd", variable, value)


def assign_sub(variable, value):
    """The variable becomes variable - value; value has its shape and dtype."""
    return _update("AssignSub", variable, value)
