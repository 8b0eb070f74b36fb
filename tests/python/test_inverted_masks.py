"""Masks of bools that are inverted before they choose: softmax and attention take the mask itself."""

import numpy as np
import opgraft
import pytest
from attention_spellings import PRODUCTS, ROOT, ROUNDINGS, B, D, H, S, T, is_one, normal, reference
from compare import Net, U, cases, close, graft, left
from opgraft import Tensor, nn, ops, rewrite

N, INF = 24, float("inf")
SCORES, GONE = normal(2, 3, 5, N) * 4, normal(2, 1, 5, N, seed=1) > 0
TABLE = cases("softmax")
LOW = Tensor(np.float32(-1e9))


def p(name, *inputs, **attrs):
    return ops.primitive(name, *inputs, **attrs)


# f(mask, scores): the scores where the mask is false.
CHOSEN = {
    "where": lambda m, s: ops.where(~m, s, LOW),
    "ONNX": lambda m, s: p("Select", p("LogicalNot", m), s, LOW),
}
# f(mask, scores): the scores where it is true, with what the softmax is told of it.
KEPT = {
    "masked_fill": lambda m, s: ops.where(ops.logical_not(m), LOW, s),
    "ONNX": lambda m, s: p("Select", p("LogicalNot", m), LOW, s),
}


def probabilities(got, x, m, **attrs):
    """Within the operator's own bound, and a rounding."""
    want, bound = (
        TABLE.scaled(x.astype(np.float64), m, **attrs),
        TABLE.scaled_bound(U, x.astype(np.float64), m, **attrs),
    )
    assert (np.abs(got - want) <= bound + 2 * U * want + 2.0**-126).all()


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("by", ["framework", "ONNX"])
def test_softmax(by, hides, tmp_path):
    choose = list((CHOSEN if hides else KEPT).values())[by == "ONNX"]

    def write(x, m):
        return ops.softmax(choose(m, x * 0.125), -1)

    assert left(write, (SCORES, GONE), tmp_path) == ["ScaledMaskedSoftmax"]
    got = graft(write, SCORES, GONE)[2][0]
    probabilities(got, SCORES, GONE, scale=0.125, fill=-1e9, hides=hides)


@pytest.mark.parametrize("how", CHOSEN)
@pytest.mark.parametrize("by", PRODUCTS)
def test_attention(by, how):
    class Masked(nn.Cell):
        def construct(self, q, k, v, m):
            s = CHOSEN[how](m, PRODUCTS[by](q, k) / ROOT)
            return ops.matmul(ops.softmax(s, -1), v)

    gone = normal(B, 1, S, T, seed=3) > 0
    gone[..., 0] = False
    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), gone
    got, attrs = is_one(Masked, x)
    assert attrs["hides"]
    close(got, reference(*x[:3], np.where(gone, -1e9, 0.0), ROOT**-1), ROUNDINGS, np.abs(x[2]).max())


def test_one_inverted_mask_of_several_layers(tmp_path):
    """It goes with its last user; another use keeps it."""

    def layers(x, m):
        keep = ~m
        return ops.softmax(ops.where(keep, ops.softmax(ops.where(keep, x, LOW), -1) * 4.0, LOW), -1)

    assert left(layers, (SCORES, GONE), tmp_path) == ["ScaledMaskedSoftmax"] * 2
    used = lambda x, m: (layers(x, m), ~m)  # noqa: E731
    assert sorted(left(used, (SCORES, GONE), tmp_path)) == ["LogicalNot"] + ["ScaledMaskedSoftmax"] * 2
    for write in (layers, used):
        _, before, after = graft(write, SCORES, GONE)
        # Two softmaxes of N; what the first is off by the second makes at most 4 times as much, of weights below 1.
        np.testing.assert_allclose(after[0], before[0], rtol=0, atol=5 * 2 * (N + 8) * U)
        for a, b in zip(after[1:], before[1:]):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(2, 1, 5, 1), (1,), ()], ids=str)
def test_a_choice_that_is_no_mask(shape, tmp_path):
    """Of any two tensors, as they broadcast: the operands change places."""
    m, x, y = normal(*shape, seed=1) > 0, normal(3, 5, N), normal(2, 3, 5, N, seed=2)

    def write(x, y, m):
        return ops.where(~m, x, y)

    assert left(write, (x, y, np.asarray(m)), tmp_path) == ["Select"]
    _, before, after = graft(write, x, y, np.asarray(m))
    np.testing.assert_array_equal(after[0], np.where(m, y, x))
    np.testing.assert_array_equal(before[0], after[0])


