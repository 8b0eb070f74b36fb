"""Products in MindSpore: gradients by the operator that `backward:` names; exported weights of eight bits."""

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from mindspore import Tensor, nn, ops
from opgraft import _core

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
    """A weight [N, K] of eight bits, widened and scaled by output channel; with or without a zero point."""

    def __init__(self, weight, scale, zero):
        super().__init__()
        self.weight = ms.Parameter(Tensor(weight), name="weight")
        self.scale = ms.Parameter(Tensor(scale), name="scale")
        self.zero = None if zero is None else ms.Parameter(Tensor(zero), name="zero")
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, x):
        w = ops.cast(self.weight, ms.float32)
        if self.zero is not None:
            w = w - ops.cast(self.zero, ms.float32)
        return self.product(x, w * self.scale)


def grafted(net, x, folder):
    """The exported model with our operators, and which were put in."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.export(net, Tensor(x), file_name=str(folder / "net"), file_format="MINDIR")
    ours = opgraft.nn.GraphCell(opgraft.load(folder / "net.mindir"))
    report = opgraft.rewrite.substitute(ours, prove=[[opgraft.Tensor(x)]])
    return ours(opgraft.Tensor(x)).asnumpy(), [s["op"].split("@")[0] for s in report.swapped]


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("shape", [(35, 1), ()])
def test_an_exported_weight_of_eight_bits(tmp_path, zero_point, shape):
    rng = np.random.default_rng(0)
    w, scale = rng.integers(-128, 128, (35, 18)).astype(np.int8), rng.uniform(0.001, 0.01, shape).astype(np.float32)
    zero = rng.integers(-9, 9, shape).astype(np.int8) if zero_point else None
    net, x = Quantised(w, scale, zero), normal(5, 18)
    got, swapped = grafted(net, x, tmp_path)
    assert swapped == ["WeightQuantBatchMatmul"]
    shift = 0.0 if zero is None else zero.astype(np.float64)
    x64, w64 = x.astype(np.float64), ((w - shift) * scale).T
    size = ((abs(w.astype(np.float64)) + abs(shift)) * scale).T
    # The sum's error, and four roundings of a scaled weight or of the scaled sum.
    bound = 8 * 2.0**-24 * np.sqrt(18 * (x64**2 @ size**2) / 6) + 4 * 2.0**-24 * (abs(x64) @ size)
    for y in (got, net(Tensor(x)).asnumpy()):
        assert (abs(y - x64 @ w64) <= bound).all()


class Integers(nn.Cell):
    def __init__(self, weight, scale):
        super().__init__()
        self.weight, self.scale = ms.Parameter(Tensor(weight), name="w"), ms.Parameter(Tensor(scale), name="s")

    def construct(self, x):
        return ops.matmul(ops.cast(x, ms.float32), ops.cast(self.weight, ms.float32)) * self.scale


class Dequantised(nn.Cell):
    def __init__(self, zero, scale):
        super().__init__()
        self.zero, self.scale = ms.Parameter(Tensor(zero), name="z"), ms.Parameter(Tensor(scale), name="s")

    def construct(self, x):
        return (ops.cast(x, ms.float32) - self.zero) * self.scale


def test_exported_integers(tmp_path):
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-128, 128, s).astype(np.int8) for s in ((5, 18), (18, 35)))
    scale, zero = (rng.uniform(0.001, 0.01, 35).astype(np.float32), rng.integers(-9, 9, 18).astype(np.float32))
    want = (x.astype(np.int64) @ w.astype(np.int64)) * scale.astype(np.float64)
    got, swapped = grafted(Integers(w, scale), x, tmp_path)
    assert swapped == ["QuantBatchMatmul"]
    assert (abs(got - want) <= 2.0**-24 * abs(want)).all()  # an exact sum below 2^24, one rounding
    got, swapped = grafted(Dequantised(zero, scale[:18]), x, tmp_path)
    assert swapped == ["AntiQuant"]
    want = (x - zero.astype(np.float64)) * scale[:18]
    assert (abs(got - want) <= 2.0**-24 * abs(want)).all()


class QuantisedLayer(nn.Cell):
    """DequantizeLinear of ONNX before both factors of a layer."""

    def __init__(self, weight, scale, zero, bias, weight_zero=None):
        super().__init__()
        self.weight_zero = None if weight_zero is None else Tensor(weight_zero)
        self.weight, self.scale = ms.Parameter(Tensor(weight), name="w"), ms.Parameter(Tensor(scale), name="s")
        self.zero, self.x_scale = Tensor(zero), Tensor(np.float32(0.02))  # constants: a Parameter stays one
        self.bias, self.product = ms.Parameter(Tensor(bias), name="b"), ops.MatMul(transpose_b=True)

    def construct(self, x):
        a = (ops.cast(x, ms.float32) - ops.cast(self.zero, ms.float32)) * self.x_scale
        w = ops.cast(self.weight, ms.float32)
        if self.weight_zero is not None:
            w = w - ops.cast(self.weight_zero, ms.float32)
        return self.product(a, w * self.scale) + self.bias


@pytest.mark.parametrize("of,zero", [(np.int8, 0), (np.int8, -5), (np.int8, 127), (np.uint8, 0), (np.uint8, 117)])
@pytest.mark.parametrize("weight,weight_zero", [(np.int8, None), (np.int8, 11), (np.uint8, 125)])
def test_an_exported_layer_whose_factors_are_dequantised(tmp_path, of, zero, weight, weight_zero):
    rng = np.random.default_rng(4)
    x = rng.integers(*((-128, 128) if of == np.int8 else (0, 256)), (5, 18)).astype(of)
    w = rng.integers(*((-128, 128) if weight == np.int8 else (0, 256)), (35, 18)).astype(weight)
    scale, bias = rng.uniform(0.001, 0.01, (35, 1)).astype(np.float32), normal(35)
    net = QuantisedLayer(w, scale, of(zero), bias, None if weight_zero is None else weight(weight_zero))
    got, swapped = grafted(net, x, tmp_path)
    assert swapped == ["QuantBatchMatmul"]
    a, b = (
        (x - float(zero)) * np.float64(np.float32(0.02)),
        ((w - float(weight_zero or 0)) * scale.astype(np.float64)).T,
    )
    want, size = a @ b + bias, np.abs(a) @ np.abs(b) + np.abs(bias)
    assert (abs(got - want) <= 4 * 2.0**-24 * size).all()  # an exact sum below 2^24, two scales, the bias
    assert (abs(net(Tensor(x)).asnumpy() - want) <= 22 * 2.0**-24 * size).all()


@pytest.mark.parametrize("density,swapped", [(0.03, ["SparseDense"]), (0.5, ["Dense"])])
def test_an_exported_pruned_layer(tmp_path, density, swapped):
    rng = np.random.default_rng(2)
    w, bias, x = normal(270, 300), normal(270, seed=1), normal(9, 300, seed=3)
    w[rng.random(w.shape) >= density] = 0
    layer = nn.Dense(300, 270, weight_init=Tensor(w), bias_init=Tensor(bias))
    got, found = grafted(layer, x, tmp_path)
    assert found == swapped
    x64 = x.astype(np.float64)
    terms = np.count_nonzero(w, 1).max() + 5  # and the bias
    bound = (terms + 1) * 2.0**-24 * (abs(x64) @ abs(w.T) + abs(bias))
    for y in (got, layer(Tensor(x)).asnumpy()):
        assert (abs(y - (x64 @ w.T + bias)) <= bound).all()


class FeedForward(nn.Cell):
    """Gate and up of LLaMA's feed-forward layer; of three dimensions nn.Dense joins rows and parts them again."""

    def __init__(self, *weights):
        super().__init__()
        self.gate, self.up = (nn.Dense(40, 24, has_bias=False, weight_init=Tensor(w)) for w in weights)

    def construct(self, x):
        return ops.silu(self.gate(x)) * self.up(x)


