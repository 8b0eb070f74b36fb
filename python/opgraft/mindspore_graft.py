"""Operators grafted into a Cell of the real MindSpore: by type of cell, in place of a chain of calls, or through its
exported graph."""

import math
import pathlib
import tempfile
import time
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from . import _core, mindspore_rewrite
from .proof import Report, one_more_row, resized, too_slow
from .rewrite import substitute
from .serialization import load


class Grafted(NamedTuple):
    """A Cell and the Report of what was swapped in it (opgraft.rewrite.Report)."""

    cell: nn.Cell
    report: Report


def graft(cell, cls=None, factory=None, *, prove, only_faster=False):
    """Puts opgraft's operators into a MindSpore Cell; returns Grafted(cell, report).

    graft(net, nn.GELU, lambda cell: custom("FusedGeLU")): factory's Cell or Custom takes the place of every sub-cell
    of type cls, in `net` itself, also where it has run in graph mode before: give the outermost Cell.
    graft(net, [nn.Dense, nn.GELU], lambda dense, gelu: FusedDense(dense)): one node takes the place of every chain of
    calls in which each call reads the one before; found by `mindspore.rewrite` in the construct of `net` and of the
    Cells within, and in SequentialCells. An element is a type of Cell or Primitive, a function (ops.silu) or a name
    ("SiLU": Cell, primitive or function, in any case; "Add", "Sub", "Mul", "Div", "MatMul", "Pow": + - * / @ ** too).
    The factory is given the cells, primitives and functions (with constant keyword arguments as functools.partial);
    what it makes is called with the chain's inputs in the order in which its calls have them. The Cell returned has
    the swaps and shares parameters with `net`, which stays as it is.
    graft(net): the whole graph is exported, all patterns of the registered operators are applied, and the Cell
    returned runs the result; dimensions that net.set_inputs left open stay open. `net` stays as it is.

    prove: inputs of the model, a tuple of arrays or Tensors, or a list of such tuples. A swap stays only where the
    results agree, of the part and of the model, and with only_faster only if at least 5 % faster. Dimensions that
    net.set_inputs left open, of which the tuples have one size, are proven at a second one, cut out of them; without
    set_inputs and by one tuple, a cell or chain is proven with one more row where all inputs share their first
    dimension. A size that the model itself refuses is left out.
    """
    if not isinstance(cell, nn.Cell):
        raise TypeError(f"graft: cell must be a mindspore.nn.Cell, got {type(cell).__name__}")
    if (cls is None) != (factory is None):
        raise ValueError("graft: cls and factory go together")
    sets = _sets(prove)
    sets = _with_second_sizes(cell, sets, rows=cls is not None)
    if cls is None:
        return _whole(cell, sets, only_faster)
    if isinstance(cls, list):
        mindspore_rewrite.check(cls)
        return _by_chain(cell, cls, factory, sets, only_faster)
    return Grafted(cell, _by_type(cell, cls, factory, sets, only_faster))


def _sets(prove):
    sets = prove if isinstance(prove, list) else [prove]
    sets = [s if isinstance(s, tuple) else (s,) for s in sets]
    if not sets or not all(sets):
        raise ValueError("graft: prove must be inputs of the model, got none")
    if len({len(s) for s in sets}) != 1:
        raise ValueError(f"graft: prove's tuples must be of one length, got {[len(s) for s in sets]}")
    return [tuple(x if isinstance(x, Tensor) else Tensor(np.asarray(x)) for x in s) for s in sets]


def _arrays(value):
    """NumPy arrays of what a Cell returns, which may hold None."""
    if value is None:
        return []
    if isinstance(value, (tuple, list)):
        return [a for v in value for a in _arrays(v)]
    return [value.asnumpy() if isinstance(value, Tensor) else np.asarray(value)]


def _difference(got, want):
    """(why they differ or None, max, mean)"""
    worst = mean = 0.0
    if len(got) != len(want):
        return f"{len(got)} results instead of {len(want)}", worst, mean
    for a, b in zip(got, want):
        agrees, largest, average, why = _core.compare(np.ascontiguousarray(a), np.ascontiguousarray(b))
        worst, mean = max(worst, largest), max(mean, average)
        if not agrees:
            return why, worst, mean
    return None, worst, mean


def _differ(results, wanted):
    """Why the model's results of some set differ, or None."""
    return next((why for got, want in zip(results, wanted) if (why := _difference(got, want)[0])), None)


def _race(old, new, runs=7):
    """Best milliseconds of two functions, in turns; their results are waited for."""
    best = [float("inf")] * 2
    for _ in range(runs):
        for k, f in enumerate((old, new)):
            begin = time.perf_counter()
            _arrays(f())
            best[k] = min(best[k], 1e3 * (time.perf_counter() - begin))
    return best


