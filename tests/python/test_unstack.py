"""Slices along a dimension that goes, each an output (unbind), and the models that are written with them."""

import numpy as np
import opgraft
import pytest
from attention_spellings import ROUNDINGS, B, D, H, T, normal, reference
from compare import Net, close, graft, left
from opgraft import Tensor, nn, ops, rewrite

ROOT = D**0.5
CALLS = {
    "unbind": lambda x, axis: ops.unbind(x, axis),
    "unstack": lambda x, axis: ops.unstack(x, axis),
    "Unstack": lambda x, axis: ops.Unstack(axis)(x),
    "Unstack, with their number": lambda x, axis: ops.Unstack(axis, x.shape[axis])(x),
    "the primitive": lambda x, axis: ops.primitive("Unstack", x, axis=axis),
    "Tensor.unbind": lambda x, axis: x.unbind(axis),
}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("call", CALLS)
def test_slices(call, axis, tmp_path):
    x = normal(3, 2, 5)
    got = CALLS[call](Tensor(x), axis)
    assert isinstance(got, tuple) and len(got) == x.shape[axis]
    for a, b in zip(got, np.moveaxis(x, axis, 0)):
        np.testing.assert_array_equal(a.asnumpy(), b)
    assert left(lambda x: CALLS[call](x, axis), [x], tmp_path) == ["Unstack"]


@pytest.mark.parametrize("size", [0, 1, 65])
def test_numbers_of_slices_that_are_no_node(size, tmp_path):
    """None, one, and more than a node's outputs: they are indexed."""
    x = normal(4, size)
    got = ops.unbind(Tensor(x), 1)
    assert len(got) == size
    for i, a in enumerate(got):
        np.testing.assert_array_equal(a.asnumpy(), x[:, i])
    if size:
        assert set(left(lambda x: ops.unbind(x, 1), [x], tmp_path)) == {"StridedSlice"}


def test_open_dimensions(tmp_path):
    rows = Tensor(shape=[None, 3], dtype=opgraft.float32)

    class Columns(nn.Cell):
        def construct(self, x):
            return ops.unbind(x, -1)

    graph = opgraft.load(opgraft.export(Columns(), rows, file_name=str(tmp_path / "net")))
    for n in (1, 4, 0):
        x = normal(n, 3)
        for a, b in zip(nn.GraphCell(graph)(Tensor(x)), x.T):
            np.testing.assert_array_equal(a.asnumpy(), b)

    class Rows(nn.Cell):
        def __init__(self, num):
            super().__init__()
            self.num = num

        def construct(self, x):
            return ops.Unstack(0, self.num)(x)

    graph = opgraft.load(opgraft.export(Rows(2), rows, file_name=str(tmp_path / "net")))
    x = normal(2, 3)
    for a, b in zip(nn.GraphCell(graph)(Tensor(x)), x):
        np.testing.assert_array_equal(a.asnumpy(), b)
    with pytest.raises(ValueError, match="Unstack: num must be dimension 0 of x, of size 5, got 2"):
        nn.GraphCell(graph)(Tensor(normal(5, 3)))
    with pytest.raises(ValueError, match=r"dimension 0 of x must not be open; ops.Unstack\(axis, num\)"):
        opgraft.export(Rows(None), rows, file_name=str(tmp_path / "net"))


@pytest.mark.parametrize("write,said", [
    (lambda x: ops.unbind(x, 3), "unstack: axis must be within the 3 dimensions of x, got 3"),
    (lambda x: ops.Unstack(1, 3)(x), "Unstack: num must be dimension 1 of x, of size 2, got 3"),
])  # fmt: skip
def test_what_is_refused(write, said):
    with pytest.raises(ValueError, match=said):
        write(Tensor(normal(3, 2, 5)))


BY = {
    "unbind": lambda x, axis: ops.unbind(x, axis),
    "index": lambda x, axis: tuple(x[(slice(None),) * axis + (i,)] for i in range(3)),
    "ONNX, split and squeeze": lambda x, axis: [
        ops.primitive("Squeeze", s, axis=[axis]) for s in ops.primitive("Split", x, axis=axis, output_num=3)
    ],
}


