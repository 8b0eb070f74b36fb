"""Normalisations: the ways models spell them become one operator, and nothing else does."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import Net, close, graft, left, normal
from norm_spellings import GAMMA_INSIDE, LAYER, RMS, ROOTS, SQUARES, N, flax, inverse, keras
from opgraft import Tensor, ops, rewrite


def rms(x, square=ops.square, root=ROOTS["Rsqrt"]):
    return root(x, ops.mean(square(x), -1, True) + 1e-5)


def layer(x, square=ops.square, root=ROOTS["Rsqrt"]):
    d = x - ops.mean(x, -1, True)
    return root(d, ops.mean(square(d), -1, True) + 1e-5)


@pytest.mark.parametrize("prove", [False, True])
@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", SQUARES)
def test_spellings(square, root, prove):
    x, gamma, beta = normal(3, 5, N), normal(N, seed=1), normal(N, seed=2)
    how = SQUARES[square], ROOTS[root]
    for write, given, name, bound in [
        (lambda x: rms(x, *how), [x], "FusedRmsNorm", RMS),
        (lambda x, g: rms(x, *how) * g, [x, gamma], "FusedRmsNorm", RMS),
        (lambda x, g: g * rms(x, *how), [x, gamma], "FusedRmsNorm", RMS),
        (lambda x: layer(x, *how), [x], "FusedLayerNorm", LAYER),
        (lambda x, g: layer(x, *how) * g, [x, gamma], "FusedLayerNorm", LAYER),
        (lambda x, g, b: layer(x, *how) * g + b, [x, gamma, beta], "FusedLayerNorm", LAYER),
    ]:
        names, before, after = graft(write, *given, prove=prove)
        assert names == [name]
        close(after[0], before[0], bound, np.abs(before[0]).max())


@pytest.mark.parametrize("shape", [(1, 1, N), (1, N)])
def test_parameters_with_ones_before_them(shape, tmp_path):
    """As Keras and Flax reshape them to broadcast."""
    x, r, g, b = normal(3, 5, N), normal(3, 5, N, seed=3), normal(*shape, seed=1), normal(*shape, seed=2)
    square = ops.square
    for write, given, name, bound in [
        (lambda x, g: rms(x) * g, (x, g), "FusedRmsNorm", RMS),
        (lambda x, g: GAMMA_INSIDE["RMS, gamma first"][0](x, g, square), (x, g), "FusedRmsNorm", RMS),
        (lambda x, r, g: (lambda s: (rms(s) * g, s))(x + r), (x, r, g), "FusedAddRmsNorm", RMS),
        (lambda x, g: layer(x) * g, (x, g), "FusedLayerNorm", LAYER),
        (lambda x, g, b: layer(x) * g + b, (x, g, b), "FusedLayerNorm", LAYER),
        (lambda x, g, b: keras(x, g, b, square), (x, g, b), "FusedLayerNorm", LAYER + 4),
        (lambda x, g, b: flax(x, g, b, square), (x, g, b), "FusedLayerNorm", LAYER),
        (lambda x, r, g, b: (lambda s: (layer(s) * g + b, s))(x + r), (x, r, g, b), "AddLayerNorm", LAYER),
    ]:
        assert left(write, given, tmp_path) == [name]
        names, before, after = graft(write, *given)
        assert name in names
        close(after[0], before[0], bound, max(np.abs(before[0]).max(), 6 * np.abs(g).max()))


def test_more_ones_than_x_has_dimensions_stay_outside():
    x, g = normal(5, N), normal(1, 1, N, seed=1)
    names, before, after = graft(lambda x, g: rms(x) * g, x, g)
    assert names == ["FusedRmsNorm"]  # without gamma
    assert after[0].shape == (1, 5, N)
    close(after[0], before[0], RMS, np.abs(before[0]).max())


@pytest.mark.parametrize("shape", [(3, 5, N), (5, N), (3, 1, N), (5, 1)])
def test_a_gamma_of_more_dimensions_stays_outside(shape, tmp_path):
    """Of one number for each row's place it would be another formula; nothing is said of it."""
    x, g = normal(3, 5, N), normal(*shape, seed=1)
    for write in (lambda x, g: flax(x, g, None, ops.square), lambda x, g: GAMMA_INSIDE["RMS, gamma first"][0](
            x, g, ops.square)):  # fmt: skip
        graph = opgraft.load(opgraft.export(Net(write), *map(opgraft.Tensor, (x, g)), file_name=str(tmp_path / "net")))
        report = rewrite.substitute(graph)
        assert (report.swapped, report.left) == ([], [])


