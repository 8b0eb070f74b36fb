"""The sepia filter: the ways it is spelled are swapped, what looks like it is not."""

import numpy as np
import opgraft
import pytest
from compare import close
from opgraft import Tensor, nn, ops, rewrite

MATRIX = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32)
ROWS = [[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]]
N, H, W = 2, 5, 7
SHAPE = (N, 3, H, W)


def images(*shape, seed=0):
    return np.random.default_rng(seed).random(shape or SHAPE, np.float32)


def mix(r, g, b, rows=ROWS):
    return [m[0] * r + m[1] * g + m[2] * b for m in rows]


def least(y):
    return ops.minimum(y, 1.0)


def clip(y):
    return ops.minimum(ops.maximum(y, 0.0), 1.0)


def clamped(y):
    return ops.clamp(y, 0.0, 1.0)


def each(cut, r, g, b):
    """Every channel is cut before they are joined."""
    return [cut(c) for c in mix(r, g, b)]


def onnx_cut(x, i):
    """As a Slice of axis 1."""
    return ops.strided_slice(x, (0, i, 0, 0), (0, i + 1, 0, 0), (1, 1, 1, 1), begin_mask=13, end_mask=13)


def chosen(x):
    """One channel each, its dimension dropped: what x[:, i] becomes in ONNX."""
    return [ops.gather(x, Tensor(np.array(i)), 1) for i in range(3)]


def product(x, m):
    return ops.matmul(m, x.reshape(N, 3, H * W)).reshape(SHAPE)


def last(x, m):
    return ops.transpose(ops.matmul(ops.transpose(x, (0, 2, 3, 1)), m), (0, 3, 1, 2))


# name: (the shape of the images, f(x, matrix))
SPELLED = {
    "slices": (SHAPE, lambda x, m: least(ops.concat(mix(x[:, 0:1], x[:, 1:2], x[:, 2:3]), 1))),
    "slices, clipped": (SHAPE, lambda x, m: clip(ops.concat(mix(x[:, 0:1], x[:, 1:2], x[:, 2:3]), 1))),
    "from behind": (SHAPE, lambda x, m: least(ops.concat(mix(*ops.split(x, 1, -3)), -3))),
    "stacked": (SHAPE, lambda x, m: least(ops.stack(mix(x[:, 0], x[:, 1], x[:, 2]), 1))),
    "one image": ((3, H, W), lambda x, m: clip(ops.stack(mix(x[0], x[1], x[2])))),
    "one image, slices": ((3, H, W), lambda x, m: least(ops.concat(mix(x[0:1], x[1:2], x[2:3]), 0))),
    "ONNX, slices": (SHAPE, lambda x, m: clip(ops.concat(mix(*(onnx_cut(x, i) for i in range(3))), 1))),
    "ONNX, split": (SHAPE, lambda x, m: clip(ops.concat(mix(*ops.split(x, 1, 1)), 1))),
    "ONNX, gathered": (
        SHAPE, lambda x, m: clip(ops.concat([ops.expand_dims(y, 1) for y in mix(*chosen(x))], 1))),
    "gathered, stacked": (SHAPE, lambda x, m: least(ops.stack(mix(*chosen(x)), 1))),
    "sliced, joined by new dimensions": (
        SHAPE, lambda x, m: least(ops.concat([ops.expand_dims(y, 1) for y in mix(x[:, 0], x[:, 1], x[:, 2])], 1))),
    "a product": (SHAPE, lambda x, m: least(product(x, m))),
    "a product, the other clip": (SHAPE, lambda x, m: ops.maximum(ops.minimum(product(x, m), 1.0), 0.0)),
    "torch's clamp": (SHAPE, lambda x, m: ops.clamp(ops.stack(mix(x[:, 0], x[:, 1], x[:, 2]), 1), 0, 1)),
    "a product, clamped": (SHAPE, lambda x, m: ops.clamp(product(x, m), max=1)),
    "colours last": (SHAPE, lambda x, m: clip(last(x, Tensor(m.asnumpy().T.copy())))),
    "each cut, stacked": (SHAPE, lambda x, m: ops.stack(each(least, x[:, 0], x[:, 1], x[:, 2]), 1)),
    "each clipped, slices": (SHAPE, lambda x, m: ops.concat(each(clip, x[:, 0:1], x[:, 1:2], x[:, 2:3]), 1)),
    "each clamped, one image": ((3, H, W), lambda x, m: ops.stack(each(clamped, x[0], x[1], x[2]))),
    "each clipped, split": (SHAPE, lambda x, m: ops.concat(each(clip, *ops.split(x, 1, 1)), 1)),
    "each cut, ONNX, gathered": (
        SHAPE, lambda x, m: ops.concat([ops.expand_dims(y, 1) for y in each(clip, *chosen(x))], 1)),
    "einsum, clamped": (SHAPE, lambda x, m: clamped(ops.einsum("oc,nchw->nohw", m, x))),
    "einsum, the matrix last": (SHAPE, lambda x, m: least(ops.einsum("nchw,oc->nohw", x, m))),
    "einsum, the transposed matrix": (
        SHAPE, lambda x, m: clip(ops.einsum("co,nchw->nohw", Tensor(m.asnumpy().T.copy()), x))),
    "einsum, the transposed matrix last": (
        SHAPE, lambda x, m: clip(ops.einsum("nchw,co->nohw", x, Tensor(m.asnumpy().T.copy())))),
    "a convolution, clamped": (SHAPE, lambda x, m: clamped(ops.conv2d(x, m.reshape(3, 3, 1, 1)))),
}  # fmt: skip

