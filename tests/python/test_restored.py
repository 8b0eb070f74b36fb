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


def exported(f, shape, path):
    """The model as it is, and with operators in the place of others; each dimension is one of its own."""
    specs = [Tensor(shape=[None, *shape], dtype=opgraft.float32) for _ in range(2)]
    file = opgraft.export(Net(f), *specs, file_name=str(path / "plain"))
    plain, fused = opgraft.load(file), opgraft.load(file)
    rewrite.substitute(fused)
    return plain, fused


def results(graph, *inputs):
    got = nn.GraphCell(graph)(*map(Tensor, inputs))
    return [t.asnumpy() for t in (got if isinstance(got, tuple) else (got,))]


@pytest.mark.parametrize("what", REPLACED)
def test_sizes_that_only_what_was_replaced_takes(what, tmp_path):
    f, name, shape = REPLACED[what]
    plain, fused = exported(f, shape, tmp_path)
    assert name in [n["op"] for n in fused.nodes]
    for rows, others in ((3, 3), (3, 1), (1, 3), (3, 3), (1, 1)):
        inputs = normal(rows, *shape), normal(others, *shape, seed=1)
        for got, want in zip(results(fused, *inputs), results(plain, *inputs), strict=True):
            assert got.shape == want.shape
            if rows == others or (what, rows) == ("rotary", 3):  # the operator, as its own cases hold it
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_array_equal(got, want)


def test_a_written_model_has_it_too(tmp_path):
    plain, fused = exported(norm_of_sum, (N,), tmp_path)
    _core.write_mindir(fused, str(tmp_path / "fused.mindir"))
    again = opgraft.load(tmp_path / "fused.mindir")
    assert [n["op"] for n in again.nodes] == ["AddLayerNorm"]
    inputs = normal(3, N), normal(1, N, seed=1)
    for got, want in zip(results(again, *inputs), results(plain, *inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_of_several_each_that_refuses(tmp_path):
    def twice(x, r):
        y, s = norm_of_sum(x, r)
        return ops.relu(ops.matmul(y, SQUARE) + BETA), ops.matmul(s, SQUARE) + r

    plain, fused = exported(twice, (N,), tmp_path)
    assert sorted(n["op"] for n in fused.nodes) == ["AddLayerNorm", "Dense", "DenseAdd"]
    inputs = normal(1, N), normal(3, N, seed=1)
    got, want = results(fused, *inputs), results(plain, *inputs)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-5)  # Dense stays
    np.testing.assert_array_equal(got[1], want[1])


def test_of_so_many_that_all_make_way(tmp_path):
    def deep(x, r):
        for _ in range(100):
            x, s = norm_of_sum(x, r)
        return x, s

    plain, fused = exported(deep, (N,), tmp_path)
    assert [n["op"] for n in fused.nodes] == ["AddLayerNorm"] * 100
    inputs = normal(3, N), normal(1, N, seed=1)
    for got, want in zip(results(fused, *inputs), results(plain, *inputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_sizes_that_neither_takes(tmp_path):
    _, fused = exported(norm_of_sum, (N,), tmp_path)
    with pytest.raises(ValueError, match=r"AddLayerNorm: .*\(2, 16\), got \(3, 16\)|AddLayerNorm: .*\(3, 16\), got"):
        results(fused, normal(2, N), normal(3, N))


def test_a_profile_counts_the_nodes_that_ran(tmp_path):
    _, fused = exported(norm_of_sum, (N,), tmp_path)
    session = _core.Session(_core.Model(fused))

    def ran(rows):
        inputs = [normal(3, N), normal(rows, N)]
        return sorted(op["op"] for op in json.loads(session.profile(inputs, 1))["ops"])

    assert [ran(3), ran(1), ran(3)] == [["AddLayerNorm"], ["Add", "LayerNorm"], ["AddLayerNorm"]]