def primitive(x, g):
    return ops.layer_norm(x, (N,), g, g)


BF16 = ml_dtypes.bfloat16
f32, bf16 = opgraft.float32, opgraft.bfloat16
HALVES = {
    "gamma after the cast": lambda x, g: g * ops.cast(rms(ops.cast(x, f32)), bf16),
    "gamma before the cast": lambda x, g: ops.cast(rms(ops.cast(x, f32)) * ops.cast(g, f32), bf16),
    "Pow, Div by Sqrt": lambda x, g: ops.cast(rms(ops.cast(x, f32), SQUARES["Pow"], ROOTS["Div by Sqrt"]), bf16) * g,
    "without gamma": lambda x, g: ops.cast(rms(ops.cast(x, f32)), bf16),
    "LayerNorm, gamma": lambda x, g: ops.cast(layer(ops.cast(x, f32)) * ops.cast(g, f32), bf16),
    "LayerNorm, both": lambda x, g: ops.cast(layer(ops.cast(x, f32)) * ops.cast(g, f32) + ops.cast(g, f32), bf16),
    "LayerNorm": lambda x, g: ops.cast(layer(ops.cast(x, f32)), bf16),
    "LayerNorm, primitive": lambda x, g: ops.cast(primitive(ops.cast(x, f32), ops.cast(g, f32)), bf16),
    "LayerNorm, params after": lambda x, g: ops.cast(layer(ops.cast(x, f32)), bf16) * g + g,
}


@pytest.mark.parametrize("name", HALVES)
def test_halves_that_compute_in_float32(name, tmp_path):
    x, gamma = normal(3, 5, N).astype(BF16), normal(N, seed=1).astype(BF16)
    assert left(HALVES[name], (x, gamma), tmp_path) == ["FusedLayerNorm" if "Layer" in name else "FusedRmsNorm"]
    names, before, after = graft(HALVES[name], x, gamma)
    # The spelled form rounds to bfloat16 up to three times, the fused once: 2^-9 each, of the largest magnitude.
    found, want = after[0].astype(np.float64), before[0].astype(np.float64)
    assert after[0].dtype == before[0].dtype
    assert np.abs(found - want).max() <= 4 * 2.0**-9 * np.abs(want).max()


WIDE = {
    "RMS": (lambda x, g: ops.cast(rms(ops.cast(x, f32)) * g, bf16), "FusedRmsNorm"),
    "RMS, gamma at the root": (
        lambda x, g: (lambda h: ops.cast(h * (ops.rsqrt(inverse(h, ops.square)) * g), bf16))(ops.cast(x, f32)),
        "FusedRmsNorm"),
    "LayerNorm": (lambda x, g: ops.cast(layer(ops.cast(x, f32)) * g, bf16), "FusedLayerNorm"),
    "LayerNorm, both": (lambda x, g: ops.cast(layer(ops.cast(x, f32)) * g + g, bf16), "FusedLayerNorm"),
    "LayerNorm, primitive": (
        lambda x, g: ops.cast(primitive(ops.cast(x, f32), g), bf16), "FusedLayerNorm"),
    "Keras": (lambda x, g: ops.cast(keras(ops.cast(x, f32), g, g, ops.square), bf16), "FusedLayerNorm"),
}  # fmt: skip


@pytest.mark.parametrize("name", WIDE)
def test_float32_parameters_before_the_cast(name, tmp_path):
    x, gamma = normal(3, 5, N).astype(BF16), normal(N, seed=1)
    write, op = WIDE[name]
    assert left(write, (x, gamma), tmp_path) == [op]
    names, before, after = graft(write, x, gamma)
    want = before[0].astype(np.float64)
    assert np.abs(after[0].astype(np.float64) - want).max() <= 2.0**-8 * np.abs(want).max()  # two roundings to bfloat16


def test_halves_with_a_residual(tmp_path):
    x, r, g = (normal(*s, seed=k).astype(BF16) for k, s in enumerate([(3, 5, N), (3, 5, N), (N,)]))
    for write, op in [
        (lambda s, g: ops.cast(layer(ops.cast(s, f32)) * ops.cast(g, f32) + ops.cast(g, f32), bf16), "AddLayerNorm"),
        (lambda s, g: ops.cast(layer(ops.cast(s, f32)) * ops.cast(g, f32), bf16), "AddLayerNorm"),
        (lambda s, g: ops.cast(rms(ops.cast(s, f32)) * ops.cast(g, f32), bf16), "FusedAddRmsNorm"),
    ]:

        def both(x, r, g, write=write):
            s = x + r
            return write(s, g), s

        assert left(both, (x, r, g), tmp_path) == [op]
        names, before, after = graft(both, x, r, g)
        want = before[0].astype(np.float64)
        # The norm is of the sum before it is rounded, or after; then it is rounded itself.
        assert np.abs(after[0].astype(np.float64) - want).max() <= 3 * 2.0**-8 * np.abs(want).max()
        np.testing.assert_array_equal(after[1], before[1])


