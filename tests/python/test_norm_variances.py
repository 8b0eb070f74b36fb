"""LayerNorm by the operators that give a variance or a deviation, of all elements and not of one less."""

import numpy as np
import pytest
from compare import close, graft, left, normal
from norm_spellings import LAYER, N
from opgraft import ops


def by_var(x, cut=lambda d, v: d / ops.sqrt(v + 1e-5)):
    return cut(x - ops.mean(x, -1, True), ops.var(x, -1, keepdims=True))


def by_both(x):
    v, m = ops.var_mean(x, -1, 0, True)
    return (x - m) / ops.sqrt(v + 1e-5)


def by_square(x, square):
    s, m = ops.std_mean(x, -1, False, True)
    return (x - m) * ops.rsqrt(square(s) + 1e-5)


PLAIN = {
    "var": by_var,
    "Rsqrt": lambda x: by_var(x, lambda d, v: d * ops.rsqrt(v + 1e-5)),
    "1 / Sqrt": lambda x: by_var(x, lambda d, v: d * ops.div(1.0, ops.sqrt(v + 1e-5))),
    "Reciprocal": lambda x: by_var(x, lambda d, v: d * ops.reciprocal(ops.sqrt(v + 1e-5))),
    "Pow": lambda x: by_var(x, lambda d, v: d * ops.pow(v + 1e-5, -0.5)),
    "Tensor.var": lambda x: (x - x.mean(-1, True)) / ops.sqrt(x.var(-1, 0, True) + 1e-5),
    "var and mean": by_both,
    "std, Pow": lambda x: by_square(x, lambda s: ops.pow(s, 2.0)),
    "std, Square": lambda x: by_square(x, ops.square),
    "std, Mul": lambda x: by_square(x, lambda s: s * s),
    "std alone": lambda x: (x - ops.mean(x, -1, True)) / ops.std(x, -1, keepdims=True),
    "Tensor.std alone": lambda x: (x - x.mean(-1, True)) / x.std(-1, 0, True),
}
X, GAMMA, BETA = normal(3, 5, N), normal(N, seed=1), normal(N, seed=2)


@pytest.mark.parametrize("name", PLAIN)
def test_by_a_variance(name, tmp_path):
    plain = PLAIN[name]
    for write, given in [
        (plain, (X,)),
        (lambda x, g: plain(x) * g, (X, GAMMA)),
        (lambda x, g, b: plain(x) * g + b, (X, GAMMA, BETA)),
    ]:
        assert left(write, given, tmp_path) == ["FusedLayerNorm"]
        names, before, after = graft(write, *given)
        assert set(names) == {"FusedLayerNorm"}
        close(after[0], before[0], LAYER, np.abs(before[0]).max())


INSIDE = {
    "first": lambda d, v, g: g * d / ops.sqrt(v + 1e-5),
    "first, Rsqrt": lambda d, v, g: d * g * ops.rsqrt(v + 1e-5),
    "at the root": lambda d, v, g: d * (ops.rsqrt(v + 1e-5) * g),
}


@pytest.mark.parametrize("name", INSIDE)
def test_gamma_within_it(name, tmp_path):
    def write(x, g, b=None):
        y = INSIDE[name](x - ops.mean(x, -1, True), ops.var(x, -1, keepdims=True), g)
        return y if b is None else y + b

    for given in [(X, GAMMA), (X, GAMMA, BETA)]:
        assert left(write, given, tmp_path) == ["FusedLayerNorm"]
        _, before, after = graft(write, *given)
        close(after[0], before[0], LAYER, np.abs(before[0]).max())


def test_a_row_of_one_number_by_its_deviation():
    """0 / 0 on both sides."""
    x = X.copy()
    x[1, 2] = 0.75
    names, before, after = graft(PLAIN["std alone"], x, prove=False)
    assert names == ["FusedLayerNorm"]
    assert np.isnan(after[0][1, 2]).all() and np.isnan(before[0][1, 2]).all()
    assert np.isfinite(after[0][0]).all()


NEAR = {
    "of one element less": lambda x, y: by_both_of(x, 1),
    "a deviation of one element less": lambda x, y: (x - ops.mean(x, -1, True)) / ops.std(x, -1, 1, True),
    "another axis": lambda x, y: (x - ops.mean(x, 1, True)) / ops.sqrt(ops.var(x, 1, keepdims=True) + 1e-5),
    "two axes": lambda x, y: (x - ops.mean(x, (1, 2), True)) / ops.sqrt(ops.var(x, (1, 2), keepdims=True) + 1e-5),
    "the mean of another axis": lambda x, y: (x - ops.mean(x, 1, True)) / ops.sqrt(ops.var(x, -1, 0, True) + 1e-5),
    "another row's": lambda x, y: (x - ops.mean(x, -1, True)) / ops.sqrt(ops.var(y, -1, keepdims=True) + 1e-5),
    "epsilon beside the deviation": lambda x, y: (x - ops.mean(x, -1, True)) / (ops.std(x, -1, 0, True) + 1e-2),
    "a root too few": lambda x, y: (x - ops.mean(x, -1, True)) / (ops.var(x, -1, keepdims=True) + 1e-5),
    "a cube": lambda x, y: (x - ops.mean(x, -1, True)) / ops.sqrt(ops.pow(ops.std(x, -1, 0, True), 3.0) + 1e-5),
}  # fmt: skip


def by_both_of(x, ddof):
    v, m = ops.var_mean(x, -1, ddof, True)
    return (x - m) / ops.sqrt(v + 1e-5)


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_stays(name):
    names, before, after = graft(NEAR[name], X, normal(3, 5, N, seed=3))
    assert names == []
    np.testing.assert_array_equal(after[0], before[0])


@pytest.mark.parametrize("function", [ops.std, ops.var, ops.std_mean, ops.var_mean])
@pytest.mark.parametrize("ddof", [0, 1, True])
@pytest.mark.parametrize("axis", [None, 1, (0, -1)])
def test_the_functions(function, ddof, axis):
    x = X.astype(np.float64)
    got = function(X, axis, ddof, True)
    want = (x.std if "std" in function.__name__ else x.var)(axis=axis, ddof=int(ddof), keepdims=True)
    if "mean" in function.__name__:
        got, mean = got
        close(mean.asnumpy(), x.mean(axis=axis, keepdims=True), 1)
    close(got.asnumpy(), want, 4)  # the deviation rounds, and its square


def test_another_divisor_is_refused():
    with pytest.raises(ValueError, match="var: ddof must be 0 or 1, got 2"):
        ops.var(X, -1, 2)
