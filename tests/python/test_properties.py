"""Random graphs: run eagerly, traced, and exported and reloaded they give the same."""

import tempfile

import numpy as np
import opgraft
from hypothesis import given, settings
from hypothesis import strategies as st
from opgraft import nn, ops

UNARY = [
    ops.tanh,
    ops.sigmoid,
    ops.relu,
    ops.silu,
    ops.neg,
    lambda v: v.transpose(1, 0),
    lambda v: ops.softmax(v),
    lambda v: v * 0.5,
]
BINARY = [ops.add, ops.sub, ops.mul, ops.maximum]


class Random(nn.Cell):
    def __init__(self, program):
        super().__init__()
        self.program = program

    def construct(self, x):
        values = [x]
        for kind, which, a, b in self.program:
            v = values[a % len(values)]
            values.append(
                UNARY[which % len(UNARY)](v) if kind else BINARY[which % len(BINARY)](v, values[b % len(values)])
            )
        return values[-1]


STEP = st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))


@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=10), st.integers(1, 5), st.integers(0, 2**31))
def test_eager_traced_reloaded(program, n, seed):
    x = np.random.default_rng(seed).standard_normal((n, n)).astype(np.float32)
    net = Random(program)
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)
    eager = net(x).asnumpy()
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    np.testing.assert_allclose(net(x).asnumpy(), eager, rtol=1e-6, atol=1e-6)
    with tempfile.TemporaryDirectory() as folder:
        file = opgraft.export(net, opgraft.Tensor(x), file_name=f"{folder}/net")
        np.testing.assert_allclose(nn.GraphCell(opgraft.load(file))(x).asnumpy(), eager, rtol=1e-6, atol=1e-6)
    opgraft.set_context(mode=opgraft.PYNATIVE_MODE)
