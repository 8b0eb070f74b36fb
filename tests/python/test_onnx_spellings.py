"""Operators as exporters to ONNX write them: every step a node of its own, powers and quotients instead of squares and
reciprocal roots, bounds by Maximum and Minimum, constants written where they are used. Numbers are those of before."""

import ml_dtypes
import numpy as np
import pytest
from compare import close, graft, left, normal
from opgraft import Parameter, Tensor, nn, ops, rewrite

N = 24


def p(name, *inputs, **attrs):
    return ops.primitive(name, *inputs, **attrs)


def mean(x):
    return p("ReduceMean", x, axis=[-1], keep_dims=True)


def largest(x):
    return p("ReduceMax", x, axis=[-1], keep_dims=True)


def log_softmax(x):
    d = p("Sub", x, largest(x))
    return p("Sub", d, p("Log", p("ReduceSum", p("Exp", d), axis=[-1], keep_dims=True)))


def softmax(inverted):
    def write(x):
        e = p("Exp", p("Sub", x, largest(x)))
        return p("Mul", e, inverted(p("ReduceSum", e, axis=[-1], keep_dims=True)))

    return write


ROOTS = {
    "1 / Sqrt": lambda v: p("Div", Tensor(np.float32(1)), p("Sqrt", v)),
    "Reciprocal": lambda v: p("Reciprocal", p("Sqrt", v)),
    "Reciprocal times 1": lambda v: p("Mul", p("Reciprocal", p("Sqrt", v)), Tensor(np.float32(1))),
    "Pow": lambda v: ops.pow(v, -0.5),
}


def layer(x, root):
    d = p("Sub", x, mean(x))
    return p("Mul", d, root(mean(ops.pow(d, 2.0)) + 1e-5))


def channels(x, root):
    def of(y):
        return p("ReduceMean", y, axis=[1], keep_dims=True)

    d = p("Sub", x, of(x))
    return p("Mul", d, root(of(ops.pow(d, 2.0)) + 1e-6))


X, R, G, BETA = normal(3, 5, N), normal(3, 5, N, seed=1), normal(N, seed=2), normal(N, seed=3)
IMAGE, GC, BC = normal(2, N, 5, 7), normal(N, 1, 1, seed=2), normal(N, 1, 1, seed=3)


# A mean, a variance, a root, a quotient and the parameters: sums of N terms, on both sides.
OF_ROWS = 2 * (2 * N + 16)


def only(names, write, given, folder, roundings):
    """Nothing but these operators is left of it, and each result is what it was."""
    assert left(write, given, folder) == names
    swapped, before, after = graft(write, *given)
    assert set(swapped) == set(names)
    for got, want in zip(after, before, strict=True):
        close(got, want, roundings, np.abs(want).max())


def test_the_largest_of_rows(tmp_path):
    def write(x):
        return p("ArgMaxWithValue", x, axis=-1, keep_dims=True)[1]

    only(["ReduceMax"], write, [X], tmp_path, 0)


def test_log_softmax(tmp_path):
    only(["LogSoftmax"], log_softmax, [X], tmp_path, 2 * (N + 16))


@pytest.mark.parametrize("inverted", [
    lambda s: p("Reciprocal", s), lambda s: p("Div", Tensor(np.float32(1)), s),
    lambda s: p("Mul", p("Reciprocal", s), Tensor(np.float32(1))),
], ids=["Reciprocal", "1 / sum", "Reciprocal times 1"])  # fmt: skip
def test_softmax_by_its_sum_inverted(inverted, tmp_path):
    only(["ScaledMaskedSoftmax"], softmax(inverted), [X], tmp_path, 2 * (N + 16))


@pytest.mark.parametrize("root", ROOTS)
def test_sums_and_their_norms(root, tmp_path):
    def rms(x, r, g):
        s = x + r
        return p("Mul", p("Mul", s, ROOTS[root](mean(ops.pow(s, 2.0)) + 1e-5)), g), s

    def of_layer(x, r, g, b):
        s = x + r
        return p("Add", p("Mul", layer(s, ROOTS[root]), g), b), s

    only(["FusedAddRmsNorm"], rms, [X, R, G], tmp_path, OF_ROWS)
    only(["AddLayerNorm"], of_layer, [X, R, G, BETA], tmp_path, OF_ROWS)


@pytest.mark.parametrize("root", ROOTS)
def test_norms_of_channels(root, tmp_path):
    def write(x, g, b):
        return p("Add", p("Mul", channels(x, ROOTS[root]), g), b)

    only(["LayerNorm2d"], write, [IMAGE, GC, BC], tmp_path, OF_ROWS)


def by_var(gamma):
    def write(x, g, b):
        d, v = p("Sub", x, mean(x)), ops.var(x, -1, keepdims=True) + 1e-5
        return p("Add", gamma(d, v, g), b)

    return write


VARS = {
    **{f"gamma at {r}": lambda d, v, g, r=r: p("Mul", d, p("Mul", ROOTS[r](v), g)) for r in ROOTS},
    **{f"gamma first, {r}": lambda d, v, g, r=r: p("Mul", p("Mul", d, g), ROOTS[r](v)) for r in ROOTS},
    "gamma over Sqrt": lambda d, v, g: p("Mul", d, p("Div", g, p("Sqrt", v))),
    "Reciprocal times 1": lambda d, v, g: p("Mul", p("Mul", d, ROOTS["Reciprocal times 1"](v)), g),
}


