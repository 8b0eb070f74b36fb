"""The sepia filter in models that MindSpore exported, and its gradient in MindSpore."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close
from mindspore import Tensor, nn, ops
from opgraft import rewrite
from opgraft.mindspore import custom, graft

MATRIX = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32)
N, H, W = 2, 5, 7


def images(seed=0):
    """Where no result lies at 1 or 0, where rounding would decide whether it is cut."""
    x = np.random.default_rng(seed).random((N, 3, H, W), np.float32) * 2 - 0.5
    y = np.einsum("rc,nchw->nrhw", MATRIX, x)
    assert min(np.abs(y - 1).min(), np.abs(y).min()) > 1e-5
    return x


class Sums(nn.Cell):
    def mixed(self, r, g, b):
        return (
            0.393 * r + 0.769 * g + 0.189 * b,
            0.349 * r + 0.686 * g + 0.168 * b,
            0.272 * r + 0.534 * g + 0.131 * b,
        )


class Slices(Sums):
    def construct(self, x):
        y = ops.concat(self.mixed(x[:, 0:1], x[:, 1:2], x[:, 2:3]), 1)
        return ops.minimum(y, 1.0)


class Stacked(Sums):
    def construct(self, x):
        y = ops.stack(self.mixed(x[:, 0], x[:, 1], x[:, 2]), 1)
        return ops.minimum(ops.maximum(y, 0.0), 1.0)


class Divided(Sums):
    def construct(self, x):
        r, g, b = ops.split(x, 1, 1)
        return ops.maximum(ops.minimum(ops.cat(self.mixed(r, g, b), 1), 1.0), 0.0)


class Gathered(Sums):
    def construct(self, x):
        r, g, b = ops.gather(x, Tensor(0), 1), ops.gather(x, Tensor(1), 1), ops.gather(x, Tensor(2), 1)
        return ops.minimum(ops.stack(self.mixed(r, g, b), 1), 1.0)


class EachCut(Sums):
    """Channel by channel, before they are joined."""

    def construct(self, x):
        r, g, b = self.mixed(x[:, 0], x[:, 1], x[:, 2])
        return ops.stack((ops.minimum(r, 1.0), ops.minimum(g, 1.0), ops.minimum(b, 1.0)), 1)


class EachClamped(Sums):
    def construct(self, x):
        r, g, b = self.mixed(x[:, 0:1], x[:, 1:2], x[:, 2:3])
        return ops.cat((ops.clamp(r, 0.0, 1.0), ops.clamp(g, 0.0, 1.0), ops.clamp(b, 0.0, 1.0)), 1)


class OneOtherwise(Sums):
    def construct(self, x):
        r, g, b = self.mixed(x[:, 0], x[:, 1], x[:, 2])
        return ops.stack((ops.minimum(r, 1.0), ops.minimum(g, 1.0), ops.minimum(b, 0.5)), 1)


class BlueFirst(Sums):
    def construct(self, x):
        return ops.minimum(ops.concat(self.mixed(x[:, 2:3], x[:, 1:2], x[:, 0:1]), 1), 1.0)


class Product(nn.Cell):
    def __init__(self):
        super().__init__()
        self.matrix = Tensor(MATRIX)

    def construct(self, x):
        y = ops.matmul(self.matrix, x.reshape(N, 3, H * W)).reshape(x.shape)
        return ops.minimum(y, 1.0)


class ColoursLast(nn.Cell):
    def __init__(self):
        super().__init__()
        self.matrix = Tensor(MATRIX.T.copy())

    def construct(self, x):
        y = ops.matmul(x.permute(0, 2, 3, 1), self.matrix).permute(0, 3, 1, 2)
        return ops.minimum(y, 1.0)


class Convolution(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv, self.weight = ops.Conv2D(3, 1), Tensor(MATRIX.reshape(3, 3, 1, 1))

    def construct(self, x):
        return ops.minimum(ops.maximum(self.conv(x, self.weight), 0.0), 1.0)


class Clamped(Convolution):
    def construct(self, x):
        return ops.clamp(self.conv(x, self.weight), 0.0, 1.0)


@pytest.mark.parametrize("make", [
    Clamped, Slices, Stacked, Divided, Gathered, Product, ColoursLast, Convolution, EachCut, EachClamped,
])  # fmt: skip
def test_of_an_exported_model(make, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    net, x = make(), images()
    want = net(Tensor(x)).asnumpy()
    ms.export(net, Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=(x,))
    assert [n["op"] for n in graph.nodes] == ["Sepia"], str(graph)
    close(opgraft.nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), want)


@pytest.mark.parametrize("make", [BlueFirst, OneOtherwise])
def test_what_only_looks_like_it_is_left_alone(make, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.export(make(), Tensor(images()), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph)
    assert "Sepia" not in [n["op"] for n in graph.nodes]


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
@pytest.mark.parametrize(
    "plain,limits", [(Slices, {}), (Stacked, {"min_value": 0.0}), (Convolution, {"min_value": 0.0})]
)
def test_gradients_of_what_is_put_in(plain, limits, mode):
    ms.set_context(mode=mode)

    class Model(nn.Cell):
        def __init__(self):
            super().__init__()
            self.filter = plain()

        def construct(self, x):
            return self.filter(x * 1.0)

    x, dy = Tensor(images()), Tensor(np.random.default_rng(1).standard_normal((N, 3, H, W)).astype(np.float32))
    grafted, report = graft(Model(), plain, lambda f: custom("Sepia", **limits), prove=(x,))
    assert [s["node"] for s in report.swapped] == ["filter"]
    # MindSpore asks a Custom for its bprop, which calls SepiaGrad.
    got, want = (ops.vjp(net, x)[1](dy) for net in (grafted, plain()))
    got, want = (g[0] if isinstance(g, tuple) else g for g in (got, want))
    close(got.asnumpy(), want.asnumpy())
