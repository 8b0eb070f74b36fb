"""Gamma inside the formula of a normalisation, at its root or at what is divided: still one operator."""

import numpy as np
import opgraft
import pytest
from compare import Net, close, graft, left, normal
from norm_spellings import GAMMA_INSIDE, LAYER, ROOTS, SQUARES, N, at_rsqrt, flax, gamma_first, inverse, keras
from opgraft import Tensor, ops, rewrite


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("name", GAMMA_INSIDE)
def test_gamma_inside_the_formula(name, square, tmp_path):
    write, takes = GAMMA_INSIDE[name]
    given = [normal(3, 5, N), normal(N, seed=1), normal(N, seed=2)][: len(takes)]
    only = left(lambda *a: write(*a, SQUARES[square]), given, tmp_path)
    assert only == ["FusedRmsNorm" if "RMS" in name else "FusedLayerNorm"]
    names, before, after = graft(lambda *a: write(*a, SQUARES[square]), *given)
    # Keras adds x and the mean times gamma over the deviation, each up to 6, and cancels.
    close(after[0], before[0], LAYER + 4, max(np.abs(before[0]).max(), 6 * np.abs(given[1]).max()))


GAINED = {
    "Rsqrt": at_rsqrt,
    "1 / Sqrt": lambda v, g: g * ops.div(1.0, ops.sqrt(v)),
    "Reciprocal of Sqrt": lambda v, g: ops.reciprocal(ops.sqrt(v)) * g,
    "its product with 1": lambda v, g: ops.reciprocal(ops.sqrt(v)) * 1.0 * g,
    "gamma / Sqrt": lambda v, g: g / ops.sqrt(v),
    "Pow of -0.5": lambda v, g: g * ops.pow(v, -0.5),
}


def of_squares(x, g, b, gained):
    """The variance as Flax has it by default."""
    m = ops.mean(x, -1, True)
    return (x - m) * gained(ops.maximum(ops.mean(ops.square(x), -1, True) - ops.square(m), 0.0) + 1e-5, g) + b


def all_inside(gained, root):
    """Where gamma may stand inside the formula, by one root."""
    return [
        (lambda x, g, b: keras(x, g, b, ops.square, gained), "xgb", "FusedLayerNorm"),
        (lambda x, g, b: flax(x, g, b, ops.square, gained), "xgb", "FusedLayerNorm"),
        (lambda x, g: flax(x, g, None, ops.square, gained), "xg", "FusedLayerNorm"),
        (lambda x, g, b: of_squares(x, g, b, gained), "xgb", "FusedLayerNorm"),
        (lambda x, g, b: gamma_first(x, g, b, ops.square, root), "xgb", "FusedLayerNorm"),
        (lambda x, g: gamma_first(x, g, None, ops.square, root), "xg", "FusedLayerNorm"),
        (lambda x, g: x * gained(inverse(x, ops.square), g), "xg", "FusedRmsNorm"),
        (lambda x, g: root(g * x, inverse(x, ops.square)), "xg", "FusedRmsNorm"),
    ]


BY_ROOT = [(GAINED[name], ROOTS[name if name in ROOTS else other]) for name, other in [
    ("Rsqrt", ""), ("1 / Sqrt", "Mul by 1 / Sqrt"), ("Reciprocal of Sqrt", "Mul by Reciprocal of Sqrt"),
    ("its product with 1", "Mul by Reciprocal of Sqrt"), ("gamma / Sqrt", "Div by Sqrt"), ("Pow of -0.5", ""),
]]  # fmt: skip


@pytest.mark.parametrize("gained,root", BY_ROOT, ids=GAINED)
def test_gamma_inside_the_formula_by_any_root(gained, root, tmp_path):
    """As exporters to ONNX write Rsqrt, which is no operator there."""
    for write, takes, name in all_inside(gained, root):
        given = [normal(3, 5, N), normal(N, seed=1), normal(N, seed=2)][: len(takes)]
        assert left(write, given, tmp_path) == [name]
        names, before, after = graft(write, *given)
        assert names == [name]
        # As Keras's above; a variance of differences cancels numbers up to 4 times itself.
        close(after[0], before[0], 5 * LAYER, max(np.abs(before[0]).max(), 6 * np.abs(given[1]).max()))


@pytest.mark.parametrize("shape", [(3, 5, N), (5, 1)])
@pytest.mark.parametrize("gained,root", BY_ROOT, ids=GAINED)
def test_a_gamma_of_more_dimensions_at_any_root_stays_outside(gained, root, shape, tmp_path):
    x, g, b = normal(3, 5, N), normal(*shape, seed=1), normal(N, seed=2)
    for write, takes, _ in all_inside(gained, root):
        given = (x, g, b)[: len(takes)]
        graph = opgraft.load(opgraft.export(Net(write), *map(Tensor, given), file_name=str(tmp_path / "net")))
        report = rewrite.substitute(graph)
        # The floor under Flax's variance is a ReLU.
        assert {s["op"].split("@")[0] for s in report.swapped} <= {"ReLU"} and report.left == []
