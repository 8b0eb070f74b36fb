"""Normalisations and Softmax in MindSpore: gradients of the Customs, and what becomes of exported models."""

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from helpers import cases
from mindspore import Parameter, Tensor, mint, nn, ops
from opgraft import _core

MODES = pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
U = 2.0**-24


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Weighted(nn.Cell):
    """The sum of an operator's results, each times a weight: its gradients reach every input."""

    def __init__(self, name, weights, **attrs):
        super().__init__()
        self.op = opgraft.mindspore.custom(name, **attrs)
        self.weights = tuple(Tensor(w) for w in weights)
        self.several = len(weights) > 1

    def construct(self, *inputs):
        found = self.op(*inputs)
        if not self.several:
            return (found * self.weights[0]).sum()
        total = Tensor(0.0, ms.float32)
        for i in range(len(self.weights)):
            total = total + (found[i] * self.weights[i]).sum()
        return total


def layer(x, gamma, beta):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * gamma + beta


def rms(x, gamma):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gamma


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


X, G = (4, 8), (8,)
LAYER, RMS, SOFTMAX = cases("layernorm"), cases("rmsnorm"), cases("softmax")
SCALE = 0.3


def rounded_sum(bounds):
    """Of a sum with a residual: it is rounded before it is normalised, which moves the row by 3 roundings more at most,
    of no less than the 32 that the bounds count."""
    dx, *others = (b * (1 + 3 / 32) for b in bounds)
    return [dx, dx, *others]


def softmax_bounds(w, scores, scale=1.0, mask=None):
    """The gradient's own, and that of the result y that it is taken of, relative to it; the scores' rounding twice."""
    y = softmax(scores)
    off = SOFTMAX.bound(U, scores) / y + 3 * U * np.abs(scores)
    dy, dot = np.abs(w[0]), (np.abs(w[0]) * y * (1 + off)).sum(-1, keepdims=True)
    dx = SOFTMAX.gradient_bound(U, w[0], y) + y * (off * (dy + dot) + (off * y * dy).sum(-1, keepdims=True))
    return [scale * dx] if mask is None else [scale * dx + 2 * U * scale * y * (dy + dot), dx.sum(0) + U]


# Bounds of the gradients in the order of the inputs, of the outputs' weights and the inputs in float64: those of the
# case tables.
BOUNDS = {
    "LayerNorm": lambda w, x, g, b: LAYER.gradient_bounds(U, w[0], x, g),
    "LayerNormExt": lambda w, x, g, b: LAYER.gradient_bounds(U, w[0], x, g),
    "LayerNormExt of x": lambda w, x: LAYER.gradient_bounds(U, w[0], x)[:1],
    "FusedLayerNorm": lambda w, x, g, b: LAYER.gradient_bounds(U, w[0], x, g),
    "AddLayerNorm": lambda w, x, r, g, b: rounded_sum(LAYER.gradient_bounds(U, w[0], x + r, g, w[1])),
    "AddLayerNorm without parameters": lambda w, x, r: rounded_sum(
        LAYER.gradient_bounds(U, w[0], x + r, dsum=w[1])[:1]
    ),
    "FusedAddRmsNorm without gamma": lambda w, x, r: rounded_sum(
        RMS.gradient_bounds(U, w[0], x + r, None, w[1], 1e-5)[:1]
    ),
    "RmsNorm": lambda w, x, g: RMS.gradient_bounds(U, w[0], x, g, epsilon=1e-5),
    "AddRmsNorm": lambda w, x, r, g: rounded_sum(RMS.gradient_bounds(U, w[0], x + r, g, w[2], 1e-5)),
    "FusedRmsNorm": lambda w, x, g: RMS.gradient_bounds(U, w[0], x, g, epsilon=1e-5),
    "FusedRmsNorm of x": lambda w, x: RMS.gradient_bounds(U, w[0], x, epsilon=1e-5)[:1],
    "FusedAddRmsNorm": lambda w, x, r, g: rounded_sum(RMS.gradient_bounds(U, w[0], x + r, g, w[1], 1e-5)),
    "Softmax": lambda w, x: softmax_bounds(w, x),
    "ScaledMaskedSoftmax": lambda w, x, m: softmax_bounds(w, x * SCALE + m, SCALE, m),
    "ScaledMaskedSoftmax without a mask": lambda w, x: softmax_bounds(w, x * SCALE, SCALE),
}
GRADIENTS = {
    "LayerNorm": (layer, [X, G, G], {"epsilon": 1e-5}),
    "LayerNormExt": (layer, [X, G, G], {"normalized_shape": G, "eps": 1e-5, "n_inputs": 3}),
    "LayerNormExt of x": (lambda x: layer(x, 1, 0), [X], {"normalized_shape": G, "eps": 1e-5, "n_inputs": 1}),
    "FusedLayerNorm": (layer, [X, G, G], {"epsilon": 1e-5}),
    "AddLayerNorm": (lambda x, r, g, b: (layer(x + r, g, b), x + r), [X, X, G, G], {"epsilon": 1e-5, "n_inputs": 4}),
    "AddLayerNorm without parameters": (
        lambda x, r: (layer(x + r, 1, 0), x + r),
        [X, X],
        {"epsilon": 1e-5, "n_inputs": 2},
    ),
    "RmsNorm": (rms, [X, G], {"epsilon": 1e-5}),
    "AddRmsNorm": (lambda x, r, g: (rms(x + r, g), 0, x + r), [X, X, G], {"epsilon": 1e-5}),
    "FusedRmsNorm": (rms, [X, G], {"epsilon": 1e-5, "n_inputs": 2}),
    "FusedRmsNorm of x": (lambda x: rms(x, 1), [X], {"epsilon": 1e-5, "n_inputs": 1}),
    "FusedAddRmsNorm": (lambda x, r, g: (rms(x + r, g), x + r), [X, X, G], {"epsilon": 1e-5, "n_inputs": 3}),
    "FusedAddRmsNorm without gamma": (lambda x, r: (rms(x + r, 1), x + r), [X, X], {"epsilon": 1e-5, "n_inputs": 2}),
    "Softmax": (softmax, [X], {}),
    "ScaledMaskedSoftmax": (lambda x, m: softmax(x * SCALE + m), [X, G], {"scale": SCALE, "n_inputs": 2}),
    "ScaledMaskedSoftmax without a mask": (lambda x: softmax(x * SCALE), [X], {"scale": SCALE, "n_inputs": 1}),
}


