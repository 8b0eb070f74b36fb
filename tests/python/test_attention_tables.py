"""Scores times a table of 0 and 1, less a number where it is 0, as of GPT-2's first code; triangles of bools that are
constants."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from attention_spellings import PRODUCTS, ROOT, ROUNDINGS, WIDE, B, D, H, S, T, left, near, normal, split, turned
from compare import close
from opgraft import Tensor, nn, ops, rewrite

TRIANGLE = np.tri(S, T, T - S, dtype=np.float32)
BLOCKS = np.kron(np.eye(3), np.ones((2, 3))).astype(np.float32)[:S, :T]  # query 0 and 1 see keys 0 to 2, and so on
ONE_SEES_NOTHING = TRIANGLE * (np.arange(S) != 2)[:, None].astype(np.float32)


def given(*more):
    return normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), *more


def reference(q, k, v, kept, fill, more=0.0, scale=ROOT**-1):
    """In float64, as the model has it: a score that is hidden is `fill`."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.where(kept, q @ k.swapaxes(-1, -2) * scale, fill) + more
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def swapped(net, x):
    """The node that is left of the model, and what it gives."""
    report = rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"], str(report)
    return net._grafted[0][0].graph.nodes[0], net(*x).asnumpy()


class GPT2(nn.Cell):
    def __init__(self, table, by="Transpose", scaled="over", low=1e4):
        super().__init__()
        self.table, self.by, self.scaled, self.low = Tensor(table), PRODUCTS[by], scaled, low

    def scores(self, q, k):
        s = self.by(q, k)
        s = {"over": lambda: s / ROOT, "times": lambda: s * ROOT**-1, "not at all": lambda: s}[self.scaled]()
        return s * self.table - self.low * (1 - self.table)

    def construct(self, q, k, v, mask=None):
        s = self.scores(q, k)
        return ops.matmul(ops.softmax(s if mask is None else s + mask, -1), v)


@pytest.mark.parametrize("scaled", ["over", "times", "not at all"])
@pytest.mark.parametrize("by", PRODUCTS)
def test_the_table_of_gpt2_is_causal(by, scaled):
    x = given()
    node, got = swapped(GPT2(TRIANGLE[None, None], by, scaled), x)
    assert node["attrs"]["is_causal"] and len(node["inputs"]) == 3
    want = reference(*x, TRIANGLE == 1, -1e4, scale=1.0 if scaled == "not at all" else ROOT**-1)
    close(got, want, ROUNDINGS, np.abs(x[2]).max())


# Scores near -10^4 round as it.
HIDDEN = ROUNDINGS + 2 * 10**4


@pytest.mark.parametrize("low", [1e4, 1e10])
@pytest.mark.parametrize("table", [TRIANGLE, BLOCKS, ONE_SEES_NOTHING], ids=["triangle", "blocks", "nothing seen"])
def test_other_masks_keep_what_they_hide(table, low):
    """With a mask behind it, of padding, a row may see nothing: its weights are those of what is left of the sums."""
    padding = np.zeros((B, 1, 1, T), np.float32)
    padding[0, ..., : T - S + 2] = -1e4  # all that the first two queries see
    for x in (given(padding), given()) if table is not TRIANGLE else (given(padding),):
        node, got = swapped(GPT2(table, low=low), x)
        assert not node["attrs"]["is_causal"] and node["attrs"]["fill"] == -low and len(node["inputs"]) == len(x) + 1
        want = reference(*x[:3], table == 1, -low, x[3].astype(float) if len(x) > 3 else 0.0)
        close(got, want, HIDDEN, np.abs(x[2]).max())


def test_the_number_need_not_be_large():
    """What is left of a score of -3 has weight: not causal, but the same."""
    x = given()
    node, got = swapped(GPT2(TRIANGLE, low=3.0), x)
    assert not node["attrs"]["is_causal"] and node["attrs"]["fill"] == -3
    close(got, reference(*x, TRIANGLE == 1, -3.0), ROUNDINGS, np.abs(x[2]).max())


class Halves(GPT2):
    def construct(self, q, k, v):
        s = ops.matmul(q, turned(k)) / WIDE**0.5
        s = s * self.table - self.low * (1 - self.table)
        return ops.matmul(ops.softmax(s, -1), v)


@pytest.mark.parametrize("dtype,u", [(np.float16, 2.0**-11), (ml_dtypes.bfloat16, 2.0**-8)])
def test_half_types(dtype, u):
    """10^4 is 9984 in bfloat16."""
    x = [normal(B, H, n, WIDE, seed=i).astype(dtype) for i, n in enumerate((S, T, T))]
    node, got = swapped(Halves(TRIANGLE.astype(dtype)), x)
    assert node["attrs"]["is_causal"] and got.dtype == dtype
    near(got, reference(*x, TRIANGLE == 1, -1e4, scale=WIDE**-0.5), u, np.abs(x[2].astype(float)).max())


class Joined(GPT2):
    """All of GPT-2's attention, its heads split and joined around it."""

    def construct(self, q, k, v):
        q, v = split(q, (0, 2, 1, 3)), split(v, (0, 2, 1, 3))
        s = ops.matmul(q, split(k, (0, 2, 3, 1))) / ROOT
        y = ops.matmul(ops.softmax(s * self.table - 1e4 * (1 - self.table), -1), v)
        return ops.transpose(y, (0, 2, 1, 3)).reshape(B, T, H * D)


