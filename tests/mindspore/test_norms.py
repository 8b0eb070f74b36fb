"""Normalisations and Softmax in MindSpore: what becomes of exported models."""

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from helpers import cases
from mindspore import Parameter, Tensor, mint, nn, ops
from opgraft import _core

U = 2.0**-24
LAYER, SOFTMAX = cases("layernorm"), cases("softmax")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Rms(nn.Cell):
    """As LLaMA writes it, in the dtype of its parameters; the squares and the root in the ways that models have."""

    def __init__(self, square, root, dtype=ms.float32, residual=False, weight_first=False):
        super().__init__()
        self.weight = Parameter(Tensor(normal(24, seed=5)).astype(dtype), name="weight")
        self.square, self.root, self.residual, self.weight_first = square, root, residual, weight_first
        self.mean, self.half = ops.ReduceMean(keep_dims=True), dtype != ms.float32
        self.dtype = dtype

    def construct(self, x, residual):
        s = x + residual if self.residual else x
        h = ops.cast(s, ms.float32) if self.half else s
        if self.square == "pow":
            v = ops.pow(h, 2)
        elif self.square == "square":
            v = ops.square(h)
        else:
            v = h * h
        v = self.mean(v, -1) + 1e-5
        if self.root == "rsqrt":
            h = h * ops.rsqrt(v)
        elif self.root == "div":
            h = h / ops.sqrt(v)
        elif self.root == "reciprocal":
            h = h * ops.reciprocal(ops.sqrt(v))
        elif self.root == "power":
            h = h * ops.pow(v, -0.5)
        else:
            h = h * (1.0 / ops.sqrt(v))
        if self.half:
            h = ops.cast(h, self.dtype)
        y = self.weight * h if self.weight_first else h * self.weight
        return (y, s) if self.residual else y


class PlainLayer(nn.Cell):
    """LayerNorm without parameters, or a MindSpore layer after a residual."""

    def __init__(self, residual):
        super().__init__()
        self.mean, self.norm, self.residual = ops.ReduceMean(keep_dims=True), nn.LayerNorm((24,)), residual

    def construct(self, x, residual):
        if self.residual:
            s = x + residual
            return self.norm(s), s
        d = x - self.mean(x, -1)
        return d / ops.sqrt(self.mean(ops.square(d), -1) + 1e-5)


class GammaInside(nn.Cell):
    """LayerNorm as Keras and Flax write it, and their like of RMSNorm; of half types in float32."""

    def __init__(self, how, dtype=ms.float32, ones=0, parameters=None):
        super().__init__()
        self.how, self.dtype = how, dtype
        shape = (*[1] * ones, 24)
        self.gamma = Parameter(Tensor(normal(*shape, seed=5)).astype(parameters or dtype), name="gamma")
        self.beta = Parameter(Tensor(normal(*shape, seed=6)).astype(parameters or dtype), name="beta")
        self.mean = ops.ReduceMean(keep_dims=True)

    def construct(self, x, residual):
        h, gamma, beta = (ops.cast(t, ms.float32) for t in (x, self.gamma, self.beta))
        if self.how == "rms":
            y = h * (ops.rsqrt(self.mean(h * h, -1) + 1e-5) * gamma)
        elif self.how == "rms, gamma first":
            y = (h * gamma) * ops.rsqrt(self.mean(ops.square(h), -1) + 1e-5)
        elif self.how == "rms, gamma over the root":
            y = h * (gamma / ops.sqrt(self.mean(h * h, -1) + 1e-5))
        else:
            m = self.mean(h, -1)
            d = h - m
            v = self.mean(ops.square(d), -1) + 1e-5
            root = ops.rsqrt(v)
            if self.how == "reciprocal":
                y = (d * ops.reciprocal(ops.sqrt(v))) * gamma + beta
            elif self.how == "power":
                y = (d * ops.pow(v, -0.5)) * gamma + beta
            elif self.how == "gamma over the root":
                y = d * (gamma / ops.sqrt(v)) + beta
            elif self.how == "Keras":
                y = h * (root * gamma) + (beta - m * (root * gamma))
            elif self.how == "Flax":
                y = d * (root * gamma) + beta
            elif self.how == "gamma alone":
                y = (d * root) * gamma
            else:
                y = (d * root) * gamma + beta
        return ops.cast(y, self.dtype)