def test_a_norm_that_comes_out_wider_or_of_wider_rows_keeps_its_casts(tmp_path):
    x, g = normal(3, 5, N).astype(BF16), normal(N, seed=1)
    kept = left(lambda x, g: layer(ops.cast(x, f32)) * g, (x, g), tmp_path)  # float32 out of bfloat16
    assert kept == ["Cast", "FusedLayerNorm"]
    kept = left(lambda x, g: ops.cast(layer(x) * g, bf16), (x.astype(np.float32), g), tmp_path)
    assert kept == ["FusedLayerNorm", "Cast"]
    kept = left(lambda x, g: ops.cast(primitive(ops.cast(x, f32), g), opgraft.float16), (x, g), tmp_path)
    assert kept == ["Cast", "LayerNorm", "Cast"]
    both = np.ones((5, N), np.float32)
    kept = left(lambda x, g: ops.cast(ops.layer_norm(ops.cast(x, f32), (5, N), g, g), bf16), (x, both), tmp_path)
    assert kept == ["Cast", "LayerNorm", "Cast"]  # over two dimensions

    def statistics(x, g):
        y, mean, _ = ops.primitive("LayerNorm", ops.cast(x, f32), g, g, begin_norm_axis=-1, begin_params_axis=-1)
        return ops.cast(y, bf16), mean

    assert left(statistics, (x, g), tmp_path) == ["Cast", "LayerNorm", "Cast"]


def test_a_residual_is_taken_in(tmp_path):
    x, residual, gamma, beta = normal(3, 5, N), normal(3, 5, N, seed=1), normal(N, seed=2), normal(N, seed=3)

    def add_rms(x, r, g):
        s = x + r
        return rms(s) * g, s

    def add_primitive(x, r, g):
        s = x + r
        return ops.rms_norm(s, g, 1e-5)[0], s

    def add_layer(x, r, g, b):
        s = x + r
        return ops.layer_norm(s, (N,), g, b), s

    def add_ext(x, r, g, b):
        s = x + r
        return ops.primitive("LayerNormExt", s, g, b, normalized_shape=[N], eps=1e-5)[0], s

    def only_the_norm(x, r, g):
        return rms(x + r) * g

    def plain_rms(x, r):
        s = x + r
        return rms(s), s

    def plain_layer(x, r):
        s = x + r
        return layer(s), s

    def layer_without_beta(x, r, g):
        s = x + r
        return layer(s) * g, s

    def layer_with_both(x, r, g, b):
        s = x + r
        return layer(s) * g + b, s

    def layer_by_power(x, r, g, b):
        s = x + r
        return layer(s, root=ROOTS["Pow of -0.5"]) * g + b, s

    for write, given, name, bound in [
        (plain_rms, (x, residual), "FusedAddRmsNorm", RMS),
        (plain_layer, (x, residual), "AddLayerNorm", LAYER),
        (layer_without_beta, (x, residual, gamma), "AddLayerNorm", LAYER),
        (layer_with_both, (x, residual, gamma, beta), "AddLayerNorm", LAYER),
        (layer_by_power, (x, residual, gamma, beta), "AddLayerNorm", LAYER),
        (add_rms, (x, residual, gamma), "FusedAddRmsNorm", RMS),
        (add_primitive, (x, residual, gamma), "FusedAddRmsNorm", RMS),
        (only_the_norm, (x, residual, gamma), "FusedAddRmsNorm", RMS),
        (add_layer, (x, residual, gamma, beta), "AddLayerNorm", LAYER),
        (add_ext, (x, residual, gamma, beta), "AddLayerNorm", LAYER),
    ]:
        names, before, after = graft(write, *given)
        assert names == [name]
        graph = opgraft.load(opgraft.export(Net(write), *map(opgraft.Tensor, given), file_name=str(tmp_path / "net")))
        rewrite.substitute(graph)
        assert [n["op"] for n in graph.nodes] == [name], "the parameters too"
        close(after[0], before[0], bound + 2, np.abs(before[0]).max())
        if len(before) > 1:
            np.testing.assert_array_equal(after[1], before[1])


