"""BatchNorm written out by hand, behind a convolution or alone: what it is grafted to, and what only looks like it."""

import tempfile

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, _core, nn, ops, rewrite
from test_conv_patterns import normal, operators

U, EPS, C = 2.0**-24, 1e-3, 6
VECTORS = {"mean": normal(C, seed=1), "variance": np.linspace(0.5, 2, C, dtype=np.float32), "gamma": normal(C, seed=2),
           "beta": normal(C, seed=3)}  # fmt: skip


def frozen(y, m, s, b):
    """torchvision's FrozenBatchNorm2d, TensorFlow's batch_normalization."""
    return y * s + (b - m * s)


# As models write it themselves, as torch's decompositions and exporters to ONNX write it.
SPELLED = {
    "Rsqrt": lambda y, m, v, g, b: (y - m) * ops.rsqrt(v + EPS) * g + b,
    "Rsqrt and gamma first": lambda y, m, v, g, b: (y - m) * (ops.rsqrt(v + EPS) * g) + b,
    "gamma before Rsqrt": lambda y, m, v, g, b: b + g * (y - m) * ops.rsqrt(v + EPS),
    "Sqrt": lambda y, m, v, g, b: (y - m) / ops.sqrt(v + EPS) * g + b,
    "Reciprocal": lambda y, m, v, g, b: b + g * ((y - m) * ops.reciprocal(ops.sqrt(EPS + v))),
    "1 / Sqrt": lambda y, m, v, g, b: (y - m) * (1.0 / ops.sqrt(v + EPS)) * g + b,
    "power": lambda y, m, v, g, b: (y - m) * ops.pow(v + EPS, -0.5) * g + b,
    "root as a power": lambda y, m, v, g, b: (y - m) / ops.pow(v + EPS, 0.5) * g + b,
    "gamma over Sqrt": lambda y, m, v, g, b: (y - m) * (g / ops.sqrt(v + EPS)) + b,
    "gamma over Sqrt, by a power": lambda y, m, v, g, b: (y - m) * (g * ops.pow(v + EPS, -0.5)) + b,
    "gamma before Sqrt": lambda y, m, v, g, b: g * (y - m) / ops.sqrt(v + EPS) + b,
    "frozen": lambda y, m, v, g, b: frozen(y, m, g * ops.rsqrt(v + EPS), b),
    "frozen by Sqrt": lambda y, m, v, g, b: frozen(y, m, g / ops.sqrt(v + EPS), b),
    "frozen by Reciprocal": lambda y, m, v, g, b: frozen(y, m, g * ops.reciprocal(ops.sqrt(v + EPS)), b),
    "without gamma and beta": lambda y, m, v, g, b: (y - m) * ops.rsqrt(v + EPS),
    "without them, by Sqrt": lambda y, m, v, g, b: (y - m) / ops.sqrt(v + EPS),
    "without beta": lambda y, m, v, g, b: (y - m) * (g * ops.rsqrt(v + EPS)),
}


class Norm(nn.Cell):
    """Mean, variance, gamma and beta are its own, which a trace computes with, or come with x: vectors that it
    reshapes, or as they broadcast."""

    def __init__(self, spelled, shape, dtype=np.float32):
        super().__init__()
        self.write, self.shape = SPELLED[spelled] if isinstance(spelled, str) else spelled, shape
        for name, v in VECTORS.items():
            setattr(self, name, Parameter(Tensor(v.reshape(shape).astype(dtype)), name=name))

    def construct(self, y, *given):
        given = given or (self.mean, self.variance, self.gamma, self.beta)
        return self.write(y, *(v if v.ndim == len(self.shape) else v.reshape(self.shape) for v in given))


def grafted(net, x, *given, prove=True, inputs=()):
    """(the graph with our operators, the largest difference, that of the plain results from 0). What is given besides x
    becomes Parameters of the graph, as models have them that come from a file."""
    values = [Tensor(v) for v in (x, *inputs, *given)]
    want = net(*values).asnumpy()
    with tempfile.TemporaryDirectory() as folder:
        exported = opgraft.load(opgraft.export(net, *values, file_name=f"{folder}/net.mindir"))
    graph, free = _core.Graph("main"), [x, *inputs]
    ids = [graph.add_input(f"x{i}", opgraft.dtype.type_id(Tensor(v).dtype), v.shape) for i, v in enumerate(free)]
    ids += [graph.add_constant(v, f"p{i}", True) for i, v in enumerate(given)]
    graph.set_outputs(graph.splice(exported, ids))
    rewrite.substitute(graph, prove=free if prove else None)
    got = nn.GraphCell(graph)(*map(Tensor, free)).asnumpy()
    return graph, np.abs(got - want).max(), np.abs(want).max()


