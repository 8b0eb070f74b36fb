"""BatchNorm that MindSpore's cells write out: what becomes of it in the exported model, there and back in MindSpore."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from mindspore import Parameter, Tensor, nn, ops
from opgraft import _core

U, EPS, C = 2.0**-24, 1e-3, 6


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# MindSpore compiles functions from their source: no lambdas in a table.
def rsqrt(y, m, v, g, b):
    return (y - m) * ops.rsqrt(v + EPS) * g + b


def rsqrt_and_gamma_first(y, m, v, g, b):
    return (y - m) * (ops.rsqrt(v + EPS) * g) + b


def sqrt(y, m, v, g, b):
    return (y - m) / ops.sqrt(v + EPS) * g + b


def one_over_sqrt(y, m, v, g, b):
    return (y - m) * (1.0 / ops.sqrt(v + EPS)) * g + b


def power(y, m, v, g, b):
    return (y - m) * ops.pow(v + EPS, -0.5) * g + b


def reciprocal(y, m, v, g, b):
    return (y - m) * ops.reciprocal(ops.sqrt(v + EPS)) * g + b


def frozen(y, m, v, g, b):
    """As torchvision's FrozenBatchNorm2d."""
    s = g * ops.rsqrt(v + EPS)
    return y * s + (b - m * s)


def frozen_by_sqrt(y, m, v, g, b):
    s = g / ops.sqrt(v + EPS)
    return y * s + (b - m * s)


def without_gamma_and_beta(y, m, v, g, b):
    return (y - m) * ops.rsqrt(v + EPS)


def ahead(y, m, v, g, b):
    """v is 1 over the root, computed before."""
    return (y - m) * v * g + b


def ahead_that_divides(y, m, v, g, b):
    return (y - m) / v * g + b


def reshape(v):
    return v.reshape(1, -1, 1, 1)


def view(v):
    return v.view(1, C, 1, 1)


def reshape_to_three(v):
    return ops.reshape(v, (C, 1, 1))


def new_axes(v):
    return v[None, :, None, None]


def expand(v):
    return ops.expand_dims(ops.expand_dims(v, -1), -1)


SPELLED = [
    rsqrt,
    rsqrt_and_gamma_first,
    sqrt,
    one_over_sqrt,
    power,
    reciprocal,
    frozen,
    frozen_by_sqrt,
    without_gamma_and_beta,
]
SHAPED = [reshape, view, reshape_to_three, new_axes, expand, None]  # how a vector comes to broadcast; it does already


class Norm(nn.Cell):
    def __init__(self, spelled, shaped, bias=None, constant=False):
        super().__init__()
        self.conv = None
        if bias is not None:
            self.conv = nn.Conv2d(C, C, 3, has_bias=bias, weight_init=Tensor(normal(C, C, 3, 3) / np.float32(54**0.5)),
                                  bias_init="zeros" if not bias else Tensor(normal(C)))  # fmt: skip
        self.write, self.shaped = spelled, shaped
        vectors = (normal(C, seed=1), np.linspace(0.5, 2, C, dtype=np.float32), normal(C, seed=2), normal(C, seed=3))
        shape = (1, C, 1, 1) if shaped is None else (C,)
        m, v, g, b = (Tensor(a.reshape(shape)) for a in vectors)
        if not constant:
            m, v, g, b = (Parameter(a, name=n) for a, n in ((m, "mean"), (v, "variance"), (g, "gamma"), (b, "beta")))
        self.mean, self.variance, self.gamma, self.beta = m, v, g, b

    def construct(self, x):
        y = x if self.conv is None else self.conv(x)
        m, v, g, b = self.mean, self.variance, self.gamma, self.beta
        if self.shaped is not None:
            m, v, g, b = self.shaped(m), self.shaped(v), self.shaped(g), self.shaped(b)
        y = self.write(y, m, v, g, b)
        return y if self.conv is None else ops.relu(y)


def grafted(net, x, folder):
    """(operators, what they give, MindSpore's own)"""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.export(net, Tensor(x), file_name=str(folder / "net"), file_format="MINDIR")
    graph = opgraft.load(folder / "net.mindir")
    opgraft.rewrite.substitute(graph, prove=[[x]])
    _core.write_mindir(graph, str(folder / "grafted.mindir"))
    names = [n["op"] for n in graph.nodes]
    return names, _core.Session(_core.Model(graph)).run([x])[0], net(Tensor(x)).asnumpy()


ALLOWED = 2 * 9 * U * ((5 + 3) * 3 / 0.5**0.5 + 3)  # nine roundings of both sides, of what the formula adds up to


@pytest.mark.parametrize("spelled,shaped,bias", [
    *[(spelled, reshape, bias) for spelled in SPELLED for bias in (False, True)],
    *[(spelled, shaped, False) for spelled in (sqrt, frozen) for shaped in SHAPED[1:]],
])  # fmt: skip
def test_behind_a_convolution(spelled, shaped, bias, tmp_path):
    names, got, want = grafted(Norm(spelled, shaped, bias), normal(2, C, 7, 9), tmp_path)
    fused = "FusedConv2DBiasBatchNorm" if bias else "FusedConv2DBatchNorm"
    if shaped is new_axes:  # MindSpore exports a slice of all behind them, which stays
        names = [n for n in names if n not in ("ExpandDims", "StridedSlice")]
    assert names == [fused], names
    order = 2 * 54 * U * 3 * 5  # MindSpore adds up the window in another order
    assert np.abs(got - want).max() <= ALLOWED + order
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))(Tensor(normal(2, C, 7, 9))).asnumpy()
    assert np.abs(back - got).max() <= order  # its weight is no constant and not packed


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("spelled", [*SPELLED, ahead, ahead_that_divides])
def test_alone(spelled, constant, tmp_path):
    x = normal(2, C, 7, 9)
    names, got, want = grafted(Norm(spelled, None, constant=constant), x, tmp_path)
    assert names == ["FusedBatchNormInference"] or (constant and "frozen" in spelled.__name__), names
    assert np.abs(got - want).max() <= ALLOWED
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(back, got)
