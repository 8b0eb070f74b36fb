"""Products of bfloat16 and of bytes at every number of rows, which AMX multiplies by 32 and 16, AVX-512 by 12, and at
sums that end within a tile or have no steps."""

import ml_dtypes
import numpy as np
import pytest
from opgraft import _core
from targets import every_other_target, run_again

STEPS = [0, 1, 2, 31, 32, 33, 64, 95, 130]


def product(a, b, turned=False):
    return _core.run_op(_core.resolve("MatMul"), [a, b], {"transpose_a": False, "transpose_b": turned})[0]


def bound(a, b):
    """Of a sum of bfloat16 numbers: products are exact, each of k additions and the result round once."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a.shape[1] * 2.0**-23 * (abs(a) @ abs(b)) + 2.0**-8 * abs(a @ b)


@pytest.mark.parametrize("k", STEPS)
@pytest.mark.parametrize("n", [1, 32, 70])
def test_bfloat16(k, n):
    rng = np.random.default_rng(k)
    a = rng.standard_normal((230, k)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((k, n)).astype(ml_dtypes.bfloat16)
    want, most = a.astype(np.float64) @ b.astype(np.float64), bound(a, b)
    for m in [*range(1, 70), 191, 193, 225]:
        assert (abs(product(a[:m], b).astype(np.float64) - want[:m]) <= most[:m]).all(), m


@pytest.mark.parametrize("k", [4100, 9001])
def test_sums_so_long_that_they_are_made_in_pieces(k):
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((225, k), (k, 140)))
    want, most = a.astype(np.float64) @ b.astype(np.float64), bound(a, b)
    for m in (3, 33, 192, 225):
        assert (abs(product(a[:m], b).astype(np.float64) - want[:m]) <= most[:m]).all(), m


@pytest.mark.parametrize("k", [33, 34, 64, 130])
@pytest.mark.parametrize("n", [1, 31, 32, 100])
def test_a_matrix_that_lies_turned_gives_the_same_bits(k, n):
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((40, k), (k, n)))
    odd = np.empty(b.size + 1, b.dtype)[1:].reshape(n, k)  # at an odd number
    odd[:] = b.T
    for turned in (np.ascontiguousarray(b.T), odd):
        np.testing.assert_array_equal(product(a, turned, True).view(np.uint16), product(a, b).view(np.uint16))


@pytest.mark.parametrize("k", [33, 64, 95])
def test_what_is_not_finite_stays_in_its_row_and_column(k):
    """A row of a tile that ends within it is followed by zeros, not by the next row."""
    rng = np.random.default_rng(k)
    a = rng.standard_normal((61, k)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((k, 67)).astype(ml_dtypes.bfloat16)
    clean = product(a, b).astype(np.float32)
    a[[3, 17, 60], [0, 5, k - 1]] = np.inf, np.nan, -np.inf
    b[[0, k - 1], [31, 66]] = np.nan, np.inf
    y = product(a, b).astype(np.float32)
    assert not np.isfinite(y[[3, 17, 60]]).any() and not np.isfinite(y[:, [31, 66]]).any()
    rows, columns = np.delete(np.arange(61), [3, 17, 60]), np.delete(np.arange(67), [31, 66])
    np.testing.assert_array_equal(y[np.ix_(rows, columns)], clean[np.ix_(rows, columns)])


@pytest.mark.parametrize("k", STEPS)
@pytest.mark.parametrize("unsigned", [False, True])
def test_bytes(k, unsigned):
    """Exact, whatever the numbers; offsets too."""
    rng = np.random.default_rng(k)
    low, high, dtype = (0, 256, np.uint8) if unsigned else (-128, 128, np.int8)
    a, b = rng.integers(low, high, (230, k)).astype(dtype), rng.integers(-128, 128, (k, 70)).astype(np.int8)
    a[:, -1:], b[-1:] = high - 1, -128
    zero = 7 if unsigned else -3
    want = (a.astype(np.int64) - zero) @ (b.astype(np.int64) - 5)
    op, none = _core.resolve("QuantBatchMatmul"), np.zeros(0, np.float32)
    for m in [*range(1, 70), 191, 193, 225]:
        got = _core.run_op(op, [a[:m], b, none], {"dtype": "int32", "x1_offset": float(zero), "x2_offset": 5.0})[0]
        np.testing.assert_array_equal(got, want[:m])


@every_other_target
def test_every_target_multiplies_so(target):
    assert " passed" in run_again(__file__, target)
