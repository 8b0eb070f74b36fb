import functools

import numpy as np
import opgraft
import pytest
from compare import SLOPE, TANH, close, linear
from opgraft import Tensor, nn, rewrite


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense, self.act = nn.Dense(4, 8), nn.GELU(False)

    def construct(self, x):
        return self.act(self.dense(x)).reshape(x.shape[0] * 2, 4)


def test_eager_traced_exported_agree(tmp_path):
    net, x = Net(), np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    eager = net(x).asnumpy()
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    traced = net(x).asnumpy()
    # A constant weight is packed: the products of few rows by one that is not are summed in another order. Of each side
    # 4 products and their sum, the bias, all steeper by GELU's slope; GELU's own tanh.
    _, scale = linear(x, net.dense.weight.asnumpy(), net.dense.bias.asnumpy())
    close(traced, eager, 2 * (SLOPE * (2 * 4 + 1) + TANH + 4), scale.max())
    file = opgraft.export(net, Tensor(shape=[None, 4], dtype=opgraft.float32), file_name=tmp_path / "net")
    cell = nn.GraphCell(opgraft.load(file))
    np.testing.assert_array_equal(cell(x).asnumpy(), traced)
    assert cell(np.ones((7, 4), np.float32)).shape == (14, 4)


def test_a_swap_after_the_first_call_takes_effect():
    net, x = Net(), np.ones((2, 4), np.float32)
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    before = net(x).asnumpy()
    report = rewrite.replace_cell(net, nn.GELU, lambda cell: nn.ReLU())
    assert len(report.swapped) == 1
    assert not np.array_equal(net(x).asnumpy(), before)


def test_symbolic_decisions_are_refused():
    class Branch(nn.Cell):
        def construct(self, x):
            return x + 1 if x.shape[0] == 3 else x

    with pytest.raises(ValueError, match="not known before the graph runs"):
        opgraft.export(Branch(), Tensor(shape=[None], dtype=opgraft.float32), file_name="unused")


def rows(n):
    return np.ones((n, 2), np.float32)


@pytest.mark.parametrize("function", [
    lambda x: {2: "two", 3: "three"}.get(x.shape[0]),
    lambda x: functools.lru_cache(lambda n: n * 10)(x.shape[0]),
    lambda x: x.shape[0] in {2, 4},
    lambda x: x.shape,
    lambda x: {"rows": [x.shape[0]]},
])  # fmt: skip
def test_a_size_that_python_keeps_is_that_of_the_call(function):
    f = opgraft.jit(lambda x: (x * 2, function(x)))
    for n in (2, 3, 4, 2):
        assert f(rows(n))[1] == function(rows(n))


def test_a_number_is_no_output_of_an_exported_model(tmp_path):
    class Net(nn.Cell):
        def construct(self, x):
            return {"y": x, "sizes": [x.shape[0], None]}

    with pytest.raises(TypeError, match="a result must not be dimension x.0, no number before the graph runs"):
        opgraft.export(Net(), Tensor(shape=[None, 2], dtype=opgraft.float32), file_name=tmp_path / "open")
    with pytest.raises(TypeError, match=r"export: output\['sizes'\]\[0\] must be a Tensor, got 2"):
        opgraft.export(Net(), rows(2), file_name=tmp_path / "fixed")
    assert not list(tmp_path.iterdir())
