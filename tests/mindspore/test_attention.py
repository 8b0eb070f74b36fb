"""Attention as MindSpore's models spell it, exported by MindSpore, becomes one operator."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close
from mindspore import Tensor, nn, ops
from opgraft import _core, rewrite

B, H, S, T, D = 2, 3, 5, 7, 8
ROOT = D**0.5


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Attention(nn.Cell):
    def __init__(self, by, scaled):
        super().__init__()
        self.by, self.scaled = by, scaled
        self.product = ops.BatchMatMul(transpose_b=True)

    def multiplied(self, q, k):
        if self.by == "BatchMatMul":
            return self.product(q, k)
        if self.by == "bmm":
            return ops.bmm(q, k.transpose(0, 1, 3, 2))
        return ops.matmul(q, k.swapaxes(-1, -2))

    def scores(self, q, k):
        if self.scaled == "times":
            return self.multiplied(q, k) * (1.0 / ROOT)
        if self.scaled == "over":
            return self.multiplied(q, k) / ROOT
        if self.scaled == "q times":
            return self.multiplied(q * (1.0 / ROOT), k)
        if self.scaled == "q over":
            return self.multiplied(q / ROOT, k)
        if self.scaled == "q and k times":
            return self.multiplied(q * D**-0.25, k * D**-0.25)
        if self.scaled == "k times":
            return self.multiplied(q, k * (1.0 / ROOT))
        return self.multiplied(q, k)

    def construct(self, q, k, v, m=None):
        s = self.scores(q, k)
        if m is not None:
            s = s + m
        return ops.bmm(ops.softmax(s, -1), v)


class Bert(Attention):
    """Heads are split, and keys turned, in one step."""

    def split(self, x, order):
        return x.reshape(B, T, H, D).transpose(order)

    def multiplied(self, q, k):
        return ops.matmul(q, k)

    def construct(self, q, k, v, m=None):
        s = self.scores(self.split(q, (0, 2, 1, 3)), self.split(k, (0, 2, 3, 1)))
        if m is not None:
            s = s + m
        y = ops.matmul(ops.softmax(s, -1), self.split(v, (0, 2, 1, 3)))
        return y.transpose(0, 2, 1, 3).reshape(B, T, H * D)


GIVEN = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), normal(B, 1, S, T, seed=3)
JOINED = *(normal(B, T, H * D, seed=i) for i in range(3)), normal(B, 1, 1, T, seed=3)


def taken(net, tensors, given, folder):
    """The graph of the exported model, of which one operator is left."""
    ms.export(net, *tensors, file_name=str(folder / "net"), file_format="MINDIR")
    graph = opgraft.load(folder / "net.mindir")
    rewrite.substitute(graph, prove=given)
    assert [n["op"] for n in graph.nodes] == ["ScaledDotProductAttention"], str(graph)
    return graph


@pytest.mark.parametrize("mask", [False, True], ids=["full", "mask"])
@pytest.mark.parametrize("scaled", ["times", "over", "q times", "q over", "k times", "q and k times", "not at all"])
@pytest.mark.parametrize("by", ["BatchMatMul", "bmm", "matmul", "joined"])
def test_of_an_exported_model(by, scaled, mask, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Bert(by, scaled) if by == "joined" else Attention(by, scaled)
    given = (JOINED if by == "joined" else GIVEN)[: 4 if mask else 3]
    tensors = [Tensor(x) for x in given]
    want = net(*tensors).asnumpy()
    graph = taken(net, tensors, given, tmp_path)
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)


class Repeated(nn.Cell):
    """As transformers' models have it: half types, softmax in float32, and heads of keys repeated or not."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def repeated(self, x):
        if self.groups == 1:
            return x
        x = ops.broadcast_to(x[:, :, None], (B, H // self.groups, self.groups, T, D))
        return x.reshape(B, H, T, D)

    def construct(self, q, k, v, m=None):
        k, v = self.repeated(k), self.repeated(v)
        s = ops.matmul(q, k.swapaxes(2, 3)) * (1.0 / ROOT)
        if m is not None:
            s = s + m
        w = ops.softmax(ops.cast(s, ms.float32), -1)
        return ops.matmul(ops.cast(w, ms.float16), v)


@pytest.mark.parametrize("mask", [False, True], ids=["full", "mask"])
@pytest.mark.parametrize("groups", [1, 3])
def test_half_types_whose_heads_are_repeated(groups, mask, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Repeated(groups)
    q, k, v, m = (x.astype(np.float16) for x in GIVEN)
    given = [q, k[:, : H // groups], v[:, : H // groups], m][: 4 if mask else 3]
    tensors = [Tensor(np.ascontiguousarray(x)) for x in given]
    want = net(*tensors).asnumpy()
    graph = taken(net, tensors, given, tmp_path)
    got = opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy()
    # MindSpore's scores, up to 8, are rounded to float16 three times, and so are the weights and the result.
    assert got.dtype == want.dtype == np.float16
    assert np.abs(got.astype(np.float64) - want).max() <= (3 * 8 + 3) * 2.0**-11 * np.abs(v).max()


class Eager(Attention):
    """As Hugging Face's models have it: of a half type, the weights computed in float32."""

    def construct(self, q, k, v, m=None):
        s = self.scores(q, k)
        if m is not None:
            s = s + m
        return ops.bmm(ops.softmax(s.astype(ms.float32), -1).astype(ms.float16), v)


@pytest.mark.parametrize("mask", [False, True], ids=["full", "mask"])
@pytest.mark.parametrize("by,scaled", [("BatchMatMul", "times"), ("bmm", "over"), ("matmul", "q times")])
def test_of_an_exported_model_of_a_half_type(by, scaled, mask, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    given = [x.astype(np.float16) for x in GIVEN[: 4 if mask else 3]]
    tensors = [Tensor(x) for x in given]
    net = Eager(by, scaled)
    want = net(*tensors).asnumpy()
    graph = taken(net, tensors, given, tmp_path)
    got = opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy()
    # MindSpore rounds to float16 (2^-11) what the operator computes in float32: scores of up to 16, up to four times
    # (q or its scale, the product, the scaled one, the sum with the mask), of which an error is twice as large a share
    # of a weight; weights and result, once each, and the operator's result.
    largest = np.abs(given[2]).max().astype(np.float64)
    assert np.abs(got.astype(np.float64) - want).max() <= (2 * 4 * 16 + 3) * 2.0**-11 * largest


class Chosen(Attention):
    """As GPT-2 hides what lies ahead: by bools."""

    def __init__(self, by, scaled, how):
        super().__init__(by, scaled)
        self.how = how

    def construct(self, q, k, v, m=None):
        s = self.scores(q, k)
        low = Tensor(-1e9, ms.float32)
        s = ops.where(m, s, low) if self.how == "kept" else ops.where(m, low, s)
        return ops.bmm(ops.softmax(s, -1), v)


@pytest.mark.parametrize("how", ["kept", "hidden"])
@pytest.mark.parametrize("by,scaled", [("BatchMatMul", "times"), ("matmul", "over"), ("bmm", "q times")])
def test_of_an_exported_model_whose_scores_bools_choose(by, scaled, how, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    keep = GIVEN[3] > 0
    keep[1, 0, 2] = False  # sees nothing: equal weights
    given = *GIVEN[:3], keep != (how == "hidden")
    tensors = [Tensor(x) for x in given]
    net = Chosen(by, scaled, how)
    want = net(*tensors).asnumpy()
    graph = taken(net, tensors, given, tmp_path)
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    close(back(*tensors).asnumpy(), want)


class Batches(Attention):
    """[B H, S, D], as torch's MultiheadAttention has it."""

    def multiplied(self, q, k):
        return self.product(q, k) if self.by == "BatchMatMul" else ops.bmm(q, k.transpose(0, 2, 1))


@pytest.mark.parametrize("mask", [False, True], ids=["full", "mask"])
@pytest.mark.parametrize("scaled", ["times", "over", "q times", "not at all"])
@pytest.mark.parametrize("by", ["BatchMatMul", "bmm"])
def test_of_an_exported_model_of_three_dimensions(by, scaled, mask, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    given = [x.reshape(B * H, -1, D) for x in GIVEN[:3]] + [GIVEN[3][0]] * mask
    tensors = [Tensor(x) for x in given]
    net = Batches(by, scaled)
    want = net(*tensors).asnumpy()
    graph = taken(net, tensors, given, tmp_path)
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)


class Twice(Attention):
    """Scores that two masks change: GPT-2's triangle and a mask of padding, or ALiBi's slopes and bools."""

    def __init__(self, by, scaled, how):
        super().__init__(by, scaled)
        self.how = how

    def construct(self, q, k, v, a, b):
        s, low = self.scores(q, k), Tensor(-1e9, ms.float32)
        if self.how == "added":
            s = s + a + b
        elif self.how == "kept":
            s = ops.where(a, s, low) + b
        else:
            s = ops.where(b, low, s + a)
        return ops.bmm(ops.softmax(s, -1), v)


@pytest.mark.parametrize("how", ["added", "kept", "hidden"])
@pytest.mark.parametrize("by,scaled", [("BatchMatMul", "times"), ("matmul", "over"), ("bmm", "q times")])
def test_of_an_exported_model_with_two_masks(by, scaled, how, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    a, b = normal(S, T, seed=3), normal(B, 1, 1, T, seed=4)
    a, b = (a > -0.5 if how == "kept" else a), (b > 0.5 if how == "hidden" else b)
    given = *GIVEN[:3], a, b
    tensors = [Tensor(x) for x in given]
    net = Twice(by, scaled, how)
    want = net(*tensors).asnumpy()
    graph = taken(net, tensors, given, tmp_path)
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    close(back(*tensors).asnumpy(), want)


WINDOWS = 4


class Swin(Attention):
    """Of shifted windows: a bias for each pair of places, and a mask for each window of an image."""

    def construct(self, q, k, v, bias, mask):
        s = self.scores(q, k) + bias.expand_dims(0)
        s = s.reshape(B, WINDOWS, H, S, S) + mask.expand_dims(1).expand_dims(0)
        return ops.bmm(ops.softmax(s.reshape(B * WINDOWS, H, S, S), -1), v)


@pytest.mark.parametrize("by,scaled", [("BatchMatMul", "times"), ("matmul", "q times")])
def test_of_an_exported_model_of_shifted_windows(by, scaled, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    given = *(normal(B * WINDOWS, H, S, D, seed=i) for i in range(3)), normal(H, S, S, seed=3), normal(WINDOWS, S, S)
    tensors = [Tensor(x) for x in given]
    net = Swin(by, scaled)
    want = net(*tensors).asnumpy()
    ms.export(net, *tensors, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=given)
    ours = {n["op"] for n in graph.nodes}
    assert "ScaledDotProductAttention" in ours and not ours & {"BatchMatMul", "Softmax", "Add"}
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    close(back(*tensors).asnumpy(), want)


@pytest.mark.parametrize("width", [3, 16])
def test_of_an_exported_model_with_values_of_another_width(width, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    given = *GIVEN[:2], normal(B, H, T, width, seed=2), GIVEN[3]
    tensors = [Tensor(x) for x in given]
    net = Attention("matmul", "times")
    want = net(*tensors).asnumpy()
    graph = taken(net, tensors, given, tmp_path)
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)


class Ordered(nn.Cell):
    """Keys kept as [B, H, D, T]; the mask before the scale; heads that Stack or Concat repeats."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def construct(self, q, k, v, m):
        if self.how == "keys turned":
            return ops.bmm(ops.softmax(ops.bmm(q, k) * (1.0 / ROOT) + m, -1), v)
        if self.how == "mask first":
            return ops.bmm(ops.softmax((ops.matmul(q, k.swapaxes(2, 3)) + m) / ROOT, -1), v)
        if self.how == "mask first, turned":
            return ops.bmm(ops.softmax((ops.bmm(q, k) + m) * (1.0 / ROOT), -1), v)
        if self.how == "Stack":
            k, v = (ops.stack((x, x, x), 2).reshape(B, H, T, D) for x in (k, v))
        else:
            k, v = (ops.concat((x.expand_dims(2),) * 3, 2).reshape(B, H, T, D) for x in (k, v))
        return ops.bmm(ops.softmax(ops.matmul(q, k.swapaxes(2, 3)) * (1.0 / ROOT) + m, -1), v)


@pytest.mark.parametrize("how", ["keys turned", "mask first", "mask first, turned", "Stack", "Concat"])
def test_other_orders_of_an_exported_model(how, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    q, k, v, m = GIVEN
    if "turned" in how:
        k = np.ascontiguousarray(k.swapaxes(2, 3))
    if how in ("Stack", "Concat"):
        k, v = (np.ascontiguousarray(x[:, :1]) for x in (k, v))
    net, given = Ordered(how), (q, k, v, m)
    tensors = [Tensor(x) for x in given]
    want = net(*tensors).asnumpy()
    graph = taken(net, tensors, given, tmp_path)
    assert graph.nodes[0]["attrs"]["k_transposed"] == ("turned" in how)
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)


class Safe(Attention):
    """As torch's exporters write a mask of bools: rows that it hides whole would be NaN, and are 0."""

    def construct(self, q, k, v, m=None):
        s = self.scores(q, k) + ops.where(m, Tensor(0.0, ms.float32), Tensor(-np.inf, ms.float32))
        w = ops.softmax(s, -1)
        return ops.bmm(ops.where(ops.isnan(w), Tensor(0.0, ms.float32), w), v)


@pytest.mark.parametrize("by,scaled", [("BatchMatMul", "times"), ("matmul", "q and k times"), ("bmm", "over")])
def test_of_an_exported_model_whose_rows_may_see_nothing(by, scaled, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    keep = GIVEN[3] > 0
    keep[1, 0, 2] = False
    given = *GIVEN[:3], keep
    tensors = [Tensor(x) for x in given]
    net = Safe(by, scaled)
    # At a row of -inf MindSpore's own kernel of Softmax stops, and leaves what lies behind it unset.
    s = np.where(keep, given[0] @ given[1].swapaxes(-1, -2) / ROOT, -1e30)
    p = np.exp(s - s.max(-1, keepdims=True)) * keep
    want = (p / np.maximum(p.sum(-1, keepdims=True), 1e-30) @ given[2]).astype(np.float32)
    ms.export(net, *tensors, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=given)
    assert [n["op"] for n in graph.nodes] == ["Select", "ScaledDotProductAttention"], str(graph)
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    close(back(*tensors).asnumpy(), want)


class Meta(nn.Cell):
    """Heads behind the sequence, where those of keys are repeated."""

    def repeated(self, x):
        b, t, h, d = x.shape
        return ops.broadcast_to(x[:, :, :, None], (b, t, h, H, d)).reshape(b, t, h * H, d).transpose(0, 2, 1, 3)

    def construct(self, q, k, v, m):
        s = ops.matmul(q.transpose(0, 2, 1, 3), self.repeated(k).swapaxes(2, 3)) / ROOT + m
        return ops.matmul(ops.softmax(s, -1), self.repeated(v)).transpose(0, 2, 1, 3)


def test_of_an_exported_model_whose_heads_stand_behind_the_sequence(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    given = normal(B, S, 2 * H, D), normal(B, T, 2, D, seed=1), normal(B, T, 2, D, seed=2), normal(B, 1, S, T, seed=3)
    tensors = [Tensor(x) for x in given]
    net = Meta()
    want = net(*tensors).asnumpy()
    graph = taken(net, tensors, given, tmp_path)
    assert graph.nodes[0]["attrs"]["layout"] == "BSHD"
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    close(back(*tensors).asnumpy(), want)


class FiveDimensions(nn.Cell):
    """Query heads that share one of keys in a dimension of their own."""

    def construct(self, q, k, v, m):
        k, v = k.expand_dims(2), v.expand_dims(2)
        s = ops.matmul(q.reshape(B, 2, H, S, D), k.swapaxes(3, 4)) / ROOT + m.expand_dims(1)
        return ops.matmul(ops.softmax(s, -1), v).reshape(B, 2 * H, S, D)


def test_of_an_exported_model_of_five_dimensions(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    given = normal(B, 2 * H, S, D), normal(B, 2, T, D, seed=1), normal(B, 2, T, D, seed=2), normal(B, 1, S, T, seed=3)
    tensors = [Tensor(x) for x in given]
    net = FiveDimensions()
    want = net(*tensors).asnumpy()
    graph = taken(net, tensors, given, tmp_path)
    close(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)).asnumpy(), want)
