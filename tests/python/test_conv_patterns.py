"""How convolutions and what follows them are spelled, and what they are grafted to; and what is left alone."""

import tempfile

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, nn, ops, rewrite

U = 2.0**-24


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operators(graph):
    return sorted(line.split(" = ")[1].split("(")[0].split("@")[0] for line in str(graph).splitlines() if " = " in line)


class Exported(nn.Cell):
    """As exporters of other frameworks write it: bias and BatchNorm broadcast, activations clip."""

    def __init__(self, bias, norm, clip, channels=6, shape=(1, 6, 1, 1), layout="NCHW"):
        super().__init__()
        weight = normal(channels, 4, 3, 3) if layout == "NCHW" else normal(channels, 3, 3, 4)
        self.conv, self.norm, self.clip = nn.Conv2d(4, channels, 3, weight_init=weight, data_format=layout), norm, clip
        self.layout = layout
        self.bias = Parameter(normal(*shape, seed=1)) if bias else None
        self.scale, self.shift = Parameter(normal(*shape, seed=2)), Parameter(normal(*shape, seed=3))
        vectors = (normal(channels, seed=4), normal(channels, seed=5), normal(channels, seed=6))
        self.gamma, self.beta, self.mean = (Parameter(v) for v in vectors)
        self.variance = Parameter(np.linspace(0.5, 2, channels, dtype=np.float32))

    def construct(self, x):
        y = self.conv(x)
        y = y if self.bias is None else y + self.bias
        if self.norm == "scale":
            y = y * self.scale + self.shift
        elif self.norm == "batch":
            y = ops.BatchNorm(data_format=self.layout)(y, self.gamma, self.beta, self.mean, self.variance)[0]
        return self.clip(y)


CLIPS = {
    "none": lambda y: y,
    "relu": lambda y: ops.maximum(y, 0.0),
    "relu, clamped": lambda y: ops.clamp(y, min=0),
    "relu6": lambda y: ops.minimum(ops.maximum(y, 0.0), 6.0),
    "relu6, clamped": lambda y: ops.clamp(y, 0, 6),
    "relu6, the other way": lambda y: ops.maximum(ops.minimum(y, 6.0), 0.0),
}
FUSED = [
    (True, None, "FusedConv2D"),
    (False, "scale", "FusedConv2DScale"),
    (False, "batch", "FusedConv2DBatchNorm"),
    (True, "batch", "FusedConv2DBiasBatchNorm"),
]


def grafted(net, *x, prove=True):
    """(the graph's operators, the largest difference, that of the plain results from 0)"""
    want = net(*map(Tensor, x)).asnumpy()
    with tempfile.TemporaryDirectory() as folder:  # others run beside this
        graph = opgraft.load(opgraft.export(net, *map(Tensor, x), file_name=f"{folder}/conv.mindir"))
    rewrite.substitute(graph, prove=x if prove else None)
    got = nn.GraphCell(graph)(*map(Tensor, x)).asnumpy()
    return graph, np.abs(got - want).max(), np.abs(want).max()


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("bias,norm,fused", FUSED)
@pytest.mark.parametrize("layout,shape", [
    ("NCHW", (1, 6, 1, 1)), ("NCHW", (6, 1, 1)), ("NHWC", (1, 1, 1, 6)), ("NHWC", (1, 1, 6)), ("NHWC", (6,)),
])  # fmt: skip
def test_broadcast_and_clipped(bias, norm, fused, clip, layout, shape):
    x = normal(2, 4, 7, 9) if layout == "NCHW" else normal(2, 7, 9, 4)
    graph, off, _ = grafted(Exported(bias, norm, CLIPS[clip], shape=shape, layout=layout), x, prove=False)
    assert operators(graph) == [fused], str(graph)
    assert f'activation="{clip.split(",")[0]}"' in str(graph) or clip == "none"
    # Sums of 36 products of at most 3.5 each, in the same order on both sides; then at most five roundings, scaled by
    # at most |gamma| / sqrt(0.5) or |scale|, below 4.
    assert off <= 2 * 5 * U * 4 * 36 * 3.5


