import numpy as np
import opgraft
import pytest
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
    np.testing.assert_array_equal(net(x).asnumpy(), eager)
    file = opgraft.export(net, Tensor(shape=[None, 4], dtype=opgraft.float32), file_name=tmp_path / "net")
    cell = nn.GraphCell(opgraft.load(file))
    np.testing.assert_array_equal(cell(x).asnumpy(), eager)
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
