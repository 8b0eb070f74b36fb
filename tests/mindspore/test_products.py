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


def fold(g, of):
    """A gradient summed over the batches that share an operand of the shape `of`."""
    g = g.sum(tuple(range(g.ndim - len(of))))
    return g.sum(tuple(i for i in range(len(of) - 2) if of[i] == 1), keepdims=True)


def within(got, want, squares, terms):
    """Of sums of `terms` products whose squares add up to `squares`, as aot_ops/matmul/cases.py derives it; one
    rounding more to the result."""
    bound = 8 * 2.0**-24 * np.sqrt(terms * squares / 6)
    assert got.shape == want.shape
    assert (abs(got - want) <= bound + 2.0**-24 * (abs(want) + bound)).all()


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
    of_a, of_b = (lambda dy, y: swap(dy @ swap(y, True), ta)), (lambda dy, x: swap(swap(x, True) @ dy, tb))
    for g, of, f, other, each in ((got[0], a, of_a, y, n), (got[1], b, of_b, x, m)):
        whole = f(dy, other)
        terms = each * (whole.size // of.size)  # of the batches that share a matrix
        within(g.asnumpy(), fold(whole, of.shape), fold(f(dy**2, other**2), of.shape), terms)


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
    x64, w64 = x.astype(np.float64), (w.astype(np.float64) * scale).T
    # The sum's error, and three roundings of a scaled weight or of the scaled sum.
    bound = 8 * 2.0**-24 * np.sqrt(18 * (x64**2 @ w64**2) / 6) + 3 * 2.0**-24 * (abs(x64) @ abs(w64))
    for y in (ours(opgraft.Tensor(x)).asnumpy(), want):
        assert (abs(y - x64 @ w64) <= bound).all()
