"""Layers whose weight is mostly zeros, with bias and activation: SparseDense, and the graphs that it takes."""

import numpy as np
import opgraft
import pytest
from compare import cases, normal
from opgraft import Parameter, Tensor, _core, nn, ops

K, N = 300, 270
SPARSE = cases("sparse")
WEIGHT = np.where(np.random.default_rng(3).random((N, K)) < 0.05, normal(N, K), 0).astype(np.float32)
BIAS = normal(N, seed=1)
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
    """Within the bound of the operator's cases, and a rounding to float32."""
    given = x.astype(np.float64), WEIGHT.astype(np.float64), bias.astype(np.float64)
    want = SPARSE.layer(*given, activation=activation)
    bound = SPARSE.layer_bound(2.0**-24, *given, activation=activation) + 2.0**-24 * abs(want)
    assert got.shape == want.shape and (abs(got - want) <= bound).all()


class Layer(nn.Cell):
    """A pruned layer as frameworks spell it."""

    def __init__(self, spelling, biased, activation):
        super().__init__()
        self.spelling, self.activation = spelling, ACTIVATION[activation]
        as_it_lies = WEIGHT if spelling in ("Dense", "Dense, then Add", "Gemm") else WEIGHT.T.copy()
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
        if self.spelling == "Dense, then Add":
            y = ops.primitive("Dense", x, self.w)
        elif self.spelling == "rows joined":  # the bias behind the product's own dimensions
            y = ops.reshape(ops.matmul(ops.reshape(x, (-1, K)), self.w), (*x.shape[:-1], N))
        else:
            y = ops.MatMul(transpose_b=self.spelling == "Gemm")(x, self.w) if x.ndim == 2 else ops.matmul(x, self.w)
        return self.activation(y if self.b is None else y + self.b)


@pytest.mark.parametrize("activation", ACTIVATION)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("spelling,lead", [
    ("nn.Dense", (12,)), ("nn.Dense", (2, 6)), ("Dense", (12,)), ("Dense", (2, 6)), ("MatMul", (12,)),
    ("MatMul", (2, 6)), ("Gemm", (12,)), ("rows joined", (2, 6)), ("Dense, then Add", (2, 6)),
])  # fmt: skip
def test_a_pruned_layer_becomes_one_operator(spelling, lead, biased, activation):
    net, x = Layer(spelling, biased, activation), normal(*lead, K, seed=2)
    report = opgraft.rewrite.substitute(net, prove=[[Tensor(x)]])
    ours = sorted(entry["op"].split("@")[0] for entry in report.swapped)
    if biased or activation not in ("none", "silu", "Sigmoid"):
        assert ours == ["SparseDense"], str(report)
    else:  # SiLU of a product stays, for it is half of a SwiGLU mostly
        product = "SparseDense" if spelling.startswith("Dense") else "SparseMatMul"
        assert ours == ["SiLU"] * (activation == "Sigmoid") + [product], str(report)
    assert not report.left, str(report)
    close(net(Tensor(x)).asnumpy(), x, BIAS if biased else np.zeros(N), NAMES.get(activation, activation))


def test_a_layer_that_is_not_pruned_stays_dense():
    net, x = Layer("Dense", True, "relu"), normal(12, K, seed=2)
    net.w.set_data(Tensor(normal(N, K)))
    report = opgraft.rewrite.substitute(net, prove=[[Tensor(x)]])
    assert [entry["op"].split("@")[0] for entry in report.swapped] == ["Dense"]


def test_a_matrix_that_comes_with_the_call_is_not_swapped():
    class Net(nn.Cell):
        def construct(self, x, w):
            return ops.matmul(x, w)

    net, zeros = Net(), Tensor(np.zeros((8, 8), np.float32))
    report = opgraft.rewrite.substitute(net, prove=[[zeros, zeros]])
    assert not report.swapped and not report.left


@pytest.mark.parametrize("activation", SPARSE.ACTIVATIONS)
@pytest.mark.parametrize("vectors", [1, 2, 40, 300])
def test_a_layer_by_its_name(vectors, activation):
    """Packed as a model's constant, and as it comes with a call: any number of vectors, and of threads."""

    class Named(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w, self.b = Parameter(Tensor(WEIGHT), name="w"), Parameter(Tensor(BIAS), name="b")

        def construct(self, x):
            return ops.sparse_dense(x, self.w, self.b, activation=activation)

    x = normal(vectors, K, seed=2)
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