SQUARE = normal(N, N)
NOT_THESE = {
    "another axis": (lambda x: x * ops.rsqrt(ops.mean(ops.square(x), 0, True) + 1e-5), [SQUARE]),
    "a mean that drops the dimension": (lambda x: x * ops.rsqrt(ops.mean(ops.square(x), -1) + 1e-5), [SQUARE]),
    "another power": (lambda x: x * ops.rsqrt(ops.mean(ops.pow(x, 3.0), -1, True) + 1e-5), [np.abs(SQUARE)]),
    "another row's mean": (lambda x, y: x * ops.rsqrt(ops.mean(ops.square(y), -1, True) + 1e-5), [SQUARE, SQUARE + 1]),
    "the root over gamma": (lambda x, g: x * (ops.sqrt(inverse(x, ops.square)) / g), [SQUARE, normal(N, seed=1) + 9]),
    "gamma times the root": (lambda x, g: x * (ops.sqrt(inverse(x, ops.square)) * g), [SQUARE, normal(N, seed=1)]),
    "gamma over no root": (lambda x, g: x * (g / inverse(x, ops.square)), [SQUARE, normal(N, seed=1)]),
    "gamma and another power": (lambda x, g: x * (ops.pow(inverse(x, ops.square), -1.5) * g), [SQUARE, normal(N)]),
    "an epsilon for each row": (
        lambda x, e: x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + e), [SQUARE, SQUARE[:, :1] ** 2]),
    "a product of two of them": (
        lambda x, y: x * ops.rsqrt(ops.mean(x * y, -1, True) + 1e-5), [np.abs(SQUARE), np.abs(SQUARE) + 1]),
    "two exponentials": (lambda x, y: ops.exp(x) / ops.reduce_sum(ops.exp(y), -1, True), [SQUARE, SQUARE + 1]),
    "a sum over another axis": (
        lambda x: (lambda e: e / ops.reduce_sum(e, 0, True))(
            ops.exp(x - ops.primitive("ReduceMax", x, axis=[-1], keep_dims=True))), [SQUARE]),
    "a scale for each column": (lambda x, s: ops.softmax(x * s, -1), [SQUARE, normal(N)]),
}  # fmt: skip


@pytest.mark.parametrize("prove", [False, True])
@pytest.mark.parametrize("name", NOT_THESE)
def test_what_is_something_else_is_left_alone(name, prove):
    write, given = NOT_THESE[name]
    names, before, after = graft(write, *given, prove=prove)
    assert names == []
    np.testing.assert_array_equal(after[0], before[0])


@pytest.mark.parametrize("shape", [(N,), (1, 5, N), (5, N)])
@pytest.mark.parametrize("norm", [lambda s, g: ops.layer_norm(s, (N,), g, g), lambda s, g: ops.rms_norm(s, g)[0]])
def test_an_addend_of_another_shape_is_no_residual(norm, shape):
    """As embeddings of positions are; nothing is said of it."""
    net = Net(lambda x, p, g: norm(x + p, g))
    given = normal(3, 5, N), normal(*shape, seed=1), normal(N, seed=2)
    net.set_inputs(*map(Tensor, given))
    report = rewrite.substitute(net, prove=given)
    assert (report.swapped, report.left) == ([], [])


def test_a_factor_that_is_no_gamma_stays():
    """h of x's shape, or a number for each row: a gamma of two dimensions would be another formula."""
    for factor in (normal(N, N, seed=1), normal(N, 1, seed=1)):
        names, before, after = graft(lambda x, h: rms(x) * h, SQUARE, factor, prove=False)
        assert names == ["FusedRmsNorm"]
        close(after[0], before[0], RMS, np.abs(before[0]).max())


def test_statistics_that_are_used_stay():
    def write(x, g):
        y, rstd = ops.rms_norm(x + 1.0, g, 1e-5)
        return y, rstd

    names, before, after = graft(write, SQUARE, normal(N, seed=1))
    assert names == []
    np.testing.assert_array_equal(after[1], before[1])


def test_layer_norm_ext_over_two_dimensions_stays():
    def write(x, r, g):
        s = x + r
        return ops.primitive("LayerNormExt", s, g, g, normalized_shape=[5, N], eps=1e-5)[0], s

    names, before, after = graft(write, normal(3, 5, N), normal(3, 5, N, seed=1), normal(5, N, seed=2), prove=False)
    assert names == []
    np.testing.assert_array_equal(after[0], before[0])
