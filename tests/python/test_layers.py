"""Linear layers: the ways a product, its bias, an activation and a residual are spelled are one operator; what looks
alike is not."""

import importlib.util
import pathlib

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, nn, ops, rewrite

FILE = pathlib.Path(__file__).resolve().parents[2] / "aot_ops" / "dense" / "cases.py"
SPEC = importlib.util.spec_from_file_location("cases_of_dense", FILE)
CASES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(CASES)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, W, BIAS, RESIDUAL = normal(2, 5, 40), normal(30, 40, seed=1), normal(30, seed=2), normal(2, 5, 30, seed=3)
# As Cells have them, and as torch's exporters to ONNX write them.
ACTIVATIONS = {
    "none": ("none", lambda y: y),
    "relu": ("relu", ops.relu),
    "onnx relu": ("relu", lambda y: ops.maximum(y, 0.0)),
    "silu": ("silu", ops.silu),
    "gelu": ("gelu", ops.gelu),
    "gelu tanh": ("gelu_tanh", lambda y: ops.gelu(y, approximate="tanh")),
    "onnx silu": ("silu", lambda y: y * ops.sigmoid(y)),
    "onnx gelu": ("gelu", lambda y: y * (ops.erf(y / 1.4142135623730951) + 1.0) * 0.5),
    "onnx gelu tanh": (
        "gelu_tanh",
        lambda y: 0.5 * y * (1.0 + ops.tanh(0.7978845608028654 * (y + 0.044715 * ops.pow(y, 3.0)))),
    ),
}


class Layer(nn.Cell):
    def __init__(self, onnx, act, residual):
        super().__init__()
        self.onnx, self.act, self.residual = onnx, act, residual
        self.weight, self.bias = Parameter(W.T.copy() if onnx else W), Parameter(BIAS)
        self.layer = nn.Dense(40, 30)
        self.layer.weight.set_data(Tensor(W))
        self.layer.bias.set_data(Tensor(BIAS))

    def construct(self, x, r):
        y = self.act(self.bias + ops.matmul(x, self.weight) if self.onnx else self.layer(x))
        return r + y if self.residual else y


def found(net, *given):
    report = rewrite.substitute(net, prove=[[Tensor(g) for g in given]])
    return report, net._grafted[0][0].graph.nodes if report.swapped else []


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("onnx", [False, True], ids=["cell", "onnx"])
@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("lead", [(5,), (2, 5)])
def test_a_layer_is_one_operator(act, onnx, residual, lead):
    name, write = ACTIVATIONS[act]
    x, r = (a.reshape(-1, a.shape[-1])[:5] if len(lead) == 1 else a for a in (X, RESIDUAL))
    net = Layer(onnx, write, residual)
    report, nodes = found(net, x, r)
    kept = [n for n in nodes if n["op"] != "Reshape"]
    assert [n["op"] for n in kept] == ["DenseAdd" if residual else "Dense"], str(report)
    assert kept[0]["attrs"]["activation"] == name
    given = [a.astype(np.float64) for a in (x, W, BIAS)] + ([r.astype(np.float64)] if residual else [])
    want, bound = CASES.dense(*given, activation=name), CASES.bound(0, *given, activation=name)
    got = net(Tensor(x), Tensor(r)).asnumpy()
    assert (abs(got - want) <= bound + 2.02 * 2.0**-24 * abs(want)).all()


class Unbiased(nn.Cell):
    def __init__(self, onnx, act):
        super().__init__()
        self.onnx, self.act = onnx, act
        self.weight = Parameter(W.T.copy() if onnx else W)

    def construct(self, x):
        return self.act(ops.matmul(x, self.weight, transpose_b=not self.onnx))


@pytest.mark.parametrize("onnx", [False, True], ids=["cell", "onnx"])
@pytest.mark.parametrize("act", [a for a in ACTIVATIONS if a != "none"])
@pytest.mark.parametrize("lead", [(5,), (2, 5)])
def test_a_layer_without_a_bias(act, onnx, lead):
    """SiLU stays where it is: it is half of a SwiGLU, which takes both products."""
    name, write = ACTIVATIONS[act]
    x = X[0] if len(lead) == 1 else X
    net = Unbiased(onnx, write)
    report, nodes = found(net, x)
    kept = [n["op"] for n in nodes if n["op"] != "Reshape"]
    if name == "silu":
        assert "Dense" not in kept and (not kept or kept[0] == "MatMul")
    else:
        assert kept == ["Dense"] and nodes[0]["attrs"]["activation"] == name, str(report)
    given = [a.astype(np.float64) for a in (x, W, np.zeros(30))]
    want, bound = CASES.dense(*given, activation=name), CASES.bound(0, *given, activation=name)
    got = net(Tensor(x)).asnumpy()
    assert (abs(got - want) <= bound + 2.02 * 2.0**-24 * abs(want)).all()


class Both(nn.Cell):
    """The sum before the activation is a result as well."""

    def construct(self, x, w, b):
        y = ops.matmul(x, w) + b
        return ops.relu(y), y


class BothWithoutBias(nn.Cell):
    """So is the product."""

    def construct(self, x, w, b):
        y = ops.matmul(x, w)
        return ops.relu(y), y + b


class ByRow(nn.Cell):
    """What is added lies along the rows."""

    def construct(self, x, w, b):
        return ops.matmul(x, w) + ops.reshape(b, (30, 1))


