"""Softmax of scores that bools choose, or that a mask is taken away from, or whose NaN become 0: one operator; and what
only looks alike stays."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import Net, U, cases, graft, left, normal
from opgraft import Tensor, nn, ops, rewrite

N, INF = 24, float("inf")
LOW = float(np.finfo(np.float32).min)
TABLE = cases("softmax")
SCORES = normal(2, 3, 5, N) * 4
EACH = 2 * (N + 8) * U  # a softmax of N against another, of the same scores: their sums, and eight roundings more
KEEP = normal(2, 1, 5, N, seed=1) > 0
KEEP[..., 0] = True
KEEP[1, 0, 2] = False  # a row that is hidden whole


def close(got, x, *mask, **attrs):
    """The operator's own bound, one rounding of it and of float64's; below the smallest normal number exp gives 0."""
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):  # of what is NaN, or 0 in its place
        want, bound = TABLE.scaled(wide, *mask, **attrs), TABLE.scaled_bound(U, wide, *mask, **attrs)
    assert (np.abs(got - want) <= np.nan_to_num(bound) + 2 * U * want + 2.0**-126).all()


def exp_softmax(x):
    e = ops.exp(x - ops.primitive("ReduceMax", x, axis=[-1], keep_dims=True))
    return e / ops.reduce_sum(e, -1, True)


# torch.where's bools are true where a score stays, masked_fill's where it goes.
CHOSEN = {
    "where": (lambda s, m, low: ops.where(m, s, Tensor(np.float32(low))), False),
    "masked_fill": (lambda s, m, low: ops.where(m, Tensor(np.float32(low)), s), True),
}
# The scores' scale before the choice, or behind it: of the number as well.
SCALED = {
    "alone": (lambda x, f: f(x), {}),
    "times": (lambda x, f: f(x * 0.125), {"scale": 0.125}),
    "over": (lambda x, f: f(x / 8.0), {"scale": 0.125}),
    "then times": (lambda x, f: f(x) * 0.125, {"scale": 0.125, "mask_scale": 0.125}),
    "then over": (lambda x, f: f(x) / 8.0, {"scale": 0.125, "mask_scale": 0.125}),
}
SOFTMAX = {
    "Softmax": lambda s: ops.softmax(s, -1),
    "by Exp": exp_softmax,
    "columns": lambda s: ops.softmax(s, 2),
}


@pytest.mark.parametrize("low", [LOW, -1e9, -1e4, 0.5])
@pytest.mark.parametrize("scaled", SCALED)
@pytest.mark.parametrize("how", CHOSEN)
@pytest.mark.parametrize("by", SOFTMAX)
def test_scores_that_bools_choose(by, how, scaled, low, tmp_path):
    (fill, hides), (write, attrs) = CHOSEN[how], SCALED[scaled]
    attrs = {**attrs, "fill": low, "hides": hides, "axis": 2 if by == "columns" else -1}

    def net(x, m):
        return SOFTMAX[by](write(x, lambda s: fill(s, m, low)))

    m = KEEP != hides
    graph = opgraft.load(opgraft.export(Net(net), Tensor(SCORES), Tensor(m), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    (node,) = graph.nodes
    assert node["op"] == "ScaledMaskedSoftmax"
    assert {k: node["attrs"][k] for k in attrs} == {
        **attrs,
        "fill": float(np.float32(low)),
        "axis": node["attrs"]["axis"],
    }
    close(graft(net, SCORES, m)[2][0], SCORES, m, **attrs)


@pytest.mark.parametrize("how", CHOSEN)
@pytest.mark.parametrize("by", SOFTMAX)
def test_a_row_that_is_hidden_whole_is_no_number_where_scores_become_infinite(by, how):
    fill, hides = CHOSEN[how]
    keep = KEEP.copy()
    keep[0, 0, :, 3] = False  # a column
    names, before, after = graft(lambda x, m: SOFTMAX[by](fill(x, m, -INF)), SCORES, keep != hides)
    assert names[-1] == "ScaledMaskedSoftmax"
    np.testing.assert_array_equal(np.isnan(after[0]), np.isnan(before[0]))
    assert np.isnan(after[0]).any() and not np.isnan(after[0]).all()
    np.testing.assert_allclose(after[0], before[0], rtol=EACH)


def test_a_mask_of_zeros_and_ones(tmp_path):
    """As many torch models have it: scores.masked_fill(mask == 0, -1e9)."""

    def write(x, m):
        return ops.softmax(ops.where(ops.equal(m, 0), Tensor(np.float32(-1e9)), x / 8.0), -1)

    m = KEEP.astype(np.int32)
    assert left(write, (SCORES, m), tmp_path) == ["Equal", "ScaledMaskedSoftmax"]
    close(graft(write, SCORES, m)[2][0], SCORES, KEEP, scale=0.125, fill=-1e9)


@pytest.mark.parametrize("shape", [(N,), (5, 1), (3, 1, 1), (1, 1), (2, 3, 5, N)])
def test_bools_that_broadcast(shape, tmp_path):
    m = normal(*shape, seed=2) > -0.3

    def write(x, m):
        return ops.softmax(CHOSEN["where"][0](x * 0.125, m, -1e4), -1)

    assert left(write, (SCORES, m), tmp_path) == ["ScaledMaskedSoftmax"]
    close(graft(write, SCORES, m)[2][0], SCORES, m, scale=0.125, fill=-1e4)


@pytest.mark.parametrize("how", CHOSEN)
def test_bools_of_half_types_in_float32(how, tmp_path):
    fill, hides = CHOSEN[how]
    t, low = ml_dtypes.bfloat16, float(ml_dtypes.finfo(ml_dtypes.bfloat16).min)

    def write(x, m):
        number = Tensor(np.asarray(low, t))
        s = ops.where(m, number, x * 0.125) if hides else ops.where(m, x * 0.125, number)
        return ops.cast(ops.softmax(ops.cast(s, opgraft.float32), -1), opgraft.bfloat16)

    x, m = SCORES.astype(t), KEEP != hides
    assert left(write, (x, m), tmp_path) == ["ScaledMaskedSoftmax"]
    got, wide = graft(write, x, m)[2][0], x.astype(np.float64)
    attrs = {"scale": 0.125, "fill": low, "hides": hides}
    want = TABLE.scaled(wide, m, **attrs)
    allowed = TABLE.scaled_bound(U, wide, m, **attrs) + 1.01 * 2.0**-8 * want + 2.0**-133
    assert got.dtype == t and (np.abs(got.astype(np.float64) - want) <= allowed).all()


MASK = normal(1, 1, 5, N, seed=3)
TAKEN = {
    "alone": (lambda x, m: x - m, 1.0),
    "times": (lambda x, m: x * 0.125 - m, 0.125),
    "over": (lambda x, m: x / 8.0 - m, 0.125),
}


@pytest.mark.parametrize("by", SOFTMAX)
@pytest.mark.parametrize("scaled", TAKEN)
def test_a_mask_that_is_taken_away(scaled, by, tmp_path):
    write, scale = TAKEN[scaled]

    def net(x, m):
        return SOFTMAX[by](write(x, m))

    assert left(net, (SCORES, MASK), tmp_path) == ["ScaledMaskedSoftmax"]
    got = graft(net, SCORES, MASK)[2][0]
    close(got, SCORES, MASK.astype(float), scale=scale, mask_scale=-1.0, axis=2 if by == "columns" else -1)


@pytest.mark.parametrize("scaled", ["then times", "then over"])
def test_a_mask_that_is_added_before_the_scale(scaled, tmp_path):
    write, attrs = SCALED[scaled]

    def net(x, m):
        return ops.softmax(write(x, lambda s: s + m), -1)

    assert left(net, (SCORES, MASK), tmp_path) == ["ScaledMaskedSoftmax"]
    close(graft(net, SCORES, MASK)[2][0], SCORES, MASK.astype(float), **attrs)


def no_nan(w):
    return ops.where(ops.primitive("IsNan", w), Tensor(np.float32(0.0)), w)


NO_NAN = {
    "bools": (lambda x, m: CHOSEN["where"][0](x * 0.125, m, -INF), KEEP),
    "a mask": (lambda x, m: m + x / 8.0, np.where(KEEP, 0, -np.float32(INF))),
    "a mask that is scaled": (lambda x, m: (x + m) / 8.0, np.where(KEEP, 0, -np.float32(INF))),
}


@pytest.mark.parametrize("by", SOFTMAX)
@pytest.mark.parametrize("name", NO_NAN)
def test_rows_that_would_be_no_numbers_are_zero(name, by, tmp_path):
    """As torch's exporters to ONNX write it."""
    write, m = NO_NAN[name]

    def net(x, m):
        return no_nan(SOFTMAX[by](write(x, m)))

    x = SCORES.copy()
    x[0, 1, 3, 2] = np.nan
    assert left(net, (x, m), tmp_path) == ["ScaledMaskedSoftmax"]
    names, before, after = graft(net, x, m)
    assert (after[0] == 0).any() and np.isfinite(after[0]).all()
    close(after[0], x, m, scale=0.125, nan_to_zero=True, axis=2 if by == "columns" else -1)
    np.testing.assert_allclose(after[0], before[0], rtol=EACH, atol=2.0**-126)


