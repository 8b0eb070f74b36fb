"""Putting other operators into a model: by pattern, proven on inputs, or cell by cell."""

import inspect

import numpy as np

from . import _core, nn
from . import dtype as dt
from . import trace as _trace
from .tensor import Tensor


class Report:
    """What was matched, swapped, and left alone and why."""

    def __init__(self, matched=0, swapped=(), left=()):
        self.matched, self.swapped, self.left = matched, list(swapped), list(left)

    def to_dict(self) -> dict:
        return {"matched": self.matched, "swapped": self.swapped, "left": self.left}

    def __str__(self):
        def number(v, form):
            return "-" if v is None else format(v, form)

        rows = [("op", "node", "max abs", "mean abs", "ms before", "ms after")]
        rows += [(s["op"], s["node"], number(s.get("max_abs"), ".2e"), number(s.get("mean_abs"), ".2e"),
                  number(s.get("ms_before"), ".3f"), number(s.get("ms_after"), ".3f")) for s in self.swapped]  # fmt: skip
        widths = [max(len(r[i]) for r in rows) for i in range(6)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows]
        lines += [f"left: {x['node']} ({x['op']}): {x['why']}" for x in self.left]
        return "\n".join([f"matched {self.matched}, swapped {len(self.swapped)}, left {len(self.left)}", *lines])


def _function_graph(function, specs):
    names = list(inspect.signature(function).parameters)
    structure = ("tuple", (("tuple", ("*",) * len(names)), ("dict", ())))
    return _trace.trace(function, specs, structure, names=names, name=getattr(function, "__name__", "pattern"))[0]


def _rules(pattern, replacement):
    if pattern is None:
        if replacement is not None:
            raise ValueError("substitute: replacement needs a pattern")
        return _core.rules()
    if replacement is None:
        raise ValueError("substitute: pattern needs a replacement")
    count = len(inspect.signature(pattern).parameters)
    error = None
    # A pattern says nothing of ranks: the first ones under which both sides make sense are taken.
    for rank in (3, 2, 4, 1):
        same = [(dt.float32, [_trace.dim(f"d{i}") for i in range(rank)])] * count
        for specs in (same, [(dt.float32, [None] * rank)] * count):
            try:
                graphs = [_function_graph(f, specs) for f in (pattern, replacement)]
            except (ValueError, TypeError, RuntimeError) as e:
                error = error or e
                continue
            return [_core.Rule(name=getattr(pattern, "__name__", "pattern"), pattern=graphs[0], replacement=graphs[1])]
    raise ValueError(f"substitute: the pattern cannot be traced: {error}")


def _input_sets(prove):
    sets = prove if isinstance(prove, list) and prove and isinstance(prove[0], (tuple, list)) else [prove]
    sets = [s if isinstance(s, (tuple, list)) else (s,) for s in sets]
    if not sets or not all(len(s) for s in sets):
        raise ValueError("substitute: prove must be inputs of the model, got none")
    return [tuple(x if isinstance(x, Tensor) else Tensor(x) for x in s) for s in sets]


def _specs(sets):
    """Dimensions that differ between the sets are open; those that always agree with each other are one."""
    dims, specs = {}, []
    for arrays in zip(*sets):
        shape = []
        for i in range(len(arrays[0].shape)):
            sizes = tuple(a.shape[i] for a in arrays)
            shape.append(sizes[0] if len(set(sizes)) == 1 else dims.setdefault(sizes, _trace.dim(f"d{len(dims)}")))
        specs.append((arrays[0].dtype, tuple(shape)))
    return specs


def _second_size(inputs):
    """The same inputs with one more row where all of them have the same first dimension."""
    first = {t.shape[:1] for t in inputs}
    if len(first) != 1 or first == {()} or not next(iter(first))[0]:
        return None
    return tuple(Tensor(np.concatenate([t.asnumpy(), t.asnumpy()[:1]])) for t in inputs)


def substitute(target, pattern=None, replacement=None, *, prove=None, only_faster=False) -> Report:
    """Puts operators in place of the subgraphs they compute, in a Cell, a GraphCell or a graph.

    pattern and replacement are functions over `ops` with the same arguments; without them the `replaces:` of
    every registered operator apply. prove gives the model's inputs, a tuple of arrays or a list of such tuples:
    a swap stays only where results agree. Dimensions that differ between the tuples stay open; for one tuple
    the first dimension is proven at a second size where all inputs share it. only_faster keeps a swap only if
    at least 5 % faster. Later calls of the Cell with fitting inputs run the new graph.
    """
    rules = _rules(pattern, replacement)
    if only_faster and prove is None:
        raise ValueError("substitute: only_faster needs prove=inputs")
    sets = None if prove is None else _input_sets(prove)

    def run(graph):
        arrays = None if sets is None else [[t.asnumpy() for t in s] for s in sets]
        return Report(**_core.substitute(graph, rules, arrays, only_faster))

    if isinstance(target, _core.Graph):
        return run(target)
    if isinstance(target, nn.GraphCell):
        graph = target.graph.clone()
        report = run(graph)
        target._set_graph(graph)
        return report
    if not isinstance(target, nn.Cell):
        raise TypeError(f"substitute: expected a Cell or a graph, got {type(target).__name__}")
    if sets is None:
        if target._specs is None:
            raise ValueError(
                "substitute: give prove=inputs, or call the Cell in GRAPH_MODE before: its inputs are not known"
            )
        specs, structure = target._specs
        graph, _ = target._trace(specs, structure)
        report = run(graph)
        target._invalidate()
        target._rules.extend(rules)
        return report
    leaves = []
    structure = _trace.flatten((sets[0], {}), leaves)
    graph = None
    if len(sets) == 1 and (second := _second_size(sets[0])) is not None:
        try:
            graph, out = target._trace(_specs([sets[0], second]), structure)
            target._trace([(t.dtype, t.shape) for t in second], structure)
            sets.append(second)
        except (ValueError, TypeError, RuntimeError):  # its first dimension is not open
            graph = None
    if graph is None:
        graph, out = target._trace(_specs(sets), structure)
    report = run(graph)
    target._invalidate()
    target._grafted.append((_trace.Program(graph, out), structure))
    return report


def replace_cell(net, cls, factory) -> Report:
    """Puts factory(cell) in place of every sub-cell of type cls."""
    report = Report()
    for prefix, parent in list(net.cells_and_names()):
        for name, cell in list(parent._cells.items()):
            if not isinstance(cell, cls):
                continue
            path = f"{prefix}.{name}" if prefix else name
            report.matched += 1
            new = factory(cell)
            if new is None or new is cell:
                report.left.append({"op": cls.__name__, "node": path, "why": "the factory gave no other cell"})
                continue
            if not callable(new):
                raise TypeError(f"replace_cell: factory must return a Cell or a callable, got {type(new).__name__}")
            if not isinstance(new, nn.Cell):
                new = _Call(new)
            setattr(parent, name, new)
            report.swapped.append({"op": getattr(new, "name", type(new).__name__), "node": path})
    return report


class _Call(nn.Cell):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.name = getattr(function, "name", type(function).__name__)

    def construct(self, *args):
        return self.function(*args)
