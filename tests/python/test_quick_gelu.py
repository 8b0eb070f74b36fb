"""CLIP's quick GELU, x Sigmoid(1.702 x), in the ways it is written, becomes FastGeLU."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import cases, graft, left, normal, stays
from opgraft import ops

ELEMENTWISE = cases("elementwise")


def p(name, *inputs, **attrs):
    """A primitive as it stands, numbers as constants of float32."""
    return ops.primitive(name, *[np.float32(x) if isinstance(x, float) else x for x in inputs], **attrs)


QUICK = {
    "CLIP": lambda x: x * ops.sigmoid(1.702 * x),
    "sigmoid first": lambda x: ops.sigmoid(x * 1.702) * x,
    "ONNX": lambda x: p("Mul", x, p("Sigmoid", p("Mul", x, 1.702))),
    "exp": lambda x: x / (1.0 + ops.exp(-1.702 * x)),
    "exp, negated": lambda x: x / (ops.exp(-(1.702 * x)) + 1.0),
}


def bound(x):
    return ELEMENTWISE.fast_gelu_bound(None, x) + ELEMENTWISE.ROUNDINGS["FastGeLU"] * 2.0**-24 * np.abs(exact(x))


def exact(x):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-1.702 * x))


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("shape,proven", [((3, 37), True), ((3, 37), False), ((1,), True), ((1,), False),
                                          ((0, 4), False)])  # fmt: skip
def test_the_ways_it_is_written(shape, proven, name, tmp_path):
    x = normal(*shape) * 4
    names, _, (got,) = graft(QUICK[name], x, prove=proven)
    assert names == ["FastGeLU"] and left(QUICK[name], (x,), tmp_path) == ["FastGeLU"]
    x = x.astype(np.float64)
    assert (np.abs(got - exact(x)) <= bound(x)).all()


def in_float32(x):
    y = ops.cast(x, opgraft.float32)
    return ops.cast(y * ops.sigmoid(1.702 * y), opgraft.float16)


@pytest.mark.parametrize("write,dtype,u", [
    (QUICK["CLIP"], np.float16, 2.0**-11), (QUICK["CLIP"], ml_dtypes.bfloat16, 2.0**-8),
    (in_float32, np.float16, 2.0**-11),
])  # fmt: skip
def test_half_types(write, dtype, u):
    x = (normal(3, 37) * 4).astype(dtype)
    names, _, (got,) = graft(write, x)
    assert names[-1] == "FastGeLU" and got.dtype == dtype
    x = x.astype(np.float64)
    # Computed in float32 and rounded once; below 2^-14 float16 has steps of 2^-24.
    assert (np.abs(got.astype(np.float64) - exact(x)) <= u * np.abs(exact(x)) + 2 * bound(x) + 2.0**-25).all()


def test_far_out():
    """Where exp overflows both give 0, an infinity stays one; NaN is NaN."""
    x = np.float32([-1e30, -200, -60, 60, 1e30, np.inf, np.nan])
    for name in QUICK:
        with np.errstate(all="ignore"):
            names, (before,), (after,) = graft(QUICK[name], x, prove=False)
            allowed = 2 * bound(x.astype(np.float64))
        assert names == ["FastGeLU"]
        finite = np.isfinite(x)
        assert (np.abs(after[finite].astype(np.float64) - before[finite]) <= allowed[finite]).all()
        np.testing.assert_array_equal(after[~finite], before[~finite])


@pytest.mark.parametrize("write", [
    lambda x: x * ops.sigmoid(1.7 * x),
    lambda x: x * ops.sigmoid(-1.702 * x),
    lambda x: (x + 1.0) * ops.sigmoid(1.702 * x),
    lambda x: (1.702 * x) * ops.tanh(1.702 * x),
    lambda x: x / (1.0 + ops.exp(1.702 * x)),
    lambda x: x / (2.0 + ops.exp(-1.702 * x)),
    lambda x: x * ops.sigmoid(1.702 + x),
])  # fmt: skip
def test_what_is_another_function(write):
    stays(write, normal(3, 37))


def test_a_sigmoid_that_is_used_as_well():
    stays(lambda x: (x * ops.sigmoid(1.702 * x), 1.702 * x), normal(3, 37))
