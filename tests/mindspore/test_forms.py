"""Primitives of mint that MindSpore exports, but has no kernel of on CPU: read as others, and written as these."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import normal
from mindspore import Tensor, nn
from opgraft import _core
from primitives import cells

X = normal(4, 5, 6)
WIDE = X.astype(np.float64)


def top(axis, largest):
    order = np.argsort(-X if largest else X, axis=axis, kind="stable").take(range(3), axis)
    return np.take_along_axis(X, order, axis), order


# what is written: what it gives
MINT = {
    "mint.var(x, 1)": [WIDE.var(1, ddof=1)],
    "mint.var(x, correction=0)": [WIDE.var()],
    "mint.std(x, (0, 2), correction=0, keepdim=True)": [WIDE.std((0, 2), keepdims=True)],
    "mint.var_mean(x, -1)": [WIDE.var(-1, ddof=1), WIDE.mean(-1)],
    "mint.std_mean(x, 0, correction=0)": [WIDE.std(0), WIDE.mean(0)],
    "mint.topk(x, 3)": top(-1, True),
    "mint.topk(x, 3, 1)": top(1, True),
    "mint.topk(x, 3, 0, False)": top(0, False),
}


@pytest.fixture
def net(tmp_path):
    """A Cell of an expression, of which MindSpore reads the source."""
    ms.set_context(mode=ms.GRAPH_MODE)
    return lambda expression: cells(tmp_path, [(expression, "", lambda n: [X])])[0]()


@pytest.mark.parametrize("opened", [False, True], ids=["", "open"])
@pytest.mark.parametrize("name", MINT)
def test_of_an_exported_model(name, opened, net, tmp_path):
    want = MINT[name]
    spec = Tensor(shape=[None, 5, 6], dtype=ms.float32) if opened else Tensor(X)
    ms.export(net(name), spec, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    _core.write_mindir(graph, str(tmp_path / "written.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "written.mindir")))(Tensor(X))
    back = [t.asnumpy() for t in (back if isinstance(back, tuple) else (back,))]
    got = _core.Session(_core.Model(graph)).run([X])
    for result in (got, back):
        for a, b in zip(result, want, strict=True):
            assert a.shape == np.shape(b)
            # Means of 120 numbers at most, in MindSpore's float32; places and what is taken are exact.
            np.testing.assert_allclose(a, b, rtol=0 if "topk" in name else 1e-5)


@pytest.mark.parametrize("parts", [(1, 3), (2, 2), (4,)])
def test_parts_of_an_open_dimension(parts, net, tmp_path):
    """Those that do not add up to it are an error when the model runs."""
    spec = Tensor(shape=[None, 6], dtype=ms.float32)
    ms.export(net(f"mint.split(x, {parts}, 0)[-1] * 2"), spec, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    assert "SplitWithSize" in [n["op"] for n in graph.nodes]
    _core.write_mindir(graph, str(tmp_path / "written.mindir"))
    x = X[:, 0]
    want = x[-parts[-1] :] * 2
    session = _core.Session(_core.Model(graph))
    np.testing.assert_array_equal(session.run([x])[0], want)
    np.testing.assert_array_equal(nn.GraphCell(ms.load(str(tmp_path / "written.mindir")))(Tensor(x)).asnumpy(), want)
    for n in (3, 5):
        with pytest.raises(ValueError, match=f"SplitWithSize: split_size must add up to {n}, dimension 0 of x, got"):
            session.run([normal(n, 6)])