class TurnedInput(nn.Cell):
    def construct(self, x, w, b):
        return ops.matmul(x, w, transpose_a=True) + b


class Leaky(nn.Cell):
    """No ReLU: what is below a half stays a half."""

    def construct(self, x, w, b):
        return ops.maximum(ops.matmul(x, w) + b, 0.5)


@pytest.mark.parametrize("model,turned,activation", [
    (Both, False, "none"), (BothWithoutBias, False, None),
    (ByRow, False, None), (TurnedInput, True, None), (Leaky, False, "none"),
])  # fmt: skip
def test_what_is_no_whole_layer(model, turned, activation):
    x, w = normal(30, 40), W.T.copy()
    given = [x.T.copy() if turned else x, w, BIAS]
    net = model()
    report, nodes = found(net, *given)
    fused = [n for n in nodes if n["op"].startswith("Dense")]
    assert [n["attrs"]["activation"] for n in fused] == ([activation] if activation else []), str(report)
    x64, w64, b64 = (a.astype(np.float64) for a in (x, w, BIAS))
    y = x64 @ w64 + (b64[:, None] if model is ByRow else 0.0 if model is BothWithoutBias else b64)
    relu = np.maximum(y, 0)
    want = {Both: relu, BothWithoutBias: relu, Leaky: np.maximum(y, 0.5)}.get(model, y)
    got = net(*map(Tensor, given))
    got = (got[0] if isinstance(got, tuple) else got).asnumpy()
    bound = 8 * 2.0**-24 * np.sqrt(40 * (x64**2 @ w64**2) / 6)  # aot_ops/matmul/cases.py; a bias, a result
    assert (abs(got - want) <= bound + 2 * 2.0**-24 * (abs(y) + bound)).all()


@pytest.mark.parametrize("a,b,op", [
    ((5, 40), (40, 30), "MatMul"), ((2, 5, 40), (40, 30), "MatMul"), ((2, 5, 40), (2, 40, 30), "BatchMatMul"),
    ((2, 3, 5, 40), (2, 3, 40, 30), "BatchMatMul"), ((40,), (40, 30), None), ((5, 40), (2, 40, 30), None),
])  # fmt: skip
def test_the_product_of_any_ranks_is_spelled_as_the_one_it_is(a, b, op):
    class Net(nn.Cell):
        def construct(self, x, y):
            return ops.primitive("MatMulExt", x, y)

    net, given = Net(), [normal(*a), normal(*b, seed=1)]
    report, nodes = found(net, *given)
    assert [n["op"] for n in nodes] == ([op] if op else []), str(report)
    x, y = (g.astype(np.float64) for g in given)
    bound = 8 * 2.0**-24 * np.sqrt(40 * np.matmul(x**2, y**2) / 6)
    want = np.matmul(x, y)
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    assert (abs(net(*map(Tensor, given)).asnumpy() - want) <= bound + 2.0**-24 * (abs(want) + bound)).all()


@pytest.mark.parametrize("rows,shape,left", [
    ((10, 40), (2, 5, 30), ["Dense"]),
    ((-1, 40), (-1, 5, 30), ["Dense"]),
    ((10, 40), (5, 2, 30), ["Reshape", "Dense", "Reshape", "ReLU"]),
    ((10, 40), (300,), ["Reshape", "Dense", "Reshape", "ReLU"]),
])  # fmt: skip
def test_rows_that_are_joined_and_parted_again_stay_as_they_are(rows, shape, left):
    """As MindSpore's nn.Dense does with three dimensions; parted otherwise, the reshapes are needed."""

    class Joined(nn.Cell):
        def construct(self, x):
            return ops.relu(
                ops.bias_add(ops.matmul(x.reshape(*rows), Tensor(W.T.copy())), Tensor(BIAS)).reshape(*shape)
            )

    net, x = Joined(), Tensor(X)
    want = net(x).asnumpy()
    _, nodes = found(net, X)
    assert [n["op"] for n in nodes] == left
    np.testing.assert_array_equal(net(x).asnumpy(), want)


@pytest.mark.parametrize("joined", [False, True], ids=["", "rows joined"])
@pytest.mark.parametrize("ones", [1, 2])
def test_a_bias_with_ones_before_it(ones, joined):
    """As Flax reshapes it to broadcast; rows joined for the product alone, and the bias behind."""
    bias = BIAS.reshape(*[1] * ones, -1)

    class Flax(nn.Cell):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = Parameter(W.T.copy()), Parameter(bias)

        def construct(self, x):
            if joined:
                return ops.relu(ops.matmul(x.reshape(-1, 40), self.weight).reshape(2, 5, 30) + self.bias)
            return ops.relu(ops.matmul(x, self.weight) + self.bias)

    net = Flax()
    report, nodes = found(net, X)
    assert [n["op"] for n in nodes] == ["Dense"] and nodes[0]["attrs"]["activation"] == "relu", str(report)
    want, bound = (f(*(a.astype(np.float64) for a in (X, W, BIAS)), activation="relu")
                   for f in (CASES.dense, lambda *a, **k: CASES.bound(0, *a, **k)))  # fmt: skip
    got = net(Tensor(X)).asnumpy()
    assert (abs(got - want) <= bound + 2.02 * 2.0**-24 * abs(want)).all()
