"""Normalisations whose means are sums over their number, and whose variance is a difference of means."""

import numpy as np
import pytest
from compare import close, graft, left, normal
from norm_spellings import LAYER, RMS, SQUARES, N
from opgraft import ops

MEANS = {
    "Div": lambda x: ops.reduce_sum(x, -1, True) / N,
    "Mul": lambda x: ops.reduce_sum(x, -1, True) * (1.0 / N),
}


def fast(x, mean, most, square):
    """The variance as Flax has it by default: the mean of squares less the mean's square."""
    m = mean(x)
    v = mean(square(x)) - square(m)
    return x - m, ops.rsqrt((ops.maximum(v, 0.0) if most else v) + 1e-5)


@pytest.mark.parametrize("mean", MEANS)
def test_a_mean_as_a_sum_over_its_number(mean, tmp_path):
    """As jax.numpy and Keras's backends write it."""
    mean = MEANS[mean]
    x, g, b = normal(3, 5, N), normal(N, seed=1), normal(N, seed=2)

    def layer(x, g, b):
        d = x - mean(x)
        return d * ops.rsqrt(mean(d * d) + 1e-5) * g + b

    for write, given, name, bound in [
        (lambda x, g: x * ops.rsqrt(mean(ops.square(x)) + 1e-5) * g, (x, g), "FusedRmsNorm", RMS),
        (layer, (x, g, b), "FusedLayerNorm", LAYER),
    ]:
        assert left(write, given, tmp_path) == [name]
        _, before, after = graft(write, *given)
        close(after[0], before[0], bound + 4, np.abs(before[0]).max())
    names, before, after = graft(lambda x: ops.exp(mean(x)), x)
    assert names == ["ReduceMean"]
    close(after[0], before[0], N + 4, np.exp(1.0))


@pytest.mark.parametrize("write", [
    lambda x: ops.reduce_sum(x, -1, True) / (N + 1.0),
    lambda x: ops.reduce_sum(x, -1, True) * (1.001 / N),
    lambda x: ops.reduce_sum(x, 1, True) / float(N),
    lambda x: N / ops.reduce_sum(ops.square(x), -1, True),
], ids=["one more", "a thousandth more", "another axis", "the other way"])  # fmt: skip
def test_a_sum_over_another_number_stays(write):
    names, before, after = graft(write, normal(3, 5, N))
    assert names == []
    np.testing.assert_array_equal(after[0], before[0])


@pytest.mark.parametrize("mean", ["ReduceMean", *MEANS])
@pytest.mark.parametrize("most", [False, True], ids=["", "at least 0"])
@pytest.mark.parametrize("square", SQUARES)
def test_the_variance_as_a_difference(square, most, mean, tmp_path):
    mean = MEANS.get(mean, lambda x: ops.mean(x, -1, True))
    x, g, b = normal(3, 5, N), normal(N, seed=1), normal(N, seed=2)

    def flax(x, g, b=None):
        d, root = fast(x, mean, most, SQUARES[square])
        y = d * (root * g)
        return y if b is None else y + b

    def plain(x):
        d, root = fast(x, mean, most, SQUARES[square])
        return d * root

    for write, given in [(flax, (x, g, b)), (flax, (x, g)), (plain, (x,)), (lambda *a: plain(a[0]) * a[1], (x, g))]:
        assert left(write, given, tmp_path) == ["FusedLayerNorm"]
        _, before, after = graft(write, *given)
        # The rows' means are below their deviations: the difference cancels less than half.
        close(after[0], before[0], 2 * LAYER, np.abs(before[0]).max())


def test_a_variance_of_another_row_stays():
    def write(x, y):
        m = ops.mean(x, -1, True)
        return (x - m) * ops.rsqrt(ops.mean(y * y, -1, True) - m * m + 9.0)

    names, before, after = graft(write, normal(3, 5, N), normal(3, 5, N, seed=1))
    assert names == []
    np.testing.assert_array_equal(after[0], before[0])
