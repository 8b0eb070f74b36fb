"""GELU by erf over all sizes of x, against the C library's erfc in double precision."""

import math

import numpy as np
import pytest
from opgraft import _core
from targets import IN_FORCE

erfc = np.vectorize(math.erfc, otypes=[np.float64])
# Roundings of the polynomials' sums, and what the polynomials are off: aot_ops/common/gelu-inl.h.
ERROR = 1.5e-7 if IN_FORCE in ("AVX3", "AMX") else 3e-7


def gelu(x):
    return _core.run_op(_core.resolve("FusedGeLU"), [x], {"approximate": "none"})[0]


def everywhere():
    """float32 of either sign: close together where GELU bends, and of every size."""
    near = np.linspace(-7, 7, 700_001)
    sizes = 10.0 ** np.linspace(-37, 37, 150_001)
    return np.concatenate([near, sizes, -sizes]).astype(np.float32)


def test_the_error_is_a_rounding_or_two_at_every_x():
    x = everywhere()
    wide = x.astype(np.float64)
    want = wide * 0.5 * erfc(-wide / math.sqrt(2))
    error = np.abs(gelu(x) - want) / np.maximum(np.abs(wide), 1)
    assert error.max() <= ERROR, f"{error.max()} at {x[error.argmax()]}"


def test_near_zero_half_of_x_to_the_last_bits():
    x = everywhere()
    x = x[(np.abs(x) < 1e-8) & (np.abs(x) > 1e-30)]
    want = x.astype(np.float64) / 2
    assert (np.abs(gelu(x) - want) <= 2.0**-23 * np.abs(want)).all()


@pytest.mark.parametrize("size", [5.7, 6.0, 88.0, 1e4, 3e38])
def test_far_from_zero_x_or_nothing(size):
    x = np.full(33, size, np.float32)
    np.testing.assert_array_equal(gelu(x), x)
    assert (np.abs(gelu(-x)) <= ERROR * size).all() and (size < 6 or not gelu(-x).any())


def test_nan_and_infinity():
    x = np.array([np.nan, np.inf, -np.inf] * 11, np.float32)
    got = gelu(x)
    assert np.isnan(got[0::3]).all() and (got[1::3] == np.inf).all() and np.isnan(got[2::3]).all()
