"""Rows shorter than a vector, of which kernels take several at once, long ones and wide columns: what the twin has, and
each row as it is alone."""

import ml_dtypes
import numpy as np
import pytest
from opgraft import _core
from targets import every_other_target, run_again

# A rounding to the type, and of float32 what n additions and an exponential lose (aot_ops/*/cases.py).
DTYPES = {
    "float32": (np.float32, 64 * 2.0**-24),
    "float16": (np.float16, 2.0**-10),
    "bfloat16": (ml_dtypes.bfloat16, 2.0**-7),
}


def run(op, inputs, attrs=None):
    return _core.run_op(_core.resolve(op), [a.copy() for a in inputs], attrs or {})


def check(op, inputs, attrs, rtol):
    got = run(op, inputs, attrs)
    twin = [np.empty_like(a) for a in got]
    _core.run_reference_into(_core.resolve(op), [a.copy() for a in inputs], twin, attrs)
    for a, b in zip(got, twin, strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol, 2.0**-24 if rtol > 1e-4 else 1e-30)
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


@every_other_target
def test_every_target(target):
    """Again under another SIMD target."""
    run_again(__file__, target)