class _Call(nn.Cell):
    """A primitive as a Cell."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def construct(self, *args):
        return self.function(*args)


class _Kept:
    """The values of a model's parameters: a run may change them (a counter, BatchNorm's statistics in training)."""

    def __init__(self, net):
        self.values = [(p, p.asnumpy().copy()) for p in net.get_parameters()]

    def restore(self):
        for p, value in self.values:
            if p.asnumpy().tobytes() != value.tobytes():
                p.set_data(Tensor(value, p.dtype))


def _results(net, sets, kept):
    """The model's results for every set of inputs, its parameters as they were each time and afterwards."""
    try:
        found = []
        for inputs in sets:
            found.append(_arrays(net(*inputs)))
            kept.restore()
        return found
    finally:
        kept.restore()


def _recorded(net, cells, sets):
    """(outputs of the model, for every cell the inputs and outputs of its first call in each set), run eagerly."""
    calls, mode, kept = {id(c): [] for c in cells}, ms.get_context("mode"), _Kept(net)
    heard, handles = {}, []
    for c in cells:
        handles.append(c.register_forward_hook(lambda c, i, o: heard.setdefault(id(c), (i, o)) and None))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        outputs = []
        for inputs in sets:
            heard.clear()
            outputs.append(_arrays(net(*inputs)))
            for key, call in heard.items():
                calls[key].append(call)
            kept.restore()
    finally:
        kept.restore()
        ms.set_context(mode=mode)
        for handle in handles:
            handle.remove()
    return outputs, [calls[id(c)] for c in cells]


def _declared(net, inputs):
    """What net.set_inputs declares in place of each input; by keyword that may be some of them only."""
    found = net.get_inputs()
    if isinstance(found, dict):
        found = dict(found["arg_specified_infos"])
        return tuple(found.get(i, x) for i, x in enumerate(inputs))
    return found


def _second_sizes(declared, sets, rows):
    """Inputs of further sizes, made of the first ones."""
    first = [x.asnumpy() for x in sets[0]]
    if declared is None:
        more = one_more_row(first) if rows and len(sets) == 1 else None
        return [more] if more else []
    open_axes, steps = [], {}
    for i, (x, d) in enumerate(zip(first, declared)):
        shape = getattr(d, "shape", ())
        if {len(s[i].shape) for s in sets} != {len(shape)}:
            continue
        for axis, size in enumerate(x.shape):
            if shape[axis] == -1 and {s[i].shape[axis] for s in sets} == {size}:
                symbol = d.symbolic_shape[axis] if d.symbolic_shape else {}
                open_axes.append((i, axis))
                steps[size] = math.lcm(steps.get(size, 1), symbol.get("divisor", 1))
    found = []
    for size, step in steps.items():  # dimensions of one size may be one and the same
        if size:
            varied = list(first)
            for i, axis in open_axes:
                if first[i].shape[axis] == size:
                    varied[i] = resized(varied[i], axis, size - step if size > step else size + step)
            found.append(tuple(varied))
    return found


def _settle():
    """Takes the errors of what still runs: eagerly, MindSpore raises them in whatever is called next.

    One failure is raised by its result, by each call that was queued behind it, and once by whoever waits
    for the queue; all have been taken when a call succeeds.
    """
    for _ in range(100):
        try:
            (Tensor(0.0) + 1.0).asnumpy()
            return
        except Exception:  # of a call whose failure is known
            pass


def _with_second_sizes(net, sets, rows):
    """The proof's sets, and those of further sizes that the model takes: as it is called, and eagerly."""
    taken = list(sets)
    for arrays in _second_sizes(_declared(net, sets[0]), sets, rows):
        inputs, kept = tuple(map(Tensor, arrays)), _Kept(net)
        try:
            _results(net, [inputs], kept)
            _recorded(net, [], [inputs])
        except Exception:  # as the model's own operators refuse it
            _settle()
            continue
        taken.append(inputs)
    return taken


def _put(parent, name, cell):
    if isinstance(parent, (nn.SequentialCell, nn.CellList)):
        parent[list(parent._cells).index(name)] = cell
    else:
        setattr(parent, name, cell)


def _outdate(net):
    """What graph mode has compiled is known by these; otherwise it would run again, without the swap."""
    for _, cell in net.cells_and_names():
        object.__setattr__(cell, "_create_time", time.time_ns())
        cell.compile_cache.clear()


def _first_line(error):
    return str(error).strip().splitlines()[0] if str(error).strip() else repr(error)


def _wrong(results, wanted, host="the model"):
    """Why a model with swaps is not to be: `results`, a function, fails, or gives others; or None."""
    try:
        why = _differ(results(), wanted)
    except Exception as e:
        _settle()
        return f"{host} fails: {_first_line(e)}"
    return why and f"{host}'s results differ: {why}"


def _tried(cell, new, calls, only_faster):
    """(figures of the swap, why it is not to be) on the calls that the cell has had, run eagerly."""
    given, mode = calls[0][0], ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        found = [_difference(_arrays(new(*inputs)), _arrays(out)) for inputs, out in calls]
        for why, _, _ in found:
            if why:
                return None, f"the results differ: {why}"
        before, after = _race(lambda: cell(*given), lambda: new(*given))
    except Exception as e:
        _settle()
        return None, _first_line(e)
    finally:
        ms.set_context(mode=mode)
    if only_faster and (why := too_slow(before, after)):
        return None, why
    return {"max_abs": max(f[1] for f in found), "mean_abs": max(f[2] for f in found), "ms_before": before,
            "ms_after": after}, None  # fmt: skip


