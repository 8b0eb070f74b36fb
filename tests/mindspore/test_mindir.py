"""Models exported by MindSpore: opgraft runs them, grafts them, and MindSpore runs the result."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from mindspore import Tensor
from models import MODELS
from opgraft import _core, nn, rewrite


def close(got, want, rtol=1e-5):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())


@pytest.fixture(autouse=True)
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(name, tmp_path):
    make, inputs, placeholders, sizes = MODELS[name]
    net = make()
    given = placeholders or [Tensor(a) for a in inputs(*sizes[0])]
    ms.export(net, *given, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    want = {size: net(*[Tensor(a) for a in inputs(*size)]).asnumpy() for size in sizes}
    plain = nn.GraphCell(graph)
    for size in sizes:
        close(plain(*[opgraft.Tensor(a) for a in inputs(*size)]).asnumpy(), want[size])
    report = rewrite.substitute(graph, prove=tuple(inputs(*sizes[0])))
    assert report.swapped, str(report)
    for size in sizes:
        close(nn.GraphCell(graph)(*[opgraft.Tensor(a) for a in inputs(*size)]).asnumpy(), want[size])
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = ms.nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))
    for size in sizes:
        close(back(*[Tensor(a) for a in inputs(*size)]).asnumpy(), want[size])
