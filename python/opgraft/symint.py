"""SymInt: a size that is not a number yet."""

import operator

import numpy as np


class SymInt:
    """A dimension of a traced tensor that is not a number yet. Arithmetic gives another one."""

    __slots__ = ("_make", "dim", "tracer")

    def __init__(self, tracer, dim, make):
        self.tracer, self.dim, self._make = tracer, dim, make

    @property
    def value(self) -> int:
        """Id of the int64 value that holds the number when the graph runs."""
        return self._make()

    def _combine(self, other, op, primitive, swap=False):
        if not isinstance(other, (int, np.integer, SymInt)):
            return NotImplemented
        a, b = (other, self) if swap else (self, other)
        tracer = self.tracer
        dims = [x.dim if isinstance(x, SymInt) else int(x) for x in (a, b)]
        result = -1 if -1 in dims else tracer.graph.dim_op(op, *dims)
        if result >= 0:
            return result
        return SymInt(tracer, result, lambda: tracer.node(primitive, [tracer.scalar(a), tracer.scalar(b)], {})[0])

    def __add__(self, o):
        return self._combine(o, "+", "ScalarAdd")

    def __radd__(self, o):
        return self._combine(o, "+", "ScalarAdd", True)

    def __sub__(self, o):
        return self._combine(o, "-", "ScalarSub")

    def __rsub__(self, o):
        return self._combine(o, "-", "ScalarSub", True)

    def __mul__(self, o):
        return self._combine(o, "*", "ScalarMul")

    def __rmul__(self, o):
        return self._combine(o, "*", "ScalarMul", True)

    def __floordiv__(self, o):
        return self._combine(o, "/", "ScalarFloorDiv")

    def __rfloordiv__(self, o):
        return self._combine(o, "/", "ScalarFloorDiv", True)

    def __eq__(self, o):
        if isinstance(o, SymInt) and o.dim == self.dim and self.dim != -1:
            return True
        if not isinstance(o, (int, np.integer, SymInt)):
            return NotImplemented
        raise ValueError(f"trace: whether dimension {self!r} equals {o!r} is not known before the graph runs")

    def __hash__(self):
        raise TypeError(f"trace: dimension {self!r} is not a number before the graph runs, it cannot be a key")

    def __bool__(self):
        raise ValueError(f"trace: whether dimension {self!r} is 0 is not known before the graph runs")

    def __index__(self):
        raise TypeError(f"trace: dimension {self!r} is not a number before the graph runs")

    def __repr__(self):
        return "?" if self.dim == -1 else self.tracer.graph.dim_text(self.dim)


def numbers(name, items):
    """Sizes or positions as an int64 vector; `name`: who takes them, for the errors."""
    try:
        return np.array([operator.index(i) for i in items], dtype=np.int64)
    except TypeError:
        raise TypeError(f"{name}: sizes and positions must be int, got {items!r}") from None
    except OverflowError:
        raise ValueError(f"{name}: sizes and positions must fit 64 bits, got {items!r}") from None
