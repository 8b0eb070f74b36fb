"""Grouped, causal attention: repeated heads are read where they lie, a triangle becomes an attribute, what looks alike
does not."""

import numpy as np
import opgraft
import pytest
from compare import close, normal
from opgraft import Tensor, nn, ops, rewrite

B, S, D = 2, 5, 8
KV, T = 2, 7


# How a new axis comes before dimension `at`.
AXES = {
    "ExpandDims": lambda x, at: ops.expand_dims(x, at),
    "Reshape": lambda x, at: x.reshape(*x.shape[:at], 1, *x.shape[at:]),
    "a new axis": lambda x, at: x[(slice(None),) * at + (None,)],
    "joined rows": lambda x, at: x.reshape(*x.shape[:at], 1, *x.shape[at:2], T * D),  # as MindFormers has it
}


def repeated(x, copies, axis, by, at):
    """Heads repeated along a new axis: of 2 each head by itself, of 1 all of them in turn."""
    b, h, t, d = x.shape
    y, rows = AXES[axis](x, at), (t * d,) if axis == "joined rows" else (t, d)
    if by == "Tile":
        y = ops.tile(y, (1,) * at + (copies,) + (1,) * (2 - at + len(rows)))
    else:
        y = ops.broadcast_to(y, ((b, h, copies) if at == 2 else (b, copies, h)) + rows)
    return y.reshape(b, h * copies, t, d)


class Grouped(nn.Cell):
    def __init__(self, *how, mask=None, at=2):
        super().__init__()
        self.how = how, at
        self.mask = None if mask is None else Tensor(mask)

    def construct(self, q, k, v):
        how, at = self.how
        k, v = (repeated(x, 3, *how, at) if how else ops.tile(x, (1, 3, 1, 1)) for x in (k, v))
        s = ops.bmm(q, k, transpose_b=True) * D**-0.5
        return ops.bmm(ops.softmax(s if self.mask is None else s + self.mask, -1), v)


def reference(q, k, v, mask=0.0):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) * D**-0.5 + mask
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def triangle(s, t, value=-np.inf):
    return np.triu(np.full((s, t), value, np.float32), t - s + 1)


def given(s=S):
    return normal(B, 3 * KV, s, D), normal(B, KV, T, D, seed=1), normal(B, KV, T, D, seed=2)


def graph_of(net):
    (node,) = [n for n in net._grafted[0][0].graph.nodes if n["op"] == "ScaledDotProductAttention"]
    return node


HOW = [(axis, by) for axis in AXES for by in ("BroadcastTo", "Tile")]
# Scores of D products, sums of T weights that are at most 1, softmax's 8 roundings; of both factors of the quotient.
ROUNDINGS = 2 * (8 * D + T + 8)


@pytest.mark.parametrize("mask", [None, triangle(S, T), triangle(S, T, -1e9)[None, None]], ids=["full", "inf", "1e9"])
@pytest.mark.parametrize("axis,by", HOW)
def test_repeated_heads_are_read_in_place(axis, by, mask):
    net, x = Grouped(axis, by, mask=mask), given()
    report = rewrite.substitute(net, prove=x)
    node = graph_of(net)
    assert not {"BroadcastTo", "Tile"} & {n["op"] for n in net._grafted[0][0].graph.nodes}, str(report)
    assert len(node["inputs"]) == 3 and bool(node["attrs"].get("is_causal")) == (mask is not None)
    close(net(*x).asnumpy(), reference(*x, mask=0.0 if mask is None else mask), ROUNDINGS, np.abs(x[2]).max())


class Traced(nn.Cell):
    """Sizes are asked of what is repeated, and of the repeated: both may go, as inputs have these sizes, too."""

    def repeated(self, x):
        y = ops.expand_dims(x, 2)
        b, h, _, t, d = y.shape
        y = ops.broadcast_to(y, (b, h, 3, t, d))
        b, h, n, t, d = y.shape
        return y.reshape(b, h * n, t, d)

    def construct(self, q, k, v):
        k, v = self.repeated(k), self.repeated(v)
        return ops.bmm(ops.softmax(ops.bmm(q, k, transpose_b=True) * D**-0.5, -1), v)