NEAR = {
    "blue first": lambda x, m: least(ops.concat(mix(x[:, 2:3], x[:, 1:2], x[:, 0:1]), 1)),
    "results exchanged": lambda x, m: least(ops.concat(mix(x[:, 0:1], x[:, 1:2], x[:, 2:3])[::-1], 1)),
    "another row": lambda x, m: least(ops.concat(mix(x[:, 0:1], x[:, 1:2], x[:, 2:3], [*ROWS[:2], ROWS[1]]), 1)),
    "other factors": lambda x, m: least(
        ops.concat(mix(x[:, 0:1], x[:, 1:2], x[:, 2:3], [[0.299, 0.587, 0.114]] * 3), 1)),
    "rows of the image": lambda x, m: least(ops.concat(mix(x[:, :, 0:1], x[:, :, 1:2], x[:, :, 2:3]), 2)),
    "joined along the rows": lambda x, m: least(ops.concat(mix(x[:, 0:1], x[:, 1:2], x[:, 2:3]), 2)),
    "stacked in front": lambda x, m: least(ops.stack(mix(x[:, 0], x[:, 1], x[:, 2]), 0)),
    "images, not channels": lambda x, m: least(ops.stack(mix(x[0], x[1], x[0]), 0)),
    "backwards": lambda x, m: least(
        ops.concat(mix(*(ops.strided_slice(x, (0, i, H - 1, 0), (N, i + 1, -H - 1, W), (1, 1, -1, 1))
                         for i in range(3))), 1)),
    "a product over rows": lambda x, m: least(ops.matmul(x[:, :, :3].reshape(N, W * 3, 3), m).reshape(N, 3, W, 3)),
    "columns for rows": lambda x, m: least(
        ops.transpose(ops.matmul(ops.transpose(x, (0, 2, 3, 1)), m), (0, 3, 2, 1)).reshape(SHAPE)),
    "limits that differ": lambda x, m: ops.stack(
        [ops.minimum(y, c) for y, c in zip(mix(x[:, 0], x[:, 1], x[:, 2]), (1.0, 1.0, 0.5))], 1),
    "one that is not cut": lambda x, m: ops.stack(
        [*each(least, x[:, 0], x[:, 1], x[:, 2])[:2], mix(x[:, 0], x[:, 1], x[:, 2])[2]], 1),
    "joined along the images": lambda x, m: ops.concat(each(least, x[:, 0], x[:, 1], x[:, 2]), 0),
    "stacked behind": lambda x, m: ops.stack(each(least, x[:, 0], x[:, 1], x[:, 2]), 3),
    "einsum that turns the images": lambda x, m: least(ops.einsum("oc,nchw->nowh", m, x)),
    "einsum that joins them otherwise": lambda x, m: least(ops.einsum("oc,nchw->onhw", m, x).reshape(SHAPE)),
    "einsum over rows": lambda x, m: least(ops.einsum("or,ncrw->ncow", m, x[:, :, :3])),
    "a product of other dimensions": lambda x, m: least(ops.matmul(m, x.reshape(N * H, 3, W)).reshape(SHAPE)),
}  # fmt: skip


