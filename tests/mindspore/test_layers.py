"""A layer (product, bias, activation, residual) as MindSpore's models spell it, exported, is one operator."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close
from mindspore import Parameter, Tensor, mint, nn, ops
from opgraft import _core, rewrite


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, W, BIAS, RESIDUAL = normal(2, 5, 40), normal(30, 40, seed=1), normal(30, seed=2), normal(2, 5, 30, seed=3)


class Nothing(nn.Cell):
    def construct(self, y):
        return y


class WrittenOutSiLU(nn.Cell):
    def construct(self, y):
        return y * ops.sigmoid(y)


class WrittenOutGELU(nn.Cell):
    def construct(self, y):
        return y * (ops.erf(y / 1.4142135623730951) + 1.0) * 0.5


ACTIVATIONS = {
    "none": (Nothing, "none"),
    "nn.ReLU": (nn.ReLU, "relu"),
    "nn.SiLU": (nn.SiLU, "silu"),
    "nn.GELU": (lambda: nn.GELU(approximate=False), "gelu"),
    "nn.GELU tanh": (nn.GELU, "gelu_tanh"),
    "SiLU written out": (WrittenOutSiLU, "silu"),
    "GELU written out": (WrittenOutGELU, "gelu"),
}


class Layer(nn.Cell):
    def __init__(self, by, act):
        super().__init__()
        self.by, self.act = by, act
        self.dense = nn.Dense(40, 30, weight_init=Tensor(W), bias_init=Tensor(BIAS))
        self.weight, self.bias = Parameter(W, name="w"), Parameter(BIAS, name="b")
        self.turned = Parameter(W.T.copy(), name="t")
        self.row = Parameter(BIAS[None], name="r")

    def product(self, x):
        if self.by == "nn.Dense":
            return self.dense(x)
        if self.by == "matmul":
            return ops.matmul(x, self.turned) + self.bias
        if self.by == "ones before the bias":
            return ops.matmul(x, self.turned) + self.row
        if self.by == "bias behind the rows":
            return ops.matmul(x.reshape(-1, 40), self.turned).reshape(*x.shape[:-1], 30) + self.row
        return mint.nn.functional.linear(x, self.weight, self.bias)

    def construct(self, x, r=None):
        y = self.act(self.product(x))
        return y if r is None else y + r


@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("by", ["nn.Dense", "matmul", "linear", "ones before the bias", "bias behind the rows"])
@pytest.mark.parametrize("lead", [(5,), (2, 5)], ids=len)
def test_of_an_exported_model(lead, by, act, residual, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    make, name = ACTIVATIONS[act]
    given = [a.reshape(-1, a.shape[-1])[:5] if len(lead) == 1 else a for a in (X, RESIDUAL)][: 2 if residual else 1]
    net, tensors = Layer(by, make()), [Tensor(x) for x in given]
    want = net(*tensors).asnumpy()
    ms.export(net, *tensors, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=tuple(given))
    kept = [n for n in graph.nodes if n["op"] != "Reshape"]
    assert [n["op"] for n in kept] == ["DenseAdd" if residual else "Dense"], str(graph)
    assert kept[0]["attrs"]["activation"] == name
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)


class Unbiased(nn.Cell):
    def __init__(self, by, act):
        super().__init__()
        self.by, self.act = by, act
        self.dense = nn.Dense(40, 30, weight_init=Tensor(W), has_bias=False)
        self.turned = Parameter(W.T.copy(), name="t")
        self.row = Parameter(BIAS[None], name="r")

    def construct(self, x):
        return self.act(self.dense(x) if self.by == "nn.Dense" else ops.matmul(x, self.turned))


@pytest.mark.parametrize("act", [a for a in ACTIVATIONS if a != "none"])
@pytest.mark.parametrize("by", ["nn.Dense", "matmul"])
@pytest.mark.parametrize("lead", [(10,), (2, 5)], ids=len)
def test_without_a_bias(lead, by, act, tmp_path):
    """SiLU stays: it is half of a SwiGLU mostly, which takes both products."""
    ms.set_context(mode=ms.GRAPH_MODE)
    make, name = ACTIVATIONS[act]
    given = X.reshape(*lead, 40)
    net = Unbiased(by, make())
    want = net(Tensor(given)).asnumpy()
    ms.export(net, Tensor(given), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=(given,))
    kept = [n for n in graph.nodes if name != "silu" or n["op"] != "Reshape"]
    assert [n["op"] for n in kept] == (["MatMul", "SiLU"] if name == "silu" else ["Dense"]), str(graph)
    if name != "silu":
        assert kept[0]["attrs"]["activation"] == name
    close(opgraft.nn.GraphCell(graph)(opgraft.Tensor(given)).asnumpy(), want)


class Maximum(nn.Cell):
    def construct(self, y):
        return ops.maximum(y, Tensor(0.0))


class MinimumOfMaximum(nn.Cell):
    def construct(self, y):
        return ops.minimum(ops.maximum(y, Tensor(0.0)), Tensor(6.0))


CLIPS = {nn.ReLU: "relu", nn.ReLU6: "relu6", Maximum: "relu", MinimumOfMaximum: "relu6"}


@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("clip", CLIPS)
def test_a_convolution_without_a_bias_takes_what_follows(clip, residual, tmp_path):
    """nn.Conv2d has none unless it is asked for."""
    ms.set_context(mode=ms.GRAPH_MODE)

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, weight_init=Tensor(4 * normal(4, 4, 3, 3)))
            self.clip = clip()

        def construct(self, x):
            y = self.conv(x)
            return self.clip(y + x if residual else y)

    net, x = Net(), normal(2, 4, 7, 9, seed=4)
    want = net(Tensor(x)).asnumpy()
    ms.export(net, Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    report = rewrite.substitute(graph, prove=(x,))
    assert [n["op"] for n in graph.nodes] == ["FusedConv2D"], str(graph)
    assert graph.nodes[0]["attrs"]["activation"] == CLIPS[clip]
    assert not report.left, str(report)
    close(opgraft.nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    close(nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))(Tensor(x)).asnumpy(), want)


def adaptive(x):
    return ops.adaptive_avg_pool2d(x, 1)


def mean(x):
    return ops.mean(x, (2, 3))


def mean_by_method(x):
    return x.mean((2, 3), keep_dims=True)


def adaptive_by_columns(x):
    return ops.adaptive_avg_pool2d(x, (1, 3))


@pytest.mark.parametrize("pool,name", [
    (adaptive, "ReduceMean"), (nn.AdaptiveAvgPool2d((1, 1)), "ReduceMean"), (mean, "ReduceMean"),
    (mean_by_method, "ReduceMean"), (nn.AvgPool2d(7), "AvgPool"), (adaptive_by_columns, "AdaptiveAvgPool2D"),
])  # fmt: skip
def test_a_mean_over_height_and_width(pool, name, tmp_path):
    """GlobalAvgPool is one operator; MindSpore runs the grafted file."""

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.pool = pool

        def construct(self, x):
            return self.pool(x)

    ms.set_context(mode=ms.GRAPH_MODE)
    x = normal(2, 6, 7, 7)
    want = Net()(Tensor(x)).asnumpy()
    ms.export(Net(), Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=(x,))
    assert [n["op"] for n in graph.nodes] == [name], str(graph)
    close(opgraft.nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    close(nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))(Tensor(x)).asnumpy(), want)