@pytest.mark.parametrize("shape", [(7, 40), (2, 5, 40), (2, 3, 1, 40)], ids=len)
def test_an_exported_gate_and_up_become_one_operator(shape, tmp_path):
    x, gate, up = normal(*shape), normal(24, 40, seed=1), normal(24, 40, seed=2)
    net = FeedForward(gate, up)
    got, swapped = grafted(net, x, tmp_path)
    assert swapped == ["DenseSwiGLU"]
    a, b, size = *(x.astype(np.float64) @ w.T for w in (gate, up)), abs(x).astype(np.float64)
    silu = a / (1 + np.exp(-a))
    # Sums of 40 products; SiLU's slope is at most 1.1; 8 roundings of the exponential, the quotient and the products.
    of_a, of_b = (40 * 2.0**-24 * (size @ abs(w).T) for w in (gate, up))
    bound = 1.1 * of_a * (abs(b) + of_b) + abs(silu) * of_b + 8 * 2.0**-24 * (abs(silu * b))
    for y in (got, net(Tensor(x)).asnumpy()):
        assert y.shape == (*shape[:-1], 24)
        assert (abs(y - silu * b) <= bound).all()


class Quantising(nn.Cell):
    def __init__(self, scale, zero):
        super().__init__()
        self.scale, self.zero = ms.Parameter(Tensor(scale), name="s"), ms.Parameter(Tensor(zero), name="z")


