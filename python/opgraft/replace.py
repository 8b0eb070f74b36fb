"""Swapping cells of a model for others, proven on what reaches them."""

import contextlib
import time

from . import _core, nn
from . import trace as _trace
from .proof import Report, input_sets, second_size, too_slow


class _Call(nn.Cell):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.name = getattr(function, "name", type(function).__name__)

    def construct(self, *args, **kwargs):
        return self.function(*args, **kwargs)


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
        sets, wanted, calls = _record(net, [cell for _, _, cell, _ in places], sets)
    taken = []
    for (parent, name, cell, path), inputs in zip(places, calls):
        new, row, why = _exchange(cell, factory(cell), inputs, prove is not None, only_faster)
        if why:
            report.left.append({"op": type(cell).__name__, "node": path, "why": why})
            continue
        taken.append((parent, name, cell, new))
        report.swapped.append({"op": new.name if isinstance(new, _Call) else type(new).__name__, "node": path, **row})
    if taken and (why := _tried(net, taken, sets, wanted)):
        report._withdraw(f"the model{why}")
        return report
    for parent, name, _, new in taken:
        setattr(parent, name, new)
    return report


def _outputs(function, args, kwargs):
    leaves = []
    _trace.flatten(function(*args, **kwargs), leaves)
    return [t.asnumpy() for t in leaves]


def _plain(net, sets):
    """Outputs of the model for every set, run operator by operator."""
    with _trace.plainly():
        return [_outputs(net.construct, inputs, {}) for inputs in sets]


@contextlib.contextmanager
def _listening(cell, calls):
    """Within, the arguments of a cell's calls are kept."""
    construct, own = cell.construct, cell.__dict__.get("construct")

    def listen(*args, **kwargs):
        calls.append((args, kwargs))
        return construct(*args, **kwargs)

    object.__setattr__(cell, "construct", listen)
    try:
        yield
    finally:
        if own is None:
            object.__delattr__(cell, "construct")
        else:
            object.__setattr__(cell, "construct", own)


def _record(net, cells, sets):
    """(sets, the model's outputs, for every cell the arguments of its first call in each set)."""
    heard = {id(cell): [] for cell in cells}
    kept, outputs, taken = {key: [] for key in heard}, [], []
    extra = second_size(sets[0]) if len(sets) == 1 else None
    with contextlib.ExitStack() as stack:
        for cell in {id(cell): cell for cell in cells}.values():
            stack.enter_context(_listening(cell, heard[id(cell)]))
        for inputs in [*sets, *([extra] if extra else [])]:
            try:
                outputs += _plain(net, [inputs])
            except Exception:
                if inputs is not extra:
                    raise
                continue  # the model does not take another size
            taken.append(inputs)
            for key, calls in heard.items():
                kept[key] += calls[:1]
                calls.clear()
    return taken, outputs, [kept[id(cell)] for cell in cells]


def _tried(net, taken, sets, wanted):
    """What is wrong with the model of the new cells, or None. They are in it for as long as this takes; what was
    traced and substituted stays."""

    def put(parent, name, cell):
        parent._cells[name] = cell
        object.__setattr__(parent, name, cell)

    try:
        for parent, name, _, new in taken:
            put(parent, name, new)
        why = _differ(_plain(net, sets), wanted)
        return f"'s {why}" if why else None
    except Exception as e:
        return f" fails: {_text(e)}"
    finally:
        for parent, name, cell, _ in reversed(taken):
            put(parent, name, cell)


def _text(error):
    """Of an exception; of one that opgraft does not raise, with its kind."""
    return str(error) if isinstance(error, (ValueError, TypeError, RuntimeError)) else repr(error)


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
    for args, kwargs in calls:
        try:
            got, want = _outputs(new, args, kwargs), _outputs(cell, args, kwargs)
        except Exception as e:
            return None, {}, _text(e)
        for x, y in zip(got, want):
            _, most, mean, _ = _core.compare(x, y)
            row["max_abs"], row["mean_abs"] = max(row["max_abs"], most), max(row["mean_abs"], mean)
        if why := _differ([got], [want]):
            return None, {}, f"the {why}"
    row["ms_before"], row["ms_after"] = _race(cell, new, *calls[0])
    if only_faster and (why := too_slow(row["ms_before"], row["ms_after"])):
        return None, {}, why
    return new, row, None


def _race(old, new, args, kwargs):
    """Best times in ms of the two in turns: at least 7 of them, more where they are short."""
    best, begin = [float("inf")] * 2, time.perf_counter()
    for turn in range(200):
        for i, f in enumerate((old, new)):
            start = time.perf_counter()
            f(*args, **kwargs)
            best[i] = min(best[i], 1e3 * (time.perf_counter() - start))
        if turn >= 6 and time.perf_counter() - begin > 0.02:
            break
    return best
