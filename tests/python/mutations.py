"""Graphs changed at random: whatever a graph that a rule fits becomes, the rules must leave its results as they are.

A change is another size or dimension of an input or a constant, another constant, attribute or dtype, two inputs
exchanged, an inner value asked for as well, open dimensions. What is no graph any more is left out; of what is, the
results before and after all swaps, which no proof has seen, are compared, with open dimensions at other sizes too.

As a plugin, `PYTHONPATH=tests/python pytest -p mutations tests/python/test_norms.py`, it does so with every graph that
a test of this process substitutes in: OPGRAFT_MUTATIONS changes of each (12), by the seed OPGRAFT_SEED (0); what
differs is printed at the end. Some does: half types, which one operator rounds fewer times, infinities that attention
hides or a sparse product leaves out, and what tests swap wrongly on purpose.
"""

import contextlib
import copy
import dataclasses
import os
import random

import ml_dtypes
import numpy as np
from opgraft import Tensor, _core, nn

FLOATS = [np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16)]
CODES = {np.dtype(np.float32): 43, np.dtype(np.float16): 42, np.dtype(ml_dtypes.bfloat16): 45}  # MindSpore's TypeId
REFUSED = ValueError, TypeError, RuntimeError, IndexError, KeyError, OverflowError, MemoryError
# What results may differ by, of the largest: 64 roundings of sums in another order, 16 of half types between operators.
APART = dict(zip(FLOATS, (64 * 2.0**-24, 16 * 2.0**-11, 16 * 2.0**-8)))
MOST = 400_000  # elements of a tensor


@dataclasses.dataclass
class Model:
    """A graph as it can be changed: the arrays of inputs and constants by value, nodes with their inputs by value."""

    inputs: dict
    constants: dict
    nodes: list
    outputs: list
    codes: dict
    opened: dict = dataclasses.field(default_factory=dict)  # (input, dimension): its name

    @classmethod
    def of(cls, graph, arrays):
        inputs = dict(zip(graph.inputs, (np.array(a) for a in arrays), strict=True))
        nodes = [{k: copy.deepcopy(n[k]) for k in ("op", "name", "inputs", "outputs", "attrs")} for n in graph.nodes]
        made = set(inputs).union(*(n["outputs"] for n in nodes))
        constants = {v: np.array(graph.constant(v)) for n in nodes for v in n["inputs"] if v >= 0 and v not in made}
        codes = CODES | {a.dtype: graph.dtype(v) for v, a in inputs.items()}
        return cls(inputs, constants, nodes, list(graph.outputs), codes)

    def graph(self, like):
        g, ids = like.like("changed", [], []), {}
        for v, a in self.inputs.items():
            sizes = [g.symbol(self.opened[v, i]) if (v, i) in self.opened else n for i, n in enumerate(a.shape)]
            ids[v] = g.add_input(f"x{v}", self.codes[a.dtype], sizes)
        for v, a in self.constants.items():
            ids[v] = g.add_constant(a, f"c{v}")
        for n in self.nodes:
            _, made = g.add_node(n["op"], [ids.get(v, v) for v in n["inputs"]], n["attrs"], n["name"])
            ids |= zip(n["outputs"], made, strict=True)
        g.set_outputs([ids[v] for v in self.outputs])
        return g

    def arrays(self):
        return [*self.inputs.values(), *self.constants.values()]

    def each(self, f):
        for held in (self.inputs, self.constants):
            held.update({v: f(a) for v, a in held.items()})

    def key(self):
        held = [(v, a.dtype.str, a.shape, a.tobytes()) for d in (self.inputs, self.constants) for v, a in d.items()]
        return repr((held, self.nodes, self.outputs, self.opened))

    def sizes(self):
        return sorted({n for a in self.arrays() for n in a.shape} | {1, 2, 3})

    def any(self, rng, constant=None):
        """A dict and a key of it: an input or a constant, or a constant alone."""
        of = [(d, v) for d in ((self.constants,) if constant else (self.inputs, self.constants)) for v in d]
        return rng.choice(of)


def filled(a, shape):
    """a's numbers in another shape, again from the front where they do not suffice."""
    if np.prod(shape, dtype=float) > MOST:
        raise ValueError("too large")
    return np.resize(a, shape).astype(a.dtype) if a.size else np.zeros(shape, a.dtype)