@MODES
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, mode):
    """Against central differences of the formula in float64, within what the case tables allow the operators. The
    differences' own error: 1e-10 / 6 of a third derivative of at most 60, and 2^-53 of a sum below 100, over 1e-5."""
    ms.set_context(mode=mode)
    formula, shapes, attrs = GRADIENTS[name]
    given = [normal(*s, seed=k) for k, s in enumerate(shapes)]
    outputs = formula(*(a.astype(np.float64) for a in given))
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    weights = [normal(*np.shape(o), seed=9 + k) if np.ndim(o) else np.float32(0) for k, o in enumerate(outputs)]
    if name.split()[0] in ("LayerNorm", "LayerNormExt"):  # the statistics, whose gradient is not taken
        weights += [np.float32(0), np.float32(0)]
    if name == "FusedLayerNorm":
        attrs = attrs | {"n_inputs": 3}
    if name == "RmsNorm":
        weights += [np.float32(0)]
    net = Weighted(name.split()[0], weights, **attrs)
    got = ops.grad(net, tuple(range(len(given))))(*map(Tensor, given))
    got = got if isinstance(got, tuple) else (got,)

    def total(arrays):
        found = formula(*arrays)
        found = found if isinstance(found, tuple) else (found,)
        return sum((f * w).sum() for f, w in zip(found, weights) if np.ndim(f))

    assert len(got) == len(given)
    bounds = BOUNDS[name](weights, *(a.astype(np.float64) for a in given))
    for k, (g, bound) in enumerate(zip(got, bounds, strict=True)):
        want = np.empty(given[k].shape)
        for i in np.ndindex(given[k].shape):
            moved = [[a.astype(np.float64) for a in given] for _ in range(2)]
            for sign, arrays in zip((1, -1), moved):
                arrays[k][i] += sign * 1e-5
            want[i] = (total(moved[0]) - total(moved[1])) / 2e-5
        assert (np.abs(g.asnumpy() - want) <= bound + U * np.abs(want) + 2e-9).all()


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

    def __init__(self, how, dtype=ms.float32):
        super().__init__()
        self.how, self.dtype = how, dtype
        self.gamma = Parameter(Tensor(normal(24, seed=5)).astype(dtype), name="gamma")
        self.beta = Parameter(Tensor(normal(24, seed=6)).astype(dtype), name="beta")
        self.mean = ops.ReduceMean(keep_dims=True)

    def construct(self, x, residual):
        h, gamma, beta = (ops.cast(t, ms.float32) for t in (x, self.gamma, self.beta))
        if self.how == "rms":
            y = h * (ops.rsqrt(self.mean(h * h, -1) + 1e-5) * gamma)
        elif self.how == "rms, gamma first":
            y = (h * gamma) * ops.rsqrt(self.mean(ops.square(h), -1) + 1e-5)
        else:
            m = self.mean(h, -1)
            d = h - m
            root = ops.rsqrt(self.mean(ops.square(d), -1) + 1e-5)
            if self.how == "Keras":
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
        if self.how == "exp":
            s = x * 0.125 + mask
            e = ops.exp(s - ops.ReduceMax(keep_dims=True)(s, -1))
            return e / ops.ReduceSum(keep_dims=True)(e, -1)
        return ops.softmax(x + mask, -1)


EXPORTED = {
    **{f"rms {square} {root}": (lambda s=square, r=root: Rms(s, r), {"FusedRmsNorm"})
       for square in ("mul", "square", "pow") for root in ("rsqrt", "div", "inverse")},
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
       for how in ("mul", "div", "div, mask first", "scale", "add", "exp", "exp of dimension 1")},
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
