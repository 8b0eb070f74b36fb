"""What is measured: the rows of `bench/operators.py`, by family, each the same for every peer.

A file of this folder has a list ROWS. It is read by every peer in an environment of its own, so it may import nothing
but NumPy and ml_dtypes; the builders are given the framework they build with.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SEED = 20261122


@dataclass(frozen=True)
class Row:
    """One case. `inputs` come with every call, `weights` are constants of the model that a peer may prepare."""

    name: str  # "SwiGLU 128x11008"
    op: str  # opgraft's operator: its inputs are `inputs`, then `weights`
    inputs: Callable[[np.random.Generator], list]  # float32 or integer arrays; floats are then rounded to `dtype`
    exact: Callable[..., Any]  # NumPy in float64 on what the peers get, rounded to `dtype`; -> array or list of arrays
    # |got - exact| <= atol + rtol |exact| for every peer: say in the row where the numbers come from
    rtol: float
    atol: float
    weights: Callable[[np.random.Generator], list] = lambda rng: []
    attrs: dict = field(default_factory=dict)
    dtype: str = "float32"  # or bfloat16, float16: what every peer holds its floats in
    keep: tuple = ()  # positions in inputs + weights whose dtype stays as made (scales, tables in float32)
    flops: float = 0.0  # of the formula, one call
    bytes: float = 0.0  # least traffic, one call; 0: what inputs, weights and outputs take
    target: float | None = None  # at most this share of the best peer's time
    twin: float | None = None  # at least this many times as fast as the scalar twin
    # The twin computes this many of the first input's rows, all of which cost the same; its time is that of all.
    twin_rows: int | None = None
    mindspore_target: float | None = None  # at least this many times as fast as the best of MindSpore's modes
    against: str = ""  # another row: opgraft's time there, in the same run
    target_against: float | None = None  # at most this share of it
    quick: bool = False  # measured by --quick, too
    extra: bool = False  # measured only where it is asked for by its name's beginning
    sparse: bool = False  # peers that read ONNX get the weights as sparse matrices
    note: str = ""

    # The peers. None: the peer cannot say this row, and `missing` says why.
    numpy: Callable | None = None  # (*inputs, *weights) -> array or list: as a NumPy user writes it
    # (torch) -> f(*inputs, *weights), tensors; compiled, too: all of it or, where it is a gradient, its `forward`
    torch: Callable | None = None
    onnx: Callable | None = None  # (g, *names) -> name or names of the outputs; for ONNX Runtime and OpenVINO
    mindspore: Callable | None = None  # (mindspore) -> f(*inputs, *weights)
    # {"torch" or "mindspore": (framework, *weights as its tensors) -> list of tensors that it is given in their place}
    prepare: dict = field(default_factory=dict)
    opgraft: Callable | None = None  # (opgraft) -> f(*inputs, *weights) traced as a Cell, in place of `op` alone
    cell: Callable | None = None  # (opgraft) -> a Cell that takes the inputs and holds the weights, in place of both
    missing: dict = field(default_factory=dict)  # peer: why it has no figure

    def arrays(self):
        """(inputs, weights) as every peer gets them, the same each time."""
        rng = np.random.default_rng([SEED, *self.name.encode()])
        inputs = [np.ascontiguousarray(a) for a in self.inputs(rng)]
        weights = [np.ascontiguousarray(a) for a in self.weights(rng)]
        made = [self._held(a, k) for k, a in enumerate(inputs + weights)]
        return made[: len(inputs)], made[len(inputs) :]

    def _held(self, a, k):
        if a.dtype == np.float64:
            a = a.astype(np.float32)
        if k in self.keep or self.dtype == "float32" or a.dtype != np.float32:
            return a
        import ml_dtypes

        return a.astype({"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[self.dtype])

    def expected(self, inputs, weights):
        """`exact` in float64 on arrays(), as a list."""
        wide = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in inputs + weights]
        with np.errstate(all="ignore"):
            found = self.exact(*wide)
        return [np.asarray(a, np.float64) for a in (found if isinstance(found, (list, tuple)) else [found])]


def save(file, *groups):
    """Writes lists of arrays for `load`, in an environment with any NumPy."""
    named = {f"{g} {k} {a.dtype.name}": a for g, group in enumerate(groups) for k, a in enumerate(group)}
    np.savez(file, **{n: a.view(np.uint16) if n.endswith("bfloat16") else a for n, a in named.items()})


def load(file):
    """The lists that `save` wrote."""
    groups = ([], [], [])
    with np.load(file) as stored:
        for name in stored.files:
            a = stored[name]
            if name.endswith("bfloat16"):
                import ml_dtypes

                a = a.view(ml_dtypes.bfloat16)
            groups[int(name.split()[0])].append(a)
    return groups


def rows():
    """All rows, in the order of the files' names."""
    found = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found += importlib.import_module(f"{__name__}.{module}").ROWS
    names = [r.name for r in found]
    if repeated := {n for n in names if names.count(n) > 1}:
        raise ValueError(f"rows: two rows have the name {sorted(repeated)[0]!r}")
    if unknown := {r.against for r in found if r.against} - set(names):
        raise ValueError(f"rows: there is no row {sorted(unknown)[0]!r} to compare with")
    return found
