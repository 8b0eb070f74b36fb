"""Where dimensions are open, sizes may come that an operator refuses which replaced others: it runs as those."""

import json

import numpy as np
import opgraft
import pytest
from compare import Net, normal
from opgraft import Tensor, _core, nn, ops, rewrite

N = 16
GAMMA, BETA, SQUARE = (Tensor(normal(*shape, seed=9)) for shape in ((N,), (N,), (N, N)))
KERNEL = Tensor(normal(3, 3, 1, 1, seed=9))


def norm_of_sum(x, r):
    s = x + r
    return ops.layer_norm(s, (N,), GAMMA, BETA), s


def rms_of_sum(x, r):
    s = x + r
    return s * ops.rsqrt(ops.mean(s * s, -1, True) + 1e-5) * GAMMA, s


def rotated(x, r):
    return x * r + ops.concat((-x[..., N // 2 :], x[..., : N // 2]), -1) * r


def attention(q, k):
    return ops.bmm(ops.softmax(ops.bmm(q, k, transpose_b=True) * 0.25, -1), k)


# What is replaced, by what, and the dimensions that follow the open one.
REPLACED = {
    "norm": (norm_of_sum, "AddLayerNorm", (N,)),
    "rms": (rms_of_sum, "FusedAddRmsNorm", (N,)),
    "residual": (lambda x, r: ops.matmul(x, SQUARE) + r, "DenseAdd", (N,)),
    "mask": (lambda x, m: ops.softmax(x * 0.5 + m, -1), "ScaledMaskedSoftmax", (N,)),
    "gate": (lambda x, r: x * ops.silu(r), "SwiGLU", (N,)),
    "convolution": (lambda x, r: ops.relu(ops.conv2d(x, KERNEL) + r), "FusedConv2D", (3, 4, 4)),
    "rotary": (rotated, "RotaryPositionEmbedding", (4, N)),
    "attention": (attention, "ScaledDotProductAttention", (2, 5, N)),
}


def graph(f, shapes, path):
    """The model with operators in the place of others, None being a dimension of its own each time."""
    specs = [Tensor(shape=list(shape), dtype=opgraft.float32) for shape in shapes]
    made = opgraft.load(opgraft.export(Net(f), *specs, file_name=str(path / "net")))
    rewrite.substitute(made)
    return made


def names(made):
    return [n["op"] for n in made.nodes]


def results(made, *inputs):
    got = nn.GraphCell(made)(*map(Tensor, inputs))
    return [t.asnumpy() for t in (got if isinstance(got, tuple) else (got,))]


def same(made, other, *inputs):
    """The same bits: as the plain model, or, of sizes that the operator takes, as where they are known at once."""
    for got, want in zip(results(made, *inputs), results(other, *inputs), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("what", REPLACED)
def test_sizes_that_only_what_was_replaced_takes(what, tmp_path):
    f, name, shape = REPLACED[what]
    fused = graph(f, [(None, *shape)] * 2, tmp_path)
    assert name in names(fused)
    plain = opgraft.load(tmp_path / "net.mindir")
    for rows, others in ((3, 3), (3, 1), (1, 3), (2, 2)):
        inputs = normal(rows, *shape), normal(others, *shape, seed=1)
        takes = rows == others or (rows == 3 and what in ("rotary", "mask"))
        same(fused, graph(f, [x.shape for x in inputs], tmp_path) if takes else plain, *inputs)


class Around(nn.Cell):
    def __init__(self, inner, f):
        super().__init__()
        self.inner, self.f = nn.GraphCell(inner), f

    def construct(self, *x):
        return self.f(self.inner, *x)


def around(inner, f, shapes, path):
    specs = [Tensor(shape=list(shape), dtype=opgraft.float32) for shape in shapes]
    return opgraft.load(opgraft.export(Around(inner, f), *specs, file_name=str(path / "around")))


def attention_of_three(q, k, v):
    return ops.bmm(ops.softmax(ops.bmm(q, k, transpose_b=True) * 0.25, -1), v)


def test_inputs_that_become_one(tmp_path):
    """relu(k) twice is one value: the operator's inputs are no longer three."""
    fused = graph(attention_of_three, [(None, 2, 5, N)] * 3, tmp_path)
    outer = around(fused, lambda f, q, k: f(q, ops.relu(k), ops.relu(k)), [(None, 2, 5, N)] * 2, tmp_path)
    assert names(outer) == ["ReLU", "ScaledDotProductAttention"]
    for rows in ((3, 1), (1, 3), (3, 3)):
        q, k = (normal(n, 2, 5, N, seed=n) for n in rows)
        kept = np.maximum(k, 0)
        for got, want in zip(results(outer, q, k), results(fused, q, kept, kept), strict=True):
            np.testing.assert_array_equal(got, want)
    missing = (
        (tmp_path / "around.mindir").read_bytes().replace(b"ScaledDotProductAttention", b"ScaledDotProductAttentioM")
    )
    (tmp_path / "missing.mindir").write_bytes(missing)
    plain = opgraft.load(tmp_path / "missing.mindir")
    assert names(plain).count("BatchMatMul") == 2


def test_an_input_that_becomes_a_constant(tmp_path):
    fused, more = graph(norm_of_sum, [(None, N)] * 2, tmp_path), normal(3, N, seed=1)
    outer = around(fused, lambda f, x: f(x, Tensor(more)), [(None, N)], tmp_path)
    assert names(outer) == ["AddLayerNorm"]
    for rows in (3, 1):
        x = normal(rows, N)
        for got, want in zip(results(outer, x), results(fused, x, more), strict=True):
            np.testing.assert_array_equal(got, want)


def test_inside_a_model_of_sizes_that_the_operator_refuses(tmp_path):
    fused = graph(norm_of_sum, [(None, N)] * 2, tmp_path)
    outer = around(fused, lambda f, x, r: f(x, r), [(3, N), (1, N)], tmp_path)
    assert names(outer) == ["Add", "LayerNorm"]
    same(outer, fused, normal(3, N), normal(1, N, seed=1))


def test_a_written_model_has_it_too(tmp_path):
    fused = graph(norm_of_sum, [(None, N)] * 2, tmp_path)
    _core.write_mindir(fused, str(tmp_path / "fused.mindir"))
    again = opgraft.load(tmp_path / "fused.mindir")
    assert names(again) == ["AddLayerNorm"]
    same(again, fused, normal(3, N), normal(1, N, seed=1))


def test_of_several_each_that_refuses(tmp_path):
    def twice(x, r):
        y, s = norm_of_sum(x, r)
        return ops.relu(ops.matmul(y, SQUARE) + BETA), ops.matmul(s, SQUARE) + r

    fused = graph(twice, [(None, N)] * 2, tmp_path)
    assert sorted(names(fused)) == ["AddLayerNorm", "Dense", "DenseAdd"]
    fixed = graph(twice, [(1, N), (3, N)], tmp_path)
    assert "AddLayerNorm" not in names(fixed)
    same(fused, fixed, normal(1, N), normal(3, N, seed=1))


def test_of_so_many_that_all_make_way(tmp_path):
    def deep(x, r):
        for _ in range(100):
            x, s = norm_of_sum(x, r)
        return x, s

    fused = graph(deep, [(None, N)] * 2, tmp_path)
    assert names(fused) == ["AddLayerNorm"] * 100
    same(fused, graph(deep, [(3, N), (1, N)], tmp_path), normal(3, N), normal(1, N, seed=1))


def test_sizes_that_neither_takes(tmp_path):
    fused = graph(norm_of_sum, [(None, N)] * 2, tmp_path)
    with pytest.raises(ValueError, match=r"AddLayerNorm: residual.shape must equal x.shape \(2, 16\), got \(3, 16\)"):
        results(fused, normal(2, N), normal(3, N))


def test_a_profile_counts_the_nodes_that_ran(tmp_path):
    session = _core.Session(_core.Model(graph(norm_of_sum, [(None, N)] * 2, tmp_path)))

    def ran(rows):
        inputs = [normal(3, N), normal(rows, N)]
        return sorted(op["op"] for op in json.loads(session.profile(inputs, 1))["ops"])

    assert [ran(3), ran(1), ran(3)] == [["AddLayerNorm"], ["Add", "LayerNorm"], ["AddLayerNorm"]]
