"""Hard-sigmoid and hard-swish of models that MindSpore exported, by its primitives and written out."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close, normal, taken
from mindspore import Tensor, nn, ops
from opgraft import _core


class Written(nn.Cell):
    def __init__(self):
        super().__init__()
        self.six = nn.ReLU6()

    def construct(self, x):
        return x * self.six(x + 3) / 6


class Gate(nn.Cell):
    def construct(self, x):
        return ops.relu6(x + 3.0) / 6.0


class Clipped(nn.Cell):
    def construct(self, x):
        return x * ops.clip(x + 3, 0, 6) / 6


NETS = {"written": (Written, "HSwish"), "clipped": (Clipped, "HSwish"), "gate": (Gate, "HSigmoid")}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("net", NETS)
def test_written_out(net, dtype, tmp_path):
    make, op = NETS[net]
    want, got, _ = taken(make(), [(normal(5, 33) * 3).astype(dtype)], tmp_path, op)
    close(got, want, 1e-6 if dtype == np.float32 else 5 * 2.0**-11)


@pytest.mark.parametrize("net", [nn.HSwish, nn.HSigmoid])
def test_the_primitives(net, tmp_path):
    """Read and written back as what they are."""
    x = normal(5, 33) * 3
    ms.export(net(), Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    assert [n["op"] for n in graph.nodes] == [net.__name__]
    want = net()(Tensor(x)).asnumpy()
    close(opgraft.nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), want, 1e-6)
    _core.write_mindir(graph, str(tmp_path / "again.mindir"))
    np.testing.assert_array_equal(nn.GraphCell(ms.load(str(tmp_path / "again.mindir")))(Tensor(x)).asnumpy(), want)
