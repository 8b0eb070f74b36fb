"""Rotary embedding as MindFormers writes it, x cos + (x swap_mask) sin with a constant matrix, in models that MindSpore
exported."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close
from mindspore import Parameter, Tensor, nn, ops
from opgraft import _core, rewrite

B, H, KV, S, P, D = 2, 4, 2, 5, 11, 64
ANGLES = np.outer(np.arange(P), 100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def swap_mask(pairs):
    m = np.zeros((D, D), np.float32)
    first = np.arange(0, D, 2) if pairs else np.arange(D // 2)
    second = first + (1 if pairs else D // 2)
    m[first, second], m[second, first] = 1, -1
    return m


class Rotary(nn.Cell):
    """by: on a CPU MindSpore's BatchMatMul takes one matrix for one head of one sequence alone."""

    def __init__(self, pairs=False, by="matmul", m=None):
        super().__init__()
        both = np.repeat(ANGLES, 2, -1) if pairs else np.concatenate([ANGLES, ANGLES], -1)
        self.by = by
        self.cos, self.sin = Tensor(np.cos(both)), Tensor(np.sin(both))
        m = Tensor(swap_mask(pairs)) if m is None else m
        self.swap_mask = m if by == "matmul" else m.reshape(1, 1, D, D)
        self.add, self.mul, self.bmm, self.cast = ops.Add(), ops.Mul(), ops.BatchMatMul(), ops.Cast()
        self.bmm_t, self.gather, self.reshape = ops.BatchMatMul(transpose_b=True), ops.Gather(), ops.Reshape()
        self.slice = ops.StridedSlice()

    def rotate_half(self, x):
        if self.by == "BatchMatMul":
            return self.bmm(x, self.swap_mask)
        if self.by == "cast":
            return self.bmm(x, self.cast(self.swap_mask, ms.float32))
        if self.by == "transposed":
            return self.bmm_t(x, self.swap_mask)
        return ops.matmul(x, self.swap_mask)

    def turn(self, x, cos, sin):
        return self.add(self.mul(x, cos), self.mul(self.rotate_half(x), sin))


class First(Rotary):
    def construct(self, q, k):
        cos = self.slice(self.cos, (0, 0), (S, D), (1, 1))
        sin = self.slice(self.sin, (0, 0), (S, D), (1, 1))
        return self.turn(q, cos, sin), self.turn(k, cos, sin)


class Chosen(Rotary):
    """A token of each sequence, at the positions given: increments."""

    def construct(self, q, k, ids):
        cos = self.reshape(self.gather(self.cos, ids, 0), (B, 1, 1, D))
        sin = self.reshape(self.gather(self.sin, ids, 0), (B, 1, 1, D))
        return self.turn(q, cos, sin), self.turn(k, cos, sin)


class Widened(First):
    """In float32, of a half type."""

    def construct(self, q, k):
        q, k = super().construct(self.cast(q, ms.float32), self.cast(k, ms.float32))
        return self.cast(q, ms.float16), self.cast(k, ms.float16)


def exported(net, given, folder):
    tensors = [Tensor(x) for x in given]
    want = [y.asnumpy() for y in net(*tensors)]
    ms.export(net, *tensors, file_name=str(folder / "net"), file_format="MINDIR")
    graph = opgraft.load(folder / "net.mindir")
    rewrite.substitute(graph, prove=[list(given)])
    return graph, want


BOTH = normal(B, H, S, D), normal(B, KV, S, D, seed=1)
ALONE = [x[:1, :1].copy() for x in BOTH]


@pytest.mark.parametrize("by", ["BatchMatMul", "matmul", "cast"])
@pytest.mark.parametrize("pairs", [False, True], ids=["halves", "pairs"])
def test_query_and_key_become_one_operator(pairs, by, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    given = BOTH if by == "matmul" else ALONE
    graph, want = exported(First(pairs, by), given, tmp_path)
    (node,) = [n for n in graph.nodes if n["op"] != "StridedSlice"]
    assert node["op"] == "ApplyRotaryPosEmb" and node["attrs"]["mode"] == pairs, str(graph)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    for run in (opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)), back(*map(Tensor, given))):
        for got, y in zip(run, want, strict=True):
            close(got.asnumpy(), y)


def test_by_positions(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    given = *(x[:, :, :1].copy() for x in BOTH), np.array([3, 10], np.int32)
    graph, want = exported(Chosen(), given, tmp_path)
    assert [n["op"] for n in graph.nodes].count("ApplyRotaryPosEmb") == 1, str(graph)
    assert not {"BatchMatMul", "Mul", "Add"} & {n["op"] for n in graph.nodes}
    for got, y in zip(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)), want, strict=True):
        close(got.asnumpy(), y)


def test_of_a_half_type(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    given = [x.astype(np.float16) for x in BOTH]
    graph, want = exported(Widened(), given, tmp_path)
    assert [n["op"] for n in graph.nodes if n["op"] not in ("StridedSlice",)] == ["ApplyRotaryPosEmb"], str(graph)
    for got, y in zip(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)), want, strict=True):
        # Both compute in float32 (three roundings each, of at most 2 max |x|) and round once: one step of float16.
        atol = 6 * 2.0**-24 * 2 * np.abs(y.astype(np.float64)).max()
        np.testing.assert_allclose(got.asnumpy().astype(np.float64), y, rtol=2.0**-10, atol=atol)


@pytest.mark.parametrize("net", [
    First(m=Tensor(swap_mask(False).T.copy())),
    First(by="transposed"),
    First(m=Tensor(np.abs(swap_mask(False)))),
    First(m=Parameter(Tensor(swap_mask(False)), name="m")),
], ids=["turned back", "transposed", "without signs", "trained"])  # fmt: skip
def test_another_matrix_is_left_alone(net, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    given = BOTH if net.by == "matmul" else ALONE
    graph, want = exported(net, given, tmp_path)
    assert not {"RotaryPositionEmbedding", "ApplyRotaryPosEmb"} & {n["op"] for n in graph.nodes}, str(graph)
    for got, y in zip(opgraft.nn.GraphCell(graph)(*map(opgraft.Tensor, given)), want, strict=True):
        close(got.asnumpy(), y)
