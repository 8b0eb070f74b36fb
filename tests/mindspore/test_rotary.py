"""Rotary embedding and grouped, causal attention of models that MindSpore exported; gradients in MindSpore."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close
from mindspore import Tensor, nn, ops
from opgraft import _core, rewrite
from opgraft.mindspore import custom, graft

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


class Minus(Halves):
    """The turned half has the other sign."""

    def construct(self, x):
        return x * self.cos - ops.concat((x[..., D // 2 :], -x[..., : D // 2]), -1) * self.sin


class ReshapedHalves(Rotary):
    def __init__(self):
        super().__init__(False)

    def construct(self, x):
        halves = x.reshape(*x.shape[:-1], 2, D // 2)
        return ops.stack(self.paired(halves[..., 0, :], halves[..., 1, :]), -2).reshape(x.shape)


class Widened(Halves):
    """In float32, of a half type."""

    def construct(self, x):
        return super().construct(x.astype(ms.float32)).astype(ms.float16)


REST = 4  # elements of a longer row that are not turned


class Partial(nn.Cell):
    """The first D elements of longer rows."""

    def __init__(self, turn):
        super().__init__()
        self.rotate = turn()


class Sliced(Partial):
    """As GPT-NeoX, GPT-J and Phi have it."""

    def construct(self, x):
        return ops.cat((self.rotate(x[..., :D]), x[..., D:]), -1)


class Divided(Partial):
    def construct(self, x):
        turned, rest = ops.split(x, [D, REST], -1)
        return ops.concat((self.rotate(turned), rest), -1)


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


ONE, LONGER = (normal(B, H, S, D),), (normal(B, H, S, D + REST),)
ATTENTION = (normal(B, H, S, D), normal(B, KV, S, D, seed=1), normal(B, KV, S, D, seed=2))


@pytest.mark.parametrize("make,given,rotated", [
    *((m, ONE, 1) for m in (Halves, Chunks, SplitHalves, Pairs, ReshapedPairs, Minus, ReshapedHalves)),
    *((lambda cut=c, turn=t: cut(turn), LONGER, 1) for c in (Sliced, Divided) for t in (Halves, SplitHalves, Pairs)),
    *((m, ATTENTION, 0) for m in (GroupedAttention, ExpandedAttention)),
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
    assert left.count("ApplyRotaryPosEmb") == 1 - rotated  # query and key in one call
    assert not {"Concat", "Stack", "StridedSlice", "Neg", "Mul", "Softmax", "Tile", "BroadcastTo"} & set(left), str(
        graph
    )
    if given is ATTENTION:
        (node,) = [n for n in graph.nodes if n["op"] == "ScaledDotProductAttention"]
        assert node["attrs"]["is_causal"] and len(node["inputs"]) == 3
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    close(back(*tensors).asnumpy(), want)


def test_of_an_exported_model_of_a_half_type(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    net, x = Widened(), ONE[0].astype(np.float16)
    want = net(Tensor(x)).asnumpy()
    ms.export(net, Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=(x,))
    assert [n["op"] for n in graph.nodes] == ["RotaryPositionEmbedding"], str(graph)
    got = opgraft.nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy()
    # Both compute in float32 (three roundings each, of at most 2 max |x|) and round once: by one step of float16.
    atol = 6 * 2.0**-24 * 2 * np.abs(x.astype(np.float64)).max()
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2.0**-10, atol=atol)


class ByPosition(nn.Cell):
    """Rows of the tables, that positions choose, as models of MindSpore's hub have them; query and key."""

    def __init__(self, axis):
        super().__init__()
        self.axis = axis
        self.cos, self.sin = (Tensor(np.concatenate([t, t], -1)) for t in (COS, SIN))

    def rows(self, table, ids):
        return ops.gather(table, ids, 0) if self.axis is None else table[ids].unsqueeze(self.axis)

    def turn(self, x, cos, sin):
        return x * cos + ops.cat((-x[..., D // 2 :], x[..., : D // 2]), -1) * sin

    def construct(self, q, k, ids):
        cos, sin = self.rows(self.cos, ids), self.rows(self.sin, ids)
        return self.turn(q, cos, sin), self.turn(k, cos, sin)


@pytest.mark.parametrize("axis,layout,ids", [
    (1, "BHSD", (B, S)), (1, "BHSD", (1, S)), (2, "BSHD", (B, S)), (None, "BHSD", (S,)), (1, "BSHD", (S,)),
])  # fmt: skip
def test_of_an_exported_model_that_turns_query_and_key_by_position(axis, layout, ids, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    q, k = normal(B, H, S, D), normal(B, KV, S, D, seed=1)
    if layout == "BSHD":
        q, k = q.swapaxes(1, 2).copy(), k.swapaxes(1, 2).copy()
    given = q, k, np.random.default_rng(2).integers(0, S, ids).astype(np.int32)
    net, tensors = ByPosition(axis), [Tensor(x) for x in given]
    want = [y.asnumpy() for y in net(*tensors)]
    ms.export(net, *tensors, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=[list(given)])
    (node,) = [n for n in graph.nodes if n["op"] not in ("Less", "Add", "Select")]  # an index may be negative
    assert node["op"] == "ApplyRotaryPosEmb" and node["attrs"]["layout"] == layout
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    for run in (opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)), back(*tensors)):
        for got, y in zip(run, want, strict=True):
            close(got.asnumpy(), y)


class Applied(nn.Cell):
    """MindSpore's own primitive, which has a kernel for Ascend alone."""

    def __init__(self, cos_format):
        super().__init__()
        self.apply = ops.operations.nn_ops.ApplyRotaryPosEmb(cos_format)

    def construct(self, query, key, cos, sin, position_ids):
        return self.apply(query, key, cos, sin, position_ids)


# What its test in MindSpore's repository says: [B, S, H * D]; position_ids of all sequences, or of each one's only
# token. cos_format 0, 1: tables by position; 2, 3: a row for each token. 0, 2: halves.
@pytest.mark.parametrize("tokens", [(B, S), (B, 1), (B * S,)], ids=["sequences", "a token each", "in a row"])
@pytest.mark.parametrize("cos_format", range(4))
def test_the_primitive_is_the_operator(cos_format, tokens, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    q, k = (normal(*tokens, h * D, seed=h).astype(np.float16) for h in (H, KV))
    positions = np.array([3, 1], np.int32) if tokens[-1] == 1 else np.arange(tokens[-1], dtype=np.int32)
    by_token = np.broadcast_to(positions.reshape(-1, 1) if tokens[-1] == 1 else positions, tokens)
    angles = np.outer(np.arange(B * S), 100.0 ** (-np.arange(0, D, 2) / D))
    angles = np.repeat(angles, 2, -1) if cos_format % 2 else np.concatenate([angles, angles], -1)
    tables = [f(angles).astype(np.float16) for f in (np.cos, np.sin)]
    given = [q, k, *([t[by_token.ravel()] for t in tables] if cos_format >= 2 else tables), positions]
    ms.export(Applied(cos_format), *map(Tensor, given), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    assert [n["op"] for n in graph.nodes] == ["ApplyRotaryPosEmb"]
    cos, sin = (t.astype(np.float64)[by_token][..., None, :] for t in tables)
    for got, x in zip(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)), (q, k)):
        x = x.astype(np.float64).reshape(*tokens, -1, D)
        a, b = (x[..., ::2], x[..., 1::2]) if cos_format % 2 else (x[..., : D // 2], x[..., D // 2 :])
        other = np.stack([-b, a], -1).reshape(x.shape) if cos_format % 2 else np.concatenate([-b, a], -1)
        want = (x * cos + other * sin).reshape(got.shape)
        # A product of two float16 has 22 bits and is exact in float32. Their sum rounds to float32, 2^-24, then to
        # float16: 2^-11, or half of its smallest step.
        np.testing.assert_allclose(got.asnumpy().astype(np.float64), want, rtol=2.0**-11 + 2.0**-23, atol=2.0**-25)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
@pytest.mark.parametrize("plain,interleaved", [(Halves, 0), (Pairs, 1)])
def test_gradients(plain, interleaved, mode):
    ms.set_context(mode=mode)
    wide = [np.repeat(t, 2, -1) if interleaved else np.concatenate([t, t], -1) for t in (COS, SIN)]

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.rotate = custom("RotaryPositionEmbedding", mode=interleaved)

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


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
def test_gradients_of_what_is_put_in(mode):
    """A graft of a Cell that turns: MindSpore asks the Custom for its bprop."""
    ms.set_context(mode=mode)
    cos, sin = (Tensor(np.concatenate([t, t], -1)) for t in (COS, SIN))

    class Operator(nn.Cell):
        def __init__(self):
            super().__init__()
            self.rotate = custom("RotaryPositionEmbedding", mode=0)

        def construct(self, x):
            return self.rotate(x, cos, sin)

    class Model(nn.Cell):
        def __init__(self):
            super().__init__()
            self.turn = Halves()

        def construct(self, x):
            return self.turn(x * 2.0)

    x, dy = Tensor(normal(B, H, S, D)), Tensor(normal(B, H, S, D, seed=3))
    grafted, report = graft(Model(), Halves, lambda cell: Operator(), prove=(x,))
    assert [s["node"] for s in report.swapped] == ["turn"]
    got, want = (ops.vjp(net, x)[1](dy) for net in (grafted, Model()))
    got, want = (g[0] if isinstance(g, tuple) else g for g in (got, want))
    close(got.asnumpy(), want.asnumpy())
