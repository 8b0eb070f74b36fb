"""Tracing: running Python code on tensors that only record which primitives made them."""

import copy
import inspect
import operator
import threading

import numpy as np

from . import _core
from . import dtype as dt
from .tensor import Dim, Parameter, Tensor


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


_local = threading.local()


def active():
    """The tracer at work on this thread, or None."""
    return getattr(_local, "tracer", None)


class Tracer:
    def __init__(self, name="main", graph=None):
        self.graph = graph or _core.Graph(name)
        self.parameters = []  # those used, with the data they had
        self.scopes = []
        self._constants, self._shapes, self._names, self._keep = {}, {}, {}, []
        self._dims = {}

    # inputs and constants
    def input(self, name, dtype, shape) -> Tensor:
        dims = []
        for i, d in enumerate(shape):
            if isinstance(d, (int, np.integer)) and d >= 0:
                dims.append(int(d))
                continue
            key = d if isinstance(d, Dim) else (name, i)
            if key not in self._dims:
                self._dims[key] = self.graph.symbol(d.name if isinstance(d, Dim) else f"{name}.{i}")
            dims.append(self._dims[key])
        return self.tensor(self.graph.add_input(name, dt.type_id(dtype), dims))

    def tensor(self, value: int) -> Tensor:
        t = Tensor.__new__(Tensor)
        t._tracer, t._id, t._spec = self, value, None
        return t

    def constant(self, array, name="", parameter=False) -> int:
        key = id(array)
        if key not in self._constants:
            self._constants[key] = self.graph.add_constant(array, name, parameter)
            self._keep.append(array)
        return self._constants[key]

    def lift(self, x) -> int:
        if isinstance(x, Tensor):
            if x._array is None:
                if x._tracer is not self:
                    raise RuntimeError("trace: a value of another trace was used; a Cell must not keep traced tensors")
                return x._id
            named = isinstance(x, Parameter) and bool(x.name)
            if isinstance(x, Parameter):
                self.parameters.append((x, x._array))
            return self.constant(x._array, x.name if named else "", named)
        return self.constant(np.asarray(x))

    def scalar(self, x) -> int:
        return x.value if isinstance(x, SymInt) else self.graph.add_constant(np.array(x, dtype=np.int64))

    def shape_value(self, items) -> int:
        """An int64 vector of ints and SymInts."""
        if not any(isinstance(i, SymInt) for i in items):
            try:
                items = [operator.index(i) for i in items]
            except TypeError:
                raise TypeError(f"trace: sizes and positions must be int, got {items!r}") from None
            return self.graph.add_constant(np.array(items, dtype=np.int64).reshape(len(items)))
        return self.node("MakeTuple", [self.scalar(i) for i in items], {})[0]

    # nodes
    def node(self, op, inputs, attrs, spec="") -> list:
        scope = "/".join(self.scopes)
        name = f"{scope}/{op}" if scope else op
        n = self._names[name] = self._names.get(name, -1) + 1
        _, outputs = self.graph.add_node(op, inputs, attrs, f"{name}_{n}" if n else name, spec)
        return outputs

    def dtype(self, value):
        return dt.from_id(self.graph.dtype(value))

    def shape(self, value):
        return tuple(d if d >= 0 else self._symint(value, i, d) for i, d in enumerate(self.graph.dims(value)))

    def _symint(self, value, index, d):
        def make():
            if (value, index) not in self._shapes:
                if value not in self._shapes:
                    self._shapes[value] = self.node("Shape", [value], {})[0]
                self._shapes[value, index] = self.node("TupleGetItem", [self._shapes[value]], {"index": index})[0]
            return self._shapes[value, index]

        return SymInt(self, d, make)

    def __enter__(self):
        self._outer = active()
        _local.tracer = self
        return self

    def __exit__(self, *_):
        _local.tracer = self._outer


class Const:
    """An argument that is no tensor; equal to another only of the same type, so that 1, 1.0 and True differ."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self):
        return hash(self.value)


def flatten(tree, leaves):
    """Appends the tensors of nested tuples, lists and dicts to `leaves`; returns the structure, hashable."""
    if isinstance(tree, (Tensor, np.ndarray)):
        leaves.append(tree if isinstance(tree, Tensor) else Tensor(tree))
        return "*"
    if isinstance(tree, (tuple, list)):
        kind = type(tree) if hasattr(tree, "_fields") else "tuple" if isinstance(tree, tuple) else "list"
        return (kind, tuple(flatten(x, leaves) for x in tree))
    if isinstance(tree, dict):
        return ("dict", tuple((k, flatten(v, leaves)) for k, v in tree.items()))
    if isinstance(tree, SymInt):
        what = f"dimension {tree!r}, no number before the graph runs"
        raise TypeError(f"trace: an argument or a result must not be {what}")
    try:
        hash(tree)
    except TypeError:
        raise TypeError(
            f"trace: an argument must be a tensor or a constant that can be hashed, got {type(tree).__name__}"
        ) from None
    return ("const", Const(tree))


def unflatten(structure, leaves):
    """The inverse of flatten; takes from an iterator of leaves."""
    if structure == "*":
        return next(leaves)
    kind, body = structure
    if kind == "const":
        return body.value
    if kind == "dict":
        return {k: unflatten(v, leaves) for k, v in body}
    items = [unflatten(s, leaves) for s in body]
    return tuple(items) if kind == "tuple" else items if kind == "list" else kind._make(items)


def tensors(tree):
    """The same object, NumPy arrays in it as Tensors: a container is another, of its type, only where it holds one."""
    if isinstance(tree, np.ndarray):
        return Tensor(tree)
    if isinstance(tree, (tuple, list)):
        made = [tensors(x) for x in tree]
        if any(a is not b for a, b in zip(made, tree)):
            if isinstance(tree, tuple):
                return tuple.__new__(type(tree), made)
            tree = copy.copy(tree)
            tree[:] = made
    elif isinstance(tree, dict):
        made = {k: tensors(v) for k, v in tree.items()}
        if any(made[k] is not v for k, v in tree.items()):
            tree = copy.copy(tree)
            tree.update(made)
    return tree


def leaf_names(structure, name):
    """Names of a structure's tensors, made of `name`, the keys of dicts and positions: "x", "x_0", "x_mask"."""
    if structure == "*":
        return [name]
    kind, body = structure
    if kind == "const":
        return []
    items = body if kind == "dict" else enumerate(body)
    return [leaf for key, item in items for leaf in leaf_names(item, f"{name}_{key}" if name else str(key))]


