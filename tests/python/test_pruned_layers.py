"""Layers whose weight is mostly zeros, with bias and activation: SparseDense, and the graphs that it takes."""

from math import erf

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, _core, nn, ops

K, N = 300, 270
RNG = np.random.default_rng(3)
WEIGHT = np.where(RNG.random((N, K)) < 0.05, RNG.standard_normal((N, K)), 0).astype(np.float32)
BIAS = RNG.standard_normal(N).astype(np.float32)
EXACT = {
    "none": lambda s: s,
    "relu": lambda s: np.maximum(s, 0.0),
    "gelu": lambda s: s * (1.0 + np.vectorize(erf)(s / np.sqrt(2.0))) / 2.0,
    "gelu_tanh": lambda s: s * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (s + 0.044715 * s**3))) / 2.0,
    "silu": lambda s: s / (1.0 + np.exp(-s)),
}
ACTIVATION = {
    "none": lambda y: y,
    "relu": lambda y: ops.primitive("ReLU", y),
    "Maximum": lambda y: ops.maximum(y, 0.0),
    "gelu": lambda y: ops.primitive("GeLU", y, approximate="none"),
    "gelu_tanh": lambda y: ops.primitive("GeLU", y, approximate="tanh"),
    "erf": lambda y: y * 0.5 * (1.0 + ops.erf(y * 0.7071067811865476)),
    "silu": lambda y: ops.primitive("SiLU", y),
    "Sigmoid": lambda y: y * ops.sigmoid(y),
}
NAMES = {"Maximum": "relu", "erf": "gelu", "Sigmoid": "silu"}


def close(got, x, bias, activation):
    """The bound is that of aot_ops/sparse/cases.py: a rounding of 2^-24 for a product, a sum, the bias and 4 where
    chains meet; the activation enlarges it 1.13 times at most, and makes 8 of its result and 2.1e-7 of its argument."""
    x, w = x.astype(np.float64), WEIGHT.T.astype(np.float64)
    s = x @ w + bias
    sums = (np.count_nonzero(w, 0).max() + 5) * 2.0**-24 * (abs(x) @ abs(w) + abs(bias))
    want = EXACT[activation](s)
    own = 0.0 if activation in ("none", "relu") else 2.1e-7 * abs(s) + 8 * 2.0**-24 * abs(want)
    assert got.shape == want.shape
    assert (abs(got - want) <= 1.13 * sums + own + 2.0**-24 * abs(want)).all()


class Layer(nn.Cell):
    """A pruned layer as frameworks spell it."""

    def __init__(self, spelling, biased, activation):
        super().__init__()
        self.spelling, self.activation = spelling, ACTIVATION[activation]
        as_it_lies = WEIGHT if spelling in ("Dense", "BiasAdd", "Gemm") else WEIGHT.T.copy()
        self.w = Parameter(Tensor(as_it_lies), name="w")
        self.b = Parameter(Tensor(BIAS), name="b") if biased else None
        self.layer = nn.Dense(K, N, has_bias=biased)
        self.layer.weight.set_data(Tensor(WEIGHT))
        if biased:
            self.layer.bias.set_data(Tensor(BIAS))

    def construct(self, x):
        if self.spelling == "nn.Dense":
            return self.activation(self.layer(x))
        if self.spelling == "Dense":
            y = ops.primitive("Dense", x, self.w) if self.b is None else ops.primitive("Dense", x, self.w, self.b)
            return self.activation(y)
        if self.spelling == "rows joined":  # the bias behind the product's own dimensions
            y = ops.reshape(ops.matmul(ops.reshape(x, (-1, K)), self.w), (*x.shape[:-1], N))
        else:
            y = ops.MatMul(transpose_b=self.spelling == "Gemm")(x, self.w) if x.ndim == 2 else ops.matmul(x, self.w)
        return self.activation(y if self.b is None else y + self.b)


