"""Extremes with their places: without the place it is a ReduceMax, in Softmax's formula too."""

import numpy as np
import opgraft
import pytest
from compare import close
from opgraft import Tensor, nn, ops, rewrite


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


class Net(nn.Cell):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def construct(self, x):
        return self.f(x)


def extreme(x, axis=-1, keep_dims=False, op="ArgMaxWithValue"):
    return ops.primitive(op, x, axis=axis, keep_dims=keep_dims)


def softmax(x):
    e = ops.exp(x - extreme(x, keep_dims=True)[1])
    return e / ops.sum(e, -1, True)


@pytest.mark.parametrize("name,f,operators", [
    ("the value", lambda x: extreme(x)[1], ["ReduceMax"]),
    ("the value, its dimension kept", lambda x: extreme(x, 2, True)[1], ["ReduceMax"]),
    ("both", lambda x: extreme(x), ["ArgMaxWithValue"]),
    ("the place", lambda x: extreme(x)[0], ["ArgMaxWithValue"]),
    ("another dimension", lambda x: extreme(x, 1)[1], ["ArgMaxWithValue"]),
    ("the smallest", lambda x: extreme(x, op="ArgMinWithValue")[1], ["ArgMinWithValue"]),
    ("Softmax", softmax, ["ScaledMaskedSoftmax"]),
])  # fmt: skip
def test_an_extreme_whose_place_nobody_reads(name, f, operators, tmp_path):
    x = normal(3, 4, 17)
    graph = opgraft.load(opgraft.export(Net(f), Tensor(x), file_name=tmp_path / "net"))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == operators, str(graph)
    got, want = (nn.GraphCell(graph)(Tensor(x)), Net(f)(Tensor(x)))
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        if name == "Softmax":
            e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
            close(a.asnumpy(), e / e.sum(-1, keepdims=True), 24, 1.0)  # an exponential, a sum of 17 and a quotient
        else:
            np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