def _by_type(net, cls, factory, sets, only_faster):
    report, places = Report(), []
    for prefix, parent in net.cells_and_names():
        for name, cell in parent._cells.items():
            if isinstance(cell, cls):
                places.append((parent, name, cell, f"{prefix}.{name}" if prefix else name))
    report.matched = len(places)
    if not places:
        return report
    kept = _Kept(net)
    wanted, calls = _recorded(net, [p[2] for p in places], sets)
    taken = []
    for (parent, name, cell, path), heard in zip(places, calls):
        new = factory(cell)
        new = new if isinstance(new, nn.Cell) else _Call(new)
        row = {"op": type(cell).__name__, "node": path}
        if not heard:
            report.left.append(row | {"why": "the proof's inputs do not reach it"})
            continue
        figures, why = _tried(cell, new, heard, only_faster)
        if why:
            report.left.append(row | {"why": why})
            continue
        taken.append((parent, name, cell, new))
        report.swapped.append(row | figures)
    kept.restore()
    for parent, name, _, new in taken:
        _put(parent, name, new)
    _outdate(net)
    if taken and (why := _wrong(lambda: _results(net, sets, kept), wanted)):
        for parent, name, cell, _ in taken:
            _put(parent, name, cell)
        _outdate(net)
        report._withdraw(why)
    return report


class _Place(nn.Cell):
    """Where a chain stands: runs it and keeps what it was given and gave."""

    def __init__(self, chain):
        super().__init__()
        self.chain, self.calls = chain, []

    def construct(self, *args):
        result = self.chain(*args)
        self.calls.append((args, result))
        return result


def _by_chain(net, pattern, factory, sets, only_faster):
    found = mindspore_rewrite.find(net, pattern)
    report = Report()
    places = {}
    for cell, path, chains, why in found:
        if why:
            report.left.append({"op": type(cell).__name__, "node": path or "the model", "why": why})
        for k, chain in enumerate(chains):
            report.matched += 1
            if chain.why:
                report.left.append({"op": chain.op, "node": chain.path, "why": chain.why})
            else:
                places.setdefault(id(cell), {})[k] = _Place(chain)
    report.matched += sum(f.why is not None for f in found)
    if not places:
        return Grafted(net, report)

    def give_up(why):
        chains = [p.chain for several in places.values() for p in several.values()]
        report.left += [{"op": c.op, "node": c.path, "why": why} for c in chains]
        return Grafted(net, report)

    kept = _Kept(net)
    wanted, _ = _recorded(net, [], sets)
    try:
        heard, _ = _recorded(mindspore_rewrite.replaced(net, pattern, places), [], sets)
    except Exception as e:  # of the rewritten Cell, which computes what it did before
        _settle()
        return give_up(f"mindspore.rewrite breaks the Cell: {_first_line(e)}")
    if why := _differ(heard, wanted):
        return give_up(f"mindspore.rewrite changes the Cell's results: {why}")
    news = {}
    for key, several in places.items():
        for k, place in several.items():
            row = {"op": place.chain.op, "node": place.chain.path}
            new = factory(*place.chain.parts())
            new = new if isinstance(new, nn.Cell) else _Call(new)
            figures, why = None, "the proof's inputs do not reach it"
            if place.calls:
                figures, why = _tried(place.chain, new, place.calls, only_faster)
            if why:
                report.left.append(row | {"why": why})
            else:
                news.setdefault(key, {})[k] = new
                report.swapped.append(row | figures)
    kept.restore()
    if not news:
        return Grafted(net, report)
    grafted = net

    def results():
        nonlocal grafted
        grafted = mindspore_rewrite.replaced(net, pattern, news)
        return _results(grafted, sets, kept)

    if why := _wrong(results, wanted):
        report._withdraw(why)
    return Grafted(net if why else grafted, report)


def _whole(net, sets, only_faster):
    given = _declared(net, sets[0]) or sets[0]
    wanted = _results(net, sets, _Kept(net))
    with tempfile.TemporaryDirectory() as folder:
        plain, grafted = (pathlib.Path(folder) / f"{n}.mindir" for n in ("plain", "grafted"))
        ms.export(net, *given, file_name=str(plain), file_format="MINDIR")
        graph = load(plain)
        report = substitute(graph, prove=[tuple(x.asnumpy() for x in s) for s in sets], only_faster=only_faster)
        if not report.swapped:
            return Grafted(net, report)
        _core.write_mindir(graph, str(grafted))
        cell = nn.GraphCell(ms.load(str(grafted)))
        why = _wrong(lambda: [_arrays(cell(*s)) for s in sets], wanted, "MindSpore")
    if why:
        report._withdraw(why)
    return Grafted(net if why else cell, report)
