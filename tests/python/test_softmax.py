"""Softmax: the ways models spell it, with a scale and a mask, become one operator, and nothing else does."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import Net, U, close, graft, left, normal
from opgraft import Tensor, _core, ops, rewrite

N = 24
BF16 = ml_dtypes.bfloat16
f32, bf16 = opgraft.float32, opgraft.bfloat16
SQUARE = normal(N, N)


def exp_softmax(x):
    e = ops.exp(x - ops.primitive("ReduceMax", x, axis=[-1], keep_dims=True))
    return e / ops.reduce_sum(e, -1, True)


def exp_sum_ext(x):
    e = ops.exp(x - ops.primitive("ReduceMax", x, axis=[-1], keep_dims=True))
    return e / ops.primitive("SumExt", e, axis=[-1], keep_dims=True)  # as mint.sum is exported


def exp_inverse(x):
    e = ops.exp(x - ops.primitive("ReduceMax", x, axis=[-1], keep_dims=True))
    return e * ops.reciprocal(ops.reduce_sum(e, -1, True))


SCORES = normal(2, 3, 5, N) * 4
MASK = np.where(normal(1, 1, 5, N, seed=1) > 1, -1e4, 0).astype(np.float32)
MASKED = {
    "Mul, Add": (lambda x, m: ops.softmax(x * 0.125 + m, -1), 0.125),
    "Div, Add": (lambda x, m: ops.softmax(x / 8.0 + m, -1), 0.125),
    "mask first": (lambda x, m: ops.softmax(m + x * 0.125, -1), 0.125),
    "Add alone": (lambda x, m: ops.softmax(x + m, -1), 1.0),
    "Add alone, mask first": (lambda x, m: ops.softmax(m + x, -1), 1.0),
    "Div, mask first": (lambda x, m: ops.softmax(m + x / 8.0, -1), 0.125),
    "mask first, a product as well": (lambda x, m: ops.softmax((m / -1e4) * -1e4 + x * 0.125, -1), 0.125),
    "by Exp": (lambda x, m: exp_softmax(x * 0.125 + m), 0.125),
    "Div, by Exp, mask first": (lambda x, m: exp_softmax(m + x / 8.0), 0.125),
    "Div, by Exp": (lambda x, m: exp_softmax(x / 8.0 + m), 0.125),
    "by Exp, Reciprocal": (lambda x, m: exp_inverse(m + x * 0.125), 0.125),
    "by Exp, Add alone": (lambda x, m: exp_softmax(x + m), 1.0),
    "by Exp, Add alone, mask first": (lambda x, m: exp_sum_ext(m + x), 1.0),
}


@pytest.mark.parametrize("name", MASKED)
def test_scaled_and_masked(name, tmp_path):
    write, scale = MASKED[name]
    beside = ["Div", "Mul"] if "product" in name else []  # of the mask
    assert left(write, (SCORES, MASK), tmp_path) == [*beside, "ScaledMaskedSoftmax"]
    names, before, after = graft(write, SCORES, MASK)
    # What is not masked differs by at most 40 from the maximum; exp's argument and the score are rounded to it, and
    # n terms are added up.
    largest = np.abs(SCORES).max() * scale
    close(after[0], before[0], 2 * (8 * largest + N + 10))


@pytest.mark.parametrize("write", [exp_softmax, exp_inverse, exp_sum_ext])
def test_softmax_by_exp(write):
    names, before, after = graft(write, SCORES)
    assert names == ["ScaledMaskedSoftmax"]
    close(after[0], before[0], 2 * (4 * np.abs(SCORES).max() + N + 10))


def largest(x, axis, how="ReduceMax"):
    if how == "MaxDim":
        return ops.primitive("MaxDim", x, dim=axis, keepdim=True)[0]
    if how == "ArgMaxWithValue":
        return ops.primitive("ArgMaxWithValue", x, axis=axis, keep_dims=True)[1]
    return ops.primitive("ReduceMax", x, axis=[axis], keep_dims=True)


def exp_along(x, axis, of_sum=None, total="ReduceSum", invert=False, most="ReduceMax"):
    e = ops.exp(x - largest(x, axis, most))
    s = ops.primitive(total, e, axis=[axis if of_sum is None else of_sum], keep_dims=True)
    return e * ops.reciprocal(s) if invert else e / s


@pytest.mark.parametrize("rank,axis", [(rank, axis) for rank in range(1, 7) for axis in range(-rank, rank)])
def test_softmax_by_exp_along_any_axis(rank, axis, tmp_path):
    """Also where the sum counts it from the other end, and with what stands before a Softmax."""
    shape = (3, 2, 5, 4, 3, 2)[-rank:]
    x, m, keep = normal(*shape) * 4, normal(*shape[1:], seed=1), normal(*shape, seed=2) > 0
    other = axis - rank if axis >= 0 else axis + rank
    low = Tensor(np.float32(-1e4))
    for write, given in (
        (lambda x: exp_along(x, axis), [x]),
        (lambda x: exp_along(x, axis, of_sum=other, invert=True), [x]),
        (lambda x: exp_along(x * 0.125, axis, total="SumExt", most="MaxDim"), [x]),
        (lambda x: exp_along(x, axis, of_sum=other, most="ArgMaxWithValue"), [x]),
        (lambda x, m: exp_along(x / 8.0 + m, axis, of_sum=other, total="SumExt", invert=True), [x, m]),
        (lambda x, k: exp_along(ops.where(k, x, low) * 0.125, axis), [x, keep]),
    ):
        assert left(write, given, tmp_path) == ["ScaledMaskedSoftmax"]
        names, before, after = graft(write, *given)
        close(after[0], before[0], 2 * (4 * 20 + 5 + 10))  # scores of 20 at most, of which five at most are added up


@pytest.mark.parametrize("most", ["MaxDim", "ArgMaxWithValue"])
def test_a_place_of_the_maximum_that_is_used_is_left(most):
    def write(x):
        which = {"dim": -1, "keepdim": True} if most == "MaxDim" else {"axis": -1, "keep_dims": True}
        found = ops.primitive(most, x, **which)
        value, index = found if most == "MaxDim" else found[::-1]
        e = ops.exp(x - value)
        return e / ops.reduce_sum(e, -1, True), index

    names, before, after = graft(write, SCORES)
    assert names == []
    for a, b in zip(after, before):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("axes", [[1, 2], [-1, 0], []])
def test_softmax_over_several_axes_is_left_alone(axes):
    def write(x):
        e = ops.exp(x - ops.primitive("ReduceMax", x, axis=axes, keep_dims=True))
        return e / ops.primitive("ReduceSum", e, axis=axes, keep_dims=True)

    names, before, after = graft(write, SCORES, prove=False)
    assert names == []
    np.testing.assert_array_equal(after[0], before[0])


@pytest.mark.parametrize(
    "dtype,low", [(np.float16, -6e4), *((t, v) for t in (np.float32, BF16) for v in (-1e9, -1e30, -3e38))]
)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("scale", [0.3, 1 / 3, 80**-0.5])
def test_large_scores_that_are_equal(scale, low, axis, dtype):
    """As where a finite number hides a row whole before the scale: equal weights, and their gradient."""
    x, dy = np.full((6, 33, 20), low, np.float32).astype(dtype), normal(6, 33, 20).astype(dtype)
    y = _core.run_op(_core.resolve("ScaledMaskedSoftmax"), [x], {"scale": scale, "axis": axis})[0]
    n, to_type = x.shape[axis], {np.float32: 1, np.float16: 2**13, BF16: 2**16}[dtype]
    close(y, np.full(x.shape, 1 / n), n / 4 + 9 + to_type)
    dx = _core.run_op(_core.resolve("ScaledMaskedSoftmaxGrad"), [dy, y], {"scale": scale, "axis": axis})[0]
    # The sum of n products, of weights as good as these, whose rounding counts twice in it, and once in the product.
    wide = dy.astype(np.float64)
    mean = wide.mean(axis, keepdims=True)
    off = (3 * (n / 4 + 9 + to_type) + n + 12 + to_type) * U * (np.abs(wide) + np.abs(wide).mean(axis, keepdims=True))
    assert (np.abs(dx.astype(np.float64) - scale / n * (wide - mean)) <= scale / n * off + 2.0**-24).all()


def test_a_scale_of_scores_that_a_number_hid(tmp_path):
    """The graph's own product was rounded before its Softmax, and is one factor here."""
    x = SCORES.copy()
    x[1, 2] = np.finfo(np.float32).min
    x[0, :, 3, 5:] = -1e9
    for axis in (-1, 2, 0):
        write = lambda x: ops.softmax(x * 80**-0.5, axis)  # noqa: B023, E731
        assert left(write, (x,), tmp_path) == ["ScaledMaskedSoftmax"]
        names, before, after = graft(write, x, prove=False)
        close(after[0], before[0], 2 * (4 * 20 + N + 10))