class FastVariance(nn.Cell):
    """LayerNorm as Flax has it by default; means as jax.numpy has them."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.gamma = Parameter(Tensor(normal(24, seed=5)), name="gamma")
        self.beta = Parameter(Tensor(normal(24, seed=6)), name="beta")
        self.sum = ops.ReduceSum(keep_dims=True)

    def mean(self, x):
        return self.sum(x, -1) * (1.0 / 24) if self.how == "product" else self.sum(x, -1) / 24

    def construct(self, x, residual):
        if self.how == "rms":
            return x * ops.rsqrt(self.mean(x * x) + 1e-5) * self.gamma
        m = self.mean(x)
        v = ops.maximum(self.mean(ops.square(x)) - ops.square(m), 0.0)
        return (x - m) * (ops.rsqrt(v + 1e-5) * self.gamma) + self.beta


class LayerInFloat32(nn.Cell):
    """As mixed precision keeps MindSpore's layer: of half types, in float32."""

    def __init__(self, residual):
        super().__init__()
        self.norm, self.residual = nn.LayerNorm((24,)), residual

    def construct(self, x, residual):
        s = x + residual if self.residual else x
        y = ops.cast(self.norm(ops.cast(s, ms.float32)), ms.float16)
        return (y, s) if self.residual else y


class Scores(nn.Cell):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def construct(self, x, mask):
        if self.how == "mul":
            return ops.softmax(x * 0.125 + mask, -1)
        if self.how == "div":
            return ops.softmax(x / 8.0 + mask, -1)
        if self.how == "div, mask first":
            return ops.softmax(mask + x / 8.0, -1)
        if self.how == "scale":
            return ops.softmax(x * 0.125, 1) + mask
        if self.how == "exp of dimension 1":
            s = x * 0.125 + mask
            e = ops.exp(s - ops.ReduceMax(keep_dims=True)(s, 1))
            return e / ops.ReduceSum(keep_dims=True)(e, 1)
        if self.how == "half":
            return ops.cast(ops.softmax(ops.cast(x * 0.125 + mask, ms.float32), -1), ms.float16)
        if self.how == "exp, Tensor.max":
            s = x * 0.125 + mask
            e = ops.exp(s - s.max(-1, keepdims=True))
            return e / e.sum(-1, keepdims=True)
        if self.how == "exp":
            s = x * 0.125 + mask
            e = ops.exp(s - ops.ReduceMax(keep_dims=True)(s, -1))
            return e / ops.ReduceSum(keep_dims=True)(e, -1)
        return ops.softmax(x + mask, -1)


class ByVariance(nn.Cell):
    """LayerNorm by the operators that give a variance or a deviation."""

    def __init__(self, how, ddof=0):
        super().__init__()
        self.how, self.ddof = how, ddof
        self.gamma = Parameter(Tensor(normal(24, seed=5)), name="gamma")
        self.beta = Parameter(Tensor(normal(24, seed=6)), name="beta")

    def construct(self, x, residual):
        if self.how == "var":
            y = (x - x.mean(-1, True)) / ops.sqrt(ops.var(x, -1, self.ddof, True) + 1e-5)
        elif self.how == "var and mean":
            v, m = ops.var_mean(x, -1, self.ddof, True)
            y = (x - m) * ops.rsqrt(v + 1e-5)
        elif self.how == "std":
            y = (x - x.mean(-1, True)) / ops.std(x, -1, self.ddof, True)
        elif self.how == "mint.var":
            y = mint.mean(x, -1, True)
            y = (x - y) / mint.sqrt(mint.var(x, -1, correction=self.ddof, keepdim=True) + 1e-5)
        elif self.how == "mint.var and mean":
            v, m = mint.var_mean(x, -1, correction=self.ddof, keepdim=True)
            y = (x - m) * mint.rsqrt(v + 1e-5)
        else:
            y = mint.mean(x, -1, True)
            y = (x - y) / mint.std(x, -1, correction=self.ddof, keepdim=True)
        return y * self.gamma + self.beta


