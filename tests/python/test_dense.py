"""DenseQKV and DenseSwiGLU: with packed weights the bits of the products one by one; and which products of a model
become one operator."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import cases, close, graft, normal
from opgraft import Parameter, Tensor, _core, nn, ops

TABLE = cases("dense")
K, COLUMNS = 2100, {"DenseQKV": (70, 33, 40), "DenseSwiGLU": (70, 70)}  # K in pieces where there are many rows
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
EACH = pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)


class Joint(nn.Cell):
    """The operator over Parameters, or the products and what follows them, one by one."""

    def __init__(self, op, dtype, biases, apart):
        super().__init__()
        self.op, self.apart = op, apart
        weights = [normal(n, K, seed=n + i) for i, n in enumerate(COLUMNS[op])]
        self.given = [a.astype(dtype) for a in weights + [normal(n, seed=9) for n in COLUMNS[op] if biases]]
        for i, a in enumerate(self.given):
            setattr(self, f"p{i}", Parameter(Tensor(a), requires_grad=False))

    def construct(self, x):
        p = [getattr(self, f"p{i}") for i in range(len(self.given))]
        if not self.apart:
            return ops.primitive(self.op, x, *p, transpose_b=True)
        y = [
            ops.primitive("Dense", x, *p[i :: len(COLUMNS[self.op])], transpose_b=True)
            for i in range(len(COLUMNS[self.op]))
        ]
        return ops.primitive("SwiGLU", y[1], y[0]) if self.op == "DenseSwiGLU" else tuple(y)


@EACH
@pytest.mark.parametrize("op", COLUMNS)
@pytest.mark.parametrize("biases", [False, True], ids=["", "biases"])
def test_packed_weights_give_the_products_one_by_one(op, biases, dtype, tmp_path):
    name, models = np.dtype(dtype).name, []
    given = [a.astype(np.float64) for a in Joint(op, dtype, biases, False).given]
    for apart in (False, True):
        net = Joint(op, dtype, biases, apart)
        x = Tensor(shape=[None, K], dtype=getattr(opgraft, name))
        models.append(_core.Model(_core.read_mindir(str(opgraft.export(net, x, file_name=tmp_path / f"m{apart}")))))
    sessions = [_core.Session(m) for m in models]
    for rows in (1, 2, 5, 13, 97, 250, 0):
        x = normal(rows, K, seed=rows).astype(dtype)
        got, apart = (s.run([x]) for s in sessions)
        want, bound = (f[op](*a) for f, a in ((TABLE.REFERENCE, (x.astype(np.float64), *given)),
                                              (TABLE.BOUND, (0, x.astype(np.float64), *given))))  # fmt: skip
        want, bound = (a if isinstance(a, list) else [a] for a in (want, bound))
        for y, z, w, b in zip(got, apart, want, bound, strict=True):
            assert (abs(y.astype(np.float64) - w) <= b + 1.01 * ROUNDOFF[name] * (abs(w) + b)).all()
            if op == "DenseQKV" or dtype is np.float32:  # half types round the products before SiLU
                assert y.tobytes() == z.tobytes()
    packed = [m.stats["packed_bytes"] for m in models]  # once for all plans and sessions
    _core.Session(models[0]).run([normal(3, K).astype(dtype)])
    assert packed[0] == packed[1] == models[0].stats["packed_bytes"] > sum(a.nbytes for a in given[:2]) / 8


# How x times a weight (30, 40) is spelled, and whether the weight stands as (40, 30): by our
# nn.Dense, in ONNX, by MindSpore's nn.Dense, `@` and mint.nn.functional.linear.
SPELLED = {
    "Cell": (lambda x, w: ops.matmul(x, w, transpose_b=True), False),
    "ONNX": (lambda x, w: ops.matmul(x, w), True),
    "rows": (lambda x, w: rows(x, w), False),
    "MatMulExt": (lambda x, w: ops.primitive("MatMulExt", x, w), True),
    "linear": (lambda *given: ops.primitive("Dense", *given), False),
}
X = normal(2, 5, 40)
W = [normal(n, 40, seed=i) for i, n in enumerate((30, 10, 10, 24, 24))]
B = [normal(len(w), seed=7) for w in W[:3]]


def rows(x, w):
    return ops.matmul(x.reshape(-1, 40), w, transpose_b=True).reshape(*x.shape[:-1], -1)


def spelled(name, weights):
    product, turned = SPELLED[name]
    return product, [w.T.copy() if turned else w for w in weights]


@pytest.mark.parametrize("spelling", SPELLED)
def test_three_products_of_one_x_become_one_operator(spelling):
    product, weights = spelled(spelling, W[:3])
    swapped, before, after = graft(lambda x, *w: tuple(product(x, y) for y in w), X, *weights)
    assert swapped == ["DenseQKV"]
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("gate", [ops.silu, lambda y: y * ops.sigmoid(y)], ids=["silu", "sigmoid"])
@pytest.mark.parametrize("spelling", SPELLED)
def test_gate_and_up_become_one_operator(spelling, gate):
    product, weights = spelled(spelling, W[3:])
    swapped, *results = graft(lambda x, a, b: product(x, b) * gate(product(x, a)), X, *weights)
    assert swapped == ["DenseSwiGLU"]
    given = [a.astype(np.float64) for a in (X, *W[3:])]
    want, bound = TABLE.gated(*given), TABLE.gated_bound(0, *given)
    for (y,) in results:
        assert (abs(y - want) <= bound + 2.0**-24 * (abs(want) + bound)).all()


@pytest.mark.parametrize("gate", [ops.silu, lambda y: y * ops.sigmoid(y)], ids=["silu", "sigmoid"])
@pytest.mark.parametrize("spelling", SPELLED)
def test_gate_and_up_with_biases_become_one_operator(spelling, gate):
    product, weights = spelled(spelling, W[3:])
    biases = [normal(24, seed=7), normal(24, seed=8)]

    def biased(x, w, b):
        return product(x, w, b) if spelling == "linear" else product(x, w) + b

    swapped, *results = graft(lambda x, a, b, c, d: biased(x, b, d) * gate(biased(x, a, c)), X, *weights, *biases)
    assert swapped == ["DenseSwiGLU"]
    given = [a.astype(np.float64) for a in (X, *W[3:], *biases)]
    want, bound = TABLE.gated(*given), TABLE.gated_bound(0, *given)
    for (y,) in results:
        assert (abs(y - want) <= bound + 2.0**-24 * (abs(want) + bound)).all()


RESIDUAL = normal(2, 5, 30, seed=6)


@pytest.mark.parametrize("first", [False, True], ids=["behind", "before"])
@pytest.mark.parametrize("spelling", SPELLED)
def test_a_residual_is_added_to_a_product_without_a_bias(spelling, first):
    product, (weight,) = spelled(spelling, W[:1])
    swapped, before, after = graft(
        lambda x, w, r: r + product(x, w) if first else product(x, w) + r, X, weight, RESIDUAL
    )
    assert swapped == ["DenseAdd"]
    given = [a.astype(np.float64) for a in (X, W[0], np.zeros(0), RESIDUAL)]
    want, bound = TABLE.dense(*given), TABLE.bound(0, *given)
    for (y,) in (before, after):
        assert (abs(y - want) <= bound + 2.0**-24 * (abs(want) + bound)).all()


def test_a_residual_behind_an_activation(tmp_path):
    swapped, *results = graft(lambda x, w, r: ops.relu(ops.matmul(x, w, transpose_b=True)) + r, X, W[0], RESIDUAL)
    assert swapped == ["DenseAdd"]
    given = [a.astype(np.float64) for a in (X, W[0], np.zeros(0), RESIDUAL)]
    want, bound = TABLE.dense(*given, activation="relu"), TABLE.bound(0, *given, activation="relu")
    for (y,) in results:
        assert (abs(y - want) <= bound + 2.0**-24 * (abs(want) + bound)).all()


def normed(x, w, r, g):
    """As LLaMA has it: the sum is normed, and added to later on."""
    y = ops.matmul(x, w, transpose_b=True) + r
    return y * ops.rsqrt(ops.mean(y * y, -1, keep_dims=True) + 1e-5) * g, y


def plus(residual):
    return lambda x, w: ops.matmul(x, w, transpose_b=True) + residual


@pytest.mark.parametrize("write,given,swapped", [
    (normed, [X, W[0], RESIDUAL, normal(30, seed=5)], ["FusedAddRmsNorm"]),
    (plus(Tensor(RESIDUAL[:, :1])), [X, W[0]], []),  # what is broadcast
    (plus(Tensor(RESIDUAL[None])), [X, W[0]], []),
    (plus(Tensor(RESIDUAL[0])), [X, W[0]], []),
    (lambda x, w: (lambda y: (y + Tensor(RESIDUAL), y))(ops.matmul(x, w, transpose_b=True)), [X, W[0]], []),
    (lambda x, w: (lambda y: y + y)(ops.matmul(x, w, transpose_b=True)), [X, W[0]], []),
    (lambda x, w: ops.bmm(x, w) + Tensor(RESIDUAL), [X, normal(2, 40, 30)], []),
    (lambda x, w: ops.matmul(x, w, transpose_a=True) + Tensor(normal(8, 8, seed=2)), [normal(8, 8), normal(8, 8)], []),
])  # fmt: skip
def test_what_is_no_residual(write, given, swapped):
    found, before, after = graft(write, *given)
    assert found == swapped
    # A sum of 30 squares, under the root, and six roundings more; of both sides. What is not swapped has the same bits.
    for a, b in zip(before, after, strict=True):
        close(b, a, 2 * (15 + 6) if found else 0)


def products(x, *weights):
    return tuple(ops.matmul(x, w, transpose_b=True) for w in weights)


def parallel(x, q, k, v, gate, up):
    """Attention and feed-forward layer side by side."""
    *attention, gate, up = products(x, q, k, v, gate, up)
    return (*attention, ops.silu(gate) * up)


def layers(after):
    return lambda x, *given: tuple(after(y + b) for y, b in zip(products(x, *given[:3]), given[3:6]))


def residuals(x, *given):
    return tuple(y + r for y, r in zip(layers(lambda y: y)(x, *given), given[6:]))


def one_biased(x, a, b, c, bias):
    """One of the three has a bias, which makes it another operator."""
    y = products(x, a, b, c)
    return y[0], y[1], y[2] + bias


def gate_twice(x, gate, up):
    gate, up = products(x, gate, up)
    return ops.silu(gate) * up, gate


def reshaped(rows, shape):
    """Gate and up of x's rows joined, as MindSpore's nn.Dense has them, each result in a shape of its own."""

    def write(x, gate, up):
        gate, up = products(x.reshape(*rows), gate, up)
        return ops.silu(gate.reshape(*shape)) * up.reshape(*shape)

    return write


def fed_back(between):
    """The third product's weight is made of the first."""

    def write(x, a, b):
        y = ops.matmul(x, a)
        return y, ops.matmul(x, b), ops.matmul(x, between(y))

    return write


