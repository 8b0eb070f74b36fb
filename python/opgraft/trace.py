"""Tracing: running Python code on tensors that only record which primitives made them."""

import contextlib
import copy
import inspect
import threading

import numpy as np

from . import _core
from . import dtype as dt
from .symint import SymInt, numbers
from .tensor import Dim, Parameter, Tensor

NO_VALUE = "inputs must have values, got a Tensor that only describes an input's shape"
_local = threading.local()


def active():
    """The tracer at work on this thread, or None."""
    return getattr(_local, "tracer", None)


def plain():
    """Whether this thread is within `plainly`."""
    return getattr(_local, "plain", False)


@contextlib.contextmanager
def plainly():
    """Within, Cells and what `jit` decorates run operator by operator, whatever the mode and what was substituted."""
    before, _local.plain = plain(), True
    try:
        yield
    finally:
        _local.plain = before


class Used:
    """What a graph was traced of: Parameters, each with the data it had and whether a graph had updated it, and Cells,
    each with its version."""

    __slots__ = ("cells", "parameters")

    def __init__(self, parameters=(), cells=()):
        self.parameters, self.cells = parameters, cells

    def changed(self) -> bool:
        for parameter, data, updated in self.parameters:
            if parameter._array is not data or parameter.updated != updated:
                return True
        for cell, version in self.cells:
            if cell._version != version:
                return True
        return False

    def in_copy(self, memo):
        """The same of a deep copy, which has those of `memo` in place of what it copied."""
        return Used(
            [
                (memo[id(p)], memo[id(p)]._array, updated) if id(p) in memo else (p, data, updated)
                for p, data, updated in self.parameters
            ],
            [(memo[id(c)], memo[id(c)]._version) if id(c) in memo else (c, version) for c, version in self.cells],
        )


class _Again(Exception):
    """A Parameter is updated that was a constant to what was traced before."""


class Tracer:
    def __init__(self, name="main", graph=None):
        self._name, self._own = name, graph is None
        self.graph = graph or _core.Graph(name)
        self._folded = set()  # Parameters, by id, of which results became constants
        self._parameters, self._cells = {}, {}  # those used, by id
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

    def constant(self, array, name="", parameter=False, state=False) -> int:
        key = id(array)
        if key not in self._constants:
            self._constants[key] = self.graph.add_constant(array, name, parameter, state)
            self._keep.append(array)
        return self._constants[key]

    def lift(self, x) -> int:
        if isinstance(x, Tensor):
            if (array := x._array) is None:
                if x._tracer is None:
                    raise ValueError(f"trace: {NO_VALUE}")
                if x._tracer is not self:
                    raise RuntimeError("trace: a value of another trace was used; a Cell must not keep traced tensors")
                return x._id
            named = isinstance(x, Parameter) and bool(x.name)
            if isinstance(x, Parameter):
                self._parameters.setdefault(id(x), (x, array))
            return self.constant(array, x.name if named else "", named, isinstance(x, Parameter) and x.updated)
        return self.constant(np.asarray(x))

    # Parameters that are updated in place
    def folds(self, tensors):
        for t in tensors:
            if isinstance(t, Parameter):
                self._folded.add(id(t))
                self._parameters.setdefault(id(t), (t, t._array))

    def updates(self, op, tensor):
        if not isinstance(tensor, Parameter):
            return
        if not tensor.name:
            raise ValueError(f"{op}: a Parameter that a graph updates in place must have a name, got one without")
        if tensor.updated:
            return
        tensor.updated = True
        if id(tensor) in self._folded:
            raise _Again

    def calls(self, cell):
        self._cells[id(cell)] = cell

    def used(self):
        """What the graph was made of; to be asked when all is traced: a Cell may change itself on the way."""
        parameters = [(parameter, data, parameter.updated) for parameter, data in self._parameters.values()]
        return Used(parameters, [(c, c._version) for c in self._cells.values()])

    def include(self, used):
        """What a graph that becomes a part of this one was made of."""
        for parameter, data, _ in used.parameters:
            self._parameters.setdefault(id(parameter), (parameter, data))
        self._cells.update({id(cell): cell for cell, _ in used.cells})

    def scalar(self, x) -> int:
        return x.value if isinstance(x, SymInt) else self.graph.add_constant(np.array(x, dtype=np.int64))

    def shape_value(self, items) -> int:
        """An int64 vector of ints and SymInts."""
        if not any(isinstance(i, SymInt) for i in items):
            return self.graph.add_constant(numbers("trace", items))
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


def trace(function, specs, structure=None, names=None, tracer=None):
    """Runs `function` on traced inputs. specs: (dtype, shape) each. Returns (graph, output structure).

    Inputs have the names of the function's parameters, outputs those of the dict it returns. A tracer that is given
    knows what was used.
    """
    tracer = tracer or Tracer()
    structure = structure or ("tuple", (("tuple", ("*",) * len(specs)), ("dict", ())))
    names = _distinct(names or argument_names(function, structure))
    while True:
        inputs = [tracer.input(n, d, s) for n, (d, s) in zip(names, specs, strict=True)]
        args, kwargs = unflatten(structure, iter(inputs))
        try:
            with tracer:
                result = function(*args, **kwargs)
            break
        except _Again:  # of one Parameter once
            tracer.__init__(tracer._name)
    leaves = []
    out = flatten(result, leaves)
    tracer.graph.set_outputs([tracer.lift(t) for t in leaves], _distinct(output_names(out)))
    return tracer.graph, out


def trace_into(graph, function, structure=None, outer=None):
    """As `trace`, on the inputs that a graph has already, for the tracer `outer`; returns the output structure."""
    tracer = Tracer(graph=graph)
    inputs = [tracer.tensor(v) for v in graph.inputs]
    with tracer:
        args, kwargs = unflatten(structure, iter(inputs)) if structure else (inputs, {})
        result = function(*args, **kwargs)
    leaves = []
    out = flatten(result, leaves)
    graph.set_outputs([tracer.lift(t) for t in leaves])
    if outer is not None:
        outer.include(tracer.used())
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