def numbers(held, shape, dtype=np.float32):
    """What comes with x."""
    return [v.astype(dtype).reshape(v.shape if held == "vector" else shape) for v in VECTORS.values()] * (held != "own")


class Convolved(nn.Cell):
    def __init__(self, norm, bias=False, layout="NCHW", then=lambda y, x: y):
        super().__init__()
        weight = normal(C, C, 3, 3) / np.float32(54**0.5)
        weight = weight if layout == "NCHW" else weight.transpose(0, 2, 3, 1).copy()
        self.conv = nn.Conv2d(C, C, 3, has_bias=bias, weight_init=weight, bias_init="normal", data_format=layout)
        self.norm, self.then = norm, then

    def construct(self, x, *given):
        return self.then(self.norm(self.conv(x), *given), x)


def allowed(dtype=np.float32):
    """Of a convolution below 5 and at most nine roundings of both sides, each of what the formula adds up to."""
    size = (5 + 3) * 3 / 0.5**0.5 + 3
    return 2 * 9 * (U if dtype == np.float32 else 2.0**-11) * size


FEW = ["Rsqrt", "frozen", "without gamma and beta"]  # where the numbers come from is the same for all
BEHIND = [
    *[(s, "NCHW", "vector", (1, C, 1, 1)) for s in SPELLED], *[(s, "NHWC", "shaped", (1, 1, C)) for s in SPELLED],
    *[(s, "NCHW", "shaped", shape) for s in FEW for shape in ((1, C, 1, 1), (C, 1, 1))],
    *[(s, "NHWC", "vector", shape) for s in FEW for shape in ((1, 1, 1, C), (C,))],
]  # fmt: skip


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("spelled,layout,held,shape", BEHIND)
def test_behind_a_convolution(spelled, bias, layout, held, shape):
    x = normal(2, C, 7, 9) if layout == "NCHW" else normal(2, 7, 9, C)
    net = Convolved(Norm(spelled, shape), bias, layout)
    graph, off, _ = grafted(net, x, *numbers(held, shape), prove=False)
    left = [op for op in operators(graph) if op != "Reshape"]  # of a gamma without a beta: runs nothing
    assert left == ["FusedConv2DBiasBatchNorm" if bias else "FusedConv2DBatchNorm"], str(graph)
    assert "without beta" in spelled or "Reshape" not in operators(graph)
    assert off <= allowed()


CONSTANT = {"frozen": "Scale", "frozen by Sqrt": "Scale", "frozen by Reciprocal": "Scale"}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("spelled", SPELLED)
def test_of_constants_that_were_computed_ahead(spelled, bias):
    """The root is one number for each channel then, or the whole a scale and a shift."""
    net, x = Convolved(Norm(spelled, (1, C, 1, 1)), bias), normal(2, C, 7, 9)
    graph, off, _ = grafted(net, x, prove=False)
    fused = "FusedConv2DBiasBatchNorm" if bias else "FusedConv2D" + CONSTANT.get(spelled, "BatchNorm")
    assert operators(graph) == [fused], str(graph)
    assert off <= allowed()