def shape(rng, m):
    held, v = m.any(rng)
    s = list(held[v].shape)
    at = rng.randrange(len(s)) if s else 0
    other = rng.choice(m.sizes())
    shapes = [[1, *s], [1, *s], [other, *s], [*s, 1], [] if s else [other], [int(np.prod(s))]]
    shapes += [s[:at] + s[at + 1 :], *2 * [s[:at] + [1] + s[at + 1 :]], s[:at] + [other] + s[at + 1 :]] if s else []
    held[v] = filled(held[v], rng.choice(shapes))


def size(rng, m):
    """One size, wherever it stands."""
    old, new = rng.choice(m.sizes()), rng.choice([*m.sizes(), 4, 5, 7, 16])
    m.each(lambda a: filled(a, [new if n == old else n for n in a.shape]) if old in a.shape else a)


def constant(rng, m):
    held, v = m.any(rng, True)
    a = held[v].copy()
    if a.dtype in FLOATS:
        by, more = rng.choice(
            [(f, 0.0) for f in (0.0, -1.0, 2.0, 0.5, 1.01, 1.3)] + [(1.0, t) for t in (1, -0.5, 0.25)]
        )
        a = (a.astype(np.float64) * by + more).astype(a.dtype)
    elif a.size:
        at = rng.randrange(a.size)
        a.reshape(-1)[at] = not a.reshape(-1)[at] if a.dtype == bool else a.reshape(-1)[at] + rng.choice([-1, 1, 2])
    held[v] = a


def attribute(rng, m):
    attrs = rng.choice(m.nodes)["attrs"]
    name = rng.choice(sorted(attrs))
    value = attrs[name]
    if isinstance(value, bool):
        value = not value
    elif isinstance(value, int):
        value += rng.choice([-2, -1, 1, 2])
    elif isinstance(value, float):
        value = rng.choice([2 * value, value / 2, -value, value + 1])
    elif isinstance(value, (list, tuple)) and value and all(isinstance(n, int) for n in value):
        at = rng.randrange(len(value))
        step = rng.choice([-1, 1, -len(value)])
        value = rng.choice([rng.sample(value, len(value)), [n + step * (i == at) for i, n in enumerate(value)]])
    attrs[name] = value


def exchange(rng, m):
    inputs = rng.choice(m.nodes)["inputs"]
    i, j = rng.sample(range(len(inputs)), 2)
    inputs[i], inputs[j] = inputs[j], inputs[i]


def share(rng, m):
    m.outputs.append(rng.choice(m.nodes)["outputs"][0])


def dtype(rng, m):
    old, new = rng.choice([a.dtype for a in m.arrays() if a.dtype in FLOATS]), rng.choice(FLOATS)
    m.each(lambda a: a.astype(new) if a.dtype == old else a)


def special(rng, m):
    v = rng.choice([v for v, a in m.inputs.items() if a.dtype in FLOATS and a.size])
    m.inputs[v] = a = m.inputs[v].copy()
    a.reshape(-1)[rng.randrange(a.size)] = rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-30, 50.0, -50.0])


def opened(rng, m):
    together = rng.random() < 0.5  # equal sizes are one dimension
    at = [(v, i) for v, a in m.inputs.items() for i in range(a.ndim) if rng.random() < 0.6]
    m.opened = {(v, i): f"n{m.inputs[v].shape[i]}" if together else f"n{v}_{i}" for v, i in at}


CHANGES = [*3 * [shape], *2 * [attribute], *2 * [opened], constant, exchange, share, size]
ALL = [*CHANGES, dtype, special]


def changed(rng, model, changes):
    m = copy.deepcopy(model)
    for change in rng.sample(changes, rng.choice([1, 1, 1, 2, 3])):
        with contextlib.suppress(IndexError, ValueError):  # no such constant, attribute, input
            change(rng, m)
    return m


def other_sizes(rng, m):
    """The inputs with other sizes of what is open."""
    now = {name: m.inputs[v].shape[i] for (v, i), name in m.opened.items()}
    now = {name: rng.choice([1, 1, 2, 3, n + 1]) if rng.random() < 0.6 else n for name, n in now.items()}
    at = {
        v: [now[m.opened[v, i]] if (v, i) in m.opened else n for i, n in enumerate(a.shape)]
        for v, a in m.inputs.items()
    }
    return [filled(a, at[v]) for v, a in m.inputs.items()]


