"""Quantising that stays in floats, as models trained for it have it: swapped for FakeQuantize with the same bits; what
looks like it is not."""

import numpy as np
import pytest
from compare import Net, graft
from opgraft import Tensor, ops

RNG = np.random.default_rng(0)
# Halves at a scale of 1/2, what is beyond the codes, what is no number.
SPECIAL = np.array([0.25, 0.75, -0.25, -0.75, 3.25, 1e3, -1e3, 63.75, -64.25, np.nan, np.inf, -np.inf], np.float32)
X = np.concatenate([SPECIAL, RNG.uniform(-70, 70, 4 * 7 * 33 - SPECIAL.size).astype(np.float32)]).reshape(4, 7, 33)
SCALES = {"tensor": np.float32(0.5), "one": np.full(1, 0.37, np.float32)} | {
    name: RNG.uniform(0.3, 0.8, shape).astype(np.float32) for name, shape in (("channel", (33,)), ("axis 1", (7, 1)))
}
TO = {"int8": (-128, 127), "narrow": (-127, 127), "uint8": (0, 255), "four bits": (-8, 7)}


def by_hand(y, least, most):
    return ops.minimum(ops.maximum(y, float(least)), float(most))


def from_above(y, least, most):
    return ops.maximum(ops.minimum(y, float(most)), float(least))