OTHERS = {
    "and another mask": lambda x, m: ops.where(~m & (x > 0), x, LOW),
    "of what is chosen": lambda x, m: ops.where(m, x, ops.where(ops.logical_not(x > 0), 1.0, x)),
    "inverted again": lambda x, m: ops.where(~~m, x, LOW),
    "a condition": lambda x, m: ops.where(~(x < 0), x, LOW),  # not x >= 0, which NaN is not
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_results_of_others(name, tmp_path):
    x = SCORES.copy()
    x[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    graph = opgraft.load(opgraft.export(Net(OTHERS[name]), Tensor(x), Tensor(GONE), file_name=str(tmp_path / "net")))
    before = OTHERS[name](Tensor(x), Tensor(GONE)).asnumpy()
    rewrite.substitute(graph)
    np.testing.assert_array_equal(nn.GraphCell(graph)(Tensor(x), Tensor(GONE)).asnumpy(), before)


def no_nan(w, how):
    zero = Tensor(np.float32(0.0))
    if how == "differs from itself":
        return ops.where(w != w, zero, w)
    if how == "ONNX":
        return p("Select", p("NotEqual", w, w), zero, w)
    return ops.where(ops.logical_not(ops.isnan(w)), w, zero)


SAFE = ["differs from itself", "ONNX", "is not NaN"]


@pytest.mark.parametrize("how", SAFE)
def test_softmax_without_nan(how, tmp_path):
    gone = GONE.copy()
    gone[1, 0, 2] = True  # a row that is hidden whole

    def write(x, m):
        return no_nan(ops.softmax(ops.where(m, Tensor(np.float32(-INF)), x), -1), how)

    graph = opgraft.load(opgraft.export(Net(write), Tensor(SCORES), Tensor(gone), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    (node,) = graph.nodes
    assert node["op"] == "ScaledMaskedSoftmax" and node["attrs"]["nan_to_zero"]
    got = graft(write, SCORES, gone)[2][0]
    assert (got[1, :, 2] == 0).all()
    shown = np.broadcast_to(~gone.all(-1), got.shape[:-1])
    want = np.where(gone, -np.inf, SCORES.astype(np.float64))[shown]
    want = np.exp(want - want.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    assert (np.abs(got[shown] - want) <= (16 + N + 9) * U * want + 2.0**-126).all()  # scores are up to 16 apart


@pytest.mark.parametrize("how", SAFE)
def test_attention_without_nan(how):
    gone = normal(B, 1, S, T, seed=3) > 0.5
    gone[..., 0] = False
    gone[0, 0, 2] = True

    class Safe(nn.Cell):
        def construct(self, q, k, v, m):
            s = ops.where(m, Tensor(np.float32(-INF)), ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / ROOT)
            return ops.matmul(no_nan(ops.softmax(s, -1), how), v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), gone
    got, attrs = is_one(Safe, x)
    assert attrs["nan_to_zero"] and (got[0, :, 2] == 0).all()
    shown = np.ones((B, H, S), bool)
    shown[0, :, 2] = False
    want = reference(*x[:3], np.where(gone & ~gone.all(-1, keepdims=True), -np.inf, 0.0), ROOT**-1)
    close(got[shown], want[shown], ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("write", [
    lambda w: ops.where(w == w, Tensor(np.float32(0.0)), w),
    lambda w: ops.where(w != w, Tensor(np.float32(1.0)), w),
    lambda w: ops.where(w != w * 1.0, Tensor(np.float32(0.0)), w),
    lambda w: ops.where(~(w != w), Tensor(np.float32(0.0)), w),
])  # fmt: skip
def test_other_choices_after_softmax_stay(write):
    x = SCORES.copy()
    x[1, 0, 2] = -INF
    names, before, after = graft(lambda x: write(ops.softmax(x * 2.0, -1)), x, prove=False)
    np.testing.assert_array_equal(np.isnan(after[0]), np.isnan(before[0]))
    np.testing.assert_allclose(after[0], before[0], rtol=2 * (2 * 30 + N + 9) * U)