class Net(nn.Cell):
    def __init__(self, f, matrix=MATRIX):
        super().__init__()
        self.f, self.matrix = f, Tensor(matrix)

    def construct(self, x):
        return self.f(x, self.matrix)


def sepia(x, least=-np.inf):
    """In float64, cut where the spellings cut."""
    return np.clip(np.einsum("rc,...chw->...rhw", MATRIX.astype(np.float64), x.astype(np.float64)), least, 1.0)


def operators(graph):
    return [n["op"] for n in graph.nodes]


def unproven(net, x, folder):
    """The graph of the net, with the swaps that the patterns alone allow."""
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=folder / "net"))
    rewrite.substitute(graph)
    return graph


@pytest.mark.parametrize("name", SPELLED)
def test_a_spelling_is_swapped(name, tmp_path):
    shape, f = SPELLED[name]
    # Below 0 as well: what is cut there, is.
    x = images(*shape) * 2 - 0.5
    lower = 0.0 if (f(Tensor(-np.ones(shape, np.float32)), Tensor(MATRIX)).asnumpy() == 0).all() else -np.inf
    graph = unproven(Net(f), x, tmp_path)
    assert operators(graph) == ["Sepia"], str(graph)
    net = Net(f)
    if len(shape) == 3:  # else the first dimension is left open
        net.set_inputs(Tensor(shape=shape, dtype=opgraft.float32))
    rewrite.substitute(net, prove=(x,))
    got = net(x).asnumpy()
    assert operators(net._grafted[0][0].graph) == ["Sepia"]
    # Three products and two sums, at most 1.351 max |x|.
    close(got, sepia(x, lower), 3, 1.351 * np.abs(x).max())


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_is_left_alone(name, tmp_path):
    net, x = Net(NEAR[name]), images()
    want = net(x).asnumpy()
    graph = unproven(net, x, tmp_path)
    assert "Sepia" not in operators(graph), str(graph)
    np.testing.assert_array_equal(nn.GraphCell(graph)(Tensor(x)).asnumpy(), want)


@pytest.mark.parametrize("cut,attrs", [
    (lambda y: y, {"max_value": np.inf, "min_value": -np.inf}),
    (lambda y: ops.minimum(y, 0.0), {"max_value": 0.0}),
    (lambda y: ops.minimum(ops.maximum(y, 0.25), 0.75), {"max_value": 0.75, "min_value": 0.25}),
])  # fmt: skip
def test_where_it_is_cut(cut, attrs, tmp_path):
    x = images() - 0.5
    graph = unproven(Net(lambda x, m: cut(product(x, m))), x, tmp_path)
    (node,) = graph.nodes
    assert node["op"] == "Sepia" and attrs.items() <= node["attrs"].items()
    want = cut(Tensor(sepia(x).astype(np.float32))).asnumpy()
    close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), want, 4, 1.351 * np.abs(x).max())


def test_a_limit_that_there_is_stays(tmp_path):
    """Infinity in a pattern is no other number."""
    x = images()
    layer = nn.Conv2d(3, 3, 1, has_bias=False, weight_init=Tensor(MATRIX.reshape(3, 3, 1, 1)))
    net = Net(lambda x, m: ops.maximum(ops.minimum(layer(x), 0.75), 0.25))
    graph = unproven(net, x, tmp_path)
    got = nn.GraphCell(graph)(Tensor(x)).asnumpy()
    assert "Sepia" in operators(graph) and got.max() == 0.75 and got.min() == 0.25


def test_limits_that_cross_stay_as_they_are(tmp_path):
    x = images()
    net = Net(lambda x, m: ops.minimum(ops.maximum(product(x, m), 0.75), 0.25))
    graph = unproven(net, x, tmp_path)
    assert sorted(operators(graph)) == ["Minimum", "Sepia"]
    np.testing.assert_array_equal(nn.GraphCell(graph)(Tensor(x)).asnumpy(), np.full(SHAPE, 0.25, np.float32))
