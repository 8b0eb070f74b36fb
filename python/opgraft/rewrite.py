"""Putting other operators into a model: by pattern, proven on inputs, or cell by cell."""

import inspect
import itertools
import re

from . import _core, nn
from . import dtype as dt
from . import trace as _trace
from .program import Program, open_specs
from .proof import Report, input_sets, second_size
from .replace import replace_cell
from .tensor import dim

__all__ = ["LEVELS", "Report", "replace_cell", "rules_of_level", "substitute"]


class _Registered:
    """Rules that fit any graph: those of the registered operators' `replaces:`."""

    def __init__(self):
        self.rules = _core.rules()

    def of(self, graph):
        return self.rules


class _Functions:
    """A pattern and a replacement as functions: which rules they are depends on the dtypes of the graph."""

    def __init__(self, pattern, replacement):
        self.pattern, self.replacement = pattern, replacement
        self.name = getattr(pattern, "__name__", "pattern")
        self.names = self._parameters("pattern", pattern)
        if (n := len(self._parameters("replacement", replacement))) != len(self.names):
            raise ValueError(f"substitute: replacement must take the pattern's {len(self.names)} arguments, got {n}")

    @staticmethod
    def _parameters(what, function):
        if not callable(function):
            raise TypeError(f"substitute: {what} must be a function, got {type(function).__name__}")
        # A parameter with a default is a setting of the function, no tensor.
        found = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        if not found or any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.KEYWORD_ONLY) for p in found):
            raise TypeError(f"substitute: {what} must be a function of tensors by position, got {function!r}")
        return [p.name for p in found]

    def of(self, graph):
        """One rule for every way in which the pattern can hang together, over the dtypes that the graph has."""
        values = {v for n in graph.nodes for v in (*n["inputs"], *n["outputs"])} | set(graph.inputs)
        dtypes = [dt.float32, *sorted({dt.from_id(graph.dtype(v)) for v in values} - {dt.float32}, key=str)]
        count, found, error = len(self.names), {}, None
        same = [(d,) * count for d in dtypes]
        mixed = [] if len(dtypes) ** count > 64 else itertools.product(dtypes, repeat=count)
        kinds = list(dict.fromkeys([*same, *mixed]))
        ranks = [(r,) * count for r in (3, 2, 4, 1)]
        for tries in ([(k, r) for k in kinds for r in ranks], itertools.product(kinds, self._mixed_ranks(count))):
            for kind, rank in tries:
                shared = [dim(f"d{i}") for i in range(4)]
                for shapes in ([shared[:r] for r in rank], [[None] * r for r in rank]):
                    try:
                        traced, _ = _trace.trace(self.pattern, list(zip(kind, shapes)), names=self.names)
                    except (ValueError, TypeError, RuntimeError, IndexError) as e:
                        error = error or e
                        continue
                    found.setdefault(str([(n["op"], n["inputs"]) for n in traced.nodes]), traced)
            if found:
                return [_core.Rule(self.name, g, self._into(self.pattern), self._into(self.replacement))
                        for g in found.values()]  # fmt: skip
        raise ValueError(f"substitute: the pattern {self.name} cannot be traced: {error}")

    @staticmethod
    def _mixed_ranks(count):
        return list(itertools.product((3, 2, 1, 4), repeat=count)) if count <= 4 else []

    @staticmethod
    def _into(function):
        return lambda graph: _trace.trace_into(graph, function) and None


def _sources(pattern, replacement):
    if pattern is None:
        if replacement is not None:
            raise ValueError("substitute: replacement needs a pattern")
        return _Registered()
    if replacement is None:
        raise ValueError("substitute: pattern needs a replacement")
    return _Functions(pattern, replacement)


