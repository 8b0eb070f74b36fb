"""Boxes, triangles and single parts of a tensor; products with a vector; and the models that are written with them."""

import math

import numpy as np
import opgraft
import pytest
from compare import U, cases, left
from opgraft import Tensor, nn, ops


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ELEMENTWISE = cases("elementwise")  # derives the bounds of its functions
X = normal(2, 5, 7)
CUTS = {
    "slice": (lambda x: ops.slice(x, (0, 1, 2), (-1, 3, 4)), X[:, 1:4, 2:6], "Slice"),
    "Slice": (lambda x: ops.Slice()(x, (1, 0, 0), (1, 5, -1)), X[1:], "Slice"),
    "narrow": (lambda x: ops.narrow(x, -1, 2, 3), X[..., 2:5], "Slice"),
    "Tensor.narrow": (lambda x: x.narrow(1, 0, 4), X[:, :4], "Slice"),
    "Tensor.triu": (lambda x: x.triu(), np.triu(X), "Triu"),
    "Tensor.tril": (lambda x: x.tril(-1), np.tril(X, -1), "Tril"),
    "triu": (lambda x: ops.triu(x, 1), np.triu(X, 1), "Triu"),
    "Triu": (lambda x: ops.Triu(-1)(x), np.triu(X, -1), "Triu"),
    "tril": (lambda x: ops.tril(x), np.tril(X), "Tril"),
    "Tril": (lambda x: ops.Tril(2)(x), np.tril(X, 2), "Tril"),
    "one part": (lambda x: ops.Split(1, 1)(x)[0], X, "Split"),
    "one slice": (lambda x: ops.Unstack(1, 1)(x[:, :1])[0], X[:, 0], "StridedSlice Unstack"),
}


@pytest.mark.parametrize("name", CUTS)
def test_cuts(name, tmp_path):
    f, want, nodes = CUTS[name]
    np.testing.assert_array_equal(f(Tensor(X)).asnumpy(), want)
    assert left(f, [X], tmp_path) == nodes.split()


class Apply(nn.Cell):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def construct(self, *x):
        return self.f(*x)


@pytest.mark.parametrize("f", [
    lambda x: ops.Split(-1, 1)(x), lambda x: ops.Unstack(0, 1)(x), lambda x: ops.Unstack(0, 1)(x)[0] * 2,
], ids=["Split", "Unstack", "and what follows"])  # fmt: skip
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_one_output_of_several_in_a_file(f, dtype, tmp_path):
    """Of int64 and one dimension it looks like a shape, whose elements are numbers."""
    x = np.arange(5, dtype=dtype)[None]
    want = f(Tensor(x))
    spec = Tensor(shape=[1, None], dtype=x.dtype)
    graph = opgraft.load(opgraft.export(Apply(f), spec, file_name=str(tmp_path / "net")))
    got = nn.GraphCell(graph)(Tensor(x))
    for a, b in zip(*([t] if isinstance(t, Tensor) else t for t in (got, want)), strict=True):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


def test_open_boxes(tmp_path):
    rows = Tensor(shape=[None, 4], dtype=opgraft.float32)
    f = Apply(lambda x: ops.narrow(x, 0, 1, 2) + ops.slice(x, (0, 0), (2, -1)))
    cell = nn.GraphCell(opgraft.load(opgraft.export(f, rows, file_name=str(tmp_path / "net"))))
    for n in (3, 8):
        x = normal(n, 4)
        np.testing.assert_array_equal(cell(Tensor(x)).asnumpy(), x[1:3] + x[:2])
    with pytest.raises(ValueError, match=r"Slice: begin\[0\] \+ size\[0\] must be within dimension 0 of size 2"):
        cell(Tensor(normal(2, 4)))


def test_sizes_of_an_open_dimension(tmp_path):
    """Whether they add up to it is seen when the model runs; a part too few would be cut off without a word."""
    rows = Tensor(shape=[None, 4], dtype=opgraft.float32)
    f = Apply(lambda x: ops.split(x, [1, 3], 0))
    cell = nn.GraphCell(opgraft.load(opgraft.export(f, rows, file_name=str(tmp_path / "net"))))
    x = normal(4, 4)
    for got, want in zip(cell(Tensor(x)), np.split(x, [1])):
        np.testing.assert_array_equal(got.asnumpy(), want)
    for n in (3, 5):
        message = rf"SplitWithSize: split_size must add up to {n}, dimension 0 of x, got \(1, 3\)"
        with pytest.raises(ValueError, match=message):
            cell(Tensor(normal(n, 4)))


