"""Rows quantised while a model runs, as models spell it: swapped for DynamicQuantExt with the same bits, and with the
product behind it for QuantBatchMatmul; what looks like it is not."""

import numpy as np
import opgraft
import pytest
from compare import Net, graft
from opgraft import Tensor, nn, ops, rewrite

RNG = np.random.default_rng(0)
K, N = 33, 70
f32, i8 = opgraft.float32, opgraft.int8
# Rows of zeros, of numbers whose scale is 0 or no normal number, with an infinity, with a NaN; halves; a large range.
SPECIAL = np.zeros((8, K), np.float32)
SPECIAL[1, :4], SPECIAL[2, 3], SPECIAL[3, :2] = (127, -126.5, 2.5, 3.5), 1e-44, (3e-38, -2e-38)
SPECIAL[4, 5:7], SPECIAL[5, 8], SPECIAL[6, :3] = (np.inf, 3.0), np.nan, (3e38, -1e38, 1.0)
X = np.concatenate([SPECIAL, RNG.standard_normal((40, K)).astype(np.float32) * 7]).reshape(2, 24, K)


def largest(x, axis=-1, keep=True):
    return ops.primitive("ReduceMax", ops.abs(x), axis=[axis], keep_dims=keep)


SCALES = {
    "divided": lambda a: a / 127.0,
    "multiplied": lambda a: a * (1 / 127),
    "limited": lambda a: ops.maximum(a, 1e-5) / 127.0,
    "limited by clamp": lambda a: ops.clamp(a, min=1e-5) / 127.0,
    "limited behind": lambda a: ops.maximum(a / 127.0, 1e-5),
    "limited behind by clamp": lambda a: ops.clamp(a * (1 / 127), min=2e-7),
    "limited and multiplied": lambda a: ops.maximum(1e-5, a) * (1 / 127),
    "four bits": lambda a: a / 7.0,
    "by nothing": lambda a: a * 0.0,
    "limited by no number": lambda a: ops.maximum(a, float("nan")) / 127.0,
    "limited by no number behind": lambda a: ops.maximum(a / 127.0, float("nan")),
    "torchao's": lambda a: ops.clamp(a / 127.5, min=1e-6),
}
CODES = {
    "clamp": lambda r: ops.clamp(r, -128, 127),
    "narrow": lambda r: ops.clamp(r, -127, 127),
    "by hand": lambda r: ops.minimum(ops.maximum(r, -127.0), 127.0),
    "from above": lambda r: ops.maximum(ops.minimum(r, 127.0), -128.0),
    "four bits": lambda r: ops.clamp(r, -8, 7),
    "none": lambda r: r,
}


def quantised(x, scale, code):
    s = SCALES[scale](largest(x))
    return ops.cast(CODES[code](ops.round(x / s)), i8), s


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("scale", SCALES)
def test_a_spelling_is_swapped_with_the_same_bits(scale, code):
    swapped, before, after = graft(lambda x: quantised(x, scale, code), Tensor(X))
    assert swapped == ["DynamicQuantExt"]
    for was, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(now, was)
    assert after[0].dtype == np.int8 and after[1].shape == (2, 24, 1)
    rows = np.isfinite(X).all(-1)  # against float64: half a step, and what the steps round
    steps = np.abs(X[rows].astype(np.float64)) / np.maximum(after[1][rows].astype(np.float64), 1e-300)
    if "four" not in code:
        fits = (steps < 127) & (after[1][rows] > 1e-30)
        assert (np.abs(np.abs(after[0][rows].astype(int)) - steps) <= 0.5 + 2.0**-15)[fits].all()


def test_rows_of_zeros_have_codes_and_scale_zero():
    swapped, before, after = graft(lambda x: quantised(x, "divided", "clamp"), Tensor(X))
    assert swapped == ["DynamicQuantExt"]
    assert (after[0][0, 0] == 0).all() and after[1][0, 0] == 0 == before[1][0, 0]


@pytest.mark.parametrize("shape", [(3, K), (1, K), (2, 3, 4, K), (0, K), (K,), (3, 1)])
def test_of_any_rank(shape):
    x = RNG.standard_normal(shape).astype(np.float32)
    swapped, before, after = graft(lambda x: quantised(x, "limited", "clamp"), Tensor(x), prove=0 not in shape)
    assert swapped == ["DynamicQuantExt"]
    for was, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(now, was)


