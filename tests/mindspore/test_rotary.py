"""Rotary embedding and grouped, causal attention of models that MindSpore exported; gradients in MindSpore."""

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from helpers import close
from mindspore import Tensor, nn, ops
from opgraft import _core, rewrite

B, H, KV, S, D = 2, 6, 2, 5, 8
ANGLES = np.outer(np.arange(S), 100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Rotary(nn.Cell):
    def __init__(self, full):
        super().__init__()
        both = (np.concatenate([t, t], -1) if full else t for t in (COS, SIN))
        self.cos, self.sin = map(Tensor, both)

    def paired(self, a, b):
        return a * self.cos - b * self.sin, b * self.cos + a * self.sin


class Halves(Rotary):
    """As in Hugging Face's LLaMA."""

    def __init__(self):
        super().__init__(True)

    def construct(self, x):
        turned = ops.concat((-x[..., D // 2 :], x[..., : D // 2]), -1)
        return x * self.cos + turned * self.sin


class Chunks(Rotary):
    def __init__(self):
        super().__init__(True)

    def construct(self, x):
        a, b = ops.chunk(x, 2, -1)
        return x * self.cos + ops.concat((-b, a), -1) * self.sin


class SplitHalves(Rotary):
    def __init__(self):
        super().__init__(False)
        self.split, self.join = ops.Split(-1, 2), ops.Concat(-1)

    def construct(self, x):
        a, b = self.split(x)
        return self.join(self.paired(a, b))


class Pairs(Rotary):
    """As LLaMA has it before its weights are permuted."""

    def __init__(self):
        super().__init__(False)

    def construct(self, x):
        return ops.stack(self.paired(x[..., ::2], x[..., 1::2]), -1).reshape(x.shape)


class ReshapedPairs(Rotary):
    def __init__(self):
        super().__init__(False)

    def construct(self, x):
        pairs = x.reshape(*x.shape[:-1], D // 2, 2)
        a, b = self.paired(pairs[..., 0], pairs[..., 1])
        return ops.concat((a.expand_dims(-1), b.expand_dims(-1)), -1).reshape(x.shape)


class GroupedAttention(nn.Cell):
    """A LLaMA layer's attention: rotary embedding, shared heads of keys, a causal mask."""

    def __init__(self):
        super().__init__()
        self.rotate, self.product = Halves(), ops.BatchMatMul(transpose_b=True)
        self.mask = Tensor(np.triu(np.full((S, S), -1e9, np.float32), 1))

    def repeat(self, x):
        return ops.repeat_interleave(x, H // KV, 1)

    def construct(self, q, k, v):
        k, v = self.repeat(self.rotate(k)), self.repeat(v)
        scores = self.product(self.rotate(q), k) / D**0.5 + self.mask
        return ops.bmm(ops.softmax(scores, -1), v)


class ExpandedAttention(GroupedAttention):
    def repeat(self, x):
        return ops.broadcast_to(x.expand_dims(2), (B, KV, H // KV, S, D)).reshape(B, H, S, D)


ONE = (normal(B, H, S, D),)
ATTENTION = (normal(B, H, S, D), normal(B, KV, S, D, seed=1), normal(B, KV, S, D, seed=2))


@pytest.mark.parametrize("make,given,rotated", [
    *((m, ONE, 1) for m in (Halves, Chunks, SplitHalves, Pairs, ReshapedPairs)),
    *((m, ATTENTION, 2) for m in (GroupedAttention, ExpandedAttention)),
])  # fmt: skip
def test_of_an_exported_model(make, given, rotated, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    net, tensors = make(), [Tensor(x) for x in given]
    want = net(*tensors).asnumpy()
    ms.export(net, *tensors, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=given)
    left = [n["op"] for n in graph.nodes]
    assert left.count("RotaryPositionEmbedding") == rotated, str(graph)
    assert not {"Concat", "Stack", "Neg", "Mul", "Softmax", "Tile", "BroadcastTo"} & set(left), str(graph)
    if given is ATTENTION:
        (node,) = [n for n in graph.nodes if n["op"] == "ScaledDotProductAttention"]
        assert node["attrs"]["is_causal"] and len(node["inputs"]) == 3
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    close(back(*tensors).asnumpy(), want)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
@pytest.mark.parametrize("plain,interleaved", [(Halves, 0), (Pairs, 1)])
def test_gradients(plain, interleaved, mode):
    ms.set_context(mode=mode)
    wide = [np.repeat(t, 2, -1) if interleaved else np.concatenate([t, t], -1) for t in (COS, SIN)]

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.rotate = opgraft.mindspore.custom("RotaryPositionEmbedding", mode=interleaved)

        def construct(self, x, cos, sin):
            return self.rotate(x * 2.0, cos, sin)

    class Plain(nn.Cell):
        def __init__(self):
            super().__init__()
            self.rotate = plain()

        def construct(self, x):
            return self.rotate(x * 2.0)

    x, dy = Tensor(normal(B, H, S, D)), Tensor(normal(B, H, S, D, seed=3))
    cos, sin = map(Tensor, wide)
    got = ops.vjp(Net(), x, cos, sin)[1](dy)
    want = ops.vjp(Plain(), x)[1](dy)
    close(got[0].asnumpy(), (want[0] if isinstance(want, tuple) else want).asnumpy())
    # d cos: what every row turns, over all that read the table.
    close(got[1].asnumpy(), (2 * x.asnumpy().astype(np.float64) * dy.asnumpy()).sum((0, 1)))
