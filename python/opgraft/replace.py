"""Swapping cells of a model for others, proven on what reaches them."""

import time

from . import _core, context, nn
from . import trace as _trace
from .proof import Report, input_sets, second_size
from .tensor import Tensor


class _Recorder(nn.Cell):
    """Stands where a cell stood and keeps what the cell is called with."""

    def __init__(self, cell):
        super().__init__()
        object.__setattr__(self, "cell", cell)
        object.__setattr__(self, "calls", [])

    def construct(self, *args):
        if not any(isinstance(a, Tensor) and a._array is None for a in args):
            self.calls.append(args)
        return self.cell(*args)


class _Call(nn.Cell):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.name = getattr(function, "name", type(function).__name__)

    def construct(self, *args):
        return self.function(*args)


def replace_cell(net, cls, factory, *, prove=None, only_faster=False) -> Report:
    """Puts factory(cell) in place of every sub-cell of type cls; factory gives a Cell, a callable, or None to leave it.

    prove and only_faster as in `substitute`: the cells are compared on what reaches them when the model runs on the
    given inputs, then the models.
    """
    if not isinstance(net, nn.Cell):
        raise TypeError(f"replace_cell: net must be a Cell, got {type(net).__name__}")
    if only_faster and prove is None:
        raise ValueError("replace_cell: only_faster needs prove=inputs")
    report, places = Report(), []
    for prefix, parent in list(net.cells_and_names()):
        for name, cell in list(parent._cells.items()):
            if isinstance(cell, cls):
                places.append((parent, name, cell, f"{prefix}.{name}" if prefix else name))
    report.matched = len(places)
    sets, wanted, calls = [], [], [[] for _ in places]
    if prove is not None:
        sets = input_sets("replace_cell", prove)
        sets, wanted, calls = _record(net, places, sets)
    done = []
    for (parent, name, cell, path), inputs in zip(places, calls):
        op, row, why = _exchange(cell, factory(cell), inputs, prove is not None, only_faster)
        if why:
            report.left.append({"op": cls.__name__ if op is None else op.name, "node": path, "why": why})
            continue
        setattr(parent, name, op)
        done.append((parent, name, cell))
        report.swapped.append({"op": op.name if isinstance(op, _Call) else type(op).__name__, "node": path, **row})
    if done and (why := _differ(_eager(net, sets), wanted)):
        for parent, name, cell in done:
            setattr(parent, name, cell)
        report.left += [{"op": s["op"], "node": s["node"], "why": f"the model's {why}"} for s in report.swapped]
        report.swapped = []
    return report


def _eager(net, sets):
    """Outputs of the model for every set, run operator by operator."""
    mode = context.get_context("mode")
    context.set_context(mode=context.PYNATIVE_MODE)
    try:
        results = []
        for inputs in sets:
            leaves = []
            _trace.flatten(net.construct(*inputs), leaves)
            results.append([t.asnumpy() for t in leaves])
        return results
    finally:
        context.set_context(mode=mode)


def _record(net, places, sets):
    """(sets, the model's outputs, for every place the arguments of its first call in each set)."""
    recorders = [_Recorder(cell) for _, _, cell, _ in places]
    for (parent, name, _, _), recorder in zip(places, recorders):
        setattr(parent, name, recorder)
    try:
        calls, outputs, taken = [[] for _ in places], [], []
        extra = second_size(sets[0]) if len(sets) == 1 else None
        for inputs in [*sets, *([extra] if extra else [])]:
            try:
                outputs += _eager(net, [inputs])
            except (ValueError, TypeError, RuntimeError, IndexError):
                if inputs is not extra:
                    raise
                continue  # the model does not take another size
            taken.append(inputs)
            for kept, recorder in zip(calls, recorders):
                kept += recorder.calls[:1]
                recorder.calls.clear()
        return taken, outputs, calls
    finally:
        for parent, name, cell, _ in places:
            setattr(parent, name, cell)


def _differ(got, want):
    """How results differ, or None."""
    for a, b in zip(got, want):
        if len(a) != len(b):
            return f"results differ: {len(a)} of them instead of {len(b)}"
        for x, y in zip(a, b):
            agrees, _, _, why = _core.compare(x, y)
            if not agrees:
                return f"results differ: {why}"
    return None


def _exchange(cell, new, calls, prove, only_faster):
    """(the new cell, its row of the report, why it is left alone or None)."""
    if new is None or new is cell:
        return None, {}, "the factory gave no other cell"
    if not callable(new):
        raise TypeError(f"replace_cell: factory must return a Cell or a callable, got {type(new).__name__}")
    new = new if isinstance(new, nn.Cell) else _Call(new)
    row = dict.fromkeys(("max_abs", "mean_abs", "ms_before", "ms_after"))
    if not prove:
        return new, row, None
    if not calls:
        return None, {}, "the proof's inputs do not reach it"
    row["max_abs"] = row["mean_abs"] = 0.0
    for args in calls:
        try:
            (got,), (want,) = _results(new, args), _results(cell, args)
        except (ValueError, TypeError, RuntimeError) as e:
            return None, {}, str(e)
        for x, y in zip(got, want):
            _, most, mean, _ = _core.compare(x, y)
            row["max_abs"], row["mean_abs"] = max(row["max_abs"], most), max(row["mean_abs"], mean)
        if why := _differ([got], [want]):
            return None, {}, f"the {why}"
    row["ms_before"], row["ms_after"] = _race(cell, new, calls[0])
    if only_faster and row["ms_after"] * 1.05 > row["ms_before"]:
        return None, {}, f"not 5 % faster: {row['ms_before']:.4f} ms before, {row['ms_after']:.4f} ms after"
    return new, row, None


def _results(cell, args):
    leaves = []
    _trace.flatten(cell(*args), leaves)
    return [[t.asnumpy() for t in leaves]]


def _race(old, new, args):
    """Best times in ms of the two in turns: at least 7 of them, more where they are short."""
    best, begin = [float("inf")] * 2, time.perf_counter()
    for turn in range(200):
        for i, f in enumerate((old, new)):
            start = time.perf_counter()
            f(*args)
            best[i] = min(best[i], 1e3 * (time.perf_counter() - start))
        if turn >= 6 and time.perf_counter() - begin > 0.02:
            break
    return best
