"""The sepia filter of images whose colours lie last: products by a 3 x 3 matrix that are cut, and what looks so."""

import numpy as np
import opgraft
import pytest
from compare import Net, close, graft, left, normal
from opgraft import Parameter, Tensor, nn, ops, rewrite

MATRIX = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32)
M, TURNED = Tensor(MATRIX), Tensor(MATRIX.T.copy())
SHAPE = (2, 5, 7, 3)


def pixels(*shape):
    """Below 0 as well, and above 1: what is cut there, is."""
    return np.random.default_rng(0).random(shape or SHAPE, np.float32) * 2 - 0.5


def clip(y):
    """Min and Max, as Clip becomes in ONNX's converters."""
    return ops.minimum(ops.maximum(y, 0.0), 1.0)


class Held(nn.Cell):
    """The matrix is the layer's own."""

    def __init__(self):
        super().__init__()
        self.matrix = Parameter(M)

    def construct(self, x):
        return clip(x @ self.matrix.T)


# name: (what is written, the shape of x)
SPELLED = {
    "MatMul, Clip": (lambda x: clip(ops.matmul(x, TURNED)), SHAPE),
    "one image": (lambda x: clip(ops.matmul(x, TURNED)), SHAPE[1:]),
    "pixels": (lambda x: clip(x @ TURNED), (35, 3)),
    "one pixel": (lambda x: clip(x @ TURNED), (3,)),
    "x @ M.T": (lambda x: clip(x @ M.T), SHAPE),
    "the other clip": (lambda x: ops.maximum(ops.minimum(x @ TURNED, 1.0), 0.0), SHAPE),
    "clamp": (lambda x: ops.clamp(x @ TURNED, 0.0, 1.0), SHAPE),
    "transpose_b": (lambda x: clip(ops.MatMul(transpose_b=True)(x, M)), SHAPE),
    "MatMulExt": (lambda x: clip(ops.primitive("MatMulExt", x, TURNED)), SHAPE),
    "einsum": (lambda x: clip(ops.einsum("nhwc,oc->nhwo", x, M)), SHAPE),
    "einsum, the transposed matrix": (lambda x: clip(ops.einsum("hwc,co->hwo", x, TURNED)), SHAPE[1:]),
    "einsum, the matrix first": (lambda x: clip(ops.einsum("oc,nhwc->nhwo", M, x)), SHAPE),
    "einsum, the transposed matrix first": (lambda x: clip(ops.einsum("co,nhwc->nhwo", TURNED, x)), SHAPE),
    "a Parameter": (Held(), SHAPE),
}


def sepia(x, least=0.0, most=1.0):
    return np.clip(x.astype(np.float64) @ MATRIX.T.astype(np.float64), least, most)


@pytest.mark.parametrize("name", SPELLED)
def test_a_spelling_is_swapped(name, tmp_path):
    write, shape = SPELLED[name]
    x = pixels(*shape)
    net = write if isinstance(write, nn.Cell) else Net(write)
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=tmp_path / "net"))
    report = rewrite.substitute(graph, prove=(x,))
    assert [n["op"] for n in graph.nodes] == ["Sepia"], f"{report}\n{graph}"
    assert graph.nodes[0]["attrs"]["format"] == "NHWC"
    # Three products and two sums, at most 1.351 max |x|.
    close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), sepia(x), 3, 1.351 * np.abs(x).max())


@pytest.mark.parametrize("cut,limits", [
    (lambda y: ops.minimum(y, 0.5), (-np.inf, 0.5)),
    (lambda y: ops.minimum(ops.maximum(y, 0.25), 0.75), (0.25, 0.75)),
])  # fmt: skip
def test_where_it_is_cut(cut, limits, tmp_path):
    x = pixels()
    graph = opgraft.load(opgraft.export(Net(lambda x: cut(x @ TURNED)), Tensor(x), file_name=tmp_path / "net"))
    rewrite.substitute(graph)
    (node,) = graph.nodes
    assert (node["attrs"]["min_value"], node["attrs"]["max_value"]) == limits
    close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), sepia(x, *limits), 3, 1.351 * np.abs(x).max())


