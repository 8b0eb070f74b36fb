"""Quantising to eight bits as models spell it: swapped for QuantV2, with the same bits; what looks like it is not."""

import numpy as np
import opgraft
import pytest
from compare import graft
from opgraft import Tensor, ops

RNG = np.random.default_rng(0)
# Halves at a scale of 1/2 or 2, what is beyond int8, what is no number.
SPECIAL = np.array([0.25, 0.75, -0.25, -0.75, 3.25, 1e3, -1e3, 63.75, -64.25, np.nan, np.inf, -np.inf], np.float32)
X = np.concatenate([SPECIAL, RNG.uniform(-70, 70, 4 * 7 * 33 - SPECIAL.size).astype(np.float32)]).reshape(4, 7, 33)
SCALES = {"tensor": np.float32(0.5), "one": np.full(1, 0.37, np.float32)} | {
    name: RNG.uniform(0.3, 0.8, shape).astype(np.float32) for name, shape in (("channel", (33,)), ("axis 1", (7, 1)))
}


def to_int8(y):
    return ops.cast(y, opgraft.int8)


def clip(y, least, most):
    return ops.minimum(ops.maximum(y, float(least)), float(most))


def clip_from_above(y, least, most):
    return ops.maximum(ops.minimum(y, float(most)), float(least))


def zero(z):
    """A zero point as ONNX has it, of eight bits."""
    return ops.cast(z, opgraft.float32)


SPELLED = {  # within a least and a largest code
    "no offset": lambda x, s, z, *to: to_int8(ops.clamp(ops.round(x / s), *to)),
    "by hand": lambda x, s, z, *to: to_int8(clip(ops.round(x / s), *to)),
    "by hand, from above": lambda x, s, z, *to: to_int8(clip_from_above(ops.round(x / s) + zero(z), *to)),
    "clipped first": lambda x, s, z, *to: to_int8(ops.round(ops.clamp(x / s, *to))),
    "clipped first from above": lambda x, s, z, *to: to_int8(ops.round(clip_from_above(x / s + zero(z), *to))),
    "clipped first by hand": lambda x, s, z, *to: to_int8(ops.Rint()(clip(x / s, *to))),
    "QuantizeLinear": lambda x, s, z, *to: to_int8(ops.clamp(ops.round(x / s) + zero(z), *to)),
    "QuantizeLinear by hand": lambda x, s, z, *to: to_int8(clip(zero(z) + ops.round(x / s), *to)),
    "torch's fake_quantize": lambda x, s, z, *to: to_int8(ops.clamp(ops.round(x / s + zero(z)), *to)),
    "its halves by hand": lambda x, s, z, *to: to_int8(clip(ops.round(x / s + zero(z)), *to)),
    "clipped first with an offset": lambda x, s, z, *to: to_int8(ops.round(clip(x / s + zero(z), *to))),
}
NO_CLIP = {"no clip": lambda x, s, z, *to: to_int8(ops.round(x / s))}


def to_uint8(y):
    return ops.cast(y, opgraft.uint8)


UNSIGNED = {  # the default of ONNX's quantisers for activations
    "no offset": lambda x, s, z, *to: to_uint8(ops.clamp(ops.round(x / s), *to)),
    "QuantizeLinear": lambda x, s, z, *to: to_uint8(ops.clamp(ops.round(x / s) + zero(z), *to)),
    "QuantizeLinear by hand": lambda x, s, z, *to: to_uint8(clip(zero(z) + ops.round(x / s), *to)),
    "torch's fake_quantize": lambda x, s, z, *to: to_uint8(ops.clamp(ops.round(x / s + zero(z)), *to)),
    "clipped first": lambda x, s, z, *to: to_uint8(ops.round(clip(x / s + zero(z), *to))),
    "from above": lambda x, s, z, *to: to_uint8(clip_from_above(ops.round(x / s) + zero(z), *to)),
}
FULL, NARROW, FOUR = (-128, 127), (-127, 127), (-8, 7)  # TensorRT's and torch's narrow range; four bits in eight
NEAR = {
    "to uint8 within int8": lambda x, s, z: to_uint8(ops.clamp(ops.round(x / s), -128, 127)),
    "to int8 within uint8": lambda x, s, z: to_int8(ops.clamp(ops.round(x / s), 0, 255)),
    "limits that are no whole numbers": lambda x, s, z: to_int8(ops.clamp(ops.round(x / s), -127.5, 127)),
    "one limit": lambda x, s, z: to_int8(ops.clamp(ops.round(x / s), min=-127)),
    "a limit for each channel": lambda x, s, z: to_int8(clip_by(ops.round(x / s), zero(z))),
    "not rounded": lambda x, s, z: to_int8(ops.clamp(x / s, -128, 127)),
    "not rounded, narrow": lambda x, s, z: to_int8(clip(x / s, *NARROW)),
    "the scale is quantised": lambda x, s, z: to_int8(ops.clamp(ops.round(s / x), -128, 127)),
    "offset after the clip": lambda x, s, z: to_int8(ops.clamp(ops.round(x / s), -128, 127) + zero(z)),
    "to int32": lambda x, s, z: ops.cast(ops.clamp(ops.round(x / s), -127, 127), opgraft.int32),
}


