"""Attention of the sequence first, [S, B, E], as MindSpore's and torch's MultiheadAttention have it: the heads of all
batches stand behind it in one dimension, and are read and written in place."""

import numpy as np
import opgraft
import pytest
from attention_spellings import ROOT, ROUNDINGS, B, D, H, S, T, left, normal, reference, turned
from compare import Net, close
from opgraft import Tensor, ops, rewrite

E = H * D


def heads(x, h=H):
    """[B, h, n, D] of x [n, B, h D]."""
    n, w = x.shape[0], x.shape[2] // h
    return ops.transpose(x.reshape(n, B * h, w), (1, 0, 2)).reshape(B, h, n, w)


def joined(y):
    return ops.transpose(y, (2, 0, 1, 3)).reshape(-1, y.shape[1] * y.shape[3])


SCORES = {
    "times": lambda q, k: ops.matmul(q, turned(k)) * ROOT**-1,
    "MindSpore": lambda q, k: ops.matmul(q / ROOT**0.5, turned(k) / ROOT**0.5),
    "ONNX": lambda q, k: ops.bmm(q * ROOT**-0.5, turned(k) * ROOT**-0.5),
}
LOW = Tensor(np.float32(-1e4))
# What is done to the scores by a mask of this shape, and what NumPy adds.
MASKS = {
    "full": ((1,), lambda s, m: s, lambda m: 0.0),
    "of all": ((S, T), lambda s, m: s + m, lambda m: m),
    "of batches": ((B, 1, 1, T), lambda s, m: s + m, lambda m: m),
    "of heads": ((B, H, S, T), lambda s, m: s + m, lambda m: m),
    "of bools": ((B, 1, S, T), lambda s, m: ops.where(m > 0.0, s, LOW), lambda m: np.where(m > 0, 0.0, -1e30)),
}


def given(mask=(S, T), kv=H, value=D):
    return [normal(S, B, E), normal(T, B, kv * D, seed=1), normal(T, B, kv * value, seed=2), normal(*mask, seed=3)]


def wanted(x, added, kv=H):
    q, k, v = (y.reshape(len(y), B, h, -1).transpose(1, 2, 0, 3) for y, h in zip(x, (H, kv, kv)))
    y = reference(q, *(np.repeat(z, H // kv, 1) for z in (k, v)), added, 1 / ROOT)
    return y.transpose(2, 0, 1, 3).reshape(S * B, -1)


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("mask", MASKS)
def test_heads_of_all_batches_behind_the_sequence(mask, scores, tmp_path):
    shape, masked, added = MASKS[mask]

    def write(q, k, v, m):
        return joined(ops.matmul(ops.softmax(masked(SCORES[scores](heads(q), heads(k)), m), -1), heads(v)))

    x = given(shape)
    net = Net(write)
    report = rewrite.substitute(net, prove=x)
    others = ["Greater"] * (mask == "of bools")
    assert sorted(left(net)) == [*others, *["Reshape"] * 4, "ScaledDotProductAttention"], str(report)
    (attrs,) = [n["attrs"] for n in net._grafted[0][0].graph.nodes if n["op"] == "ScaledDotProductAttention"]
    assert attrs["layout"] == "SBHD" and attrs["heads"] == H
    close(net(*x).asnumpy(), wanted(x, added(x[3])), ROUNDINGS, np.abs(x[2]).max())
    graph = opgraft.load(opgraft.export(Net(write), *map(Tensor, x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert sorted(n["op"] for n in graph.nodes) == sorted(left(net))


def test_heads_of_keys_that_are_shared_and_values_of_another_width():
    """One head of keys for all of a batch, given as such: q's heads are as many, but k's are B."""

    def write(q, k, v):
        k, v = (ops.broadcast_to(heads(x, 1), (B, H, T, x.shape[2])) for x in (k, v))
        return joined(ops.matmul(ops.softmax(ops.matmul(heads(q), turned(k)) / ROOT, -1), v))

    x = given(kv=1, value=5)[:3]
    net = Net(write)
    report = rewrite.substitute(net, prove=x)
    assert "ScaledDotProductAttention" in left(net) and "BroadcastTo" not in left(net), str(report)
    assert "Transpose" not in left(net), str(report)
    close(net(*x).asnumpy(), wanted(x, 0.0, 1), ROUNDINGS, np.abs(x[2]).max())


def test_a_sequence_that_is_open(tmp_path):
    def write(q, k, v):
        def apart(x):
            return ops.transpose(x.reshape(x.shape[0], B * H, D), (1, 0, 2)).reshape(B, H, x.shape[0], D)

        y = ops.matmul(ops.softmax(ops.matmul(apart(q), turned(apart(k))) / ROOT, -1), apart(v))
        return ops.transpose(y, (2, 0, 1, 3)).reshape(-1, E)

    x = given()[:3]
    tensors = [Tensor(shape=[None, B, E], dtype=opgraft.float32) for _ in x]
    graph = opgraft.load(opgraft.export(Net(write), *tensors, file_name=str(tmp_path / "net")))
    report = rewrite.substitute(graph, prove=[x])
    (attrs,) = [n["attrs"] for n in graph.nodes if n["op"] == "ScaledDotProductAttention"]
    assert attrs["layout"] == "SBHD" and "Transpose" not in [n["op"] for n in graph.nodes], str(report)
    close(opgraft.nn.GraphCell(graph)(*map(Tensor, x)).asnumpy(), wanted(x, 0.0), ROUNDINGS, np.abs(x[2]).max())


# The heads of a batch are not those that stand together, or the result goes elsewhere.
OTHER = {
    "q's batches behind its heads": (
        lambda x: ops.transpose(heads(x).reshape(H, B, x.shape[0], D), (1, 0, 2, 3)), heads, joined),
    "k's batches behind its heads": (
        heads, lambda x: ops.transpose(heads(x).reshape(H, B, x.shape[0], D), (1, 0, 2, 3)), joined),
    "rows for elements": (
        heads, lambda x: heads(x).reshape(B, H, D, T).reshape(B, H, T, D), joined),
    "joined behind the batch": (
        heads, heads, lambda y: ops.transpose(y, (0, 2, 1, 3)).reshape(-1, E)),
    "heads before batches": (
        heads, heads, lambda y: ops.transpose(y, (2, 1, 0, 3)).reshape(-1, E)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_other_orders_stay(name):
    of_q, of_k, back = OTHER[name]

    def write(q, k, v):
        return back(ops.matmul(ops.softmax(ops.matmul(of_q(q), turned(of_k(k))) / ROOT, -1), heads(v)))

    x = given()[:3]
    before = Net(write)(*x).asnumpy()
    net = Net(write)
    rewrite.substitute(net, prove=x)
    (attrs,) = [n["attrs"] for n in net._grafted[0][0].graph.nodes if n["op"] == "ScaledDotProductAttention"]
    assert attrs["layout"] != "SBHD" and "Transpose" in left(net)
    close(net(*x).asnumpy(), before, 2 * ROUNDINGS, np.abs(x[2]).max())
