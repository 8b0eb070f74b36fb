"""Normalisations and Softmax in MindSpore: gradients of the Customs, and what becomes of exported models."""

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from mindspore import Parameter, Tensor, nn, ops
from opgraft import rewrite

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
GRADIENTS = {
    "LayerNorm": (layer, [X, G, G], {"epsilon": 1e-5}),
    "FusedLayerNorm": (layer, [X, G, G], {"epsilon": 1e-5}),
    "AddLayerNorm": (lambda x, r, g, b: (layer(x + r, g, b), x + r), [X, X, G, G], {"epsilon": 1e-5}),
    "RmsNorm": (rms, [X, G], {"epsilon": 1e-5}),
    "AddRmsNorm": (lambda x, r, g: (rms(x + r, g), 0, x + r), [X, X, G], {"epsilon": 1e-5}),
    "FusedRmsNorm": (rms, [X, G], {"epsilon": 1e-5, "n_inputs": 2}),
    "FusedRmsNorm of x": (lambda x: rms(x, 1), [X], {"epsilon": 1e-5, "n_inputs": 1}),
    "FusedAddRmsNorm": (lambda x, r, g: (rms(x + r, g), x + r), [X, X, G], {"epsilon": 1e-5}),
    "Softmax": (softmax, [X], {}),
    "ScaledMaskedSoftmax": (lambda x, m: softmax(x * 0.3 + m), [X, G], {"scale": 0.3, "n_inputs": 2}),
}


@MODES
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, mode):
    """Against central differences of the formula in float64: their own error is of the order of step^2 = 1e-10, the
    operators' some hundred roundings of 2^-24 of the largest element."""
    ms.set_context(mode=mode)
    formula, shapes, attrs = GRADIENTS[name]
    given = [normal(*s, seed=k) for k, s in enumerate(shapes)]
    outputs = formula(*(a.astype(np.float64) for a in given))
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    weights = [normal(*np.shape(o), seed=9 + k) if np.ndim(o) else np.float32(0) for k, o in enumerate(outputs)]
    if name == "LayerNorm":  # mean and variance, whose gradient is not taken
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
    for k, g in enumerate(got):
        want = np.empty(given[k].shape)
        for i in np.ndindex(given[k].shape):
            moved = [[a.astype(np.float64) for a in given] for _ in range(2)]
            for sign, arrays in zip((1, -1), moved):
                arrays[k][i] += sign * 1e-5
            want[i] = (total(moved[0]) - total(moved[1])) / 2e-5
        np.testing.assert_allclose(g.asnumpy(), want, rtol=0, atol=200 * U * max(1, np.abs(want).max()))
