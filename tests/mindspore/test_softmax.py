"""Softmax with masks of bools, as MindSpore's models spell it: what becomes of exported ones, and gradients."""

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from helpers import GONE, SCORES, cases, normal
from mindspore import Tensor, mint, nn, ops
from opgraft import _core, rewrite

U = 2.0**-24
SOFTMAX = cases("softmax")


class Scores(nn.Cell):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def construct(self, x, m):
        low = Tensor(-1e9, ms.float32)
        if self.how == "where":
            return ops.softmax(ops.where(m, low, x * 0.125), -1)
        if self.how == "where, a number":
            return ops.softmax(ops.where(m, -1e9, x / 8.0), -1)
        if self.how == "select":
            return ops.softmax(ops.select(m, low, x / 8.0), -1)
        if self.how == "method":
            return ops.softmax((x / 8.0).masked_fill(m, -1e9), -1)
        if self.how == "masked_fill":
            return ops.softmax(ops.masked_fill(x * 0.125, m, low), -1)
        if self.how == "mint":
            return mint.softmax(mint.where(m, -1e9, mint.mul(x, 0.125)), -1)
        if self.how == "then over":
            return ops.softmax(x.masked_fill(m, -1e9) / 8.0, -1)
        if self.how == "along dimension 1":
            return ops.softmax((x / 8.0).masked_fill(m, -1e9), 1)
        if self.how == "no NaN":
            w = ops.softmax((x / 8.0).masked_fill(m, float("-inf")), -1)
            return w.masked_fill(ops.isnan(w), 0.0)
        return ops.softmax(x / 8.0 - m, -1)


HOW = {
    **{
        h: {"fill": -1e9, "hides": True}
        for h in ("where", "where, a number", "select", "method", "masked_fill", "mint")
    },
    "then over": {"fill": -1e9, "hides": True, "mask_scale": 0.125},
    "along dimension 1": {"fill": -1e9, "hides": True, "axis": 1},
    "no NaN": {"hides": True, "nan_to_zero": True},
    "taken away": {"mask_scale": -1.0},
}


@pytest.mark.parametrize("how", HOW)
def test_of_an_exported_model(how, tmp_path):
    """Against the formula in float64, within the operator's bound; MindSpore's own run and that of the file that is
    written back within twice of it and 80 roundings."""
    ms.set_context(mode=ms.GRAPH_MODE)
    net, attrs = Scores(how), {"scale": 0.125, **HOW[how]}
    given = [SCORES, normal(5, 24, seed=2) if how == "taken away" else GONE]
    tensors = [Tensor(a) for a in given]
    ms.export(net, *tensors, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=given)
    assert [n["op"] for n in graph.nodes] == ["ScaledMaskedSoftmax"], str(graph)
    got = _core.Session(_core.Model(graph)).run(given)[0]
    x, m = SCORES.astype(np.float64), given[1] if given[1].dtype == bool else given[1].astype(np.float64)
    with np.errstate(invalid="ignore"):  # of what is 0 in place of NaN
        want, bound = SOFTMAX.scaled(x, m, **attrs), SOFTMAX.scaled_bound(U, x, m, **attrs)
    assert (np.abs(got - want) <= np.nan_to_num(bound) + U * want + 2.0**-126).all()
    if how != "no NaN":  # at a row of -inf MindSpore's own kernel stops, and leaves what lies behind it unset
        # Weights of at most 1, of which MindSpore's exponential was off by up to 4 U, and up to 51 U of small ones.
        np.testing.assert_allclose(net(*tensors).asnumpy(), want, rtol=0, atol=8 * U)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    np.testing.assert_array_equal(back(*tensors).asnumpy(), got)


class Written(nn.Cell):
    """Softmax as a sum of exponentials, in the ways that have kept dimensions, or as one function."""

    def __init__(self, how, axis):
        super().__init__()
        self.how, self.axis = how, axis
        self.most, self.total = ops.ReduceMax(keep_dims=True), ops.ReduceSum(keep_dims=True)

    def construct(self, x):
        x, axis = x * 0.125, self.axis
        if self.how == "softmax":
            return ops.softmax(x, axis)
        if self.how == "mint softmax":
            return mint.softmax(x, axis)
        if self.how == "amax":
            e = ops.exp(x - ops.amax(x, axis, True))
            return e / ops.sum(e, axis, True)
        if self.how == "methods":
            e = (x - x.max(axis=axis, keepdims=True)).exp()
            return e / e.sum(axis=axis, keepdims=True)
        if self.how == "mint":
            e = mint.exp(x - mint.max(x, axis, True)[0])
            return mint.mul(e, mint.reciprocal(mint.sum(e, axis, True)))
        e = ops.exp(x - self.most(x, axis))
        if self.how == "Reciprocal":
            return e * ops.reciprocal(self.total(e, axis))
        return e / self.total(e, axis)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2, -3])
@pytest.mark.parametrize("how", ["Div", "Reciprocal", "amax", "methods", "mint", "softmax", "mint softmax"])
def test_by_exponentials_and_along_any_axis(how, axis, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    x = normal(2, 5, 3, 24) * 4
    net = Written(how, axis)
    ms.export(net, Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=[x])
    assert [n["op"] for n in graph.nodes] == ["ScaledMaskedSoftmax"], str(graph)
    got = _core.Session(_core.Model(graph)).run([x])[0]
    wide, attrs = x.astype(np.float64), {"scale": 0.125, "axis": axis}
    want = SOFTMAX.scaled(wide, **attrs)
    assert (np.abs(got - want) <= SOFTMAX.scaled_bound(U, wide, **attrs) + U * want).all()
    # MindSpore's Exp was off by up to 101 U, relative, and so weights y by up to twice that, times y (1 - y).
    np.testing.assert_allclose(net(Tensor(x)).asnumpy(), want, rtol=0, atol=(8 if "softmax" in how else 56) * U)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
@pytest.mark.parametrize("hides", [False, True])
def test_the_gradient_where_bools_choose(hides, mode):
    """0 where a score became a number, also in the row that is hidden whole, whose weights are equal."""
    ms.set_context(mode=mode)
    op = opgraft.mindspore.custom("ScaledMaskedSoftmax", n_inputs=2, scale=0.3, fill=-2.0, hides=hides)
    dy = normal(3, 5, 24, seed=3)

    class Weighted(nn.Cell):
        def __init__(self):
            super().__init__()
            self.op, self.weights = op, Tensor(dy)

        def construct(self, x, m):
            return (self.op(x, m) * self.weights).sum()

    m = GONE == hides
    got = ops.grad(Weighted(), 0)(Tensor(SCORES), Tensor(m)).asnumpy()
    y = SOFTMAX.scaled(SCORES.astype(np.float64), m, scale=0.3, fill=-2.0, hides=hides)
    want = SOFTMAX.scaled_gradient(dy.astype(np.float64), y, m, scale=0.3, hides=hides)[0]
    assert (got[:, GONE] == 0).all()
    # The result y that it is taken of is good to 40 roundings here, of no more than 3 of dy and of the row's mean each.
    assert (np.abs(got - want) <= (40 * 2 + 24 + 12) * U * 6 * 0.3 * y).all()
