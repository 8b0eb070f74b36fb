"""Gradients of the products in MindSpore, by the operator that `backward:` names."""

import mindspore as ms
import numpy as np
import opgraft.mindspore
import pytest
from mindspore import Tensor, nn, ops

MODES = pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def swap(x, yes):
    return np.swapaxes(x, -1, -2) if yes else x


@MODES
@pytest.mark.parametrize("name,batch_a,batch_b", [
    ("MatMul", (), ()), ("BatchMatMul", (2, 3), (2, 3)), ("BatchMatMul", (2, 1), (3,)), ("BatchMatMul", (4,), ()),
])  # fmt: skip
@pytest.mark.parametrize("ta,tb", [(False, False), (False, True), (True, False), (True, True)])
def test_gradients(mode, name, batch_a, batch_b, ta, tb):
    ms.set_context(mode=mode)
    m, k, n = 9, 18, 35
    a, b = swap(normal(*batch_a, m, k), ta).copy(), swap(normal(*batch_b, k, n, seed=1), tb).copy()
    dy = normal(*np.broadcast_shapes(batch_a, batch_b), m, n, seed=2)

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.product = opgraft.mindspore.custom(name, transpose_a=ta, transpose_b=tb)

        def construct(self, a, b):
            return self.product(a, b)

    got = ops.GradOperation(get_all=True, sens_param=True)(Net())(Tensor(a), Tensor(b), Tensor(dy))
    x, y, dy = (v.astype(np.float64) for v in (swap(a, ta), swap(b, tb), dy))
    want = [swap(dy @ swap(y, True), ta), swap(swap(x, True) @ dy, tb)]
    for g, w, of in zip(got, want, (a, b)):
        batches = w.size // of.size  # that share a matrix
        w = w.sum(tuple(range(w.ndim - of.ndim)))
        w = w.sum(tuple(i for i in range(of.ndim - 2) if of.shape[i] == 1), keepdims=True)
        # A sum of `terms` products of normal numbers, each at most 4.5: every rounding is at most 2^-24 of a sum so
        # far, below 6 sqrt(terms), and they add up like a random walk of as many steps.
        terms = batches * max(m, n)
        np.testing.assert_allclose(g.asnumpy(), w, rtol=0, atol=6 * 2.0**-24 * 6 * terms)
