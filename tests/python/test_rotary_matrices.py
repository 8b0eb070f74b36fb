"""Rotary embedding whose turned row is a product with a constant matrix, as MindFormers writes it: swap_mask."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import close, normal
from opgraft import Parameter, Tensor, nn, ops, rewrite

B, H, KV, S, D = 2, 4, 2, 5, 64  # of D = 64 a matrix is sparse enough for SparseMatMul, which must not take it
ANGLES = np.outer(np.arange(S), 100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)


def turned(x, pairs):
    if pairs:
        return np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return np.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1)


def matrix(pairs):
    """x times it is the turned x."""
    return turned(np.eye(D, dtype=np.float32), pairs)


def tables(pairs):
    both = np.repeat(ANGLES, 2, -1) if pairs else np.concatenate([ANGLES, ANGLES], -1)
    return np.cos(both), np.sin(both)


def p(name, *inputs, **attrs):
    return ops.primitive(name, *inputs, **attrs)


def joined(x, m, **attrs):
    """The rows of x as those of a matrix, as MindSpore's matmul has them."""
    return ops.matmul(x.reshape(-1, D), m, **attrs).reshape(x.shape)


# The product, and whether the matrix stands transposed.
PRODUCTS = {
    "BatchMatMul": (ops.bmm, False),
    "BatchMatMul, transposed": (lambda x, m: ops.bmm(x, m, transpose_b=True), True),
    "ONNX": (lambda x, m: p("MatMul", x, m), False),
    "ONNX, transposed": (lambda x, m: p("MatMul", x, m, transpose_b=True), True),
    "MatMulExt": (lambda x, m: p("MatMulExt", x, m), False),
    "MatMulExt, transposed": (lambda x, m: p("MatMulExt", x, p("Transpose", m, perm=[1, 0])), True),
    "rows": (joined, False),
    "rows, transposed": (lambda x, m: joined(x, m, transpose_b=True), True),
}
PAIRS = pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])


class Turned(nn.Cell):
    """x cos + (x m) sin, of one x or of several."""

    def __init__(self, pairs, product, m=None, dtype=np.float32):
        super().__init__()
        self.product = product
        self.cos, self.sin = (Tensor(t.astype(dtype)) for t in tables(pairs))
        self.m = Tensor(matrix(pairs).astype(dtype)) if m is None else m

    def turn(self, x):
        return x * self.cos + self.product(x, self.m) * self.sin

    def construct(self, *x):
        y = tuple(self.turn(a) for a in x)
        return y[0] if len(y) == 1 else y


def of(name, pairs):
    product, transposed = PRODUCTS[name]
    return Turned(pairs, product, Tensor(matrix(pairs).T.copy()) if transposed else None)


def formula(x, pairs):
    cos, sin = (t.astype(np.float64) for t in tables(pairs))
    return x * cos + turned(x, pairs) * sin


def left(net, given, folder, batch=B):
    """The operators that the patterns alone leave of the exported net."""
    inputs = (Tensor(shape=[batch, *x.shape[1:]], dtype=opgraft.float32) for x in given)
    graph = opgraft.load(opgraft.export(net, *inputs, file_name=str(folder / "net")))
    rewrite.substitute(graph)
    return graph, [n["op"] for n in graph.nodes]


@PAIRS
@pytest.mark.parametrize("batch", [B, None], ids=["given", "open"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_a_constant_matrix_is_a_rotation(name, batch, pairs, tmp_path):
    x = normal(B, H, S, D)
    graph, ops_left = left(of(name, pairs), [x], tmp_path, batch)
    assert ops_left == ["RotaryPositionEmbedding"] and graph.nodes[0]["attrs"]["mode"] == pairs
    # Two products and a sum of them, |a cos| + |b sin| <= 2 max |x|.
    want, scale = formula(x.astype(np.float64), pairs), 2 * np.abs(x).max()
    close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), want, 3, scale)
    net = of(name, pairs)
    report = rewrite.substitute(net, prove=(x,))
    assert [s["op"].split("@")[0] for s in report.swapped] == ["RotaryPositionEmbedding"]
    close(net(x).asnumpy(), want, 3, scale)


@pytest.mark.parametrize("shape,name", [
    *(((*lead, D), name) for lead in ((S,), (H, S)) for name in ("BatchMatMul", "ONNX", "MatMulExt")),
    ((D,), "MatMulExt"),
])  # fmt: skip
def test_of_any_number_of_dimensions(shape, name, tmp_path):
    x, net = normal(*shape), of(name, False)
    if len(shape) == 1:
        net.cos, net.sin = (Tensor(t[1]) for t in tables(False))
    want = net(x).asnumpy()
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["RotaryPositionEmbedding"]
    close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), want, 6, 2 * np.abs(x).max())


