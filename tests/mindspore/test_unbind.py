"""Models that take a tensor apart by unbind, exported by MindSpore: what becomes of its parts."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close
from mindspore import Tensor, nn, ops
from opgraft import _core, rewrite

B, H, T, D = 2, 3, 7, 8


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Vision(nn.Cell):
    """A vision transformer's attention, as timm has it: one product for query, key and value."""

    def __init__(self, method):
        super().__init__()
        self.method = method
        self.qkv = nn.Dense(H * D, 3 * H * D, weight_init="uniform", bias_init="uniform")

    def construct(self, x):
        qkv = self.qkv(x).reshape(B, T, 3, H, D).transpose(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0) if self.method else ops.unstack(qkv, 0)
        w = ops.softmax(ops.matmul(q * D**-0.5, k.swapaxes(-1, -2)), -1)
        return ops.matmul(w, v).transpose(0, 2, 1, 3).reshape(B, T, H * D)


class Gated(nn.Cell):
    def __init__(self, last):
        super().__init__()
        self.last = last

    def construct(self, x):
        if self.last:
            gate, up = ops.unbind(x.reshape(B, T, D, 2), -1)
        else:
            gate, up = ops.unbind(x.reshape(B, T, 2, D), 2)
        return ops.silu(gate) * up


ANGLES = np.outer(np.arange(T), 100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)


class Pairs(nn.Cell):
    def __init__(self):
        super().__init__()
        self.cos, self.sin = Tensor(np.cos(ANGLES)), Tensor(np.sin(ANGLES))

    def construct(self, x):
        a, b = ops.unbind(x.reshape(B, H, T, D // 2, 2), -1)
        return ops.stack((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1).reshape(B, H, T, D)


class Halves(Pairs):
    """As x-transformers has it."""

    def construct(self, x):
        a, b = ops.unbind(x.reshape(B, H, T, 2, D // 2), -2)
        cos, sin = ops.tile(self.cos, (1, 2)), ops.tile(self.sin, (1, 2))
        return x * cos + ops.cat((-b, a), -1) * sin


class Exchanged(Pairs):
    """No rotation: of each pair the second comes first."""

    def construct(self, x):
        b, a = ops.unbind(x.reshape(B, H, T, D // 2, 2), -1)
        return ops.stack((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1).reshape(B, H, T, D)


HEADS = normal(B, H, T, D)
MODELS = {
    "vision, ops": (lambda: Vision(False), normal(B, T, H * D), "ScaledDotProductAttention"),
    "vision, method": (lambda: Vision(True), normal(B, T, H * D), "ScaledDotProductAttention"),
    "gated, the last": (lambda: Gated(True), normal(B, T, 2 * D), "SwiGLUInterleaved"),
    "gated, before the last": (lambda: Gated(False), normal(B, T, 2 * D), "Swiglu"),
    "pairs": (Pairs, HEADS, "RotaryPositionEmbedding"),
    "halves": (Halves, HEADS, "RotaryPositionEmbedding"),
    "exchanged": (Exchanged, HEADS, None),
}


@pytest.mark.parametrize("name", MODELS)
def test_of_an_exported_model(name, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    make, x, becomes = MODELS[name]
    net = make()
    want = net(Tensor(x)).asnumpy()
    ms.export(net, Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    assert [n["op"] for n in graph.nodes].count("Unstack") == 1
    rewrite.substitute(graph, prove=(x,))
    left = [n["op"] for n in graph.nodes]
    assert left.count(becomes) == (becomes is not None), str(graph)
    assert ("Unstack" in left) == (becomes in ("ScaledDotProductAttention", None)), str(graph)
    close(opgraft.nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    close(back(Tensor(x)).asnumpy(), want)