@pytest.mark.parametrize("clip", [c for c in CLIPS if c != "none"] + ["ReLU", "ReLU6"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_without_a_bias(clip, layout):
    """nn.Conv2d has none unless it is asked for."""
    x = normal(2, 4, 7, 9) if layout == "NCHW" else normal(2, 7, 9, 4)
    after = {"ReLU": ops.relu, "ReLU6": ops.relu6, **CLIPS}[clip]
    graph, off, _ = grafted(Exported(False, None, after, layout=layout), x)
    assert operators(graph) == ["FusedConv2D"], str(graph)
    assert f'activation="{clip.split(",")[0].lower()}"' in str(graph)
    assert off == 0.0  # the same sums; what is added to them is 0


class Residual(nn.Cell):
    """A convolution without a bias, and what comes by beside it."""

    def __init__(self, clip, first, layout):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, has_bias=False, weight_init="normal", data_format=layout)
        self.clip, self.first = clip, first

    def construct(self, x):
        y = self.conv(x)
        return self.clip(x + y if self.first else y + x)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("clip", [*CLIPS, "ReLU", "ReLU6"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_residual_without_a_bias(clip, layout, first):
    x = normal(2, 4, 7, 9) if layout == "NCHW" else normal(2, 7, 9, 4)
    after = {"ReLU": ops.relu, "ReLU6": ops.relu6, **CLIPS}[clip]
    graph, off, _ = grafted(Residual(after, first, layout), x)
    assert operators(graph) == ["FusedConv2D"], str(graph)
    assert f'activation="{clip.split(",")[0].lower()}"' in str(graph) or clip == "none"
    assert off == 0.0  # the same sums, and the residual added to them once


def test_a_residual_of_two_convolutions():
    """A shortcut that is a convolution itself: one of them takes the other's result."""

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.conv, self.shortcut = (nn.Conv2d(4, 6, k, has_bias=False, weight_init="normal") for k in (3, 1))

        def construct(self, x):
            return ops.relu(self.conv(x) + self.shortcut(x))

    graph, off, _ = grafted(Net(), normal(2, 4, 7, 9))
    assert operators(graph) == ["Conv2D", "FusedConv2D"], str(graph)
    assert off == 0.0


def test_a_residual_of_open_sizes():
    net, x = Residual(ops.relu, False, "NCHW"), normal(2, 4, 7, 9)
    net.set_inputs(Tensor(shape=[None, 4, None, None], dtype=opgraft.float32))
    report = rewrite.substitute(net, prove=[[x]])
    assert [n["op"] for n in net._grafted[0][0].graph.nodes] == ["FusedConv2D"] and not report.left, str(report)
    plain = Residual(ops.relu, False, "NCHW")
    plain.conv.weight.set_data(net.conv.weight)
    for shape in ((1, 4, 5, 6), (3, 4, 1, 1)):
        y = normal(*shape)
        np.testing.assert_array_equal(net(Tensor(y)).asnumpy(), plain(Tensor(y)).asnumpy())


@pytest.mark.parametrize("shape", [(1, 4, 1, 9), (1, 4, 7, 9), (4, 7, 9)])
def test_what_broadcasts_to_a_convolution_is_no_residual(shape):
    class Net(Residual):
        def construct(self, x, r):
            return ops.relu(self.conv(x) + r)

    graph, off, _ = grafted(Net(None, False, "NCHW"), normal(2, 4, 7, 9), normal(*shape))
    assert operators(graph) == ["Add", "Conv2D", "ReLU"], str(graph)
    assert off == 0.0


@pytest.mark.parametrize("write", [
    lambda y: ops.minimum(ops.maximum(y, 0.0), 5.0), lambda y: ops.maximum(y, 0.5),
    lambda y: ops.minimum(y, 6.0), lambda y: ops.maximum(ops.minimum(y, 6.0), -1.0), lambda y: ops.clamp(y, 0, 5),
])  # fmt: skip
def test_other_bounds_stay_outside(write):
    net, x = Exported(True, None, write), normal(1, 4, 5, 5)
    graph, off, _ = grafted(net, 4 * x, prove=False)
    found = operators(graph)
    assert "FusedConv2D" in found and {"Minimum", "Maximum", "ClampScalar"} & set(found), found
    assert off == 0.0


def test_numbers_along_the_width_stay_outside():
    """With as many columns as channels [C] fits both; it broadcasts along the columns."""

    class Net(nn.Cell):
        def __init__(self, times):
            super().__init__()
            self.conv, self.vector, self.times = nn.Conv2d(4, 6, 1), Parameter(normal(6)), times

        def construct(self, x):
            y = self.conv(x)
            return y * self.vector + self.vector if self.times else y + self.vector

    for times in (False, True):
        graph, off, _ = grafted(Net(times), normal(1, 4, 5, 6), prove=False)
        assert not [op for op in operators(graph) if op.startswith("Fused")]
        assert off == 0.0


@pytest.mark.parametrize("norm", ["scale", None])
@pytest.mark.parametrize("shape", [(1, 6, 1, 1), (6, 1, 1), (6, 1)])
def test_numbers_along_height_or_width_of_nhwc_stay_outside(norm, shape):
    graph, off, _ = grafted(Exported(not norm, norm, lambda y: y, shape=shape, layout="NHWC"), normal(1, 6, 6, 4),
                            prove=False)  # fmt: skip
    assert not [op for op in operators(graph) if op.startswith("Fused")]
    assert off == 0.0


@pytest.mark.parametrize("kernel", [1, 3])
def test_at_full_size_the_fused_one_differs_by_at_most_1_5e_5(kernel):
    """The size and the difference of the mission, and nothing left but the convolution."""
    net = nn.SequentialCell(
        nn.Conv2d(64, 64, kernel, weight_init=normal(64, 64, kernel, kernel) / np.float32(kernel * 64**0.5)),
        nn.BatchNorm2d(64, gamma_init=Tensor(1 + normal(64, seed=1) / 8), beta_init=Tensor(normal(64, seed=2)),
                       moving_mean_init=Tensor(normal(64, seed=3)),
                       moving_var_init=Tensor(np.linspace(0.5, 2, 64, dtype=np.float32))),
        nn.ReLU(),
    )  # fmt: skip
    graph, off, _ = grafted(net, normal(32, 64, 56, 56), prove=False)
    assert operators(graph) == ["FusedConv2DBatchNorm"]
    assert off <= 1.5e-5


class Sepia(nn.Cell):
    def __init__(self, channels=3, most=1.0, out=3, stride=1):
        super().__init__()
        matrix = np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32)
        weight = np.resize(matrix, (out, channels, 1, 1))
        self.conv, self.most = nn.Conv2d(channels, out, 1, stride, pad_mode="valid", weight_init=weight), most

    def construct(self, x):
        return ops.minimum(self.conv(x), self.most)


def test_a_cut_product_with_a_matrix_of_colours_is_sepia():
    x = np.random.default_rng(0).random((2, 3, 5, 7), np.float32)
    graph, off, _ = grafted(Sepia(most=0.75), x)
    assert operators(graph) == ["Sepia"] and "max_value=0.75" in str(graph)
    assert off <= 2 * 3 * U * 1.36


@pytest.mark.parametrize("kwargs", [{"channels": 4}, {"out": 4}, {"stride": 2}])
def test_what_is_no_matrix_of_colours_stays_a_convolution(kwargs):
    x = np.random.default_rng(0).random((2, kwargs.get("channels", 3), 6, 8), np.float32)
    graph, off, _ = grafted(Sepia(**kwargs), x, prove=False)
    assert "Sepia" not in operators(graph) and off == 0.0


def test_the_gradient_of_sepia_is_the_slope():
    """Central differences of sum(dy * sepia(x)) in float64 rounded inputs, away from where results are cut."""
    x, dy = np.random.default_rng(1).random((1, 3, 4, 5), np.float32), normal(1, 3, 4, 5)
    matrix = np.array([[0.5, 0.75, 0.25], [0.25, 0.5, 0.125], [0.25, 0.5, 0.125]], np.float32)
    got = ops.primitive("SepiaGrad", Tensor(dy), Tensor(x), Tensor(matrix)).asnumpy()

    def loss(x):
        return (dy.astype(np.float64) * np.minimum(np.einsum("rc,nchw->nrhw", matrix.astype(np.float64), x), 1.0)).sum()

    step, want = 1e-6, np.zeros(x.shape)
    assert (np.abs(np.einsum("rc,nchw->nrhw", matrix, x) - 1.0) > 1e-5).all()
    for i in np.ndindex(x.shape):
        e = np.zeros(x.shape)
        e[i] = step
        want[i] = (loss(x + e) - loss(x - e)) / (2 * step)
    # loss is below 100 and rounds at 2^-53: 100 * 2^-53 / step; the kernel in float32 on sums below 6.
    assert np.abs(got - want).max() <= 100 * 60 * 2.0**-53 / step + 3 * U * 6


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("padding", [0, 1])
def test_a_padded_pool_needs_no_third_dimension(padding, ceil):
    graph, off, _ = grafted(nn.MaxPool2d(3, 2, "pad", padding, ceil_mode=ceil), normal(2, 3, 8, 9))
    assert operators(graph) == ["PaddedMaxPool"] and off == 0.0


class Places(nn.Cell):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(3, 2, "pad", 1, return_indices=True)

    def construct(self, x):
        y, places = self.pool(x)
        return y + ops.cast(places, opgraft.float32)


def test_a_pool_whose_places_are_read_stays():
    graph, off, _ = grafted(Places(), normal(2, 3, 8, 9))
    assert "MaxPool3DWithArgmax" in operators(graph) and off == 0.0