def test_repeated_heads_whose_sizes_are_open_and_asked_for(tmp_path):
    x = given()
    opened = [Tensor(shape=[None, a.shape[1], None, D], dtype=opgraft.float32) for a in x]
    graph = opgraft.load(opgraft.export(Traced(), *opened, file_name=tmp_path / "net"))
    assert "Shape" in [n["op"] for n in graph.nodes]
    report = rewrite.substitute(graph, prove=[x])
    assert [n["op"] for n in graph.nodes] == ["ScaledDotProductAttention"] and not report.left, str(report)
    close(nn.GraphCell(graph)(*map(Tensor, x)).asnumpy(), reference(*x), ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("how", [(), *HOW], ids=" ".join)
def test_heads_in_turn_are_no_groups(how, tmp_path):
    net, x = Grouped(*how, at=1), given()
    graph = opgraft.load(opgraft.export(net, *map(Tensor, x), file_name=tmp_path / "net"))
    assert [s["op"] for s in rewrite.substitute(graph).swapped] == ["ScaledDotProductAttention@1.0.0"]
    assert [n["op"] for n in graph.nodes].count("BroadcastTo" if "BroadcastTo" in how else "Tile") == 2
    got = nn.GraphCell(graph)(*map(Tensor, x)).asnumpy()
    close(got, net(*x).asnumpy(), 2 * ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("mask", [
    triangle(S, T).T[::-1, ::-1].T.copy(),  # the keys before are hidden
    np.triu(np.full((S, T), -np.inf, np.float32), 1),  # counted from the first key
    triangle(S, T, -10.0),  # leaves weights
    np.where(np.arange(S * T).reshape(S, T) == 3, 0.5, triangle(S, T)).astype(np.float32),
], ids=["reversed", "top left", "finite", "more than that"])  # fmt: skip
def test_another_mask_stays(mask):
    net, x = Grouped("ExpandDims", "Tile", mask=mask), given()
    report = rewrite.substitute(net, prove=x)
    node = graph_of(net)
    assert not report.left  # a mask is mostly another one: nothing is said
    assert len(node["inputs"]) == 4 and not node["attrs"].get("is_causal")
    close(net(*x).asnumpy(), reference(*x, mask=mask), ROUNDINGS, np.abs(x[2]).max())


def test_cached_attention():
    q, k, v = given(1)
    lengths = np.array([3, T], np.int32)
    got = ops.cached_attention(q, k, v, lengths).asnumpy()
    for b, n in enumerate(lengths):
        want = reference(q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n])
        close(got[b : b + 1], want, ROUNDINGS, np.abs(v).max())
    np.testing.assert_array_equal(got, ops.cached_attention(q, k, v, lengths, D**-0.5).asnumpy())


# Scores of five dimensions: the mask as it stands there, and as [B, H, S, T] has it.
FIVE = {
    "full": (lambda s, m: s * D**-0.5, ()),
    "over": (lambda s, m: s / 8.0, ()),
    "not scaled": (lambda s, m: s, ()),
    "two dimensions": (lambda s, m: s * D**-0.5 + m, (S, T)),
    "expanded": (lambda s, m: s * D**-0.5 + ops.expand_dims(m, 1), (B, 1, S, T)),
    "expanded behind": (lambda s, m: s * D**-0.5 + ops.expand_dims(m, 2), (B, 1, 1, T)),
    "kept": (lambda s, m: ops.where(ops.expand_dims(m > 0.0, 1), s * D**-0.5, Tensor(np.float32(-1e4))), (B, 1, S, T)),
    "given expanded": (lambda s, m: s * D**-0.5 + m, (B, 1, 1, S, T)),
    "of padding": (lambda s, m: m + s * D**-0.5, (B, 1, 1, 1, T)),
    "of all batches": (lambda s, m: s * D**-0.5 + m, (1, 1, 1, S, T)),
    "of all batches and heads": (lambda s, m: s * D**-0.5 + m, (1, 1, S, T)),
    "of each head": (lambda s, m: s / 8.0 + m, (B, KV, 3, S, T)),
    "of each head of keys": (lambda s, m: s * D**-0.5 + m, (1, KV, 1, 1, T)),
    "kept, given expanded": (lambda s, m: ops.where(m > 0.0, s * D**-0.5, Tensor(np.float32(-1e4))), (B, 1, 1, S, T)),
    "hidden, of a group": (lambda s, m: ops.where(m > 0.0, Tensor(np.float32(-1e4)), s * D**-0.5), (1, 1, 3, S, 1)),
}
SCALES = {"over": 0.125, "not scaled": 1.0, "of each head": 0.125}
# Keys and values for products of five dimensions: how the new one comes, and how keys are turned.
GROUPS = {
    "ExpandDims": lambda x: ops.expand_dims(x, 2),
    "Reshape": lambda x: x.reshape(B, KV, 1, T, D),
}
PRODUCTS = {
    "transpose_b": lambda q, k: ops.bmm(q, k, transpose_b=True),
    "Transpose": lambda q, k: ops.matmul(q, ops.transpose(k, (0, 1, 2, 4, 3))),
}


class FiveDimensions(nn.Cell):
    def __init__(self, mask, group, product):
        super().__init__()
        self.how = FIVE[mask][0], GROUPS[group], PRODUCTS[product]

    def construct(self, q, k, v, m):
        mask, group, product = self.how
        s = mask(product(q.reshape(B, KV, 3, S, D), group(k)), m)
        return ops.matmul(ops.softmax(s, -1), group(v)).reshape(B, 3 * KV, S, D)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("mask", FIVE)
def test_groups_in_a_dimension_of_their_own(mask, group, product):
    net, x = FiveDimensions(mask, group, product), [*given(), normal(*FIVE[mask][1], seed=3)]
    rewrite.substitute(net, prove=x)
    assert [n["op"] for n in net._grafted[0][0].graph.nodes if n["op"] != "Greater"] == ["ScaledDotProductAttention"]
    m = np.broadcast_to(x[3], (B, KV, 3, S, T)).reshape(B, 3 * KV, S, T) if x[3].ndim == 5 else x[3]
    added = 0.0 if not FIVE[mask][1] else m
    if mask.startswith(("kept", "hidden")):
        added = np.where((m > 0) == mask.startswith("kept"), 0.0, -1e30)
    q = x[0] * np.float64(SCALES.get(mask, D**-0.5) / D**-0.5)
    close(net(*x).asnumpy(), reference(q, *x[1:3], added), 2 * ROUNDINGS, np.abs(x[2]).max())


OTHER_FIVE = {
    # [2, 1, S, T] is for two heads of keys here; of four dimensions it would be for two batches.
    "a mask of heads": lambda s, v, m: ops.matmul(ops.softmax(s + m, -1), v).reshape(B, 3 * KV, S, D),
    "the result stays": lambda s, v, m: ops.matmul(ops.softmax(s, -1), v),
    "joined another way": lambda s, v, m: ops.matmul(ops.softmax(s, -1), v).reshape(B, S, 3 * KV, D),
}


@pytest.mark.parametrize("name", OTHER_FIVE)
def test_other_five_dimensions_are_left_alone(name):
    class Other(nn.Cell):
        def construct(self, q, k, v, m):
            s = PRODUCTS["transpose_b"](q.reshape(B, KV, 3, S, D), ops.expand_dims(k, 2)) * D**-0.5
            return OTHER_FIVE[name](s, ops.expand_dims(v, 2), m)

    net, x = Other(), [*given(), normal(KV, 1, S, T, seed=3)]
    before = net(*x).asnumpy()
    report = rewrite.substitute(net, prove=x)
    assert "ScaledDotProductAttention" not in str(report.swapped)
    close(net(*x).asnumpy(), before, 2 * ROUNDINGS, np.abs(x[2]).max())
