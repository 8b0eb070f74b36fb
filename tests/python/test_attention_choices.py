"""Attention whose scores are chosen by bools (Select) becomes one operator, with their meaning and their number."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from attention_spellings import (
    HALF,
    PRODUCTS,
    ROOT,
    ROUNDINGS,
    SCALED,
    WIDE,
    B,
    D,
    H,
    S,
    T,
    left,
    near,
    normal,
    softmax32,
    split,
    turned,
)
from compare import close
from opgraft import nn, ops, rewrite

LOW = float(np.finfo(np.float32).min)
# The bools are true where a score stays, as of torch.where; or where it goes, as of masked_fill.
CHOSEN = {
    "where": (lambda s, keep, low: ops.where(keep, s, opgraft.Tensor(low)), False),
    "masked_fill": (lambda s, gone, low: ops.where(gone, opgraft.Tensor(low), s), True),
}


def chosen(q, k, v, keep, scale, low):
    """In float64; where nothing is kept, and low is a number, all weights are one."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.where(keep, q @ k.swapaxes(-1, -2) * scale, low)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def keep_some(*shape):
    keep = normal(*shape, seed=3) > 0
    keep[..., 0] = True
    keep[0, 0, -1] = False  # a row, or all rows, that see nothing
    return keep


@pytest.mark.parametrize("low", [LOW, -1e4, 0.5, -np.inf])
@pytest.mark.parametrize("how", CHOSEN)
@pytest.mark.parametrize("scaled", SCALED)
@pytest.mark.parametrize("by", ["transpose_b", "Transpose"])
def test_scores_that_bools_choose(by, scaled, how, low):
    write, scale = SCALED[scaled]
    fill, hides = CHOSEN[how]

    class Spelled(nn.Cell):
        def construct(self, q, k, v, keep):
            return ops.bmm(ops.softmax(fill(write(PRODUCTS[by], q, k), keep, np.float32(low)), -1), v)

    keep = keep_some(B, 1, S, T)
    keep[..., 0] |= low == -np.inf  # else NaN, which has its own test
    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), keep
    given = *x[:3], keep != hides
    net = Spelled()
    rewrite.substitute(net, prove=given)
    assert left(net) == ["ScaledDotProductAttention"]
    attrs = net._grafted[0][0].graph.nodes[-1]["attrs"]
    assert attrs["hides"] == hides and attrs["fill"] == np.float32(low)
    close(net(*given).asnumpy(), chosen(*x, scale, np.float32(low)), ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("how", CHOSEN)
def test_scores_of_half_types_that_bools_choose(how, dtype):
    t, named, u = HALF[dtype]
    low = ml_dtypes.finfo(t).min
    fill, hides = CHOSEN[how]

    class Eager(nn.Cell):
        def construct(self, q, k, v, keep):
            s = fill(ops.matmul(q, turned(k)) * 0.25, keep, np.asarray(low, t))
            return ops.bmm(softmax32(s, named), v)

    x = [normal(B, H, n, WIDE, seed=n + i).astype(t) for i, n in enumerate((S, T, T))] + [keep_some(B, 1, S, T)]
    given = [*x[:3], x[3] != hides]
    net = Eager()
    rewrite.substitute(net, prove=given)
    assert left(net) == ["ScaledDotProductAttention"]
    near(net(*given).asnumpy(), chosen(*x, 0.25, float(low)), u, np.abs(x[2].astype(np.float64)).max())


@pytest.mark.parametrize("how", CHOSEN)
def test_a_constant_of_bools_and_heads_read_in_place(how):
    """As GPT-2 keeps its triangle; the heads are joined after."""
    keep = np.tril(np.ones((1, 1, T, T), bool))
    fill, hides = CHOSEN[how]

    class Gpt2(nn.Cell):
        def construct(self, q, k, v):
            q, k, v = (split(x, (0, 2, 1, 3)) for x in (q, k, v))
            s = ops.matmul(q, turned(k)) / ROOT
            w = ops.softmax(fill(s, opgraft.Tensor(keep != hides), np.float32(LOW)), -1)
            return ops.transpose(ops.matmul(w, v), (0, 2, 1, 3)).reshape(B, T, H * D)

    x = [normal(B, T, H * D, seed=i) for i in range(3)]
    net = Gpt2()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    q, k, v = (y.reshape(B, T, H, D).swapaxes(1, 2) for y in x)
    want = chosen(q, k, v, keep, ROOT**-1, LOW).swapaxes(1, 2).reshape(B, T, H * D)
    close(net(*x).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("repeat", ["BroadcastTo", "Tile", "Reshape", "a new axis"])
@pytest.mark.parametrize("how", CHOSEN)
def test_shared_heads_whose_scores_bools_choose(how, repeat):
    """What bools mean, and the number they give, stays with the mask."""
    fill, hides = CHOSEN[how]

    class Shared(nn.Cell):
        def repeat(self, x):
            if repeat == "Reshape":
                x = x.reshape(B, 2, 1, T, D)
            else:
                x = x[:, :, None] if repeat == "a new axis" else ops.expand_dims(x, 2)
            x = ops.tile(x, (1, 1, H, 1, 1)) if repeat == "Tile" else ops.broadcast_to(x, (B, 2, H, T, D))
            return x.reshape(B, 2 * H, T, D)

        def construct(self, q, k, v, keep):
            s = fill(ops.matmul(q, turned(self.repeat(k))) / ROOT, keep, np.float32(-1e4))
            return ops.matmul(ops.softmax(s, -1), self.repeat(v))

    x = normal(B, 2 * H, S, D), normal(B, 2, T, D, seed=1), normal(B, 2, T, D, seed=2), keep_some(B, 1, S, T)
    given = *x[:3], x[3] != hides
    net = Shared()
    rewrite.substitute(net, prove=given)
    assert left(net) == ["ScaledDotProductAttention"]
    k, v = (np.repeat(y, H, 1) for y in x[1:3])
    want = chosen(x[0], k, v, x[3], ROOT**-1, -1e4)
    close(net(*given).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())


def test_nothing_kept_is_no_number_where_scores_become_infinite():
    class Spelled(nn.Cell):
        def construct(self, q, k, v, keep):
            s = ops.where(keep, ops.bmm(q, k, transpose_b=True), opgraft.Tensor(np.float32(-np.inf)))
            return ops.bmm(ops.softmax(s, -1), v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), np.ones((B, 1, S, T), bool)
    x[3][1, 0, 2] = False
    before, net = Spelled()(*x).asnumpy(), Spelled()
    rewrite.substitute(net)
    got = net(*x).asnumpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(before))
    assert np.isnan(got).all((1, 3)).sum() == 1 and np.isnan(got).any((1, 3)).sum() == 1


OTHER_CHOICES = {
    "a tensor elsewhere": lambda s, keep, v: ops.bmm(ops.softmax(ops.where(keep, s, s * 2.0), -1), v),
    "weights are chosen": lambda s, keep, v: ops.bmm(
        ops.where(keep, ops.softmax(s, -1), opgraft.Tensor(np.float32(0.0))), v),
    "scores are a result": lambda s, keep, v: (
        lambda c: (ops.bmm(ops.softmax(c, -1), v), c))(ops.where(keep, s, opgraft.Tensor(np.float32(-1e4)))),
    "a row of numbers": lambda s, keep, v: ops.bmm(
        ops.softmax(ops.where(keep, s, opgraft.Tensor(np.full(T, -1e4, np.float32))), -1), v),
}  # fmt: skip


def test_a_softmax_over_queries_takes_the_bools():
    class Other(nn.Cell):
        def construct(self, q, k, v, keep):
            s = ops.bmm(q, k, transpose_b=True) / ROOT
            return ops.bmm(ops.softmax(ops.where(keep, s, opgraft.Tensor(np.float32(-1e4))), -2), v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), keep_some(B, 1, S, T)
    net = Other()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["BatchMatMul", "ScaledMaskedSoftmax", "BatchMatMul"]


@pytest.mark.parametrize("name", OTHER_CHOICES)
def test_other_choices_are_left_alone(name):
    class Other(nn.Cell):
        def construct(self, q, k, v, keep):
            return OTHER_CHOICES[name](ops.bmm(q, k, transpose_b=True) / ROOT, keep, v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), keep_some(B, 1, S, T)
    net = Other()
    report = rewrite.substitute(net, prove=x)
    assert "ScaledDotProductAttention" not in str(report.swapped) and "Select" in left(net)