class Attention(nn.Cell):
    """A layer of a vision transformer: one product for query, key and value; timm turns them before they part."""

    def __init__(self, by, turned):
        super().__init__()
        self.by, self.turned = BY[by], turned
        self.qkv, self.out = nn.Dense(H * D, 3 * H * D), nn.Dense(H * D, H * D)

    def construct(self, x):
        qkv = self.qkv(x).reshape(B, T, 3, H, D)
        if self.turned:
            q, k, v = self.by(ops.transpose(qkv, (2, 0, 3, 1, 4)), 0)
        else:
            q, k, v = (ops.transpose(t, (0, 2, 1, 3)) for t in self.by(qkv, 2))
        w = ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * ROOT**-1, -1)
        return self.out(ops.transpose(ops.matmul(w, v), (0, 2, 1, 3)).reshape(B, T, H * D))

    def wanted(self, x):
        """In float64."""
        wide = [
            p.asnumpy().astype(np.float64) for p in (self.qkv.weight, self.qkv.bias, self.out.weight, self.out.bias)
        ]
        qkv = x.astype(np.float64) @ wide[0].T + wide[1]
        q, k, v = qkv.reshape(B, T, 3, H, D).transpose(2, 0, 3, 1, 4)
        y = reference(q, k, v, 0.0, ROOT**-1)
        return y.swapaxes(1, 2).reshape(B, T, H * D) @ wide[2].T + wide[3], qkv, wide[2]


@pytest.mark.parametrize("turned", [True, False])
def test_a_vision_transformer_is_the_same_however_its_parts_are_taken(turned):
    x = normal(B, T, H * D)
    found = {}
    for by in BY:
        net = Attention(by, turned)
        rewrite.substitute(net, prove=(x,))
        opgraft.set_context(mode=opgraft.GRAPH_MODE)
        got = net(x).asnumpy()
        found[by] = [n["op"] for n in net._grafted[0][0].graph.nodes]
        assert found[by].count("ScaledDotProductAttention") == 1 and not {"Softmax", "BatchMatMul"} & set(found[by])
        want, qkv, out = net.wanted(x)
        # The projection's sums of H D terms and attention's own, of values at most qkv's, times the last weights' sum.
        close(got, want, ROUNDINGS + 16 * H * D, np.abs(qkv).max() * np.abs(out).sum(-1).max())
    parts = {"Unstack", "StridedSlice", "Split", "Squeeze"}
    assert len({tuple(op for op in ops if op not in parts) for ops in found.values()}) == 1, found
    assert found["unbind"].count("Unstack") == 1


# Rows [..., 2, d] and [..., d, 2] of what Reshape makes, in the spellings of rotary embeddings (x-transformers).
COS, SIN = (f(np.outer(np.arange(T), 100.0 ** (-np.arange(0, D, 2) / D))).astype(np.float32) for f in (np.cos, np.sin))


def paired(a, b, axis):
    return ops.stack((a * COS - b * SIN, b * COS + a * SIN), axis).reshape(B, H, T, D)


def turned_pairs(x):
    a, b = ops.unbind(x.reshape(B, H, T, D // 2, 2), -1)
    return x * np.repeat(COS, 2, -1) + ops.stack((-b, a), -1).reshape(B, H, T, D) * np.repeat(SIN, 2, -1)


def turned_halves(x):
    a, b = ops.unbind(x.reshape(B, H, T, 2, D // 2), -2)
    return x * np.tile(COS, 2) + ops.concat((-b, a), -1) * np.tile(SIN, 2)


ROTARY = {
    "pairs": (1, lambda x: paired(*ops.unbind(x.reshape(B, H, T, D // 2, 2), -1), -1)),
    "pairs, turned": (1, turned_pairs),
    "halves": (0, lambda x: paired(*ops.unbind(x.reshape(B, H, T, 2, D // 2), -2), -2)),
    "halves, turned": (0, turned_halves),
}
NEAR = {
    "pairs exchanged": lambda x: paired(*ops.unbind(x.reshape(B, H, T, D // 2, 2), -1)[::-1], -1),
    "pairs joined as halves": lambda x: paired(*ops.unbind(x.reshape(B, H, T, D // 2, 2), -1), -2),
    "halves joined as pairs": lambda x: paired(*ops.unbind(x.reshape(B, H, T, 2, D // 2), -2), -1),
    "one of them twice": lambda x: (lambda a, b: paired(a, a, -1))(*ops.unbind(x.reshape(B, H, T, D // 2, 2), -1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_embedding(name, tmp_path):
    mode, write = ROTARY[name]
    x = normal(B, H, T, D)
    graph = opgraft.load(opgraft.export(Net(write), Tensor(x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    (node,) = graph.nodes
    assert node["op"] == "RotaryPositionEmbedding" and node["attrs"]["mode"] == mode
    got, wide = graft(write, x)[2][0], x.astype(np.float64)
    a, b = np.moveaxis(wide.reshape(B, H, T, *((D // 2, 2) if mode else (2, D // 2))), -1 if mode else -2, 0)
    want = np.stack((a * COS - b * SIN, b * COS + a * SIN), -1 if mode else -2).reshape(x.shape)
    close(got, want, 3, 2 * np.abs(x).max())


@pytest.mark.parametrize("name", NEAR)
def test_what_is_no_rotary_embedding(name):
    x = normal(B, H, T, D)
    names, before, after = graft(NEAR[name], x, prove=False)
    assert "RotaryPositionEmbedding" not in names
    np.testing.assert_array_equal(after[0], before[0])