SPELLED = {  # p: x / s, or x times its inverse; z: a zero point
    "torch's": lambda p, s, z, *to: (ops.clamp(ops.round(p) + z, *to) - z) * s,
    "by hand": lambda p, s, z, *to: s * (by_hand(z + ops.round(p), *to) - z),
    "from above": lambda p, s, z, *to: (from_above(ops.Rint()(p) + z, *to) - z) * s,
    "as torch writes the formula": lambda p, s, z, *to: (ops.clamp(ops.round(p + z), *to) - z) * s,
    "the same by hand": lambda p, s, z, *to: (by_hand(ops.round(p + z), *to) - z) * s,
    "no zero point": lambda p, s, z, *to: ops.clamp(ops.round(p), *to) * s,
    "no zero point by hand": lambda p, s, z, *to: by_hand(ops.round(p), *to) * s,
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("how", ["divided", "multiplied"])
@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("name", SPELLED)
def test_a_spelling_is_swapped_with_the_same_bits(name, to, how, scale):
    s = SCALES[scale]
    inverse, z = (1 / s).astype(np.float32), RNG.integers(-20, 20, s.shape).astype(np.float32)

    def write(x, s, z, inverse):
        return SPELLED[name](x / s if how == "divided" else x * inverse, s, z, *TO[to])

    swapped, before, after = graft(write, *map(Tensor, (X, s, z, inverse)))
    assert swapped == ["FakeQuantize"]
    np.testing.assert_array_equal(after[0], before[0])  # NaN included
    shift, s64 = 0.0 if "no zero" in name else z.astype(np.float64), s.astype(np.float64)
    want = np.clip(X.astype(np.float64), *((limit - shift) * s64 for limit in TO[to]))
    ok = ~np.isnan(X)  # half a step; what is x times its inverse rounds
    assert (np.abs(after[0] - want)[ok] <= np.broadcast_to(s * (0.5 + 2.0**-13), X.shape)[ok]).all()
    assert np.isnan(after[0][~ok]).all()


def test_constants_as_a_traced_model_has_them():
    def write(x):
        return (ops.clamp(ops.round(x * (1 / 0.02)) + 3.0, 0, 255) - 3.0) * 0.02

    swapped, before, after = graft(write, Tensor(X))
    assert swapped == ["FakeQuantize"]
    np.testing.assert_array_equal(after[0], before[0])


@pytest.mark.parametrize("scale", SCALES)
def test_rounding_to_multiples_without_limits(scale):
    swapped, before, after = graft(lambda x, s: ops.round(x / s) * s, Tensor(X), Tensor(SCALES[scale]))
    assert swapped == ["FakeQuantize"]
    np.testing.assert_array_equal(after[0], before[0])


def test_weights_by_row():
    """As a layer's weight [N, K] is, with a scale for each output channel."""
    w, s = X[0], RNG.uniform(0.3, 0.8, (7, 1)).astype(np.float32)
    swapped, before, after = graft(lambda w, s: ops.clamp(ops.round(w / s), -127, 127) * s, Tensor(w), Tensor(s))
    assert swapped == ["FakeQuantize"]
    np.testing.assert_array_equal(after[0], before[0])


def clamped(p):
    return ops.clamp(ops.round(p), -128, 127)


NEAR = {
    "another zero point": lambda x, s, z: (ops.clamp(ops.round(x / s) + z, -128, 127) - (z + 1.0)) * s,
    "a zero point before alone": lambda x, s, z: ops.clamp(ops.round(x / s) + z, -128, 127) * s,
    "another scale": lambda x, s, z: clamped(x / s) * (s + 1.0),
    "not rounded": lambda x, s, z: ops.clamp(x / s, -128, 127) * s,
    "a zero point added": lambda x, s, z: (ops.clamp(ops.round(x / s) + z, -128, 127) + z) * s,
    "added": lambda x, s, z: clamped(x / s) + s,
    "limits by channel": lambda x, s, z: by_tensors(ops.round(x / s), z, z + 40.0) * s,
    "made larger": lambda x, s, z: clamped(x[:1, :1] / s) * s,
    "the scale is rounded": lambda x, s, z: clamped(s / x) * x,
}


def by_tensors(y, least, most):
    return ops.minimum(ops.maximum(y, least), most)


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_is_left_alone(name):
    s = RNG.uniform(0.3, 0.8, (7, 33) if name == "made larger" else (33,)).astype(np.float32)
    z = RNG.integers(-20, 20, 33).astype(np.float32)
    swapped, before, after = graft(NEAR[name], Tensor(X), Tensor(s), Tensor(z), prove=False)
    assert "FakeQuantize" not in swapped
    np.testing.assert_array_equal(after[0], before[0])


def test_codes_that_are_used_as_well_stay():
    def write(x, s):
        q = clamped(x / s)
        return q * s, q

    swapped, *_ = graft(write, Tensor(X), Tensor(SCALES["channel"]))
    assert swapped == []


def test_float16_is_left_alone():
    """Its quotient is rounded to eleven bits; the operator itself takes it, and rounds at the end."""
    x, s = (Tensor(a.astype(np.float16)) for a in (X, SCALES["channel"]))
    swapped, *_ = graft(lambda x, s: clamped(x / s) * s, x, s, prove=False)
    assert swapped == []
    y = Net(lambda x, s: ops.primitive("FakeQuantize", x, s))(x, s).asnumpy()
    assert y.dtype == np.float16
    a, b = (t.asnumpy().astype(np.float64) for t in (x, s))
    want = np.clip(np.rint(a / b), -128, 127) * b
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=2.0**-11 + 2.0**-23, atol=0)


def test_the_whole_of_a_layer():
    """Activations and weights, as a model that was trained for it is exported."""

    def write(x, w, sw):
        a = (ops.clamp(ops.round(x * 25.0) + 4.0, 0, 255) - 4.0) * 0.04
        return ops.matmul(a, ops.clamp(ops.round(w / sw), -127, 127) * sw, transpose_b=True)

    x, w = RNG.standard_normal((5, 33)).astype(np.float32), RNG.standard_normal((70, 33)).astype(np.float32)
    sw = RNG.uniform(0.01, 0.02, (70, 1)).astype(np.float32)
    swapped, before, after = graft(write, *map(Tensor, (x, w, sw)))
    assert swapped.count("FakeQuantize") == 2
    np.testing.assert_array_equal(after[0], before[0])
