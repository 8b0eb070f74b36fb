"""Masks of bools that MindSpore's models invert, and NaN that they find by mint.isnan, before and behind a softmax."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import GONE, SCORES, cases, close, normal
from mindspore import Tensor, mint, nn, ops
from opgraft import _core, rewrite

B, H, S, T, D = 2, 3, 5, 7, 8
SOFTMAX = cases("softmax")


class Scores(nn.Cell):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def construct(self, x, m):
        if self.how == "~":
            return ops.softmax(ops.where(~m, x / 8.0, -1e9), -1)
        if self.how == "logical_not":
            return ops.softmax((x * 0.125).masked_fill(ops.logical_not(m), -1e9), -1)
        if self.how == "mint":
            return mint.softmax(mint.where(mint.logical_not(m), mint.mul(x, 0.125), -1e9), -1)
        w = ops.softmax((x / 8.0).masked_fill(m, float("-inf")), -1)
        if self.how == "mint.isnan":
            return w.masked_fill(mint.isnan(w), 0.0)
        if self.how == "differs from itself":
            return ops.where(w != w, 0.0, w)
        return ops.where(~ops.isnan(w), w, 0.0)


SAFE = {"hides": True, "nan_to_zero": True}
HOW = {
    "~": {"fill": -1e9, "hides": True},
    "logical_not": {"fill": -1e9, "hides": False},
    "mint": {"fill": -1e9, "hides": True},
    "mint.isnan": SAFE,
    "differs from itself": SAFE,
    "~isnan": SAFE,
}


@pytest.mark.parametrize("how", HOW)
def test_softmax_of_an_exported_model(how, tmp_path):
    """Against the formula in float64, within the operator's bound; the file that is written back gives the same."""
    ms.set_context(mode=ms.GRAPH_MODE)
    attrs, given = {"scale": 0.125, **HOW[how]}, [SCORES, GONE]
    tensors = [Tensor(a) for a in given]
    ms.export(Scores(how), *tensors, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    assert {"LogicalNot", "NotEqual"} & {n["op"] for n in graph.nodes}
    rewrite.substitute(graph, prove=given)
    assert [n["op"] for n in graph.nodes] == ["ScaledMaskedSoftmax"], str(graph)
    got = _core.Session(_core.Model(graph)).run(given)[0]
    x = SCORES.astype(np.float64)
    with np.errstate(invalid="ignore"):  # of what is 0 in place of NaN
        want, bound = SOFTMAX.scaled(x, GONE, **attrs), SOFTMAX.scaled_bound(2.0**-24, x, GONE, **attrs)
    assert (np.abs(got - want) <= np.nan_to_num(bound) + 2.0**-24 * want + 2.0**-126).all()
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    np.testing.assert_array_equal(back(*tensors).asnumpy(), got)


class Layers(nn.Cell):
    """Two layers of attention under one mask that is inverted once."""

    def construct(self, q, k, v, m):
        keep = ~m
        for keys in (k, k + v):
            s = ops.where(keep, ops.matmul(q, keys.swapaxes(-1, -2)) / D**0.5, -1e9)
            q = ops.matmul(ops.softmax(s, -1), v)
        return q


def test_attention_of_an_exported_model(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    gone = normal(B, 1, S, T, seed=3) > 0
    gone[..., 0] = False
    given = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), gone
    net, tensors = Layers(), [Tensor(x) for x in given]
    want = net(*tensors).asnumpy()
    ms.export(net, *tensors, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=given)
    assert sorted(n["op"] for n in graph.nodes) == ["Add", *["ScaledDotProductAttention"] * 2], str(graph)
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    close(nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))(*tensors).asnumpy(), want)
