"""What was traced of a function: a program, programs by signature, and the decorator `jit`."""

import copy
import threading

from . import _core
from . import dtype as dt
from . import trace as _trace
from .symint import SymInt
from .tensor import Tensor, dim
from .trace import Used, unflatten

_MOST = 32  # programs kept of one function; the oldest goes first


class Program:
    """A graph with what is needed to call it: a shared model, and one session per thread; and what it was made of."""

    def __init__(self, graph, structure, used=None):
        self.graph, self.structure, self.used = graph, structure, used or Used()
        self.model = _core.Model(graph)
        self.own_states = used is None
        self._local = threading.local()
        self.inputs = [(dt.from_id(graph.dtype(v)), tuple(graph.dims(v))) for v in graph.inputs]

    @property
    def session(self):
        if not hasattr(self._local, "session"):
            # A Cell's Parameters are updated in place; what was loaded from a file stays as it is.
            self._local.session = _core.Session(self.model, own_states=self.own_states)
        return self._local.session

    def fits(self, tensors) -> bool:
        """Whether the graph takes these tensors; an open dimension of a placeholder needs one that is open."""
        bound = {}
        if len(tensors) != len(self.inputs):
            return False
        for t, (dtype, dims) in zip(tensors, self.inputs):
            if t.dtype != dtype or len(t.shape) != len(dims):
                return False
            for d, n in zip(dims, t.shape):
                if isinstance(n, SymInt):  # while another graph is traced; -1 is a size unlike any other
                    n = ("dim", n.dim) if n.dim != -1 else object()
                if d >= 0 and d != n or d < 0 and n is not None and bound.setdefault(d, n) != n:
                    return False
        return True

    def in_copy(self, memo):
        """The same program in a deep copy of the Cell it was traced of."""
        made = copy.copy(self)
        made.used = self.used.in_copy(memo)
        return made

    def __call__(self, tensors):
        out = self.session.run([t._value("call") for t in tensors])
        return unflatten(self.structure, iter([Tensor(a) for a in out]))


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
        if program.used.changed():
            self.clear()
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

    It is traced again for another dtype, rank or constant, for other data of a Parameter, when a Cell it calls was
    changed, and once when sizes change; after that other sizes run the same graph.
    """

    def __init__(self, function):
        if not callable(function):
            raise TypeError(f"jit: function must be callable, got {type(function).__name__}")
        self._function = function
        self._programs = Programs()
        self._method_of = self._instance = None
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", "jit")
        self.__wrapped__ = function

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        # One trace cache per instance and method, kept on it; a method it overrides has another.
        key = f"_jit_{self.__name__}_{id(self)}"
        if (bound := instance.__dict__.get(key)) is None:
            bound = jit(self._function.__get__(instance))
            bound._method_of, bound._instance = self, instance
            object.__setattr__(instance, key, bound)
        return bound

    def _make(self, specs, structure):
        tracer = _trace.Tracer(self.__name__)
        graph, out = _trace.trace(self._function, specs, structure, tracer=tracer)
        if hasattr(self._instance, "_version"):  # a Cell's method reads its attributes
            tracer.calls(self._instance)
        return Program(_trace.clean(graph), out, tracer.used())

    def __call__(self, *args, **kwargs):
        if _trace.active():
            return self._function(*args, **kwargs)
        if _trace.plain():
            return self._function(*_trace.tensors(args), **_trace.tensors(kwargs))
        leaves = []
        structure = _trace.flatten((args, kwargs), leaves)
        return self._programs.get(leaves, structure, self._make)(leaves)