BY_VARIANCE = ("var", "var and mean", "std", "mint.var", "mint.var and mean", "mint.std")


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("how", BY_VARIANCE)
def test_by_a_variance(how, ddof, tmp_path):
    """mint's MindSpore exports, but has no kernel of them on CPU. Of one element less it is no LayerNorm."""
    ms.set_context(mode=ms.GRAPH_MODE)
    net, given = ByVariance(how, ddof), [normal(3, 5, 24), normal(3, 5, 24, seed=1)]
    ms.export(net, *map(Tensor, given), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    opgraft.rewrite.substitute(graph, prove=tuple(given))
    names = [n["op"] for n in graph.nodes]
    assert "FusedLayerNorm" not in names if ddof else names == ["FusedLayerNorm"], str(graph)
    got = _core.Session(_core.Model(graph)).run(given)[0]
    x = given[0].astype(np.float64)
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, ddof=ddof, keepdims=True) + (0 if "std" in how else 1e-5))
    gamma, beta = (p.asnumpy().astype(np.float64) for p in (net.gamma, net.beta))
    want = y * gamma + beta
    (bound, *_) = LAYER.norm_bounds(x, gamma, beta, epsilon=0.0 if "std" in how else 1e-5)
    # Of one element less it is the parts that run: their root, quotient and difference round as well.
    bound = bound + U * np.abs(want) + (4 * U * np.abs(y * gamma) if ddof else 0.0)
    assert (np.abs(got - want) <= bound).all()
    if "mint" not in how:  # MindSpore adds 24 numbers one after another, twice
        assert (
            np.abs(net(*map(Tensor, given)).asnumpy() - want) <= bound + 48 * U * (1 + np.abs(y)) * np.abs(gamma)
        ).all()


