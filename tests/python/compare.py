"""What tests of operators and patterns share: inputs, a Cell of a function, what becomes of it, and float32 results
against what they should be, within a bound that the caller derives."""

import importlib.util
import pathlib

import numpy as np
import opgraft
from opgraft import nn, rewrite

U = 2.0**-24  # of one rounding to float32, relative
SILU = 7  # roundings of SiLU as in aot_ops/elementwise/cases.py: exp 2 ulp, a sum, a quotient
TANH = 6
SLOPE = 1.13  # the steepest of SiLU and GELU: what an error before them grows by at most


def cases(folder):
    """An operator folder's case table."""
    file = pathlib.Path(__file__).resolve().parents[2] / "aot_ops" / folder / "cases.py"
    spec = importlib.util.spec_from_file_location(f"cases_of_{folder}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Net(nn.Cell):
    def __init__(self, write):
        super().__init__()
        self.write = write

    def construct(self, *x):
        return self.write(*x)


def graft(write, *given, prove=True):
    """(names of the operators swapped in, the results before, and after)"""
    before, after = Net(write), Net(write)
    report = rewrite.substitute(after, prove=tuple(given) if prove else None)
    results = [net(*given) for net in (before, after)]
    results = [[t.asnumpy() for t in (r if isinstance(r, tuple) else (r,))] for r in results]
    return [s["op"].split("@")[0] for s in report.swapped], *results


def stays(write, *given):
    """Nothing is swapped, and every bit of the results is what it was."""
    names, before, after = graft(write, *given, prove=False)
    assert not names
    for got, want in zip(after, before, strict=True):
        np.testing.assert_array_equal(got, want)


def left(write, given, folder):
    """The operators that are there when all is substituted in the exported model."""
    graph = opgraft.load(opgraft.export(Net(write), *map(opgraft.Tensor, given), file_name=str(folder / "net")))
    rewrite.substitute(graph)
    return [n["op"] for n in graph.nodes]


def close(got, want, roundings, scale=0.0):
    """|got - want| <= roundings * 2^-24 * max(|want|, scale).

    roundings: how many lie on the longest way to an element, of both sides where both are float32; a sum of n terms
    makes n. scale: the largest magnitude that is rounded on the way where the result may be smaller (a sum that
    cancels): of the sum of magnitudes.
    """
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"shape {got.shape} instead of {want.shape}"
    allowed = roundings * U * np.maximum(np.abs(want), scale)
    off = np.abs(got - want) - allowed
    assert (off <= 0).all(), f"off by {np.abs(got - want).max():.3g}, allowed {allowed.max():.3g}"  # NaN fails too


def linear(x, weight, bias=0.0):
    """x W^T + b in float64, and the sum of magnitudes that its terms' roundings are relative to."""
    x, weight, bias = (np.asarray(a, np.float64) for a in (x, weight, bias))
    return x @ weight.T + bias, np.abs(x) @ np.abs(weight).T + np.abs(bias)