class Clamped(Quantising):  # QuantizeLinear of ONNX
    def construct(self, x):
        y = ops.round(x / self.scale) + ops.cast(self.zero, ms.float32)
        return ops.cast(ops.clamp(y, -128, 127), ms.int8)


class Unsigned(Quantising):  # the default of ONNX's quantisers for activations
    def construct(self, x):
        y = ops.round(x / self.scale) + ops.cast(self.zero, ms.float32)
        return ops.cast(ops.clamp(y, 0, 255), ms.uint8)


class ByValue(Quantising):  # torch's fake_quantize
    def construct(self, x):
        y = ops.round(x * self.scale + ops.cast(self.zero, ms.float32))
        return ops.cast(ops.clip_by_value(y, -128, 127), ms.int8)


class Symmetric(Quantising):
    def construct(self, x):
        return ops.cast(ops.Rint()(ops.clamp(x / self.scale, -128.0, 127.0)), ms.int8)


class Narrow(Quantising):
    def construct(self, x):
        return ops.cast(ops.clamp(ops.round(x / self.scale), -127, 127), ms.int8)


@pytest.mark.parametrize("make", [Clamped, Unsigned, ByValue, Symmetric, Narrow])
@pytest.mark.parametrize("shape", [(33,), (), (7, 1)])
def test_exported_quantising(make, shape, tmp_path):
    """The bits of MindSpore's own kernels, halves included."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-90, 90, (4, 7, 33)).astype(np.float32)
    x.flat[:8] = [0.25, 0.75, -0.25, -0.75, 1.25, 1e3, -1e3, 63.75]
    scale = np.float32(0.5) if shape == () else rng.choice([0.5, 0.25, 2.0, 0.7, 1.1], shape).astype(np.float32)
    net = make(scale, rng.integers(-20, 20, shape).astype(np.int8))
    got, swapped = grafted(net, x, tmp_path)
    assert swapped == ["QuantV2"]
    want = net(Tensor(x)).asnumpy()
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


class RowByRow(nn.Cell):
    """A scale for each row, as activations are quantised while a model runs."""

    def __init__(self, weight, scale):
        super().__init__()
        self.weight, self.scale = ms.Parameter(Tensor(weight), name="w"), ms.Parameter(Tensor(scale), name="s")

    def construct(self, x):
        largest = ops.ReduceMax(keep_dims=True)(ops.maximum(x, -x), -1)
        rows = largest / 127
        codes = ops.cast(ops.clamp(ops.round(x / rows), -128, 127), ms.int8)
        return ops.matmul(ops.cast(codes, ms.float32), ops.cast(self.weight, ms.float32)) * self.scale * rows


def test_an_exported_product_with_a_scale_for_each_row(tmp_path):
    rng = np.random.default_rng(6)
    w, scale, x = eight_bits(18, 35), rng.uniform(0.001, 0.01, 35).astype(np.float32), normal(2, 5, 18)
    net = RowByRow(w, scale)
    got, swapped = grafted(net, x, tmp_path)
    assert "QuantBatchMatmul" in swapped
    rows = abs(x).max(-1, keepdims=True) / np.float32(127)
    want = np.rint(x / rows).astype(np.float64) @ w * scale.astype(np.float64) * rows
    for y in (got, net(Tensor(x)).asnumpy()):
        assert (abs(y - want) <= 3 * 2.0**-24 * abs(want) + 1e-12).all()  # an exact sum, two scales


def eight_bits(*shape):
    return np.random.default_rng(5).integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("net,x,terms", [
    (lambda: QuantisedLayer(eight_bits(35, 18), np.full((35, 1), 0.01, np.float32), np.int8(-5), normal(35)),
     eight_bits(5, 18), 0),
    (lambda: Quantised(eight_bits(35, 18), np.full((35, 1), 0.01, np.float32), np.full((35, 1), 3, np.int8)),
     normal(5, 18), 18),
    (lambda: Dequantised(np.full(18, 3, np.float32), np.full(18, 0.01, np.float32)), eight_bits(5, 18), 0),
    (lambda: Clamped(np.float32(0.5), np.int8(3)), 9 * normal(5, 18), 0),
    (lambda: Symmetric(np.float32(0.5), np.int8(0)), 9 * normal(5, 18), 0),
], ids=["QuantBatchMatmul", "WeightQuantBatchMatmul", "AntiQuant", "QuantV2", "QuantV2, divided"])  # fmt: skip
def test_what_the_primitive_has_not_is_written_as_a_custom(net, x, terms, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.export(net(), Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    assert len(opgraft.rewrite.substitute(graph).swapped) == 1
    want = _core.Session(_core.Model(graph)).run([x])[0]
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))(Tensor(x)).asnumpy()
    # MindSpore's weight is no constant and not packed: another order of the sum, of terms up to 1.31 |x|.
    assert (abs(back - want) <= 2 * (terms + 1) * 2.0**-24 * terms * 1.31 * abs(x).max()).all()
    again = _core.Session(_core.Model(opgraft.load(tmp_path / "grafted.mindir"))).run([x])[0]
    np.testing.assert_array_equal(again, want)


class Layer(nn.Cell):
    """nn.Dense with its weight in eight bits."""

    def __init__(self, weight, scale, bias):
        super().__init__()
        self.weight, self.scale = ms.Parameter(Tensor(weight), name="w"), ms.Parameter(Tensor(scale), name="s")
        self.bias, self.product = ms.Parameter(Tensor(bias), name="b"), ops.MatMul(transpose_b=True)

    def construct(self, x):
        return self.product(x, ops.cast(self.weight, ms.float32) * self.scale) + self.bias


def test_an_exported_layer_of_eight_bits(tmp_path):
    rng = np.random.default_rng(3)
    w, scale = rng.integers(-128, 128, (35, 18)).astype(np.int8), rng.uniform(0.001, 0.01, (35, 1)).astype(np.float32)
    net, x = Layer(w, scale, normal(35)), normal(5, 18)
    got, swapped = grafted(net, x, tmp_path)
    assert swapped == ["WeightQuantBatchMatmul"]
    x64, w64 = x.astype(np.float64), (w * scale.astype(np.float64)).T
    size = abs(x64) @ abs(w64) + abs(normal(35))
    # As of the weight alone, and one rounding for the bias.
    bound = 8 * 2.0**-24 * np.sqrt(18 * (x64**2 @ w64**2) / 6) + 5 * 2.0**-24 * size
    for y in (got, net(Tensor(x)).asnumpy()):
        assert (abs(y - (x64 @ w64 + normal(35))) <= bound).all()