def test_scores_alone_whose_softmax_may_be_no_number(tmp_path):
    x = SCORES.copy()
    x[1, 1, 1] = -INF
    assert left(lambda x: no_nan(ops.softmax(x, -1)), (x,), tmp_path) == ["ScaledMaskedSoftmax"]
    close(graft(lambda x: no_nan(ops.softmax(x, -1)), x)[2][0], x, nan_to_zero=True)


def low(n=None):
    return Tensor(np.float32(-1e4) if n is None else np.full(n, -1e4, np.float32))


# What is computed, of scores and bools, and which operators must be left.
OTHERS = {
    "a tensor elsewhere": (lambda x, m: ops.softmax(ops.where(m, x, x * 2.0), -1), ["Mul", "Select", "Softmax"]),
    "a row of numbers": (lambda x, m: ops.softmax(ops.where(m, x, low(N)), -1), ["Select", "Softmax"]),
    "the result is chosen": (lambda x, m: ops.where(m, ops.softmax(x, -1), low()), ["Softmax", "Select"]),
    "scores are a result": (
        lambda x, m: (lambda s: (ops.softmax(s, -1), s))(ops.where(m, x, low())), ["Select", "Softmax"]),
    "NaN of something else": (
        lambda x, m: ops.where(ops.primitive("IsNan", x), Tensor(np.float32(0.0)), ops.softmax(x, -1)),
        ["IsNan", "Softmax", "Select"]),
    "NaN become 1": (
        lambda x, m: (lambda w: ops.where(ops.primitive("IsNan", w), Tensor(np.float32(1.0)), w))(ops.softmax(x, -1)),
        ["Softmax", "IsNan", "Select"]),
    "NaN alone stay": (
        lambda x, m: (lambda w: ops.where(ops.primitive("IsNan", w), w, Tensor(np.float32(0.0))))(ops.softmax(x, -1)),
        ["Softmax", "IsNan", "Select"]),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_looks_alike_is_left_alone(name, tmp_path):
    write, ops_left = OTHERS[name]
    x = SCORES.copy()
    x[0, 1, 3, 2] = np.nan if "NaN" in name else 1.0
    assert sorted(left(write, (x, KEEP), tmp_path)) == sorted(ops_left)
    names, before, after = graft(write, x, KEEP)
    assert names == []
    for a, b in zip(after, before):
        np.testing.assert_array_equal(a, b)


def test_bools_that_are_larger_than_the_scores():
    """There are more rows in the result than scores are: the operator cannot make them."""
    names, before, after = graft(lambda x, m: ops.softmax(ops.where(m, x, low()), -1), SCORES[:1, :1], KEEP)
    assert names == []
    np.testing.assert_array_equal(after[0], before[0])


class Open(nn.Cell):
    def construct(self, x, m):
        return ops.softmax(ops.where(m, x / 8.0, low()), -1)


def test_open_dimensions(tmp_path):
    """What a file leaves open is checked when the model runs."""
    names = [
        Tensor(shape=[None, 3, None, N], dtype=opgraft.float32),
        Tensor(shape=[None, 1, None, N], dtype=opgraft.bool_),
    ]
    graph = opgraft.load(opgraft.export(Open(), *names, file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["ScaledMaskedSoftmax"]
    got = nn.GraphCell(graph)(Tensor(SCORES), Tensor(KEEP)).asnumpy()
    close(got, SCORES, KEEP, scale=0.125, fill=-1e4)