def results(graph, arrays):
    y = nn.GraphCell(graph)(*map(Tensor, arrays))
    return [t.asnumpy() for t in (y if isinstance(y, (tuple, list)) else (y,))]


def difference(want, got):
    """What tells two results apart; None: nothing."""
    if (want.shape, want.dtype) != (got.shape, got.dtype):
        return f"{want.dtype}{want.shape} became {got.dtype}{got.shape}"
    x, y = (a.astype(np.float64) for a in (want, got))
    finite = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        at = np.argwhere(~finite & ~((x == y) | (np.isnan(x) & np.isnan(y))))[0]
        return f"{x[tuple(at)]} became {y[tuple(at)]} at {at.tolist()}"
    x, y = x[finite], y[finite]
    most = APART.get(want.dtype, 0.0) * max(np.abs(x).max(initial=0), np.abs(y).max(initial=0), 1e-6)
    most += want.dtype in (np.int8, np.uint8)  # a number between two codes is rounded to either
    apart = np.abs(x - y).max(initial=0)
    return f"apart by {apart:.3g}, allowed {most:.3g}" if apart > most else None


def check(graph, rules, arrays, rng, seen, changes=CHANGES):
    """Whether a change of the graph is a graph that is not among those seen, whether the rules fit it, and what then
    differs, or None."""
    try:
        model = Model.of(graph, arrays)
        m = changed(rng, model, changes)
        seen.add(model.key())
        if m.key() in seen:
            return False, False, None
        seen.add(m.key())
        before = m.graph(graph)
        given = [list(m.inputs.values())]
        wanted = [results(before.clone(), given[0])]
    except REFUSED:
        return False, False, None
    for _ in range(2 if m.opened else 0):
        try:
            inputs = other_sizes(rng, m)
            wanted.append(results(before.clone(), inputs))
            given.append(inputs)
        except REFUSED:
            pass
    after, found = before.clone(), None
    try:
        _core.substitute(after, rules, None, False)
        for inputs, want in zip(given, wanted, strict=True):
            for x, y in zip(want, results(after, inputs), strict=True):
                found = found or difference(x, y)
    except REFUSED as e:
        found = f"refused after the swaps: {e}"
    fits = any(n["grafted"] for n in after.nodes)
    return True, fits, found and f"{found}\n{before.dump()}\n{after.dump()}"


class Plugin:
    """_core.substitute, and the changes of each graph that it is called with, once."""

    def __init__(self):
        self.substitute, self.seen, self.graphs, self.swapped, self.found = _core.substitute, set(), 0, 0, []
        self.inside = False
        _core.substitute = self

    def __call__(self, graph, rules, arrays=None, *more):
        key = graph.dump()
        if arrays and not self.inside and key not in self.seen and len(graph.nodes) <= 80:
            self.seen.add(key)
            self.inside = True
            try:
                self.change(graph, rules, arrays[0], key)
            finally:
                self.inside = False
        return self.substitute(graph, rules, arrays, *more)

    def change(self, graph, rules, arrays, key):
        rng, seen = random.Random(f"{os.environ.get('OPGRAFT_SEED', 0)} {key}"), set()
        for _ in range(int(os.environ.get("OPGRAFT_MUTATIONS", 12))):
            valid, fits, found = check(graph, rules, arrays, rng, seen, ALL)
            self.graphs += valid
            self.swapped += fits
            self.found += [f"{os.environ.get('PYTEST_CURRENT_TEST')}: {found}"] if found else []


def pytest_configure(config):
    config.pluginmanager.register(Plugin(), "opgraft_mutations")


def pytest_terminal_summary(terminalreporter, config):
    plugin = config.pluginmanager.get_plugin("opgraft_mutations")
    for found in plugin.found:
        terminalreporter.write_line(found)
    terminalreporter.write_line(
        f"{len(plugin.seen)} graphs, {plugin.graphs} changed ones, {plugin.swapped} that rules fit, "
        f"{len(plugin.found)} with other results"
    )