def rules_of_level(level: str):
    """Rules of a fusion level: O0, O1 none; O2 those that need no matrix product; O3 all."""
    if level not in LEVELS:
        raise ValueError(f"fusion level must be one of {', '.join(LEVELS)}, got {level!r}")
    rules = _core.rules() if level in ("O2", "O3") else []
    heavy = {"MatMul", "BatchMatMul"}
    while True:  # what replaces a product is one, too: DenseAdd is found by Dense
        more = {r.op.split("@")[0] for r in rules if heavy & set(re.findall(r"(\w+)\(", r.program))} - heavy
        if not more:
            break
        heavy |= more
    return rules if level == "O3" else [r for r in rules if r.op.split("@")[0] not in heavy]


LEVELS = {
    "O0": "nothing",
    "O1": "folds constants, merges equal nodes, drops unused ones",
    "O2": "O1, and fuses what needs no matrix product: normalisation, activations",
    "O3": "O2, and fuses matrix products with what stands around them: dense layers, attention",
}


def _open(sets):
    return open_specs([[(t.dtype, t.shape) for t in s] for s in sets])


def substitute(target, pattern=None, replacement=None, *, prove=None, only_faster=False) -> Report:
    """Puts operators in place of the subgraphs they compute, in a Cell, a GraphCell or a graph.

    pattern and replacement are functions over `ops` with the same arguments, of any dtype and rank; without them
    the `replaces:` of every registered operator apply. prove gives the model's inputs, a tuple of arrays or a list
    of such tuples: a swap stays only where results agree. Open dimensions, of a graph or as Cell.set_inputs declares
    them, of which the tuples have one size are proven at a second one, cut out of them. In a Cell without set_inputs
    the dimensions that differ between the tuples are open; of one tuple, the first where all inputs share it.
    only_faster keeps a swap only if at least 5 % faster.

    Later calls of the Cell run the new graph, in either mode; with a proof, for inputs that fit it. Without one the
    swaps are made whenever the Cell is traced, at the latest by its next call.
    """
    source = _sources(pattern, replacement)
    if only_faster and prove is None:
        raise ValueError("substitute: only_faster needs prove=inputs")
    sets = None if prove is None else input_sets("substitute", prove)

    def run(graph):
        arrays = None if sets is None else [[t.asnumpy() for t in s] for s in sets]
        return Report(**_core.substitute(graph, source.of(graph), arrays, only_faster))

    if isinstance(target, _core.Graph):
        return run(target)
    if isinstance(target, nn.GraphCell):
        graph = target.graph.clone()
        report = run(graph)
        target._set_graph(graph)
        return report
    if not isinstance(target, nn.Cell):
        raise TypeError(f"substitute: expected a Cell or a graph, got {type(target).__name__}")
    target._setup()
    if sets is None:
        report = Report(pending=True)
        if target._specs is not None:
            graph, _ = target._trace(*target._specs)
            target._graft(graph)
            report = run(graph)
        target._outdate()
        target._rules.append((source, report))
        return report
    leaves = []
    structure = _trace.flatten((sets[0], {}), leaves)
    before = _base(target, sets, structure)
    graph, out = before.graph.clone(), before.structure
    report = run(graph)
    target._outdate()
    target._grafted[:] = [(p, s) for p, s in target._grafted if p is not before]
    target._grafted.insert(0, (Program(graph, out, before.used), structure))
    return report


def _base(cell, sets, structure):
    """The program to start from: what an earlier substitution gave, where all sets fit it, or a new trace."""
    for program, inside in cell._swaps():
        if inside == structure and all(program.fits(s) for s in sets):
            return program
    if cell._declared is not None:
        leaves, structure = cell._as_declared(sets[0], structure)
        return cell._make([(t.dtype, t.shape) for t in leaves], structure)
    if len(sets) == 1 and (second := second_size(sets[0])) is not None:
        try:
            cell._trace([(t.dtype, t.shape) for t in second], structure)
            program = cell._make(_open([sets[0], second]), structure)
            sets.append(second)
            return program
        except (ValueError, TypeError, RuntimeError, IndexError):  # its first dimension is not open
            pass
    return cell._make(_open(sets), structure)
