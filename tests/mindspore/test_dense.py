"""Products whose residual has no bias before it, and gate and up with biases, of models that MindSpore exported."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close
from mindspore import Parameter, Tensor, mint, nn, ops
from opgraft import _core, rewrite


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, W, RESIDUAL = normal(2, 5, 40), normal(30, 40, seed=1), normal(2, 5, 30, seed=3)
BIASES = normal(30, seed=4), normal(30, seed=5)


def exported(net, given, folder):
    ms.set_context(mode=ms.GRAPH_MODE)
    tensors = [Tensor(x) for x in given]
    want = net(*tensors).asnumpy()
    ms.export(net, *tensors, file_name=str(folder / "net"), file_format="MINDIR")
    graph = opgraft.load(folder / "net.mindir")
    rewrite.substitute(graph, prove=[list(given)])
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)
    _core.write_mindir(graph, str(folder / "grafted.mindir"))
    close(nn.GraphCell(ms.load(str(folder / "grafted.mindir")))(*tensors).asnumpy(), want)
    return [n["op"] for n in graph.nodes if n["op"] != "Reshape"]


class Residual(nn.Cell):
    def __init__(self, by, act=None):
        super().__init__()
        self.by, self.act = by, act
        self.dense = nn.Dense(40, 30, weight_init=Tensor(W), has_bias=False)
        self.weight, self.turned = Parameter(W, name="w"), Parameter(W.T.copy(), name="t")

    def construct(self, x, r):
        if self.by == "nn.Dense":
            y = self.dense(x)
        elif self.by == "matmul":
            y = ops.matmul(x, self.turned)
        else:
            y = mint.nn.functional.linear(x, self.weight)
        return (y if self.act is None else self.act(y)) + r


@pytest.mark.parametrize("act", [None, nn.ReLU, lambda: nn.GELU(approximate=False)], ids=["none", "relu", "gelu"])
@pytest.mark.parametrize("by", ["nn.Dense", "matmul", "linear"])
@pytest.mark.parametrize("lead", [(10,), (2, 5)], ids=len)
def test_a_residual_without_a_bias(lead, by, act, tmp_path):
    given = X.reshape(*lead, 40), RESIDUAL.reshape(*lead, 30)
    assert exported(Residual(by, act and act()), given, tmp_path) == ["DenseAdd"]


class Gated(nn.Cell):
    def __init__(self, both=True):
        super().__init__()
        self.gate = nn.Dense(40, 30, weight_init=Tensor(W), bias_init=Tensor(BIASES[0]))
        self.up = nn.Dense(40, 30, weight_init=Tensor(W[::-1].copy()), bias_init=Tensor(BIASES[1]), has_bias=both)

    def construct(self, x):
        return ops.silu(self.gate(x)) * self.up(x)


@pytest.mark.parametrize("lead", [(10,), (2, 5)], ids=len)
def test_gate_and_up_with_biases(lead, tmp_path):
    assert exported(Gated(), [X.reshape(*lead, 40)], tmp_path) == ["DenseSwiGLU"]


def test_one_bias_of_two_is_taken_apart(tmp_path):
    assert "DenseSwiGLU" not in exported(Gated(both=False), [X], tmp_path)