@pytest.mark.parametrize("activation", ACTIVATION)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("spelling,lead", [
    ("nn.Dense", (12,)), ("nn.Dense", (2, 6)), ("Dense", (12,)), ("Dense", (2, 6)), ("MatMul", (12,)),
    ("MatMul", (2, 6)), ("Gemm", (12,)), ("rows joined", (2, 6)),
])  # fmt: skip
def test_a_pruned_layer_becomes_one_operator(spelling, lead, biased, activation):
    net, x = Layer(spelling, biased, activation), RNG.standard_normal((*lead, K)).astype(np.float32)
    report = opgraft.rewrite.substitute(net, prove=[[Tensor(x)]])
    ours = sorted(entry["op"].split("@")[0] for entry in report.swapped)
    if biased or activation not in ("none", "silu", "Sigmoid"):
        assert ours == ["SparseDense"], str(report)
    else:  # SiLU of a product stays, for it is half of a SwiGLU mostly
        product = "SparseDense" if spelling == "Dense" else "SparseMatMul"
        assert ours == ["SiLU"] * (activation == "Sigmoid") + [product], str(report)
    assert not report.left, str(report)
    close(net(Tensor(x)).asnumpy(), x, BIAS if biased else np.zeros(N), NAMES.get(activation, activation))


def test_a_layer_that_is_not_pruned_stays_dense():
    net, x = Layer("Dense", True, "relu"), RNG.standard_normal((12, K)).astype(np.float32)
    net.w.set_data(Tensor(RNG.standard_normal((N, K)).astype(np.float32)))
    report = opgraft.rewrite.substitute(net, prove=[[Tensor(x)]])
    assert [entry["op"].split("@")[0] for entry in report.swapped] == ["Dense"]


@pytest.mark.parametrize("activation", EXACT)
@pytest.mark.parametrize("vectors", [1, 2, 40, 300])
def test_a_layer_by_its_name(vectors, activation):
    """Packed as a model's constant, and as it comes with a call: any number of vectors, and of threads."""

    class Named(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w, self.b = Parameter(Tensor(WEIGHT), name="w"), Parameter(Tensor(BIAS), name="b")

        def construct(self, x):
            return ops.sparse_dense(x, self.w, self.b, activation=activation)

    x = RNG.standard_normal((vectors, K)).astype(np.float32)
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    net, found = Named(), []
    try:
        for threads in (1, 2, 5):
            _core.set_threads(threads)
            found.append(net(Tensor(x)).asnumpy())
    finally:
        _core.set_threads(0)
    close(found[0], x, BIAS, activation)
    assert all(np.array_equal(y, found[0]) for y in found)
    close(
        ops.sparse_dense(Tensor(x), Tensor(WEIGHT), Tensor(BIAS), activation=activation).asnumpy(), x, BIAS, activation
    )
    turned = ops.sparse_dense(Tensor(x), Tensor(WEIGHT.T.copy()), transpose_b=False, activation=activation).asnumpy()
    close(turned, x, np.zeros(N), activation)


@pytest.mark.parametrize("full", [False, True], ids=["packed", "multiplied densely"])
def test_a_zero_of_the_weight_does_not_meet_infinity(full):
    w = WEIGHT.copy()
    if full:
        w[w == 0] = 1.0
        w[:, 7] = 0

    class Named(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w, self.b = Parameter(Tensor(w), name="w"), Parameter(Tensor(BIAS), name="b")

        def construct(self, x):
            return ops.sparse_dense(x, self.w, self.b, activation="relu")

    x = np.zeros((9, K), np.float32)
    x[2, 7], x[3, 7] = np.inf, np.nan
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    got = Named()(Tensor(x)).asnumpy()
    want = np.maximum(np.tile(BIAS, (9, 1)), 0)
    want[2] = np.where(w[:, 7] > 0, np.inf, np.where(w[:, 7] < 0, 0, want[0]))
    want[3] = np.where(w[:, 7] != 0, np.nan, want[0])
    np.testing.assert_array_equal(got, want)


def test_bad_arguments_are_named():
    x, w = Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones((4, 3), np.float32))
    with pytest.raises(ValueError, match=r"SparseDense: bias.shape must be \(4,\), got \(3,\)"):
        ops.sparse_dense(x, w, Tensor(np.ones(3, np.float32)))
    with pytest.raises(ValueError, match="SparseDense: activation must be one of none, .*, got 'tanh'"):
        ops.sparse_dense(x, w, activation="tanh")
    with pytest.raises(TypeError, match="sparse_dense: weight"):
        ops.sparse_dense(x, None)