EXPORTED = {
    **{f"rms {square} {root}": (lambda s=square, r=root: Rms(s, r), {"FusedRmsNorm"})
       for square in ("mul", "square", "pow") for root in ("rsqrt", "div", "inverse")},
    **{f"rms, {root}": (lambda r=root: Rms("mul", r), {"FusedRmsNorm"}) for root in ("reciprocal", "power")},
    **{f"{how}, root": (lambda h=how: GammaInside(h), {"FusedRmsNorm" if "rms" in how else "FusedLayerNorm"})
       for how in ("rms, gamma over the root", "gamma over the root", "reciprocal", "power")},
    **{f"{how} float16, parameters float32": (lambda h=how: GammaInside(h, ms.float16, parameters=ms.float32),
                                              {"FusedRmsNorm" if "rms" in how else "FusedLayerNorm"})
       for how in ("rms", "rms, gamma first", "Keras", "both parameters")},
    "rms, weight first": (lambda: Rms("square", "rsqrt", weight_first=True), {"FusedRmsNorm"}),
    "rms of a sum": (lambda: Rms("pow", "rsqrt", residual=True), {"FusedAddRmsNorm"}),
    "rms float16": (lambda: Rms("pow", "rsqrt", ms.float16, weight_first=True), {"FusedRmsNorm"}),
    "rms float16 of a sum": (lambda: Rms("pow", "rsqrt", ms.float16, True), {"FusedAddRmsNorm"}),
    "layer without parameters": (lambda: PlainLayer(False), {"FusedLayerNorm"}),
    "layer of a sum": (lambda: PlainLayer(True), {"AddLayerNorm"}),
    **{f"{how}, gamma inside": (lambda h=how: GammaInside(h), {"FusedRmsNorm" if "rms" in how else "FusedLayerNorm"})
       for how in ("Keras", "Flax", "rms", "rms, gamma first")},
    **{f"{how} float16": (lambda h=how: GammaInside(h, ms.float16),
                          {"FusedRmsNorm" if "rms" in how else "FusedLayerNorm"})
       for how in ("Keras", "Flax", "rms", "rms, gamma first", "gamma alone", "both parameters")},
    **{f"softmax {how}": (lambda h=how: Scores(h), {"ScaledMaskedSoftmax"})
       for how in ("mul", "div", "div, mask first", "scale", "add", "exp", "exp, Tensor.max", "exp of dimension 1")},
    **{f"{how}, ones before gamma": (lambda h=how: GammaInside(h, ones=1),
                                     {"FusedRmsNorm" if "rms" in how else "FusedLayerNorm"})
       for how in ("rms", "rms, gamma first", "Keras", "Flax", "gamma alone", "both")},
    **{f"Flax, fast, {how}": (lambda h=how: FastVariance(h), {"FusedLayerNorm"}) for how in ("quotient", "product")},
    "rms, a sum over its number": (lambda: FastVariance("rms"), {"FusedRmsNorm"}),
    "layer float16, in float32": (lambda: LayerInFloat32(False), {"FusedLayerNorm"}),
    "layer float16 of a sum, in float32": (lambda: LayerInFloat32(True), {"AddLayerNorm"}),
    "softmax float16": (lambda: Scores("half"), {"ScaledMaskedSoftmax"}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_models(name, tmp_path):
    """The swap is proven by the engine, and agrees with MindSpore's own run: 80 roundings, as sums of 24 terms, twice,
    and the roots and products of both sides make at most; in float16 3 roundings of the spelled and one of ours."""
    ms.set_context(mode=ms.GRAPH_MODE)
    make, expected = EXPORTED[name]
    net, half = make(), "float16" in name
    given = [normal(3, 5, 24, seed=k).astype(np.float16 if half else np.float32) for k in range(2)]
    ms.export(net, *map(Tensor, given), file_name=str(tmp_path / "net"), file_format="MINDIR")
    loaded = opgraft.nn.GraphCell(opgraft.load(str(tmp_path / "net.mindir")))
    report = opgraft.rewrite.substitute(loaded, prove=tuple(given))
    assert {s["op"].split("@")[0] for s in report.swapped} == expected, str(report)
    rest = {"Add"} if "scale" in name else set()  # the mask is added behind it
    assert {n["op"] for n in loaded.graph.nodes} == expected | rest, str(loaded.graph)
    got, want = loaded(*given), net(*map(Tensor, given))
    for a, b in zip(*(r if isinstance(r, (tuple, list)) else [r] for r in (got, want))):
        a, b = a.asnumpy().astype(np.float64), b.asnumpy().astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=(4 * 2.0**-11 if half else 80 * U) * np.abs(b).max())


def mint_layer(x, residual, gamma, beta):
    return mint.nn.functional.layer_norm(x, (24,), gamma, beta, 1e-4)


def ops_layer(x, residual, gamma, beta):
    return ops.layer_norm(x, (24,), gamma, beta, 1e-4)


def mint_layer_plain(x, residual, gamma, beta):
    return mint.nn.functional.layer_norm(x, (24,), eps=1e-4)


def mint_layer_of_a_sum(x, residual, gamma, beta):
    s = mint.add(x, residual)
    return mint.nn.functional.layer_norm(s, (24,), gamma, beta, 1e-4), s


def mint_layer_of_two_dimensions(x, residual, gamma, beta):
    return mint.nn.functional.layer_norm(x, (5, 24), eps=1e-4)


@pytest.mark.parametrize("write,name", [
    (mint_layer, "FusedLayerNorm"), (ops_layer, "FusedLayerNorm"), (mint_layer_plain, "FusedLayerNorm"),
    (mint_layer_of_a_sum, "AddLayerNorm"), (mint_layer_of_two_dimensions, None),
])  # fmt: skip
def test_layer_norm_of_mint(write, name, tmp_path):
    """LayerNormExt, which MindSpore exports but has no kernel of on CPU; it has one when it is written back."""

    class Net(nn.Cell):
        def construct(self, *x):
            return write(*x)

    ms.set_context(mode=ms.GRAPH_MODE)
    given = [normal(3, 5, 24), normal(3, 5, 24, seed=1), normal(24, seed=2), normal(24, seed=3)]
    ms.export(Net(), *map(Tensor, given), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    report = opgraft.rewrite.substitute(graph, prove=tuple(given))
    assert {s["op"].split("@")[0] for s in report.swapped} == ({name} if name else set()), f"{report}\n{graph}"
    got = _core.Session(_core.Model(graph)).run(given)
    x, residual, gamma, beta = (a.astype(np.float64) for a in given)
    if write in (mint_layer_plain, mint_layer_of_two_dimensions):
        gamma, beta = 1.0, 0.0
    x = x + residual if name == "AddLayerNorm" else x
    attrs = {"begin_norm_axis": -1 if name else -2, "epsilon": 1e-4}
    want, bound = (
        LAYER.layer_norm(x, gamma, beta, **attrs)[0],
        LAYER.norm_bounds(x, gamma, beta, U * np.abs(x), **attrs)[0],
    )
    assert (np.abs(got[0] - want) <= bound + U * np.abs(want)).all()
    if name:
        _core.write_mindir(graph, str(tmp_path / "written.mindir"))
        back = nn.GraphCell(ms.load(str(tmp_path / "written.mindir")))(*map(Tensor, given))
        np.testing.assert_array_equal((back[0] if len(got) > 1 else back).asnumpy(), got[0])


@pytest.mark.parametrize("write,dims", [(mint_layer, 1), (mint_layer_plain, 1), (mint_layer_of_two_dimensions, 2)])
def test_the_gradient_of_layer_norm_of_mint(write, dims, tmp_path):
    """LayerNormGradExt as MindSpore exports it, which has no kernel of it on CPU either."""

    class Net(nn.Cell):
        def construct(self, x, gamma, beta):
            return write(x, x, gamma, beta)

    class Gradient(nn.Cell):
        def __init__(self, all_inputs):
            super().__init__()
            self.net, self.grad = Net(), ops.GradOperation(get_all=all_inputs, sens_param=True)

        def construct(self, x, gamma, beta, dy):
            return self.grad(self.net)(x, gamma, beta, dy)

    ms.set_context(mode=ms.GRAPH_MODE)
    parameters = write is mint_layer
    given = [normal(3, 5, 24), normal(24, seed=2), normal(24, seed=3), normal(3, 5, 24, seed=1)]
    ms.export(Gradient(parameters), *map(Tensor, given), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    assert "LayerNormGradExt" in [n["op"] for n in graph.nodes]
    got = _core.Session(_core.Model(graph)).run(given)
    x, gamma, _, dy = (a.astype(np.float64) for a in given)
    rows = (-1, 24 if dims == 1 else 120)
    args = dy.reshape(rows), x.reshape(rows), gamma if parameters else 1.0
    want, bounds = LAYER.gradient(*args, epsilon=1e-4), LAYER.gradient_bounds(U, *args, epsilon=1e-4)
    assert len(got) == (3 if parameters else 1)
    for g, w, bound in zip(got, want, bounds):
        assert (np.abs(g.reshape(w.shape) - w) <= bound + U * np.abs(w)).all()


def mint_softmax(x):
    e = mint.exp(mint.sub(x, mint.amax(x, -1, True)))
    return mint.div(e, mint.sum(e, -1, True))


def mint_softmax_scaled(x):
    return mint.softmax(mint.div(x, 8.0), -1)


@pytest.mark.parametrize("write,scale", [(mint_softmax, 1.0), (mint_softmax_scaled, 0.125)])
def test_softmax_of_mint(write, scale, tmp_path):
    class Net(nn.Cell):
        def construct(self, x):
            return write(x)

    ms.set_context(mode=ms.GRAPH_MODE)
    x = normal(3, 5, 24)
    ms.export(Net(), Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    report = opgraft.rewrite.substitute(graph, prove=(x,))
    assert [s["op"].split("@")[0] for s in report.swapped] == ["ScaledMaskedSoftmax"], f"{report}\n{graph}"
    wide = x.astype(np.float64)
    off = np.abs(_core.Session(_core.Model(graph)).run([x])[0] - SOFTMAX.scaled(wide, scale=scale))
    assert (off <= SOFTMAX.scaled_bound(U, wide, scale=scale) + U * SOFTMAX.scaled(wide, scale=scale)).all()
