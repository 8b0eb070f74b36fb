"""The sepia filter in models that MindSpore exported, and its gradient in MindSpore."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close
from mindspore import Parameter, Tensor, mint, nn, ops
from opgraft import _core, rewrite
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


class Einsum(nn.Cell):
    """mint.einsum's; `turned`: the matrix as the equation takes it."""

    def __init__(self, equation):
        super().__init__()
        self.equation, self.first = equation, equation.index(",") == 2
        self.matrix = Tensor(MATRIX.T.copy() if "co" in equation.replace("->", ",").split(",")[:2] else MATRIX)

    def construct(self, x):
        operands = (self.matrix, x) if self.first else (x, self.matrix)
        return ops.minimum(mint.einsum(self.equation, *operands), 1.0)


class Pixels(nn.Cell):
    """The colours last, and the product by a Parameter, a layer, or a constant."""

    def __init__(self, how):
        super().__init__()
        self.how, self.matrix = how, Parameter(Tensor(MATRIX), name="matrix")
        self.turned = Tensor(MATRIX.T.copy())
        self.layer = nn.Dense(3, 3, has_bias=False, weight_init=Tensor(MATRIX))

    def construct(self, x):
        if self.how == "a Parameter":
            y = x @ self.matrix.T
        elif self.how == "a layer":
            y = self.layer(x)
        elif self.how == "mint's linear":
            y = mint.nn.functional.linear(x, self.matrix)
        else:
            y = ops.matmul(x, self.turned)
        return ops.clamp(y, 0.0, 1.0) if self.how == "clamped" else ops.minimum(ops.maximum(y, 0.0), 1.0)


IMAGES = ("nchw", "chw", "nhwc", "hwc")
EQUATIONS = [f"{','.join(pair)}->{x.replace('c', 'o')}"
             for x in IMAGES for m in ("oc", "co") for pair in ((m, x), (x, m))]  # fmt: skip


@pytest.mark.parametrize("net,layout", [
    *((lambda e=e: Einsum(e), e.split("->")[1].replace("o", "c")) for e in EQUATIONS),
    *((lambda how=how: Pixels(how), "nhwc")
      for how in ("a Parameter", "a layer", "mint's linear", "a constant", "clamped")),
], ids=[*EQUATIONS, "a Parameter", "a layer", "mint's linear", "a constant", "clamped"])  # fmt: skip
def test_of_colours_in_any_place(net, layout, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    x = images()
    x = x if layout == "nchw" else x[0] if layout == "chw" else np.ascontiguousarray(np.moveaxis(x, 1, -1))
    x = x[0] if layout == "hwc" else x
    net = net()
    want = net(Tensor(x)).asnumpy()
    ms.export(net, Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph, prove=(x,))
    assert [n["op"] for n in graph.nodes] == ["Sepia"], str(graph)
    assert graph.nodes[0]["attrs"]["format"] == ("NHWC" if layout.endswith("c") else "NCHW")
    close(opgraft.nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), want)
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    close(nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))(Tensor(x)).asnumpy(), want)


@pytest.mark.parametrize("equation", ["oc,nchw->nowh", "or,ncrw->ncow", "oc,nchw->onhw"])
def test_another_equation_is_left_alone(equation, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    net, x = Einsum(equation), images()[..., :3, :3].copy()
    ms.export(net, Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    rewrite.substitute(graph)
    assert "Sepia" not in [n["op"] for n in graph.nodes], str(graph)
    close(opgraft.nn.GraphCell(graph)(opgraft.Tensor(x)).asnumpy(), net(Tensor(x)).asnumpy())


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
