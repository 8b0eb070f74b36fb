"""Gradients of numbers at float32's ends and of infinities: the kernel has a number where its twin has one."""

import ml_dtypes
import numpy as np
import pytest
from opgraft import _core
from targets import every_other_kernel, run_again

DTYPES = {"float32": (np.float32, 1e-5), "bfloat16": (ml_dtypes.bfloat16, 2.0**-7)}
# Down to where an activation's exponential is no normal number of float32; from -88.03 on it is 0.
EDGES = [-np.inf, -3e38, -1e30, -1e10, -89.0, -20.0, -14.0, -9.0, -1.0, -1e-30, 0.0, 1e-30, 1.0, 13.0, 1e10, 1e30, 3e38,
         np.inf, np.nan]  # fmt: skip


def both(op, inputs, attrs=None):
    op = _core.resolve(op)
    got = _core.run_op(op, [a.copy() for a in inputs], attrs or {})
    twin = [np.empty_like(a) for a in got]
    _core.run_reference_into(op, [a.copy() for a in inputs], twin, attrs or {})
    return [[np.asarray(a).astype(np.float64) for a in side] for side in (got, twin)]


def of_one_kind(got, twin, rtol, atol=1e-30):
    """NaN and infinities where the twin has them, and elsewhere about its numbers (how near, test_ops.py has); `atol`
    may be one for each element."""
    for a, b in zip(got, twin, strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        finite = np.isfinite(b)
        np.testing.assert_array_equal(np.where(finite, 0, a), np.where(finite, 0, b))
        off = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
        assert (off <= rtol * np.abs(np.where(finite, b, 0)) + atol).all(), (a, b)


def small(*factors):
    """What is lost of the factors' product where the logistic function is below 2^-120 and no number to float32."""
    with np.errstate(all="ignore"):
        wide = np.abs(np.prod([f.astype(np.float64) for f in factors], axis=0))
    return np.where(np.isfinite(wide), wide, 0) * 2.0**-119


def grid(dtype, *values):
    return [a.ravel().astype(dtype) for a in np.meshgrid(*values)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op, attrs", [("GeLUGrad", {"approximate": "tanh"}), ("GeLUGrad", {"approximate": "none"}),
                                       ("SiLUGrad", {})])  # fmt: skip