@pytest.mark.parametrize("name", VARS)
def test_layer_norm_by_a_variance(name, tmp_path):
    only(["FusedLayerNorm"], by_var(VARS[name]), [X, G, BETA], tmp_path, OF_ROWS)


@pytest.mark.parametrize("root", ROOTS)
def test_batch_norm_with_gamma_first(root, tmp_path):
    each = (1, N, 1, 1)
    m, v, g, b = normal(*each), np.abs(normal(*each, seed=1)) + 0.5, normal(*each, seed=2), normal(*each, seed=3)

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.m, self.v, self.g, self.b = (Parameter(Tensor(a), name=n) for a, n in zip((m, v, g, b), "mvgb"))

        def construct(self, x):
            return p("Add", p("Mul", p("Mul", x - self.m, self.g), ROOTS[root](self.v + 1e-3)), self.b)

    net = Net()
    report = rewrite.substitute(net, prove=[[Tensor(IMAGE)]])
    assert [s["op"].split("@")[0] for s in report.swapped] == ["FusedBatchNormInference"]
    want = (IMAGE.astype(np.float64) - m) * g / np.sqrt(v + 1e-3) + b
    close(net(Tensor(IMAGE)).asnumpy(), want, 8, np.abs(want).max() + np.abs(b).max())


# Away from the halves, so that no rounding of a quotient leads to another code.
RNG = np.random.default_rng(0)
CODES = ((RNG.integers(-160, 160, (5, 40)) + RNG.uniform(-0.4, 0.4, (5, 40))) * 0.02).astype(np.float32)


@pytest.mark.parametrize("zero", [None, 3.0])
@pytest.mark.parametrize("order", ["Maximum first", "Minimum first"])
def test_quantised_and_dequantised_in_floats(order, zero, tmp_path):
    """Each constant a node's own, as files have it."""

    def number(x):
        return Tensor(np.float32(x))

    def write(x):
        r = p("Round", p("Div", x, number(0.02)))
        r = r if zero is None else p("Add", r, number(zero))
        if order == "Maximum first":
            c = p("Minimum", p("Maximum", r, number(-128)), number(127))
        else:
            c = p("Maximum", p("Minimum", r, number(127)), number(-128))
        c = c if zero is None else p("Sub", c, number(zero))
        return p("Mul", c, number(0.02))

    only(["FakeQuantize"], write, [CODES], tmp_path, 2)


def test_quantised_on_the_fly(tmp_path):
    def write(x):
        s = p("Div", largest(p("Abs", x)), Tensor(np.float32(127)))
        return p("Cast", p("Round", p("Div", x, s)), dtype="int8"), s

    assert left(write, [X], tmp_path) == ["DynamicQuantExt"]
    _, before, after = graft(write, X)
    np.testing.assert_array_equal(after[1], before[1])
    assert np.abs(after[0].astype(int) - before[0]).max() <= 1 and (after[0] != before[0]).mean() < 0.02


@pytest.mark.parametrize("dtype,density", [("float16", 0.05), ("bfloat16", 0.015)])
@pytest.mark.parametrize("product", ["MatMul", "MatMulExt"])
def test_a_pruned_weight_as_it_lies(product, dtype, density):
    """[K, N], with a bias behind it; both sides sum in float32 and round twice to the half type."""
    of, u = {"float16": (np.float16, 2.0**-11), "bfloat16": (ml_dtypes.bfloat16, 2.0**-8)}[dtype]
    w = normal(300, 270, seed=5)
    w[np.random.default_rng(1).random(w.shape) >= density] = 0
    x, b = normal(9, 300).astype(of), normal(270, seed=6).astype(of)

    class Layer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w, self.b = Parameter(Tensor(w.astype(of)), name="w"), Parameter(Tensor(b), name="b")

        def construct(self, x):
            return p("Add", p(product, x, self.w), self.b)

    net = Layer()
    report = rewrite.substitute(net, prove=[[Tensor(x)]])
    assert [s["op"] for s in report.swapped] == ["SparseDense@1.0.0"] and not report.left, str(report)
    x, w, b = (a.astype(np.float64) for a in (x, w.astype(of), b))
    bound = 2.02 * u * (np.abs(x @ w) + np.abs(b)) + 32 * 2.0**-24 * (np.abs(x) @ np.abs(w))
    assert (np.abs(net(Tensor(x.astype(of))).asnumpy().astype(np.float64) - (x @ w + b)) <= bound).all()


@pytest.mark.parametrize("rows", [(9,), (2, 9)], ids=["rank 2", "rank 3"])
def test_a_pruned_weight_of_the_primitive_dense(rows):
    """Dense with and without a bias, as mint's linear has it."""
    w = normal(270, 300, seed=5)
    w[np.random.default_rng(1).random(w.shape) >= 0.03] = 0

    class Layer(nn.Cell):
        def __init__(self, biased):
            super().__init__()
            self.w = Parameter(Tensor(w), name="w")
            self.b = Parameter(Tensor(normal(270)), name="b") if biased else None

        def construct(self, x):
            return p("Dense", x, self.w) if self.b is None else p("Dense", x, self.w, self.b)

    x = normal(*rows, 300)
    for biased in (False, True):
        net = Layer(biased)
        report = rewrite.substitute(net, prove=[[Tensor(x)]])
        assert [s["op"].split("@")[0] for s in report.swapped] == ["SparseDense"]
        b = net.b.asnumpy() if biased else np.zeros(1)
        want = x.astype(np.float64) @ w.T.astype(np.float64) + b
        close(net(Tensor(x)).asnumpy(), want, 32, np.abs(x).max() * np.abs(w).sum(1).max() + np.abs(b).max())