def test_heads_read_in_place():
    kept, x = np.tri(T, dtype=np.float32), [normal(B, T, H * D, seed=i) for i in range(3)]
    node, got = swapped(Joined(kept), x)
    assert node["attrs"]["is_causal"] and node["attrs"]["layout"] == "BSE"
    want = reference(*(y.reshape(B, T, H, D).swapaxes(1, 2) for y in x), kept == 1, -1e4)
    close(got, want.swapaxes(1, 2).reshape(B, T, H * D), ROUNDINGS, np.abs(x[2]).max())


class Apart(nn.Cell):
    """The table and what is taken away are two constants that are not made for each other."""

    def __init__(self, table, taken):
        super().__init__()
        self.table, self.taken = Tensor(table), Tensor(taken)

    def construct(self, q, k, v):
        s = ops.matmul(q, turned(k)) / ROOT * self.table - self.taken
        return ops.matmul(ops.softmax(s, -1), v)


ALSO = np.where(np.arange(S * T).reshape(S, T) == 3, 5, 1e4 * (1 - TRIANGLE)).astype(np.float32)


@pytest.mark.parametrize("table,taken", [
    (np.where(TRIANGLE == 1, 0.5, 0).astype(np.float32), 1e4 * (1 - TRIANGLE)),
    (TRIANGLE, 1e4 * TRIANGLE),
    (TRIANGLE, ALSO),
    (TRIANGLE, np.where(TRIANGLE == 1, 0, normal(S, T))),
], ids=["halves", "where it is 1", "one number elsewhere", "several numbers"])  # fmt: skip
def test_what_is_no_choice_stays_a_product(table, taken):
    x, net = given(), Apart(table, taken)
    before = net(*x).asnumpy()
    rewrite.substitute(net, prove=x)
    assert "ScaledDotProductAttention" not in left(net) and "Mul" in left(net)
    np.testing.assert_array_equal(net(*x).asnumpy(), before)


def test_a_table_that_the_model_is_given_or_learns_stays_a_product():
    class Given(nn.Cell):
        def construct(self, q, k, v, table):
            s = ops.matmul(q, turned(k)) / ROOT
            return ops.matmul(ops.softmax(s * table - 1e4 * (1 - table), -1), v)

    class Learnt(GPT2):
        def __init__(self):
            super().__init__(TRIANGLE)
            self.table = opgraft.Parameter(Tensor(TRIANGLE), name="table")

    for net, x in ((Given(), given(TRIANGLE)), (Learnt(), given())):
        rewrite.substitute(net, prove=x)
        assert "ScaledDotProductAttention" not in left(net)
        close(net(*x).asnumpy(), reference(*x[:3], TRIANGLE == 1, -1e4), ROUNDINGS, np.abs(x[2]).max())


# A triangle of bools, and what a hidden score becomes.
@pytest.mark.parametrize("low", [-np.inf, float(np.finfo(np.float32).min), -1e4])
@pytest.mark.parametrize("hides", [False, True])
def test_a_constant_triangle_of_bools_is_causal(hides, low):
    class Net(nn.Cell):
        def construct(self, q, k, v):
            s, low_ = ops.matmul(q, turned(k)) / ROOT, Tensor(np.float32(low))
            seen = Tensor((TRIANGLE == 1)[None, None])
            s = ops.where(ops.logical_not(seen), low_, s) if hides else ops.where(seen, s, low_)
            return ops.matmul(ops.softmax(s, -1), v)

    x = given()
    node, got = swapped(Net(), x)
    assert node["attrs"]["is_causal"] and len(node["inputs"]) == 3
    close(got, reference(*x, TRIANGLE == 1, low), ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("seen,low", [
    (np.tri(S, T, dtype=bool), -np.inf), (TRIANGLE == 1, -10.0), (TRIANGLE != 1, -1e4),
], ids=["from the first key", "leaves weights", "the other way"])  # fmt: skip
def test_bools_that_are_no_triangle_stay(seen, low):
    class Net(nn.Cell):
        def construct(self, q, k, v):
            s = ops.where(Tensor(seen), ops.matmul(q, turned(k)) / ROOT, Tensor(np.float32(low)))
            return ops.matmul(ops.softmax(s, -1), v)

    x = given()
    node, got = swapped(Net(), x)
    assert not node["attrs"]["is_causal"] and len(node["inputs"]) == 4
    close(got, reference(*x, seen, low), HIDDEN, np.abs(x[2]).max())


@pytest.mark.parametrize("shape", [(1, T), (1, 1, 1, T)])
def test_a_row_of_zeros_is_no_triangle(shape, tmp_path):
    """It is that of every query."""

    class Net(nn.Cell):
        def construct(self, q, k, v):
            s = ops.matmul(q, turned(k)) / ROOT + Tensor(np.zeros(shape, np.float32))
            return ops.matmul(ops.softmax(s, -1), v)

    x = given()
    graph = opgraft.load(opgraft.export(Net(), *map(Tensor, x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    (node,) = graph.nodes
    assert node["op"] == "ScaledDotProductAttention" and not node["attrs"]["is_causal"]
    close(nn.GraphCell(graph)(*map(Tensor, x)).asnumpy(), reference(*x, True, 0), ROUNDINGS, np.abs(x[2]).max())