def test_infinite_gradient_of_an_activation(op, attrs, dtype):
    """Where the derivative is 0, or too small for float32, an infinite gradient makes NaN and a finite one 0."""
    x, dy = grid(
        DTYPES[dtype][0], [*EDGES, -88.5, -15.0, -100.0], [-np.inf, -1e30, -1.0, 0.0, 1.0, 1e30, np.inf, np.nan]
    )
    got, twin = both(op, [x, dy], attrs)
    # The derivative is a sum of what may cancel: roundings of 1 of it, of which dy takes as much.
    share = np.where(np.isfinite(dy.astype(np.float64)), np.abs(dy.astype(np.float64)), 0) * 4e-7
    of_one_kind(got, twin, DTYPES[dtype][1], share + 1e-30)
    vanishes = {"tanh": -14.0, "none": -14.0}.get(attrs.get("approximate"), -89.0)
    lost = (x.astype(np.float32) <= vanishes) & np.isinf(dy.astype(np.float32))
    assert np.isnan(got[0][lost]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinite_factors_of_a_gate(dtype):
    x, gate = grid(DTYPES[dtype][0], EDGES, EDGES)
    rtol, lost = DTYPES[dtype][1], small(x) + 1e-30
    of_one_kind(*both("SwiGLU", [x, gate]), rtol, lost)
    of_one_kind(*both("SwiGLUInterleaved", [np.stack([x, gate], -1).ravel()]), rtol, lost)
    of_one_kind(*both("Swiglu", [np.concatenate([gate, x])]), rtol, lost)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_factors_of_a_gradient(dtype):
    """dy x overflows where SiLU's derivative makes it a number again."""
    x, gate, dy = grid(DTYPES[dtype][0], [*EDGES, 2.5e38], [*EDGES, -60.0, 2.4], [*EDGES, 0.5])
    sees = small(dy, x) < 1e30  # what is lost of larger ones might be more than float32 holds
    x, gate, dy = x[sees], gate[sees], dy[sees]
    rtol = DTYPES[dtype][1] * 4  # the derivative near its zero, at -1.28, is none of these
    of_dx, of_dgate = small(dy) + 1e-30, small(dy, x) + 1e-30
    got, twin = both("SwiGLUGrad", [x, gate, dy])
    of_one_kind(got[:1], twin[:1], rtol, of_dx)
    of_one_kind(got[1:], twin[1:], rtol, of_dgate)
    pairs = [a[0] for a in both("SwiGLUInterleavedGrad", [np.stack([x, gate], -1).ravel(), dy])]
    halves = [a[0] for a in both("SwigluGrad", [np.concatenate([gate, x]), dy])]
    of_one_kind([pairs[0].reshape(-1, 2)], [pairs[1].reshape(-1, 2)], rtol, np.stack([of_dx, of_dgate], -1))
    of_one_kind(halves[:1], halves[1:], rtol, np.concatenate([of_dgate, of_dx]))


def test_large_factors_make_what_they_make():
    x, gate, dy = (np.array(v, np.float32) for v in ([1e30] * 4, [-60.0, -40.0, 0.0, -80.0], [1e30, 1e20, 1e8, 1e38]))
    g = gate.astype(np.float64)
    s = 1 / (1 + np.exp(-g))
    want = dy.astype(np.float64) * x * s * (1 + g * (1 - s))
    assert abs(want[1]) > 1e33 and abs(want).max() < 1e38
    with np.errstate(over="ignore"):
        assert np.isinf(dy * x).any()
    np.testing.assert_allclose(_core.run_op(_core.resolve("SwiGLUGrad"), [x, gate, dy], {})[1], want, 1e-5)


def gradients(op, dy, x, gamma, dtype):
    """The operator's inputs, with the statistics that it takes."""
    wide, e = x.astype(np.float64), 1e-6
    mean, square = wide.mean(-1, keepdims=True), (wide * wide).mean(-1, keepdims=True)
    variance = wide.var(-1, keepdims=True)
    give = {
        "RmsNormGrad": lambda: [dy, x, (1 / np.sqrt(square + e)).astype(np.float32), gamma],
        "FusedRmsNormGrad": lambda: [dy, x, gamma],
        "FusedAddRmsNormGrad": lambda: [dy, x, np.ones_like(x), gamma],
        "FusedLayerNormGrad": lambda: [dy, x, gamma],
        "AddLayerNormGrad": lambda: [dy, x, np.ones_like(x), gamma],
        "LayerNormGrad": lambda: [x, dy, variance.astype(np.float32), mean.astype(np.float32), gamma],
    }  # fmt: skip
    return [np.asarray(a) for a in give[op]()]


NORMS = [
    "RmsNormGrad",
    "FusedRmsNormGrad",
    "FusedAddRmsNormGrad",
    "LayerNormGrad",
    "FusedLayerNormGrad",
    "AddLayerNormGrad",
]


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("n", [5, 16, 70])
def test_gradient_of_a_gamma_of_zero(op, n):
    """dgamma there is a sum that nothing else shows: its parts may overflow between them, and it itself not."""
    r = np.random.default_rng(n)
    dy, x = (r.standard_normal((12, n)).astype(np.float32) for _ in range(2))
    gamma = r.standard_normal(n).astype(np.float32)
    gamma[1] = 0
    x[3:7] = x[2]
    dy[2:7, 1] = 2e38, 2e38, -1.5e38, -1.5e38, -0.9e38
    x[2:7, 1] = 1.5
    got, twin = both(op, gradients(op, dy, x, gamma, np.float32))
    assert np.isfinite(twin[0]).all() and np.isfinite(twin[1]).all()
    of_one_kind(got, twin, 1e-4, 1e-4)
    assert abs(twin[1][1]) > 1e36


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_that_overflow_on_the_way(op, dtype):
    """Parts of dgamma (and dbeta) that overflow together in one row or over rows, and cancel, with no gamma of 0."""
    t, rtol = DTYPES[dtype]
    r = np.random.default_rng(3)
    x = r.standard_normal((40, 24)).astype(t)
    dy = r.standard_normal((40, 24)).astype(t)
    x[1:9] = x[0]
    dy[:8] = (np.array([1, 1, 1, -1, -1, -1, 1, -1])[:, None] * 2e38).astype(t)
    gamma = np.full(24, 1e-30).astype(t)
    got, twin = both(op, gradients(op, dy, x, gamma, t))
    assert all(np.isfinite(a).all() for a in twin)
    of_one_kind(got, twin, rtol * 4, 1e-4 if dtype == "float32" else 0.05)


@pytest.mark.parametrize("op", NORMS)
def test_infinite_gradient_of_a_norm(op):
    r = np.random.default_rng(4)
    for value in (np.inf, -np.inf, np.nan):
        for zero in (False, True):
            dy, x = (r.standard_normal((9, 20)).astype(np.float32) for _ in range(2))
            gamma = r.standard_normal(20).astype(np.float32)
            dy[4, 7] = value
            if zero:
                gamma[7] = 0
            of_one_kind(*both(op, gradients(op, dy, x, gamma, np.float32)), 1e-3, 1e-4)


@every_other_kernel
def test_every_target(target):
    """Again under another SIMD target."""
    run_again(__file__, target)