def argument_names(function, structure):
    """Names of the tensors among the arguments of a call, after the function's own parameters."""
    (_, positional), (_, keywords) = structure[1]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin
        parameters = []
    variadic = next((k for k, p in enumerate(parameters) if p.kind == p.VAR_POSITIONAL), len(positional))
    names = []
    for i, item in enumerate(positional):
        name = parameters[i].name if i < min(variadic, len(parameters)) else f"x{i}"
        if i >= variadic:
            name = f"{parameters[variadic].name}_{i - variadic}"
        names += leaf_names(item, name)
    for key, item in keywords:
        names += leaf_names(item, key)
    return names


def output_names(structure):
    """ "output" for one tensor, a dict's keys, and "output0", "output1", … for a tuple's positions."""
    if structure == "*":
        return ["output"]
    kind, body = structure
    if kind in ("dict", "const"):
        return leaf_names(structure, "")
    return [leaf for i, item in enumerate(body) for leaf in leaf_names(item, f"output{i}")]


def _distinct(names):
    taken, out = set(), []
    for name in names:
        unique, n = name, 0
        while unique in taken:
            unique, n = f"{name}_{n + 1}", n + 1
        taken.add(unique)
        out.append(unique)
    return out


def trace(function, specs, structure=None, names=None, name="main", parameters=None):
    """Runs `function` on traced inputs. specs: (dtype, shape) each. Returns (graph, output structure).

    Inputs have the names of the function's parameters, outputs those of the dict it returns. To a list
    `parameters` the Parameters used are added, each with its data.
    """
    tracer = Tracer(name)
    structure = structure or ("tuple", (("tuple", ("*",) * len(specs)), ("dict", ())))
    names = _distinct(names or argument_names(function, structure))
    inputs = [tracer.input(n, d, s) for n, (d, s) in zip(names, specs, strict=True)]
    with tracer:
        args, kwargs = unflatten(structure, iter(inputs))
        result = function(*args, **kwargs)
    leaves = []
    out = flatten(result, leaves)
    tracer.graph.set_outputs([tracer.lift(t) for t in leaves], _distinct(output_names(out)))
    if parameters is not None:
        parameters += tracer.parameters
    return tracer.graph, out


def trace_into(graph, function, structure=None, parameters=None):
    """As `trace`, on the inputs that a graph has already; returns the output structure."""
    tracer = Tracer(graph=graph)
    inputs = [tracer.tensor(v) for v in graph.inputs]
    with tracer:
        args, kwargs = unflatten(structure, iter(inputs)) if structure else (inputs, {})
        result = function(*args, **kwargs)
    leaves = []
    out = flatten(result, leaves)
    graph.set_outputs([tracer.lift(t) for t in leaves])
    if parameters is not None:
        parameters += tracer.parameters
    return out


def splice(tracer, graph, structure, tensors, prefix=""):
    """Another graph's nodes in the one being traced, run on `tensors`."""
    values = tracer.graph.splice(graph, [tracer.lift(t) for t in tensors], prefix)
    return unflatten(structure, iter([tracer.tensor(v) for v in values]))


def clean(graph):
    """The passes every graph gets: constants folded, equal nodes merged, unused ones dropped."""
    _core.fold_constants(graph)
    _core.merge_common(graph)
    _core.remove_dead_code(graph)
    return graph


class Program:
    """A graph with what is needed to call it: a shared model, and one session per thread."""

    def __init__(self, graph, structure):
        self.graph, self.structure = graph, structure
        self.model = _core.Model(graph)
        self._local = threading.local()
        self.inputs = [(dt.from_id(graph.dtype(v)), tuple(graph.dims(v))) for v in graph.inputs]

    @property
    def session(self):
        if not hasattr(self._local, "session"):
            self._local.session = _core.Session(self.model)
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

    def __call__(self, tensors):
        out = self.session.run([t._value("call") for t in tensors])
        return unflatten(self.structure, iter([Tensor(a) for a in out]))