@PAIRS
@pytest.mark.parametrize("name", ["BatchMatMul", "ONNX", "rows"])
def test_query_and_key_become_one_operator(name, pairs, tmp_path):
    given = normal(B, H, S, D), normal(B, KV, S, D, seed=1)
    graph, ops_left = left(of(name, pairs), given, tmp_path)
    assert ops_left == ["ApplyRotaryPosEmb"]
    for got, x in zip(nn.GraphCell(graph)(*map(Tensor, given)), given, strict=True):
        close(got.asnumpy(), formula(x.astype(np.float64), pairs), 3, 2 * np.abs(x).max())


@pytest.mark.parametrize(
    "dtype,u", [(np.float16, 2.0**-11), (ml_dtypes.bfloat16, 2.0**-8)], ids=["float16", "bfloat16"]
)
def test_of_a_half_type_between_casts(dtype, u, tmp_path):
    """As MindFormers has it: computed in a type of its own, rounded to the model's."""
    x = normal(B, H, S, D).astype(dtype)
    to = Tensor(x).dtype

    class Widened(Turned):
        def construct(self, x):
            return ops.cast(self.turn(ops.cast(x, opgraft.float32)), to)

    graph = opgraft.load(opgraft.export(Widened(False, ops.bmm), Tensor(x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["RotaryPositionEmbedding"]
    got, wide = nn.GraphCell(graph)(Tensor(x)).asnumpy(), x.astype(np.float64)
    want = formula(wide, False)
    assert got.dtype == dtype
    assert (np.abs(got - want) <= u * np.abs(want) + 3 * 2.0**-24 * 2 * np.abs(wide).max()).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_in_a_half_type(dtype, tmp_path):
    x = normal(B, H, S, D).astype(dtype)
    net = Turned(True, ops.bmm, dtype=dtype)
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["RotaryPositionEmbedding"]
    # Both round to the half type, the net four times: two products, of which one is turned, and their sum.
    u = 2.0**-11 if dtype is np.float16 else 2.0**-8
    got, want = (y(Tensor(x)).asnumpy().astype(np.float64) for y in (nn.GraphCell(graph), net))
    assert (np.abs(got - want) <= 5 * u * 2 * np.abs(x.astype(np.float64)).max()).all()


M = matrix(False)
UPSIDE_DOWN = M[:, ::-1].copy()  # elements of the other order
LARGER = np.where(M == 1, np.float32(2), M)
ONE_MORE = M + np.eye(D, k=3, dtype=np.float32)
UNSIGNED = np.abs(M)


def heads(m):
    """A matrix for each head."""
    return np.stack([m, *[m.T] * (H - 1)])


NEAR = {
    "turned back": Turned(False, ops.bmm, Tensor(M.T.copy())),
    "turned back, transposed": Turned(False, PRODUCTS["BatchMatMul, transposed"][0], Tensor(M)),
    "exchanged": Turned(False, ops.bmm, Tensor(UNSIGNED)),
    "another order": Turned(False, ops.bmm, Tensor(UPSIDE_DOWN)),
    "a factor": Turned(False, ops.bmm, Tensor(LARGER)),
    "one more": Turned(False, ops.bmm, Tensor(ONE_MORE)),
    "a matrix for each head": Turned(False, ops.bmm, Tensor(heads(M))),
    "no matrix": Turned(False, lambda x, m: x * m, Tensor(np.float32(-1))),
    "trained": Turned(False, ops.bmm, Parameter(Tensor(M), name="m")),
    "rows exchanged": Turned(False, lambda x, m: ops.bmm(x, m).reshape(S, B, H, D).reshape(B, H, S, D)),
    "joined rows that become others": Turned(
        False, lambda x, m: ops.matmul(ops.transpose(x, (0, 2, 1, 3)).reshape(-1, D), m).reshape(B, H, S, D)),
    "of another": Turned(False, lambda x, m: ops.bmm(x * 2.0, m)),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_is_left_alone(name, tmp_path):
    x, net = normal(B, H, S, D), NEAR[name]
    want = net(Tensor(x)).asnumpy()
    graph, ops_left = left(net, [x], tmp_path)
    assert "RotaryPositionEmbedding" not in ops_left
    # Another operator may take the product: of D terms each side.
    close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), want, 2 * 3, 4 * np.abs(x).max())


def test_rows_that_are_parted_otherwise_are_left_alone(tmp_path):
    """Of (1, S, D) the product comes as (S, 1, D): the sum of all with all."""
    x = normal(1, S, D)
    net = Turned(False, lambda x, m: ops.matmul(x.reshape(-1, D), m).reshape(S, 1, D))
    want = net(Tensor(x)).asnumpy()
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert "RotaryPositionEmbedding" not in [n["op"] for n in graph.nodes]
    close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), want, 6, 4 * np.abs(x).max())


def test_a_matrix_that_is_an_input_is_no_constant():
    class Given(nn.Cell):
        def construct(self, x, m):
            return x * Tensor(tables(False)[0]) + ops.bmm(x, m) * Tensor(tables(False)[1])

    net = Given()
    assert not rewrite.substitute(net, prove=(normal(B, H, S, D), M)).swapped