def test_open_sizes(tmp_path):
    spec = Tensor(shape=[None, None, 3], dtype=opgraft.float32)
    graph = opgraft.load(opgraft.export(Net(lambda x: clip(x @ TURNED)), spec, file_name=tmp_path / "net"))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["Sepia"], str(graph)
    for shape in ((4, 9, 3), (1, 40, 3)):
        x = pixels(*shape)
        close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), sepia(x), 3, 1.351 * np.abs(x).max())


def mint_einsum(target):
    """mint.einsum("oc,nchw->nohw", m, x) as MindSpore exports it; target: what x becomes for the product."""

    def write(x, m):
        m = ops.expand_dims(ops.expand_dims(ops.expand_dims(m, 2), 3), 4)
        m = ops.reshape(ops.transpose(ops.transpose(m, (2, 0, 3, 4, 1)), (1, 4, 0, 2, 3)), (1, 3, 3))
        i = ops.transpose(ops.transpose(ops.expand_dims(x, 4), (0, 4, 2, 3, 1)), (4, 0, 2, 3, 1))
        q = ops.reshape(ops.bmm(m, ops.reshape(i, target)), (3, 1, 2, 5, 7))
        return ops.reshape(ops.transpose(q, (2, 0, 3, 4, 1)), (2, 3, 5, 7))

    return write


@pytest.mark.parametrize("target,swapped", [((1, 3, 70), True), ((2, 3, 35), False)])
def test_einsum_of_mint(target, swapped, tmp_path):
    """Other parts of the images, by the same shapes of all else, are no colours."""
    given = [np.ascontiguousarray(np.moveaxis(pixels(), -1, 1)), MATRIX]
    write = mint_einsum(target)
    operators = left(write, given, tmp_path)
    assert operators == ["Sepia"] if swapped else "Sepia" not in operators
    names, before, after = graft(write, *given)
    assert names == ["Sepia"] * swapped
    close(after[0], before[0], 6, 1.351 * np.abs(given[0]).max())


def sixteenths(a):
    """Sums of their products are exact, in whichever order a machine's tiles add up packed weights and others."""
    return np.round(a * 16) / 16


BATCHED = Tensor(sixteenths(normal(7, 3, 3)[:1]))
OTHER, WIDE, FOUR = Tensor(normal(4, 4)), Tensor(normal(3, 4)), pixels(2, 5, 7, 4)
NEAR = {
    "not cut": (lambda x: x @ TURNED, pixels()),
    "cut below alone": (lambda x: ops.maximum(x @ TURNED, 0.25), pixels()),
    "four colours": (lambda x: clip(x @ OTHER), FOUR),
    "four results": (lambda x: clip(x @ WIDE), pixels()),
    "limits that differ": (lambda x: ops.minimum(x @ TURNED, Tensor(np.array([1, 1, 0.5], np.float32))), pixels()),
    "a matrix for each row": (lambda x: clip(ops.bmm(x, BATCHED)), sixteenths(pixels(2, 7, 3))),
    "colours in the rows": (lambda x: clip(ops.matmul(M, x)), pixels(2, 3, 7)),
    "the product is read as well": (lambda x: (lambda y: clip(y) + y)(x @ TURNED), pixels()),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_is_left_alone(name, tmp_path):
    write, x = NEAR[name]
    file = opgraft.export(Net(write), Tensor(x), file_name=tmp_path / "net")
    graph, before = opgraft.load(file), opgraft.load(file)
    rewrite.substitute(graph)
    assert "Sepia" not in [n["op"] for n in graph.nodes], str(graph)
    found = nn.GraphCell(graph)(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(found, nn.GraphCell(before)(Tensor(x)).asnumpy())
    np.testing.assert_array_equal(found, write(Tensor(x)).asnumpy())