def spelled(a, x, b=None, levels=127.0):
    s = a / levels
    return ops.cast(ops.clamp(ops.round((x if b is None else b) / s), -128, 127), i8), s


NEAR = {
    "of a tensor": lambda x: spelled(ops.primitive("ReduceMax", ops.abs(x), axis=[], keep_dims=False), x),
    "of columns": lambda x: spelled(largest(x, -2), x),
    "of two axes": lambda x: spelled(ops.primitive("ReduceMax", ops.abs(x), axis=[-1, -2], keep_dims=True), x),
    "not of the size": lambda x: spelled(ops.primitive("ReduceMax", x, axis=[-1], keep_dims=True), x),
    "of another tensor": lambda x: spelled(largest(x), x, x + 1.0),
    "by the inverse": lambda x: (ops.cast(ops.clamp(ops.round(x * (127.0 / largest(x))), -128, 127), i8),
                                 largest(x) / 127.0),
    "limits that are no whole numbers": lambda x: quantise_within(x, -127.5, 127.0),
    "without a sign": lambda x: (ops.cast(ops.clamp(ops.round(x / (largest(x) / 127.0)), 0, 255), opgraft.uint8), x),
    "not rounded": lambda x: (ops.cast(ops.clamp(x / (largest(x) / 127.0), -128, 127), i8), x),
    "a level for each row": lambda x: spelled(largest(x), x, None, Tensor(np.full((24, 1), 127, np.float32))),
}  # fmt: skip


def quantise_within(x, least, most):
    s = largest(x) / 127.0
    return ops.cast(ops.clamp(ops.round(x / s), least, most), i8), s


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_is_left_alone(name):
    swapped, before, after = graft(NEAR[name], Tensor(X), prove=False)
    assert "DynamicQuantExt" not in swapped
    for was, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(now, was)


def test_float16_is_left_alone():
    """Its quotients are rounded to eleven bits, of which the operator knows nothing."""
    swapped, *_ = graft(lambda x: quantised(x, "divided", "clamp"), Tensor(X[:1, :3].astype(np.float16)), prove=False)
    assert swapped == []


def test_what_is_used_in_between_stays():
    """The largest of each row is a result itself."""

    def write(x):
        a = largest(x)
        s = a / 127.0
        return ops.cast(ops.clamp(ops.round(x / s), -128, 127), i8), s, a

    swapped, before, after = graft(write, Tensor(X))
    assert swapped == []


class Layer(nn.Cell):
    """A product of eight bits of activations that are quantised on the fly."""

    def __init__(self, scale, turned, bias):
        super().__init__()
        self.scale, self.turned, self.bias = scale, turned, bias

    def construct(self, x, w, s, b):
        codes, rows = quantised(x, self.scale, "narrow")
        y = ops.matmul(ops.cast(codes, f32), ops.cast(w, f32), transpose_b=self.turned) * rows * s
        return y + b if self.bias else y


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("scale", ["divided", "limited", "limited behind"])
def test_a_product_of_rows_quantised_on_the_fly(scale, turned, bias):
    x = RNG.standard_normal((2, 5, K)).astype(np.float32)
    x[1, 2] = 0
    w, s = RNG.integers(-127, 128, (N, K)).astype(np.int8), RNG.uniform(0.001, 0.01, N).astype(np.float32)
    b = RNG.standard_normal(N).astype(np.float32)
    given = [Tensor(x), Tensor(w if turned else w.T.copy()), Tensor(s), Tensor(b)]
    net = Layer(scale, turned, bias)
    net.set_inputs(*given)
    report = rewrite.substitute(net, prove=[given])
    names = [r["op"].split("@")[0] for r in report.swapped]
    assert names == ["DynamicQuantExt", "QuantBatchMatmul"] and not report.left, report
    codes, rows = (t.asnumpy().astype(np.float64) for t in Net(lambda x: quantised(x, scale, "narrow"))(given[0]))
    want = (codes @ w.T) * rows * s + (b if bias else 0)
    size = np.abs(want) + (np.abs(b) * 2 if bias else 0)
    assert (np.abs(net(*given).asnumpy() - want) <= 4 * 2.0**-24 * size).all()  # the sum is exact
