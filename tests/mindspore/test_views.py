"""Models that are written with mint's views, exported by MindSpore: patterns find what they are made of."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close
from mindspore import Tensor, mint, nn, ops
from opgraft import _core, rewrite

B, H, T, D = 2, 3, 7, 8


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Attention(nn.Cell):
    """One product for query, key and value."""

    def __init__(self, parts, exchanged):
        super().__init__()
        self.parts, self.exchanged = parts, exchanged
        self.qkv = nn.Dense(H * D, 3 * H * D, weight_init="uniform", bias_init="uniform")

    def heads(self, x):
        return mint.transpose(x.reshape(B, T, H, D), 1, 2)

    def construct(self, x):
        q, k, v = mint.split(self.qkv(x), self.parts, -1)
        q, k, v = self.heads(q), self.heads(k), self.heads(v)
        s = ops.matmul(q * D**-0.5, mint.transpose(k, 2, 3) if self.exchanged else k.swapaxes(-2, -1))
        return mint.transpose(ops.matmul(ops.softmax(s, -1), v), 1, 2).reshape(B, T, H * D)


class Gated(nn.Cell):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def construct(self, x):
        gate, up = mint.split(x, self.parts, -1)
        return ops.silu(gate) * up


class Unequal(nn.Cell):
    """The first part gates one element of the second less."""

    def construct(self, x):
        gate, up = mint.split(x, (D - 1, D + 1), -1)
        return ops.silu(gate) * mint.narrow(up, -1, 1, D - 1)


class Narrowed(nn.Cell):
    def construct(self, x):
        return ops.narrow(x, -1, 0, D) + mint.narrow(x, -1, D, D)


ROWS, HALVES = normal(B, T, H * D), normal(B, T, 2 * D)
MODELS = {
    "attention": (lambda: Attention(H * D, True), ROWS, "ScaledDotProductAttention", {"Softmax"}),
    "attention, sizes": (lambda: Attention((H * D,) * 3, False), ROWS, "ScaledDotProductAttention", {"Softmax"}),
    "gated": (lambda: Gated(D), HALVES, "Swiglu", {"Split", "SiLU"}),
    "gated, sizes": (lambda: Gated((D, D)), HALVES, "Swiglu", {"Split", "SiLU"}),
    "gated, unequal": (Unequal, HALVES, "SwiGLU", {"Swiglu"}),
    "narrowed": (Narrowed, HALVES, "Slice", {"StridedSlice"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_of_an_exported_model(name, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    make, x, becomes, gone = MODELS[name]
    net = make()
    want = net(Tensor(x)).asnumpy()
    ms.export(net, Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=(x,))
    left = [n["op"] for n in graph.nodes]
    assert becomes in left and not gone & set(left), str(graph)
    close(opgraft.nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    close(back(Tensor(x)).asnumpy(), want)