def clip_by(y, least):
    return ops.minimum(ops.maximum(y, least), 127.0)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("how", ["divided", "multiplied"])
@pytest.mark.parametrize("name,to", [*((n, t) for n in SPELLED for t in (FULL, NARROW, FOUR)), ("no clip", FULL)])
def test_a_spelling_is_swapped(name, to, how, scale):
    f, s = (SPELLED | NO_CLIP)[name], SCALES[scale]
    z = RNG.integers(-20, 20, s.shape).astype(np.int8)

    def write(x, s, z):
        return f(x, s, z, *to) if how == "divided" else f(_Times(x), s, z, *to)

    swapped, before, after = graft(write, Tensor(X), Tensor(s), Tensor(z))
    assert swapped == ["QuantV2"]
    np.testing.assert_array_equal(after[0], before[0])  # the same bits, halves included
    v = X.astype(np.float64) / s if how == "divided" else X * s.astype(np.float64)
    assert (abs(after[0] - np.clip(np.nan_to_num(v, nan=0), *to)) <= 21).all()  # a half and the zero point
    assert (after[0].min(), after[0].max()) == to


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("how", ["divided", "multiplied"])
@pytest.mark.parametrize("to", [(0, 255), (1, 127)])
@pytest.mark.parametrize("name", UNSIGNED)
def test_a_spelling_without_a_sign_is_swapped(name, to, how, scale):
    f, s = UNSIGNED[name], SCALES[scale]
    z = np.full(s.shape, 0 if name == "no offset" else 117, np.uint8)

    def write(x, s, z):
        return f(x, s, z, *to) if how == "divided" else f(_Times(x), s, z, *to)

    swapped, before, after = graft(write, Tensor(X), Tensor(s), Tensor(z))
    assert swapped == ["QuantV2"] and after[0].dtype == np.uint8
    np.testing.assert_array_equal(after[0], before[0])
    v = X.astype(np.float64) / s if how == "divided" else X * s.astype(np.float64)
    # Half a step; the zero point is odd: before it is rounded a half goes to the other neighbour.
    ok = ~np.isnan(X)
    assert (abs(after[0] - np.clip(v + z.astype(float), *to))[ok] <= 0.5 + 2.0**-13).all()
    assert (after[0] == to[0]).any() and after[0].max() == to[1]


class _Times:
    """x / s becomes x times s."""

    def __init__(self, x):
        self.x = x

    def __truediv__(self, s):
        return self.x * s


def test_an_offset_that_is_no_whole_number_is_cut_where_it_was():
    def write(x, s):
        return to_int8(ops.clamp(ops.round(x / s) + 0.75, -128, 127))

    swapped, before, after = graft(write, Tensor(X), Tensor(SCALES["channel"]))
    assert swapped == ["QuantV2"]
    np.testing.assert_array_equal(after[0], before[0])


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_is_left_alone(name):
    given = Tensor(X), Tensor(SCALES["channel"]), Tensor(RNG.integers(-20, 20, 33).astype(np.int8))
    swapped, before, after = graft(NEAR[name], *given, prove=False)
    assert "QuantV2" not in swapped
    np.testing.assert_array_equal(after[0], before[0])


def test_float16_is_left_alone():
    """Its quotient is rounded to eleven bits, of which the operator knows nothing."""
    x, s = (Tensor(a.astype(np.float16)) for a in (X, SCALES["channel"]))
    swapped, *_ = graft(lambda *a: SPELLED["no offset"](*a, *FULL), x, s, Tensor(np.zeros(33, np.int8)), prove=False)
    assert swapped == []


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_there_and_back(dtype):
    """As QDQ models have it: quantised, then widened again."""
    quantise, to = (SPELLED["QuantizeLinear"], FULL) if dtype == np.int8 else (UNSIGNED["QuantizeLinear"], (0, 255))

    def write(x, s, z):
        return (ops.cast(quantise(x, s, z, *to), opgraft.float32) - zero(z)) * s

    given = Tensor(X), Tensor(SCALES["channel"]), Tensor(RNG.integers(0, 20, 33).astype(dtype))
    swapped, before, after = graft(write, *given)
    assert sorted(swapped) == ["AntiQuant", "QuantV2"]
    np.testing.assert_array_equal(after[0], before[0])