@pytest.mark.parametrize("spelled,held,x,shape", [
    *[(s, held, (2, C, 5, 7), (1, C, 1, 1)) for s in SPELLED for held in ("vector", "shaped", "own")],
    *[(s, held, *sizes) for s in FEW for held in ("vector", "shaped") for sizes in (
        ((2, C, 5, 7), (C, 1, 1)), ((3, C), (C,)), ((2, 9, C), (C,)), ((2, C, 9), (1, C, 1)),
        ((2, 5, 7, C), (1, 1, 1, C)))],
])  # fmt: skip
def test_alone(spelled, held, x, shape):
    x = normal(*x)
    given = numbers(held, shape)
    graph, off, _ = grafted(Norm(spelled, shape), x, *given)
    left = [op for op in operators(graph) if op != "Reshape"]  # which runs nothing
    folded = held == "own" and spelled.startswith("frozen")
    assert left == (["Add", "Mul"] if folded else ["FusedBatchNormInference"]), str(graph)
    got = nn.GraphCell(graph)(Tensor(x)).asnumpy()
    m, v, g, b = (VECTORS[k].astype(np.float64).reshape(shape) for k in ("mean", "variance", "gamma", "beta"))
    g = np.ones(shape) if "without" in spelled and "beta" not in spelled.split()[1:2] else g
    b = 0 * b if "without" in spelled else b
    term = (x - m) * g / np.sqrt(v + EPS)
    assert folded or (np.abs(got - (term + b)) <= 9 * U * (np.abs(term) + np.abs(b))).all() and off <= allowed()


THEN = {
    "relu": (lambda y, x: ops.relu(y), "relu"),
    "residual": (lambda y, x: y + x, "none"),
    "both": (lambda y, x: ops.relu(x + y), "relu"),
    "relu6": (lambda y, x: ops.clamp(y, 0, 6), "relu6"),
}


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("spelled,held", [("Rsqrt", "vector"), ("Sqrt", "shaped"), ("frozen", "own"),
                                          ("without gamma and beta", "vector"), ("Rsqrt", "own")])  # fmt: skip
def test_with_what_follows(spelled, held, bias, then):
    write, activation = THEN[then]
    shape = (1, C, 1, 1)
    net, x = Convolved(Norm(spelled, shape), bias, then=write), normal(2, C, 7, 9)
    graph, off, _ = grafted(net, x, *numbers(held, shape))
    assert len(operators(graph)) == 1 and f'activation="{activation}"' in str(graph), str(graph)
    assert off <= allowed()


@pytest.mark.parametrize("spelled", ["Rsqrt", "Sqrt", "frozen"])
def test_of_a_half_type(spelled):
    dtype = np.float16
    net, x = Convolved(Norm(spelled, (1, C, 1, 1), dtype)), normal(2, C, 7, 9).astype(dtype)
    net.conv.weight = Parameter(Tensor(net.conv.weight.asnumpy().astype(dtype)), name="weight")
    graph, off, _ = grafted(net, x, *numbers("vector", (), dtype))
    assert operators(graph) == ["FusedConv2DBatchNorm"], str(graph)
    assert off <= allowed(dtype)


def test_of_open_sizes():
    net, x = Convolved(Norm("Sqrt", (1, C, 1, 1)), then=lambda y, x: ops.relu(y)), normal(2, C, 7, 9)
    net.set_inputs(Tensor(shape=[None, C, None, None], dtype=opgraft.float32))
    report = rewrite.substitute(net, prove=[[x]])
    assert [n["op"] for n in net._grafted[0][0].graph.nodes] == ["FusedConv2DBatchNorm"] and not report.left, report


@pytest.mark.parametrize("write,left,inputs", [
    (lambda y, s: y * s, ["FusedConv2DScale"], [(1, C, 1, 1)]),
    (lambda y, s: ops.relu(s * y), ["FusedConv2DScale"], [(C, 1, 1)]),
    (lambda y, s, r: ops.relu(y * s + r), ["FusedConv2DScale"], [(1, C, 1, 1), (2, C, 7, 9)]),
    (lambda y, s, r: y * s + r, ["FusedConv2DScale"], [(C, 1, 1), (1, C, 1, 1)]),
    (lambda y, s: y * s, ["Conv2D", "Mul"], [(2, C, 1, 1)]),  # of each image, as squeeze-and-excitation has it
    (lambda y, s: y * s, ["Conv2D", "Mul"], [(2, 1, 7, 9)]),
    (lambda y, s: y * s, ["Conv2D", "Mul"], [(1,)]),
    (lambda y, s: y * ops.sigmoid(y) + s, None, [(1, C, 1, 1)]),
])  # fmt: skip
def test_a_scale_behind_a_convolution(write, left, inputs):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(C, C, 3, weight_init=normal(C, C, 3, 3) / 7)

        def construct(self, x, *given):
            return write(self.conv(x), *given)

    x = [normal(2, C, 7, 9), *(normal(*s, seed=i) for i, s in enumerate(inputs))]
    graph, off, most = grafted(Net(), x[0], inputs=x[1:])
    assert left is None or operators(graph) == left, str(graph)
    assert "FusedConv2DScale" not in operators(graph) if left is None else True
    assert off <= 8 * U * most
    net = Net()
    report = rewrite.substitute(net, prove=tuple(x))
    assert not report.left, report  # what is no scale is meant for others: nothing is said


