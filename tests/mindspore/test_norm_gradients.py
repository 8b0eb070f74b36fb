"""Gradients of the normalisations and of Softmax as Customs in MindSpore."""

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from helpers import cases
from mindspore import Tensor, nn, ops

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
