"""What was traced of a function, by signature; and the decorator `jit`."""

from . import trace as _trace
from .tensor import dim

_MOST = 32  # programs kept of one function; the oldest goes first


def open_specs(sets):
    """(dtype, shape) of every input: dimensions that differ between the sets are open, and one where they agree."""
    dims, specs = {}, []
    for inputs in zip(*sets):
        shape = []
        for sizes in zip(*(i[1] for i in inputs)):
            shape.append(sizes[0] if len(set(sizes)) == 1 else dims.setdefault(sizes, dim(f"d{len(dims)}")))
        specs.append((inputs[0][0], tuple(shape)))
    return specs


class Programs:
    """Traces on the first call, and once more with open dimensions when only sizes differ from what is known.

    A function that needs its sizes as numbers (a loop over x.shape[0]) is traced for each of them.
    """

    def __init__(self):
        self._exact, self._kinds = {}, {}

    def clear(self):
        self._exact.clear()
        self._kinds.clear()

    def get(self, leaves, structure, make):
        """The program for these tensors; `make(specs, structure)` traces one."""
        specs = tuple((t.dtype, t.shape) for t in leaves)
        key = (structure, specs)
        if (program := self._exact.get(key)) is None:
            program = self._make(leaves, specs, structure, make)
            _keep(self._exact, key, program)
        return program

    def _make(self, leaves, specs, structure, make):
        kind = (structure, tuple((d, len(s)) for d, s in specs))
        if (known := self._kinds.get(kind)) is None:
            program = make(specs, structure)
            _keep(self._kinds, kind, ([specs], []))
            return program
        sets, programs = known
        for program in programs:
            if program.fits(leaves):
                return program
        if sets:
            try:
                program = make(open_specs([*sets, specs]), structure)
                sets.append(specs)
                programs[:] = [program]
                return program
            except (ValueError, TypeError, RuntimeError, IndexError, NotImplementedError):
                program = make(specs, structure)
                sets.clear()  # it needs numbers
                return program
        return make(specs, structure)


def _keep(table, key, value):
    if len(table) >= _MOST:
        table.pop(next(iter(table)))
    table[key] = value


class jit:  # noqa: N801 - MindSpore's name
    """Decorator: traces a function and runs the graph.

    It is traced again for another dtype, rank or constant, for other data of a Parameter, and once when sizes
    change; after that other sizes run the same graph.
    """

    def __init__(self, function):
        if not callable(function):
            raise TypeError(f"jit: function must be callable, got {type(function).__name__}")
        self._function = function
        self._programs, self._parameters = Programs(), []
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", "jit")
        self.__wrapped__ = function

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        # One trace cache per instance, kept on it.
        key = f"_jit_{self.__name__}"
        if key not in instance.__dict__:
            object.__setattr__(instance, key, jit(self._function.__get__(instance)))
        return instance.__dict__[key]

    def _make(self, specs, structure):
        graph, out = _trace.trace(self._function, specs, structure, name=self.__name__, parameters=self._parameters)
        return _trace.Program(_trace.clean(graph), out)

    def __call__(self, *args, **kwargs):
        if _trace.active():
            return self._function(*args, **kwargs)
        if any(p._array is not data for p, data in self._parameters):
            self._programs.clear()
            self._parameters.clear()
        leaves = []
        structure = _trace.flatten((args, kwargs), leaves)
        return self._programs.get(leaves, structure, self._make)(leaves)