@pytest.mark.parametrize("begin", [-1, 4, 1 << 40, -(1 << 40), -(1 << 62), 5 - 2**63, 2**63 - 1])
def test_a_box_outside_is_refused(begin, tmp_path):
    """Also one that would be taken for a symbol while shapes are inferred, or whose place wraps around."""
    x = normal(3, 4)
    message = r"Slice: begin\[0\]"
    with pytest.raises(ValueError, match=message):
        ops.slice(Tensor(x), (begin, 0), (1, 4))
    with pytest.raises(ValueError, match=message):
        spec = Tensor(shape=[None, 4], dtype=opgraft.float32)
        f = Apply(lambda x: ops.slice(x, (begin, 0), (1, 4)))
        nn.GraphCell(opgraft.load(opgraft.export(f, spec, file_name=str(tmp_path / "net"))))(Tensor(x))


def test_a_length_below_zero_is_refused():
    with pytest.raises(ValueError, match="narrow: length must be at least 0, got -1"):
        ops.narrow(Tensor(normal(3, 4)), 0, 1, -1)


def test_functions():
    x = np.linspace(-6, 9, 4001, dtype=np.float32)
    got, want = ops.erfc(Tensor(x)).asnumpy(), np.vectorize(math.erfc)(x.astype(np.float64))
    assert (np.abs(got - want) <= ELEMENTWISE.ROUNDINGS["Erfc"] * U * want).all()
    got = ops.fast_gelu(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(got, ops.FastGeLU()(Tensor(x)).asnumpy())
    np.testing.assert_array_equal(got, nn.FastGelu()(Tensor(x)).asnumpy())
    wide = x.astype(np.float64)
    bound = ELEMENTWISE.fast_gelu_bound(U, wide) + ELEMENTWISE.ROUNDINGS["FastGeLU"] * U * np.abs(wide)
    assert (np.abs(got - wide / (1 + np.exp(-1.702 * wide))) <= bound).all()


def test_layer_norm_over_an_int():
    x = Tensor(normal(2, 3, 5))
    for size in (5, np.int64(5)):
        np.testing.assert_array_equal(ops.layer_norm(x, size).asnumpy(), ops.layer_norm(x, (5,)).asnumpy())


A, B = [(5,), (4, 5), (2, 4, 5), (3, 1, 4, 5)], [(5,), (5, 3), (2, 5, 3)]
PRODUCTS = [(a, b) for a in A for b in B if len(a) == 1 or len(b) == 1]


@pytest.mark.parametrize("a,b", PRODUCTS, ids=str)
def test_products_with_a_vector(a, b, tmp_path):
    x, y = normal(*a), normal(*b, seed=1)
    want = np.matmul(x.astype(np.float64), y.astype(np.float64))
    bound = 6 * 2.0**-24 * np.matmul(np.abs(x), np.abs(y))  # sums of 5 products
    for f in (ops.matmul, Tensor.matmul, lambda x, y: x @ y, lambda x, y: ops.MatMul()(x, y)):
        got = f(Tensor(x), Tensor(y))
        assert got.shape == want.shape and (np.abs(got.asnumpy() - want) <= bound).all()
    spec = [Tensor(shape=[*s[:-2], None, *s[-1:]] if len(s) > 1 and s is a else s, dtype="float32") for s in (a, b)]
    graph = opgraft.load(opgraft.export(Apply(lambda x, y: x @ y), *spec, file_name=str(tmp_path / "net")))
    assert [n["op"] for n in graph.nodes] == ["MatMulExt"]
    got = nn.GraphCell(graph)(Tensor(x), Tensor(y))
    assert got.shape == want.shape and (np.abs(got.asnumpy() - want) <= bound).all()
    assert left(lambda x, y: x @ y, [x, y], tmp_path) == ["MatMulExt"]


def test_a_matrix_that_lies_the_other_way_beside_a_vector():
    x, y = normal(5), normal(2, 4, 5)
    a, b = x.astype(np.float64), y.astype(np.float64)
    size = np.abs(b) @ np.abs(a)
    for got, want, terms in [
        (ops.matmul(Tensor(x), Tensor(y), transpose_b=True), b @ a, size),
        (ops.matmul(Tensor(y.swapaxes(1, 2).copy()), Tensor(x), transpose_a=True), b @ a, size),
        (nn.Dense(5, 4, weight_init=Tensor(y[0]), bias_init="ones")(Tensor(x)), b[0] @ a + 1, size[0] + 1),
    ]:
        assert (np.abs(got.asnumpy() - want) <= 6 * U * terms).all()  # sums of 5 products, and 1
