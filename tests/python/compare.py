"""Float32 results against what they should be, within a bound that the caller derives."""

import numpy as np

U = 2.0**-24  # of one rounding to float32, relative
SILU = 7  # roundings of SiLU as in aot_ops/elementwise/cases.py: exp 2 ulp, a sum, a quotient
TANH = 6
SLOPE = 1.13  # the steepest of SiLU and GELU: what an error before them grows by at most


def close(got, want, roundings, scale=0.0):
    """|got - want| <= roundings * 2^-24 * max(|want|, scale).

    roundings: how many lie on the longest way to an element, of both sides where both are float32; a sum of n terms
    makes n. scale: the largest magnitude that is rounded on the way where the result may be smaller (a sum that
    cancels): of the sum of magnitudes.
    """
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"shape {got.shape} instead of {want.shape}"
    allowed = roundings * U * np.maximum(np.abs(want), scale)
    off = np.abs(got - want) - allowed
    assert (off <= 0).all(), f"off by {np.abs(got - want).max():.3g}, allowed {allowed.max():.3g}"  # NaN fails too


def linear(x, weight, bias=0.0):
    """x W^T + b in float64, and the sum of magnitudes that its terms' roundings are relative to."""
    x, weight, bias = (np.asarray(a, np.float64) for a in (x, weight, bias))
    return x @ weight.T + bias, np.abs(x) @ np.abs(weight).T + np.abs(bias)