@pytest.mark.parametrize("axis,of_sum", [(0, 1), (1, 2), (2, -1), (-1, -2), (-2, -3), (0, -1)])
def test_a_sum_along_another_axis_than_the_maximum(axis, of_sum):
    names, before, after = graft(lambda x: exp_along(x, axis, of_sum), SCORES, prove=False)
    assert names == []
    np.testing.assert_array_equal(after[0], before[0])


def test_a_mask_that_is_scaled_itself_is_said_nothing_of(tmp_path):
    """As BERT's (1 - m) * -1e4: it is no score, whatever it is a product of."""
    m = (MASK == 0).astype(np.float32)
    for write in (
        lambda x, m: ops.softmax((1.0 - m) * -1e4 + x / 8.0, -1),
        lambda x, m: ops.softmax(x * 0.125 + (1.0 - m) * -1e4, -1),
        lambda x, m: ops.softmax((1.0 - m) * -1e4 + x * 0.125, -1),
    ):
        graph = opgraft.load(opgraft.export(Net(write), Tensor(SCORES), Tensor(m), file_name=str(tmp_path / "net")))
        report = rewrite.substitute(graph)
        assert [n["op"] for n in graph.nodes] == ["Sub", "Mul", "ScaledMaskedSoftmax"]
        assert report.left == []