def along(y, shape, seed=4):
    return Tensor(normal(*shape, seed=seed))


NEAR = {
    "the mean of each image": lambda y, m, v, g, b: (y - along(y, (2, C, 1, 1))) * ops.rsqrt(v + EPS) * g + b,
    "of height and channel": lambda y, m, v, g, b: (y - along(y, (1, C, 7, 1))) / ops.sqrt(v + EPS) * g + b,
    "gamma along the width": lambda y, m, v, g, b: (y - m) * (ops.rsqrt(v + EPS) * along(y, (1, 1, 1, 9))) + b,
    "the mean minus it": lambda y, m, v, g, b: (m - y) * (ops.rsqrt(v + EPS) * g) + b,
    "no root": lambda y, m, v, g, b: (y - m) * (ops.reciprocal(v + EPS) * g) + b,
    "another power": lambda y, m, v, g, b: (y - m) * (ops.pow(v + EPS, -0.25) * g) + b,
    "frozen with another scale": lambda y, m, v, g, b: y * (g * ops.rsqrt(v + EPS)) + (b - m * g),
    "frozen with the other sign": lambda y, m, v, g, b: frozen(y, m, g * ops.rsqrt(v + EPS), b) - 2 * b,
}


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it(name):
    """Something else remains, and what it gives."""
    x = normal(2, C, 7, 9)
    graph, off, most = grafted(Norm(NEAR[name], (1, C, 1, 1)), x, *numbers("shaped", (1, C, 1, 1)), prove=False)
    assert [op for op in operators(graph) if op != "FusedBatchNormInference"], str(graph)
    assert off <= 16 * U * max(most, 8)


def test_statistics_of_the_input_are_left_alone():
    """GroupNorm of single channels, LayerNorm over the channels of images."""

    class Net(nn.Cell):
        def __init__(self, axes):
            super().__init__()
            self.axes, self.gamma, self.beta = axes, Parameter(normal(C, 1, 1)), Parameter(normal(C, 1, 1, seed=1))

        def construct(self, x):
            mean = ops.mean(x, self.axes, keep_dims=True)
            variance = ops.mean(ops.square(x - mean), self.axes, keep_dims=True)
            return (x - mean) / ops.sqrt(variance + EPS) * self.gamma + self.beta

    for axes in ((2, 3), (1,)):
        net, x = Net(axes), normal(2, C, 7, 9)
        report = rewrite.substitute(net, prove=[[x]])
        assert "FusedBatchNormInference" not in str(report.swapped) and not report.left, report


@pytest.mark.parametrize("shape", [(1, C, 1, 1), (C, 1, 1)])
def test_statistics_that_come_with_the_input_are_left_alone(shape):
    """Who knows of what."""
    net, x = Norm("Rsqrt", shape), normal(2, C, 7, 9)
    graph, off, _ = grafted(net, x, inputs=numbers("shaped", shape))
    assert "FusedBatchNormInference" not in operators(graph) and off == 0.0


def test_a_mask_is_no_channel():
    """(mask - 1) * 10000, where the second dimension is 1: numbers, and no vectors."""

    class Net(nn.Cell):
        def construct(self, mask):
            return (mask - 1.0) * 10000.0

    graph, off, _ = grafted(Net(), np.ones((2, 1, 5, 5), np.float32))
    assert operators(graph) == ["Mul", "Sub"] and off == 0.0


def test_a_normalised_convolution_that_others_use_is_left_alone():
    class Net(Convolved):
        def construct(self, x, *given):
            y = self.conv(x)
            return self.norm(y, *given) + ops.tanh(y)

    graph, off, _ = grafted(Net(Norm("Rsqrt", (1, C, 1, 1))), normal(2, C, 7, 9), *numbers("vector", ()))
    assert [op for op in operators(graph) if op != "Reshape"] == ["Add", "Conv2D", "FusedBatchNormInference", "Tanh"], (
        str(graph)
    )
    assert off <= allowed()
