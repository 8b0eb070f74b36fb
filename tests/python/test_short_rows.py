"""Rows shorter than a vector, of which kernels take several at once, long ones and wide columns: what the twin has, and
each row as it is alone."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from opgraft import _core
from targets import every_other_kernel, run_again

# A rounding to the type, and of float32 what n additions and an exponential lose (aot_ops/*/cases.py).
DTYPES = {
    "float32": (np.float32, 64 * 2.0**-24),
    "float16": (np.float16, 2.0**-10),
    "bfloat16": (ml_dtypes.bfloat16, 2.0**-7),
}


def run(op, inputs, attrs=None):
    return _core.run_op(_core.resolve(op), [a.copy() for a in inputs], attrs or {})


def check(op, inputs, attrs, rtol, atol=1e-30):
    got = run(op, inputs, attrs)
    twin = [np.empty_like(a) for a in got]
    _core.run_reference_into(_core.resolve(op), [a.copy() for a in inputs], twin, attrs)
    for a, b in zip(got, twin, strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        close = np.isclose(a, b, rtol, np.maximum(atol, 2.0**-24 if rtol > 1e-4 else 0), equal_nan=True)
        assert close.all(), (a[~close], b[~close])
    return got


def values(dtype, *shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(DTYPES[dtype][0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["FusedRmsNorm", "RmsNorm", "FusedAddRmsNorm", "AddRmsNorm"])
def test_norms(op, dtype):
    rtol = DTYPES[dtype][1]
    for n in [*range(1, 26), 31, 32, 33, 100, 256, 257]:
        for rows in (1, 2, 7, 16, 300):
            add = "Add" in op
            x, gamma = [values(dtype, rows, n, seed=k) for k in range(1 + add)], values(dtype, n, seed=9)
            # beside ordinary rows some whose squares float32 does not hold: they must not change the others
            for k, scale in ((0, 1e25), (3, 1e-25), (5, np.nan)) if dtype != "float16" and rows > 2 else ():
                x[0][k] = (x[0][k].astype(np.float64) * scale).astype(x[0].dtype)
            got = check(op, [*x, gamma], {}, rtol)
            for r in range(0, rows, 5):
                alone = run(op, [*(a[r : r + 1] for a in x), gamma])
                for a, b in zip(got, alone, strict=True):
                    np.testing.assert_array_equal(a[r : r + 1].astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["FusedLayerNorm", "LayerNorm", "LayerNormExt", "AddLayerNorm"])
def test_norms_that_subtract_the_mean(op, dtype):
    rtol = DTYPES[dtype][1]
    for n in [*range(1, 18), 31, 32, 33, 100]:
        for rows in (1, 2, 7, 16, 300):
            x = [values(dtype, rows, n, seed=k) for k in range(1 + (op == "AddLayerNorm"))]
            parameters = [values(dtype, n, seed=8), values(dtype, n, seed=9)]
            for k, scale in ((0, 1e25), (3, 1e-25), (5, np.nan)) if dtype != "float16" and rows > 2 else ():
                x[0][k] = (x[0][k].astype(np.float64) * scale).astype(x[0].dtype)
            attrs = {"normalized_shape": [n]} if op == "LayerNormExt" else {}
            # What a difference of numbers of up to 4 loses by its rounding and by that of the mean, over the row's
            # deviation; of half types less than their own rounding.
            deviation = np.sqrt(sum(a.astype(np.float64) for a in x).var(1, keepdims=True) + 1e-5)
            got = check(op, [*x, *parameters], attrs, rtol, np.nan_to_num(16 * 2.0**-24 / deviation, nan=0.0))
            for r in range(0, rows, 5):
                alone = run(op, [*(a[r : r + 1] for a in x), *parameters], attrs)
                for a, b in zip(got, alone, strict=True):
                    np.testing.assert_array_equal(a[r : r + 1].astype(np.float64), b.astype(np.float64))
            if op == "FusedLayerNorm":
                in_place = x[0].copy()
                _core.run_into(_core.resolve(op), [in_place, *parameters], [in_place], {})
                np.testing.assert_array_equal(in_place.astype(np.float64), got[0].astype(np.float64))


# The mean of what float32 has of numbers around a million; its deviation is one.
@pytest.mark.parametrize("n", range(2, 18))
def test_a_mean_far_above_the_deviation(n):
    x = (1e6 + np.random.default_rng(n).standard_normal((50, n))).astype(np.float32)
    (got,) = run("FusedLayerNorm", [x])
    exact = x.astype(np.float64)
    exact -= exact.mean(1, keepdims=True)
    np.testing.assert_allclose(got, exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-5), 1e-5, 1e-5)


def masks(dtype, *shape):
    """Of x of this shape, as they broadcast: numbers, and bools of which some are True in each row."""
    for dims in itertools.product((0, 1), repeat=len(shape)):
        of = [n if keep else 1 for n, keep in zip(shape, dims, strict=True)]
        yield values(dtype, *of, seed=1)
        yield np.random.default_rng(2).random(of) < 0.6


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_short_rows(dtype):
    for n in range(1, 18):
        for shape in ((3, n), (5, 7, n), (2, 3, 4, n)):
            x = values(dtype, *shape)
            x[(0,) * len(shape)] = -np.inf
            x[(-1,) * (len(shape) - 1)] = np.nan
            for scale in (1.0, 0.3):
                check("ScaledMaskedSoftmax", [x], {"scale": scale}, DTYPES[dtype][1])
            for mask in masks(dtype, *shape):
                attrs = {"scale": 0.3} if mask.dtype == bool else {"scale": 0.3, "mask_scale": 0.5}
                (got,) = check("ScaledMaskedSoftmax", [x, mask], attrs, DTYPES[dtype][1])
                first = mask if mask.shape[0] == 1 else mask[:1]
                (alone,) = run("ScaledMaskedSoftmax", [x[:1], first], attrs)
                np.testing.assert_array_equal(got[:1].astype(np.float64), alone.astype(np.float64))
                in_place = x.copy()
                _core.run_into(_core.resolve("ScaledMaskedSoftmax"), [in_place, mask], [in_place], attrs)
                np.testing.assert_array_equal(in_place.astype(np.float64), got.astype(np.float64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_halves(dtype):
    for half in [*range(1, 36), 48, 64]:
        for rows in (1, 2, 5, 16, 130):
            for gate_first in (True, False):
                x = values(dtype, rows, 2 * half)
                got = check("Swiglu", [x], {"gate_first": gate_first}, DTYPES[dtype][1])
                alone = run("Swiglu", [x[-1:]], {"gate_first": gate_first})
                np.testing.assert_array_equal(got[0][-1:], alone[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, axis", [((16, 64), 0), ((20, 300), 0), ((600, 130), 0), ((2, 530, 70), 1),
                                         ((17, 1100), 0), ((1030, 65), 0), ((3, 40, 5, 30), 1)])  # fmt: skip
def test_softmax_of_columns(shape, axis, dtype):
    for scale in (1.0, 0.3):
        x = values(dtype, *shape)
        x[tuple(0 if k == axis else slice(None) for k in range(len(shape)))] = -np.inf  # a hidden element
        got = check("ScaledMaskedSoftmax", [x], {"axis": axis, "scale": scale}, DTYPES[dtype][1])
        np.testing.assert_allclose(got[0].astype(np.float64).sum(axis), 1, DTYPES[dtype][1] * 8)
        in_place = x.copy()
        _core.run_into(_core.resolve("ScaledMaskedSoftmax"), [in_place], [in_place], {"axis": axis, "scale": scale})
        np.testing.assert_array_equal(in_place, got[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("n", [63, 64, 65, 96, 4096, 4097, 16400, 32768, 33000])
def test_softmax_of_long_rows(n, dtype):
    x = values(dtype, 3, n)
    x[1, n // 2] = np.nan
    got = check("Softmax", [x], {}, DTYPES[dtype][1])
    assert np.isnan(got[0][1].astype(np.float32)).all()
    mask = values(dtype, 3, n, seed=1)
    check("ScaledMaskedSoftmax", [x, mask], {"scale": 0.5}, DTYPES[dtype][1])


@every_other_kernel
def test_every_target(target):
    """Again under another SIMD target."""
    run_again(__file__, target)
