"""Normalisations: large means cost no accuracy, rows beyond float32's squares neither, and LayerNormExt's gradient is
that of the formula."""

import numpy as np
import pytest
from compare import U, cases, normal
from opgraft import _core
from opgraft.dtype import to_dtype

LAYER_NORM, RMS_NORM = cases("layernorm"), cases("rmsnorm")


def run(name, *given, **attrs):
    return _core.run_op(_core.resolve(name), list(given), attrs)


def check(got, want, allowed):
    """Within that share of the largest."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert (np.abs(got - want) <= allowed * np.abs(want).max()).all(), f"{got} instead of {want}"


def test_a_mean_that_is_large_beside_the_deviation():
    """One sweep that takes E[x]^2 from E[x^2] has nothing left in float32 of rows about 10000 with a deviation of 1."""
    n = 1024
    x = (10000 + np.random.default_rng(0).integers(-8, 9, (4, n)) / 4).astype(np.float32)  # exact in float32
    wide = x.astype(np.float64)
    variance = wide.var(-1, keepdims=True)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-5)
    # n / 8 + 8 additions in a lane, relative to the normalised row (aot_ops/layernorm/cases.py).
    allowed = (n / 8 + 8) * U * (1 + np.abs(want))

    mean = x.mean(-1, keepdims=True, dtype=np.float32)
    naive = (x * x).mean(-1, keepdims=True, dtype=np.float32) - mean * mean
    with np.errstate(invalid="ignore"):
        found = (x - mean) / np.sqrt(naive + np.float32(1e-5))
    assert not (np.abs(found - want) <= 1000 * allowed).all()

    ones, zeros = np.ones(n, np.float32), np.zeros(n, np.float32)
    for name, given in [
        ("LayerNorm", [x, ones, zeros]),
        ("FusedLayerNorm", [x]),
        ("AddLayerNorm", [x, x * 0, ones, zeros]),
    ]:
        got = _core.run_op(_core.resolve(name), given, {"epsilon": 1e-5})
        assert (np.abs(got[0] - want) <= allowed).all()
        if name == "LayerNorm":
            np.testing.assert_allclose(got[2], variance, rtol=(n / 8 + 8) * U)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [1e-25, 1e25, 1e30, 1e38])
def test_a_row_whose_squares_float32_does_not_hold(scale, dtype):
    """Relative to the row, as any other: one rounding to the type, and n / 2 + 32 additions and products before it
    (aot_ops/layernorm/cases.py). The gradient of such a row is as small as the row is large."""
    n = 8
    x = (np.array([[1, -1, 2, -2, 0.5, -0.5, 3, -3]]) * scale).astype(to_dtype(dtype))
    dy, ones, zeros = (np.array(v).astype(x.dtype) for v in ([[2e3, 0, 0, 0, 0, 0, 0, 3e3]], [1.0] * n, [0.0] * n))
    wide, attrs = x.astype(np.float64), {"epsilon": 0.0}
    want, mean, variance = LAYER_NORM.layer_norm(wide, epsilon=0.0)
    slope, dgamma, dbeta = LAYER_NORM.gradient(dy.astype(np.float64), wide, epsilon=0.0)

    allowed = (U if dtype == "float32" else 2.0**-8) + (n / 2 + 32) * U
    y, rows_mean, rows_variance = run("LayerNorm", x, ones, zeros, **attrs)
    check(y, want, allowed)
    assert rows_mean[0, 0] == mean[0, 0] == 0
    assert rows_variance[0, 0] == np.float64(variance[0, 0]).astype(np.float32)  # beyond float32: inf, or 0
    check(run("FusedLayerNorm", x, **attrs)[0], want, allowed)
    check(run("AddLayerNorm", x, x * 0, **attrs)[0], want, allowed)
    rstd = run("LayerNormExt", x, normalized_shape=[n], eps=0.0)[2]
    check(rstd, 1 / np.sqrt(variance), allowed)
    for got in (
        run("FusedLayerNormGrad", dy, x, **attrs),
        run("LayerNormGradExt", dy, x, rows_mean, rstd, normalized_shape=[n]),
        *([run("LayerNormGrad", x, dy, rows_variance, rows_mean, ones, **attrs)] if scale > 1 else []),
    ):
        for g, w in zip(got, (slope, dgamma, dbeta), strict=True):
            check(g, w, allowed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [1e-39, 2e-39, 1e-38, 1e-25, 1e25, 1e38])
def test_a_row_whose_root_of_squares_is_at_float32_s_ends(scale, dtype):
    """As above, n / 32 + 8 roundings and, in the gradients, n / 4 + 48 (aot_ops/rmsnorm/cases.py). The root's inverse
    is beyond float32 below 2.9e-39: rstd is infinite there, and the row and gamma's gradient are as any other's."""
    n = 8
    x = (np.array([[1, -1, 2, -2, 0.5, -0.5, 3, -3]]) * scale).astype(to_dtype(dtype))
    slope = min(1.0, scale) * 8  # of dy, so that dx is no more than float32 holds
    dy, ones = (np.array(v).astype(x.dtype) for v in ([[2 * slope, 0, 0, 0, slope, 0, 0, 3 * slope]], [1.0] * n))
    wide, attrs = x.astype(np.float64), {"epsilon": 0.0}
    own, tiny = (U, 2.0**-149) if dtype == "float32" else (2.0**-8, 2.0**-133)
    want, rstd = RMS_NORM.rms_norm(wide, epsilon=0.0)
    allowed = own + (n / 32 + 8) * U
    y, rows_rstd = run("RmsNorm", x, ones, **attrs)
    check(y, want, allowed)
    with np.errstate(over="ignore"):
        rounded = rstd.astype(np.float32)
    np.testing.assert_allclose(rows_rstd, rounded, rtol=allowed, atol=2.0**-149)
    check(run("FusedRmsNorm", x, **attrs)[0], want, allowed)
    check(run("FusedAddRmsNorm", x, x * 0, **attrs)[0], want, allowed)
    dx, dgamma = RMS_NORM.gradient(dy.astype(np.float64), wide, epsilon=0.0)
    allowed = own + (n / 4 + 48) * U
    for got in (run("FusedRmsNormGrad", dy, x, **attrs), run("RmsNormGrad", dy, x, rows_rstd, ones)):
        check(got[0], dx, allowed)
        check(got[1], dgamma, allowed + tiny / np.abs(dgamma).max())


@pytest.mark.parametrize("rows", [4, 44, 1000])
@pytest.mark.parametrize("scale", [None, 0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gradient_of_parameters_whose_sum_overflows_on_the_way(dtype, scale, rows):
    """A column of +3e38 and then of -3e38, in several blocks of rows that are added up on their own: the sum is that of
    float64, rounded, where float32 holds it. Where gamma is 0 nothing of it is in dx, by which RMSNorm knows such rows.
    The statistics that LayerNormExt gives are off by n / 8 + 8 roundings of what is summed
    (aot_ops/layernorm/cases.py)."""
    n, large = 16, 3e38
    random = np.random.default_rng(0)
    x = np.tile(random.standard_normal((1, n)), (rows, 1)).astype(to_dtype(dtype))
    dy = random.standard_normal((rows, n))
    dy[: rows // 2, 3], dy[rows // 2 :, 3], dy[0, 3] = large, -large, large / 2
    dy[:2, 5] = 2.5e38  # and one whose sum it does not hold
    dy = dy.astype(x.dtype)
    given = [] if scale is None else [np.full(n, scale, x.dtype)]
    wide_dy, wide, *gamma = (a.astype(np.float64) for a in (dy, x, *given))
    mean, variance = LAYER_NORM.layer_norm(wide)[1:]
    rstd = 1 / np.sqrt(variance + 1e-5)
    layer = LAYER_NORM.gradients(wide_dy, wide, mean, variance, *(gamma or [1.0]), 0.0, 1e-5)
    rms = RMS_NORM.gradients(wide_dy, wide, RMS_NORM.rms_norm(wide)[1], *(gamma or [None]), 0.0)
    statistics = [mean.astype(np.float32), rstd.astype(np.float32)]
    for (want, magnitudes, _), got in [
        (layer, run("FusedLayerNormGrad", dy, x, *given)),
        (layer, run("AddLayerNormGrad", dy, x, x * 0, *given)),
        (layer, run("LayerNormGradExt", dy, x, *statistics, *given, normalized_shape=[n])),
        *(
            []
            if scale == 0
            else [
                (rms, run("FusedRmsNormGrad", dy, x, *given)),
                (rms, run("FusedAddRmsNormGrad", dy, x, x * 0, *given)),
            ]
        ),
    ]:
        for k in range(1, len(got)):
            with np.errstate(over="ignore"):
                finite = np.isfinite(want[k].astype(x.dtype).astype(np.float64))
            off = np.abs(got[k].astype(np.float64) - want[k])
            allowed = (U if dtype == "float32" else 2.0**-8) * np.abs(want[k]) + (n / 8 + 8) * U * magnitudes[k]
            assert finite[3] and not np.isfinite(got[k][~finite].astype(np.float64)).any()
            assert (off <= allowed)[finite].all(), f"{got[k]} instead of {want[k]}"


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("params", [0, 1, 2])
def test_the_gradient_of_layer_norm_ext(params, dims):
    """Of the statistics that LayerNormExt gives, against central differences of the formula in float64, whose own error
    is 1e-10 / 6 of a third derivative of at most 60 and 2^-53 of a sum below 100, over 1e-5; within what the case table
    allows the operator that computes them itself."""
    shape = (5, 2, 4)
    x, dy = normal(*shape), normal(*shape, seed=1)
    given = [x, *(normal(*shape[-dims:], seed=2 + k) for k in range(params))]
    forward, attrs = _core.resolve("LayerNormExt"), {"normalized_shape": shape[-dims:]}
    backward = _core.resolve("LayerNormGradExt")
    assert forward.manifest["backward"].startswith("LayerNormGradExt(")
    _, mean, rstd = _core.run_op(forward, given, attrs | {"eps": 1e-5})
    got = _core.run_op(backward, [dy, x, mean, rstd, *given[1:]], attrs)

    wide = [a.astype(np.float64) for a in (*given, *(np.full(shape[-dims:], v) for v in (1.0, 0.0)[params:]))]
    rows = (-1, int(np.prod(shape[-dims:])))
    bounds = LAYER_NORM.gradient_bounds(
        U, dy.astype(np.float64).reshape(rows), wide[0].reshape(rows), wide[1].reshape(-1)
    )
    for k, (g, bound) in enumerate(zip(got, bounds, strict=True)):
        want = np.empty(wide[k].shape)
        for i in np.ndindex(want.shape):
            sums = []
            for sign in (1, -1):
                moved = [a.copy() for a in wide]
                moved[k][i] += sign * 1e-5
                sums.append((LAYER_NORM.layer_norm_ext(*moved, **attrs)[0] * dy).sum())
            want[i] = (sums[0] - sums[1]) / 2e-5
        assert g.shape == want.shape
        assert (np.abs(g - want) <= bound.reshape(want.shape) + U * np.abs(want) + 2e-9).all()


@pytest.mark.parametrize("n", [255, 256, 263, 1024, 1039, 4096])
def test_where_rows_begin_changes_no_bit_of_their_rms_norm(n):
    """Rows that begin no line of the caches are read by whole lines with AVX-512. What lies around them, and in the
    same lines, is NaN, and stays it; x may be the result."""
    rng = np.random.default_rng(n)
    x, gamma = (rng.standard_normal(s, np.float32) for s in ((3, n), n))
    line = 16

    def at(place):
        """A copy of x that begins `place` elements into a line, and the array that it lies in."""
        whole = np.full(x.size + 4 * line, np.nan, np.float32)
        begin = -(whole.ctypes.data // 4) % line + line + place
        whole[begin : begin + x.size] = x.ravel()
        return whole[begin : begin + x.size].reshape(x.shape), whole

    want = run("RmsNorm", at(0)[0], gamma, epsilon=1e-5)
    wide = x.astype(np.float64)
    rstd = 1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    check(want[0], wide * rstd * gamma, (n / 2 + 32) * U)
    for place in range(line):
        given, whole = at(place)
        for got, as_aligned in zip(run("RmsNorm", given, gamma, epsilon=1e-5), want, strict=True):
            np.testing.assert_array_equal(got, as_aligned)
        np.testing.assert_array_equal(run("FusedRmsNorm", given)[0], run("FusedRmsNorm", at(0)[0])[0])
        _core.run_into(_core.resolve("FusedRmsNorm"), [given, gamma], [given], {"epsilon": 1e-5})
        np.testing.assert_array_equal(given, want[0])
        assert np.isnan(whole).sum() == whole.size - x.size
