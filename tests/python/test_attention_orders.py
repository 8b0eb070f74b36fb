"""Attention whose parts stand in another order: keys kept as [B, H, D, T], the mask before the scale, and heads of keys
that Stack or Concat repeats."""

import numpy as np
import opgraft
import pytest
from attention_spellings import PRODUCTS, ROOT, ROUNDINGS, B, D, H, S, T, left, normal, reference, turned
from compare import Net, close
from opgraft import Tensor, ops, rewrite

TURNED = {
    "times": lambda q, k: ops.bmm(q, k) * ROOT**-1,
    "over": lambda q, k: ops.matmul(q, k) / ROOT,
    "q over": lambda q, k: ops.matmul(q / ROOT, k),
    "q and k times": lambda q, k: ops.bmm(q * ROOT**-0.5, k * ROOT**-0.5),
}


def shapes(heads=H, kv=H):
    return [(B, heads, S, D), (B, kv, T, D), (B, kv, T, D)]


def inputs(*sizes):
    return [normal(*s, seed=i) for i, s in enumerate(sizes)]


def grafted(write, x, tmp_path, others=()):
    """What the net gives, its swaps proven, and the attributes of the one operator that is there, also of a file."""
    net = Net(write)
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention", *others]
    graph = opgraft.load(opgraft.export(Net(write), *map(Tensor, x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["ScaledDotProductAttention", *others]
    return net(*x).asnumpy(), graph.nodes[0]["attrs"]


@pytest.mark.parametrize("mask", [False, True], ids=["full", "mask"])
@pytest.mark.parametrize("scaled", TURNED)
def test_keys_whose_elements_lie_before_their_sequence(scaled, mask, tmp_path):
    q, k, v, m = inputs(*shapes(), (B, 1, 1, T))
    k = np.ascontiguousarray(k.swapaxes(2, 3))

    def write(q, k, v, m):
        s = TURNED[scaled](q, k)
        return ops.matmul(ops.softmax(s + m if mask else s, -1), v)

    got, attrs = grafted(write, [q, k, v, m], tmp_path)
    assert attrs["k_transposed"] and attrs["layout"] == "BHSD"
    close(got, reference(q, k.swapaxes(2, 3), v, m if mask else 0.0, 1 / ROOT), ROUNDINGS, np.abs(v).max())


def test_keys_and_a_mask_of_bloom(tmp_path):
    """Three dimensions, batches of heads: beta alibi + alpha q k, with keys kept as [B * H, D, T]."""
    q, k, v, m = inputs((B * H, S, D), (B * H, D, T), (B * H, T, D), (B * H, 1, T))

    def write(q, k, v, m):
        return ops.bmm(ops.softmax(ops.bmm(q, k) * ROOT**-1 + m, -1), v)

    got, attrs = grafted(write, [q, k, v, m], tmp_path)
    assert attrs["k_transposed"] and attrs["layout"] == "BSE"
    close(got, reference(q, k.swapaxes(1, 2), v, m, 1 / ROOT), ROUNDINGS, np.abs(v).max())


SCALES = {"times": lambda s: s * 0.3, "over": lambda s: s / ROOT}
# The scores with what hides or shifts them before the scale, and behind it: of the scores and two masks; in NumPy.
ORDERS = {
    "added": (lambda s, a, b, scale: scale(s + a), lambda s, a, b, f: (s + a) * f),
    "added twice": (lambda s, a, b, scale: scale(a + s) + b, lambda s, a, b, f: (s + a) * f + b),
    "chosen": (lambda s, a, b, scale: scale(ops.select(a > 0.0, s, np.float32(-50.0))),
               lambda s, a, b, f: np.where(a > 0, s, -50.0) * f),
    "hidden, then added": (lambda s, a, b, scale: scale(ops.select(a > 0.0, np.float32(-50.0), s)) + b,
                           lambda s, a, b, f: np.where(a > 0, -50.0, s) * f + b),
    "added, then chosen": (lambda s, a, b, scale: ops.select(b > 0.0, scale(s + a), np.float32(-50.0)),
                           lambda s, a, b, f: np.where(b > 0, (s + a) * f, -50.0)),
}  # fmt: skip


@pytest.mark.parametrize("by", PRODUCTS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("order", ORDERS)
def test_a_mask_before_the_scale(order, scale, by, tmp_path):
    """As Falcon adds ALiBi's slopes."""
    q, k, v, a, b = inputs(*shapes(), (B, 1, S, T), (B, 1, S, T))
    write, numpy = ORDERS[order]
    factor = 0.3 if scale == "times" else 1 / ROOT

    def net(q, k, v, a, b):
        s = write(PRODUCTS[by](q, k), a, b, SCALES[scale])
        return ops.matmul(ops.softmax(s, -1), v)

    x = [q, k, v, a, b][: 5 if "," in order or "twice" in order else 4]
    more = ["Greater"] if "chosen" in order or "hidden" in order else []
    cell = Net(net if len(x) == 5 else lambda q, k, v, a: net(q, k, v, a, None))
    rewrite.substitute(cell, prove=x)
    assert left(cell) == [*more, "ScaledDotProductAttention"]
    (node,) = [n for n in cell._grafted[0][0].graph.nodes if n["op"] == "ScaledDotProductAttention"]
    # The constant is rounded to float32.
    np.testing.assert_allclose([node["attrs"]["mask_scale"], node["attrs"]["scale"]], factor, rtol=2.0**-24)
    s = numpy(q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3), a.astype(np.float64), b, factor)
    p = np.exp(s - s.max(-1, keepdims=True))
    # A score may be 50 here, of which a rounding is 64 of its exponential's.
    close(cell(*x).asnumpy(), p / p.sum(-1, keepdims=True) @ v, 4 * ROUNDINGS, np.abs(v).max())


REPEATS = {
    "Stack": lambda x, n: ops.stack([x] * n, axis=2),
    "Stack, the axis from the end": lambda x, n: ops.stack([x] * n, axis=-3),
    "Concat": lambda x, n: ops.concat([ops.expand_dims(x, 2)] * n, axis=2),
    "Concat of Reshape": lambda x, n: ops.concat([x.reshape(B, 2, 1, T, D)] * n, axis=2),
}


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("repeat", REPEATS)
def test_heads_that_one_operator_puts_together(repeat, n, tmp_path):
    q, k, v = inputs(*shapes(2 * n, 2))

    def write(q, k, v):
        kr, vr = (REPEATS[repeat](x, n).reshape(B, 2 * n, T, D) for x in (k, v))
        return ops.matmul(ops.softmax(ops.matmul(q, turned(kr)) / ROOT, -1), vr)

    got, _ = grafted(write, [q, k, v], tmp_path)
    want = reference(q, *(np.repeat(x, n, 1) for x in (k, v)), 0.0, 1 / ROOT)
    close(got, want, ROUNDINGS, np.abs(v).max())


def test_heads_in_another_order_stay():
    """One after another, then again: query head i reads head i % 2."""
    q, k, v = inputs(*shapes(4, 2))

    def write(q, k, v):
        kr, vr = (ops.stack([x, x], axis=1).reshape(B, 4, T, D) for x in (k, v))
        return ops.matmul(ops.softmax(ops.matmul(q, turned(kr)) / ROOT, -1), vr)

    net = Net(write)
    rewrite.substitute(net, prove=[q, k, v])
    assert left(net).count("Stack") == 2
    want = reference(q, *(np.tile(x, (1, 2, 1, 1)) for x in (k, v)), 0.0, 1 / ROOT)
    close(net(q, k, v).asnumpy(), want, ROUNDINGS, np.abs(v).max())


@pytest.mark.parametrize("repeat", ["k", "v"])
def test_stacks_of_different_values_stay(repeat):
    q, k, v, other = inputs(*shapes(4, 2), (B, 2, T, D))

    def write(q, k, v, other):
        kr = ops.stack([k, other if repeat == "k" else k], axis=2).reshape(B, 4, T, D)
        vr = ops.stack([v, other if repeat == "v" else v], axis=2).reshape(B, 4, T, D)
        return ops.matmul(ops.softmax(ops.matmul(q, turned(kr)) / ROOT, -1), vr)

    before = Net(write)(q, k, v, other).asnumpy()
    net = Net(write)
    rewrite.substitute(net, prove=[q, k, v, other])
    assert left(net).count("Stack") == 2
    close(net(q, k, v, other).asnumpy(), before, 2 * ROUNDINGS, np.abs(v).max())