SQUARE = [normal(8, 8, seed=i) for i in range(4)]


@pytest.mark.parametrize("write,given,swapped", [
    (products, [X, *W[:2]], []),
    (products, [X, *W[:4]], ["DenseQKV"]),
    (parallel, [X, *W], ["DenseSwiGLU", "DenseQKV"]),
    (lambda x, *w: (*products(x, *w[:2]), *products(x * 2.0, w[2])), [X, *W[:3]], []),
    (lambda x, *w: (*products(x, *w[:2]), ops.matmul(x, w[2])), SQUARE, []),
    (lambda x, *w: (*products(x, *w[:2]), ops.matmul(x, w[2], transpose_a=True, transpose_b=True)), SQUARE, []),
    (one_biased, [X, *W[:3], B[2]], ["Dense"]),
    (gate_twice, [X, *W[3:]], ["SwiGLU"]),
    (layers(ops.relu), [X, *W[:3], *B], ["Dense"] * 3),
    (layers(lambda y: y + 1.0), [X, *W[:3], *B], ["Dense"] * 3),
    (residuals, [X, *W[:3], *B, *(normal(2, 5, len(b)) for b in B)], ["DenseAdd"] * 3),
    (reshaped((10, 40), (2, 5, 24)), [X, *W[3:]], ["DenseSwiGLU"]),
    (reshaped((-1, 40), (-1, 5, 24)), [X, *W[3:]], ["DenseSwiGLU"]),
    (reshaped((10, 40), (5, 2, 24)), [X, *W[3:]], ["SwiGLU"]),
    (reshaped((10, 40), (240,)), [X, *W[3:]], ["SwiGLU"]),
    (reshaped((20, 20), (2, 5, 48)), [X, *(normal(24, 20, seed=i) for i in range(2))], ["SwiGLU"]),
    (fed_back(lambda y: y), SQUARE[:3], []),
    (fed_back(ops.relu), SQUARE[:3], []),
])  # fmt: skip
def test_what_belongs_together(write, given, swapped):
    found, before, after = graft(write, *given)
    assert found == swapped
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_siblings_are_looked_for_when_all_other_rules_are_through():
    order = [r.op.split("@")[0] for r in _core.rules()]
    first = min(order.index(op) for op in ("DenseQKV", "BlockQuantQKV", "ApplyRotaryPosEmb"))
    assert set(order[first:]) <= {"DenseQKV", "BlockQuantQKV", "ApplyRotaryPosEmb"}