def test_a_scale_alone(tmp_path):
    for write in (
        lambda x: ops.softmax(x * 0.125, 1),
        lambda x: ops.softmax(x / 8.0, 1),
        lambda x: exp_softmax(x * 0.125),
        lambda x: exp_inverse(x / 8.0),
    ):
        assert left(write, (SCORES,), tmp_path) == ["ScaledMaskedSoftmax"]
        names, before, after = graft(write, SCORES)
        close(after[0], before[0], 2 * (4 * np.abs(SCORES).max() + N + 10))


def test_a_softmax_of_half_types_in_float32(tmp_path):
    """As transformers' models have it; what is scaled and masked before is rounded to the half type there, here not."""
    scores, mask = SCORES.astype(BF16), np.where(MASK < 0, -100, 0).astype(BF16)
    for write, given, scale in [
        (lambda x: ops.cast(ops.softmax(ops.cast(x, f32), -1), bf16), [scores], 1.0),
        (lambda x: ops.cast(ops.softmax(ops.cast(x * 0.125, f32), -1), bf16), [scores], 0.125),
        (lambda x, m: ops.cast(ops.softmax(ops.cast(x / 8.0 + m, f32), -1), bf16), [scores, mask], 0.125),
        (lambda x, m: ops.cast(ops.softmax(ops.cast(m + x, f32), -1), bf16), [scores, mask], 1.0),
    ]:
        assert left(write, given, tmp_path) == ["ScaledMaskedSoftmax"]
        got = graft(write, *given)[2][0]
        wide = [a.astype(np.float64) for a in given]
        s = wide[0] * scale + (wide[1] if len(wide) > 1 else 0.0)
        e = np.exp(s - s.max(-1, keepdims=True))
        want = e / e.sum(-1, keepdims=True)
        assert got.dtype == BF16
        # In float32, where scores up to 20 and their differences are rounded, and once to bfloat16 (or a denormal).
        allowed = (2.0**-8 + 2 * (8 * 20 + N + 10) * U) * want + 2.0**-133
        assert (np.abs(got.astype(np.float64) - want) <= allowed).all()
    wider = lambda x: ops.softmax(ops.cast(x, f32), -1)  # noqa: E731
    assert left(wider, [scores], tmp_path) == ["Cast", "Softmax"]


def test_the_exponential_of_softmax_over_its_range():
    """Of scores 0 and x: e^x, good to 1.75 roundings and |x| / 15, over 1 + e^x with as much of its part below a half;
    a sum, a quotient, a product."""
    x = np.linspace(-87.3, -0.01, 20011).astype(np.float32)
    got = _core.run_op(_core.resolve("Softmax"), [np.stack([0 * x, x], -1)], {})[0][:, 1]
    wide = np.exp(x.astype(np.float64))
    close(got, wide / (1 + wide), 1.5 * (1.75 - x / 15) + 3)


@pytest.mark.parametrize("shape,mask,axis", [
    ((2, 3, 64, 130), (64, 130), -1), ((2, 3, 64, 130), (130,), -1), ((2, 3, 64, 130), (2, 1, 1, 1), -1),
    ((2, 3, 64, 130), (1,), 1), ((40, 1000), (40, 1), 0), ((40, 1000), (40, 1000), 0),
])  # fmt: skip
def test_the_gradient_of_a_mask_has_the_same_bits_on_any_number_of_threads(shape, mask, axis):
    given = [normal(*shape), np.abs(normal(*shape, seed=1)), np.zeros(mask, np.float32)]
    found = []
    try:
        for threads in (1, 2, 3, 5):
            _core.set_threads(threads)
            found.append(_core.run_op(_core.resolve("ScaledMaskedSoftmaxGrad"), given, {"axis": axis})[1])
    finally:
        _core.set_threads(0)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].view(np.int32), other.view(np.int32))


def test_a_mask_that_is_larger_than_the_scores():
    """The sum is broadcast to the mask: it is the scores that stand for the mask then."""
    names, before, after = graft(lambda x, m: ops.softmax(x + m, -1), normal(1, N), SQUARE)
    assert names == ["ScaledMaskedSoftmax"]
    close(after[0], before[0], 2 * (4 * 8 + N + 10))
    names, before, after = graft(lambda x, m: ops.softmax(x + m, -1), normal(N, 1), normal(1, N, seed=1))
    assert names == []


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("scale", [1e-37, 1e-38])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_next_to_no_scale_of_numbers_whose_difference_float32_does_not_hold(dtype, scale, axis):
    x = np.array([[-3e38, 3e38, 1.0], [3e38, 3e38, -2.0]], dtype)
    got = _core.run_op(_core.resolve("ScaledMaskedSoftmax"), [x], {"scale": scale, "axis": axis})[0]
    s = x.astype(np.float64) * float(np.float32(scale))
    e = np.exp(s - s.max(axis, keepdims=True))
    bound = (2 * np.abs(s).max() + 8) * U + (2.0**-8 if dtype == BF16 else 0)  # the product's rounding, in both
    np.testing.assert_allclose(got.astype(np.float64), e / e.sum(axis, keepdims=True), rtol=bound, atol=2.0**-126)
