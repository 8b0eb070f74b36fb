"""Products in MindSpore: gradients by the operator that `backward:` names; exported weights of eight bits."""

import mindspore as ms
import numpy as np
import opgraft
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


class Quantised(nn.Cell):
    """A weight [N, K] of eight bits, widened and scaled by output channel."""

    def __init__(self, weight, scale):
        super().__init__()
        self.weight = ms.Parameter(Tensor(weight), name="weight")
        self.scale = ms.Parameter(Tensor(scale), name="scale")
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, x):
        return self.product(x, ops.cast(self.weight, ms.float32) * self.scale)


def test_an_exported_weight_of_eight_bits(tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    rng = np.random.default_rng(0)
    w, scale = rng.integers(-128, 128, (35, 18)).astype(np.int8), rng.uniform(0.001, 0.01, (35, 1)).astype(np.float32)
    net, x = Quantised(w, scale), normal(5, 18)
    want = net(Tensor(x)).asnumpy()
    ms.export(net, Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    ours = opgraft.nn.GraphCell(opgraft.load(tmp_path / "net.mindir"))
    report = opgraft.rewrite.substitute(ours, prove=[[opgraft.Tensor(x)]])
    assert [s["op"].split("@")[0] for s in report.swapped] == ["WeightQuantBatchMatmul"]
    # Sums of 18 products below 4.5 * 1.28, by either side, each rounding at most 2^-24 of the sum so far.
    np.testing.assert_allclose(
        ours(opgraft.Tensor(x)).asnumpy(), want, rtol=0, atol=2 * 20 * 2.0**-24 * 18 * 4.5 * 1.28
    )
