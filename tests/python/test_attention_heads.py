"""Heads that stand behind the sequence, [B, S, H, D], as Meta's code has them: they are read and written in place, and
repeated ones where they lie."""

import numpy as np
import opgraft
import pytest
from attention_spellings import ROOT, ROUNDINGS, B, D, S, T, normal, reference, turned
from compare import close
from opgraft import Tensor, nn, ops, rewrite

KV, N = 2, 3  # heads of keys, and query heads of each


def first(x):
    return ops.transpose(x, (0, 2, 1, 3))


# How the heads of keys and values are repeated, each one after another.
REPEATED = {
    "a new axis": lambda x: ops.broadcast_to(x[:, :, :, None], (B, T, KV, N, D)),
    "ExpandDims": lambda x: ops.broadcast_to(ops.expand_dims(x, 3), (B, T, KV, N, D)),
    "ExpandDims, a slice": lambda x: ops.broadcast_to(ops.expand_dims(x, 3)[:, :, :, :], (B, T, KV, N, D)),
    "Reshape": lambda x: ops.broadcast_to(x.reshape(B, T, KV, 1, D), (B, T, KV, N, D)),
    "Tile": lambda x: ops.tile(ops.expand_dims(x, 3), (1, 1, 1, N, 1)),
    "Tile of Reshape": lambda x: ops.tile(x.reshape(B, T, KV, 1, D), (1, 1, 1, N, 1)),
}
MASKS = {
    "full": lambda s, m: s,
    "added": lambda s, m: s + m,
    "kept": lambda s, m: ops.where(m > -0.5, s, Tensor(np.float32(-1e4))),
}


class Meta(nn.Cell):
    def __init__(self, repeat=None, mask="full", one_step=False, joined=False):
        super().__init__()
        self.repeat, self.mask, self.one_step, self.joined = repeat, mask, one_step, joined

    def construct(self, q, k, v, m):
        if self.repeat:
            k, v = (self.repeat(x).reshape(B, T, KV * N, D) for x in (k, v))
        k = ops.transpose(k, (0, 2, 3, 1)) if self.one_step else turned(first(k))
        s = MASKS[self.mask](ops.matmul(first(q), k) / ROOT, m)
        y = first(ops.matmul(ops.softmax(s, -1), first(v)))
        return y.reshape(B, S, KV * N * D) if self.joined else y


def given(kv=KV):
    return normal(B, S, KV * N, D), normal(B, T, kv, D, seed=1), normal(B, T, kv, D, seed=2), normal(B, 1, S, T, seed=3)


def check(net, x, others, layout="BSHD"):
    """The graph has the one operator and these others, and gives what it should."""
    rewrite.substitute(net, prove=x)
    nodes = net._grafted[0][0].graph.nodes
    assert sorted(n["op"] for n in nodes) == sorted(["ScaledDotProductAttention", *others])
    (attrs,) = [n["attrs"] for n in nodes if n["op"] == "ScaledDotProductAttention"]
    assert attrs["layout"] == layout
    q, k, v, m = x
    k, v = (np.repeat(y, N, 2) if y.shape[2] < KV * N else y for y in (k, v))
    added = {"full": 0.0, "added": m, "kept": np.where(m > -0.5, 0.0, -1e30)}[net.mask]
    want = reference(*(y.swapaxes(1, 2) for y in (q, k, v)), added, 1 / ROOT).swapaxes(1, 2)
    close(net(*x).asnumpy().reshape(want.shape), want, ROUNDINGS, np.abs(v).max())


COMPARED = {"kept": ["Greater"]}  # beside the operator


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("one_step", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("repeat", REPEATED)
def test_repeated_heads_are_read_in_place(repeat, mask, one_step, joined):
    net = Meta(REPEATED[repeat], mask, one_step, joined)
    check(net, given(), COMPARED.get(mask, []) + ["Reshape"] * joined)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("one_step", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_heads_need_no_transposes(mask, one_step, joined):
    net = Meta(None, mask, one_step, joined)
    check(net, given(KV * N), COMPARED.get(mask, []) + ["Reshape"] * joined)


def test_heads_in_turn_are_no_groups():
    """All heads, then all again: another order. They are repeated as they were, and read in place all the same."""
    net = Meta(lambda x: ops.broadcast_to(ops.expand_dims(x, 2), (B, T, N, KV, D)))
    x = given()
    before = net(*x).asnumpy()
    rewrite.substitute(net, prove=x)
    nodes = net._grafted[0][0].graph.nodes
    assert [n["op"] for n in nodes].count("BroadcastTo") == 2
    assert nodes[-1]["op"] == "ScaledDotProductAttention" and nodes[-1]["attrs"]["layout"] == "BSHD"
    close(net(*x).asnumpy(), before, 2 * ROUNDINGS, np.abs(x[2]).max())


class NotBack(nn.Cell):
    def construct(self, q, k, v):
        return ops.matmul(ops.softmax(ops.matmul(first(q), turned(first(k))) / ROOT, -1), first(v))


def test_a_result_that_stays_with_its_heads_first():
    x = given(KV * N)[:3]
    net = NotBack()
    rewrite.substitute(net, prove=x)
    nodes = net._grafted[0][0].graph.nodes
    assert [n["op"] for n in nodes] == ["Transpose"] * 3 + ["ScaledDotProductAttention"]
    assert nodes[-1]["attrs"]["layout"] == "BHSD"
    close(net(*x).asnumpy(), reference(*(y.swapaxes(1, 2) for y in x), 0.0, 1 / ROOT), ROUNDINGS, np.abs(x[2]).max())


class Open(nn.Cell):
    def repeated(self, x):
        b, t, h, d = x.shape
        return first(ops.broadcast_to(x[:, :, :, None], (b, t, h, N, d)).reshape(b, t, h * N, d))

    def construct(self, q, k, v):
        s = ops.matmul(first(q), turned(self.repeated(k))) / ROOT
        return first(ops.matmul(ops.softmax(s, -1), self.repeated(v)))


def test_open_dimensions(tmp_path):
    x = given()[:3]
    opened = [Tensor(shape=[None, None, *a.shape[2:]], dtype=opgraft.float32) for a in x]
    graph = opgraft.load(opgraft.export(Open(), *opened, file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["ScaledDotProductAttention"]
    q, k, v = (y.swapaxes(1, 2) for y in (x[0], *(np.repeat(y, N, 2) for y in x[1:])))
    want = reference(q, k, v, 0.0, 1 / ROOT).swapaxes(1, 2)
    close(nn.GraphCell(graph)(*map(Tensor, x)).asnumpy(), want, ROUNDINGS, np.abs(v).max())
