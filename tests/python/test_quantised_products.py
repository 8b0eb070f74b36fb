"""Products of dequantised matrices, and of integers, as models spell them, are swapped for operators that read eight
bits; a matrix that lies the other way is read as it lies."""

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, nn, ops, rewrite


class Quantised(nn.Cell):
    """A weight of eight bits as models spell it, with what is added to it or with ONNX's zero point; inputs here, as a
    trace computes with constants at once."""

    def __init__(self, offset="", transpose=False):
        super().__init__()
        self.offset, self.transpose = offset, transpose

    def construct(self, x, weight, scale, offset=None):
        w = ops.cast(weight, opgraft.float32)
        if self.offset:
            w = w + offset if self.offset == "+" else w - ops.cast(offset, opgraft.float32)
        return ops.matmul(x, w * scale, transpose_b=self.transpose)


WHOLE, PART = ["WeightQuantBatchMatmul"], ["AntiQuant"]


class Spelled(nn.Cell):
    def __init__(self, write, **held):
        super().__init__()
        self.write = write
        for name, array in held.items():
            setattr(self, name, Parameter(Tensor(array)))

    def construct(self, x):
        return self.write(self, x)


@pytest.mark.parametrize("write,want,left", [
    (lambda c, x: ops.matmul(x, c.w.T), lambda x, w, b: x @ w.T, ["MatMul"]),
    (lambda c, x: ops.matmul(x, c.w.transpose(1, 0)) + c.b, lambda x, w, b: x @ w.T + b, ["Dense"]),
    (lambda c, x: ops.primitive("MatMulExt", x, c.w.T) + c.b, lambda x, w, b: x @ w.T + b, ["Dense"]),
    (lambda c, x: ops.relu(ops.matmul(x, c.w.T) + c.b), lambda x, w, b: np.maximum(x @ w.T + b, 0), ["Dense"]),
    (lambda c, x: ops.matmul(x, c.w.T.T, transpose_b=True), lambda x, w, b: x @ w.T, ["MatMul"]),
    (lambda c, x: ops.matmul(x.T, c.w, transpose_a=True, transpose_b=True), lambda x, w, b: x @ w.T, ["MatMul"]),
    (lambda c, x: ops.matmul(c.w, x.T), lambda x, w, b: w @ x.T, ["MatMul"]),
    (lambda c, x: ops.matmul(x.T, x), lambda x, w, b: x.T @ x, ["MatMul"]),
], ids=["T", "bias", "ext", "activation", "twice", "a", "of x", "both"])  # fmt: skip
def test_a_matrix_that_lies_the_other_way_is_read_as_it_lies(write, want, left, tmp_path):
    """No Transpose is left, which a weight would go through at every call; the weight is packed, as any other."""
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((9, 40), (30, 40), (30,)))
    net = Spelled(write, w=w, b=b)
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=str(tmp_path / "net")))
    report = rewrite.substitute(graph, prove=[[Tensor(x)]])
    assert [n["op"] for n in graph.nodes] == left, report
    exact = want(*(a.astype(np.float64) for a in (x, w, b)))
    # Sums of 40 products and a bias: as many roundings at most, each of what the terms' sizes add up to.
    size = np.abs(want(*(np.abs(a.astype(np.float64)) for a in (x, w, b))))
    assert (np.abs(nn.GraphCell(graph)(Tensor(x)).asnumpy() - exact) <= 41 * 2.0**-24 * size).all()


def test_a_scaled_weight_that_lies_the_other_way_is_swapped(tmp_path):
    """As torch's exporter writes a quantised Linear: a column's scale lies along the first dimension of W [N, K]."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 64)).astype(np.float32), rng.integers(-128, 128, (30, 64)).astype(np.int8)
    scale = rng.random((30, 1)).astype(np.float32)
    net = Spelled(lambda c, x: ops.matmul(x, (c.w.astype(opgraft.float32) * c.scale).T), w=w, scale=scale)
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph, prove=[[Tensor(x)]])
    assert [n["op"] for n in graph.nodes] == ["WeightQuantBatchMatmul"]


@pytest.mark.parametrize("prove", [False, True])
@pytest.mark.parametrize("offset,transpose,k,n,shape,swapped", [
    ("", False, 2100, 70, (70,), WHOLE), ("", False, 33, 70, (1, 70), WHOLE), ("", False, 33, 70, (1,), WHOLE),
    ("", True, 33, 70, (70, 1), WHOLE), ("", True, 33, 33, (33, 1), WHOLE), ("", True, 33, 70, (), WHOLE),
    ("+", False, 33, 70, (70,), WHOLE), ("+", True, 33, 70, (70, 1), WHOLE), ("-", False, 33, 70, (), WHOLE),
    ("-", False, 33, 70, (1, 70), WHOLE), ("-", True, 33, 70, (70, 1), WHOLE), ("-", True, 33, 33, (), WHOLE),
    # The scale lies along K: only the weight itself is made by one operator.
    ("", False, 33, 70, (33, 1), PART), ("", False, 33, 33, (33, 1), PART), ("", True, 33, 33, (33,), PART),
    ("", True, 33, 33, (1, 33), PART), ("-", False, 33, 33, (33, 1), PART), ("+", True, 33, 33, (33,), PART),
    ("", False, 33, 70, (33, 70), []), ("-", True, 33, 33, (33, 33), []),
])  # fmt: skip
def test_a_scaled_weight_is_swapped(offset, transpose, k, n, shape, swapped, prove):
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, (n, k) if transpose else (k, n)).astype(np.int8)
    scale = rng.uniform(0.001, 0.01, shape).astype(np.float32)
    x, o = rng.standard_normal((3, k)).astype(np.float32), rng.integers(-9, 9, shape).astype(np.int8)
    given = [Tensor(x), Tensor(w), Tensor(scale)]
    if offset:
        given.append(Tensor(o.astype(np.float32) if offset == "+" else o))
    net = Quantised(offset, transpose)
    net.set_inputs(*given)
    report = rewrite.substitute(net, prove=[given] if prove else None)
    assert [s["op"].split("@")[0] for s in report.swapped] == swapped
    a, plain = x.astype(np.float64), w.astype(np.float64)
    shift = {"": 0.0, "+": 1.0, "-": -1.0}[offset] * o.astype(np.float64)
    b, size = (plain + shift) * scale, (abs(plain) + abs(shift)) * scale
    b, size = (b.T, size.T) if transpose else (b, size)
    # The sum's error as above, of the weights and of x times the offset; four roundings of a weight or of the sum.
    bound = 8 * 2.0**-24 * np.sqrt(k * (a**2 @ size**2) / 6) + 4 * 2.0**-24 * (np.abs(a) @ size)
    assert (np.abs(net(*given).asnumpy() - a @ b) <= bound).all()


class Integers(nn.Cell):
    """Eight-bit tensors multiplied as ONNX's MatMulInteger is written without it."""

    def __init__(self, dtype=opgraft.float32, transpose=False):
        super().__init__()
        self.dtype, self.transpose = dtype, transpose

    def construct(self, x, w, scale):
        wide = ops.cast(x, self.dtype), ops.cast(w, self.dtype)
        return ops.matmul(*wide, transpose_b=self.transpose) * scale


@pytest.mark.parametrize("dtype,of,transpose,shape,swapped", [
    (np.float32, np.int8, False, (70,), True), (np.float32, np.int8, True, (70,), True),
    (np.float32, np.int8, False, (), True), (np.float32, np.int8, False, (1,), True),
    (np.float32, np.int8, False, (5, 1), False),  # by rows
    (np.float32, np.uint8, False, (70,), True), (np.float32, np.int32, False, (70,), False),
])  # fmt: skip
def test_a_product_of_integers_is_swapped(dtype, of, transpose, shape, swapped):
    rng = np.random.default_rng(0)
    least = 0 if of == np.uint8 else -7
    x, w = rng.integers(least, 8, (2, 5, 33)).astype(of), rng.integers(least, 8, (33, 70)).astype(of)
    scale = rng.uniform(0.001, 0.01, shape).astype(dtype)
    want = (x.astype(np.float64) @ w) * scale.astype(np.float64)
    given = [Tensor(x), Tensor(w.T.copy() if transpose else w), Tensor(scale)]
    net = Integers(getattr(opgraft, np.dtype(dtype).name), transpose)
    net.set_inputs(*given)
    report = rewrite.substitute(net, prove=[given])
    assert [s["op"].split("@")[0] for s in report.swapped] == ["QuantBatchMatmul"] * swapped
    assert not report.left or of == np.int8  # meant for other dtypes: nothing is said
    # Sums below 2^11 are exact; one rounding.
    assert (abs(net(*given).asnumpy() - want) <= 2.0**-24 * abs(want) + 2.0**-25).all()


def test_a_product_of_integers_in_float16_has_a_weight_of_eight_bits():
    """QuantBatchMatmul's scales are float32: x stays widened, its weight is read as bytes."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(-7, 8, (2, 5, 33)).astype(np.int8), rng.integers(-7, 8, (33, 70)).astype(np.int8)
    given = [Tensor(x), Tensor(w), Tensor(rng.uniform(0.001, 0.01, 70).astype(np.float16))]
    net = Integers(opgraft.float16)
    net.set_inputs(*given)
    report = rewrite.substitute(net, prove=[given])
    assert [s["op"].split("@")[0] for s in report.swapped] == ["WeightQuantBatchMatmul"]
    want = (x.astype(np.float64) @ w) * given[2].asnumpy().astype(np.float64)
    assert (abs(net(*given).asnumpy() - want) <= (2.0**-11 + 2.0**-24) * abs(want) + 2.0**-25).all()


ROWS = {
    "after the columns'": lambda p, scale, rows: p * scale * rows,
    "before the columns'": lambda p, scale, rows: rows * p * scale,
    "scales first": lambda p, scale, rows: p * (rows * scale),
}


@pytest.mark.parametrize("weight,weight_zero", [(np.int8, None), (np.int8, -7), (np.uint8, None), (np.uint8, 131)])
@pytest.mark.parametrize("zero", [None, 3])
@pytest.mark.parametrize("of", [np.int8, np.uint8])
@pytest.mark.parametrize("shape", [(70,), ()])
@pytest.mark.parametrize("spelled", ROWS)
def test_a_product_of_integers_with_a_scale_for_each_row_is_swapped(spelled, shape, of, zero, weight, weight_zero):
    """As models quantise activations while they run: a scale for each row, and ONNX's zero point."""
    rng = np.random.default_rng(0)
    x = rng.integers(*((-128, 128) if of == np.int8 else (0, 256)), (2, 5, 33)).astype(of)
    w = rng.integers(*((-128, 128) if weight == np.int8 else (0, 256)), (33, 70)).astype(weight)
    rows = rng.uniform(0.1, 1, (2, 5, 1)).astype(np.float32)
    scale = rng.uniform(0.001, 0.01, shape).astype(np.float32)

    class Net(nn.Cell):
        def construct(self, x, w, scale, rows):
            a = ops.cast(x, opgraft.float32)
            a = a if zero is None else a - ops.cast(Tensor(of(zero)), opgraft.float32)
            b = ops.cast(w, opgraft.float32)
            b = b if weight_zero is None else b - ops.cast(Tensor(weight(weight_zero)), opgraft.float32)
            return ROWS[spelled](ops.matmul(a, b), scale, rows)

    net, given = Net(), [Tensor(x), Tensor(w), Tensor(scale), Tensor(rows)]
    net.set_inputs(*given)
    report = rewrite.substitute(net, prove=[given])
    assert [s["op"].split("@")[0] for s in report.swapped] == ["QuantBatchMatmul"]
    want = ((x.astype(np.int64) - (zero or 0)) @ (w.astype(np.int64) - (weight_zero or 0))) * scale.astype(float) * rows
    assert (abs(net(*given).asnumpy() - want) <= 2 * 2.0**-24 * abs(want) + 2.0**-40).all()  # the sum is exact


class Layers(nn.Cell):
    """Layers of one dequantised tensor, as quantised models of ONNX (DequantizeLinear) and torch have them; `of` is
    its dtype, with `rows` it has a scale for each row."""

    def __init__(self, layers, zero, of=np.int8, rows=None):
        super().__init__()
        self.layers, self.zero, self.of, self.rows = layers, zero, of, rows

    def dequantise(self, x, scale, zero):
        x = ops.cast(x, opgraft.float32)
        if zero is not None:
            x = x - ops.cast(zero, opgraft.float32)
        return x * scale

    def construct(self, x, *given):
        a = self.dequantise(x, Tensor(np.float32(0.02) if self.rows is None else self.rows),
                            None if self.zero is None else Tensor(self.of(self.zero)))  # fmt: skip
        out = []
        for (transpose, weight_zero, bias), (w, scale, shift) in zip(self.layers, zip(*[iter(given)] * 3, strict=True),
                                                                     strict=True):  # fmt: skip
            weight_zero = None if weight_zero is None else Tensor(np.int8(weight_zero))
            y = ops.matmul(a, self.dequantise(w, scale, weight_zero), transpose_b=transpose)
            out.append(y if not bias else y + shift if bias == "+" else ops.bias_add(y, shift))
        return tuple(out)


@pytest.mark.parametrize("of,zero,by_rows", [
    *[(np.int8, z, False) for z in (None, 0, -5, 127, -128)], *[(np.uint8, z, False) for z in (None, 0, 117, 255)],
    (np.int8, -5, True), (np.uint8, 128, True), (np.uint8, None, True),
])  # fmt: skip
@pytest.mark.parametrize("layers,shapes,swapped", [
    ([(False, None, "")], [(70,)], 1), ([(False, 0, "+")], [(1, 70)], 1), ([(False, 0, "b")], [()], 1),
    ([(True, 0, "+")], [(70, 1)], 1), ([(True, None, "")], [(1,)], 0), ([(True, None, "b")], [()], 1),
    ([(False, 3, "+")], [(70,)], 1), ([(True, -128, "")], [(70, 1)], 1),
    # Three that share x, as query, key and value; one that is left for another reason keeps x's numbers alive.
    ([(False, 0, "+"), (True, None, ""), (False, None, "b")], [(70,), (70, 1), ()], 3),
    ([(False, None, "+"), (False, 3, ""), (True, 0, "")], [(70,), (33, 1), (70, 1)], 2),
    ([(False, None, "")], [(33, 1)], 0), ([(True, None, "+")], [(70,)], 0),  # along K
])  # fmt: skip
def test_layers_of_one_dequantised_tensor_are_swapped(of, zero, by_rows, layers, shapes, swapped):
    rng = np.random.default_rng(0)
    lead = (10,) if any(bias == "b" for _, _, bias in layers) else (2, 5)  # BiasAdd is along the second dimension
    x = rng.integers(*((-128, 128) if of == np.int8 else (0, 256)), (*lead, 33)).astype(of)
    rows = rng.uniform(0.01, 0.05, (*lead, 1)).astype(np.float32) if by_rows else None
    given, wants = [Tensor(x)], []
    for (transpose, weight_zero, bias), shape in zip(layers, shapes, strict=True):
        n = 33 if transpose and shape == (70,) else 70  # a scale of one dimension along K
        w, scale = rng.integers(-128, 128, (33, n)).astype(np.int8), rng.uniform(0.001, 0.01, shape).astype(np.float32)
        shift = rng.standard_normal(n).astype(np.float32)
        if transpose and shape == (70,):
            scale = scale[:33]
        given += [Tensor(w.T.copy() if transpose else w), Tensor(scale), Tensor(shift)]
        a = (x.astype(np.float64) - (zero or 0)) * np.float64(np.float32(0.02) if rows is None else rows)
        scaled = (w - float(weight_zero or 0)).T * scale.astype(np.float64) if transpose else (
            w - float(weight_zero or 0)) * scale.astype(np.float64)  # fmt: skip
        b = scaled.T if transpose else scaled
        wants.append((a @ b + (shift if bias else 0), np.abs(a) @ np.abs(b) + abs(shift)))
    net = Layers(layers, zero, of, rows)
    net.set_inputs(*given)
    report = rewrite.substitute(net, prove=[given])
    names = [s["op"].split("@")[0] for s in report.swapped]
    assert names.count("QuantBatchMatmul") == swapped
    for y, (want, size) in zip(net(*given), wants, strict=True):
        # 33 products one after another where it is left, their factors' roundings; far less where it is swapped.
        assert (np.abs(y.asnumpy() - want) <= 40 * 2.0**-24 * size).all()


def test_a_dequantised_tensor_that_all_products_take_is_not_made_any_more():
    rng = np.random.default_rng(1)
    given = [Tensor(rng.integers(-128, 128, (5, 33)).astype(np.int8))]
    for _ in range(3):
        w, scale = rng.integers(-128, 128, (33, 70)).astype(np.int8), rng.uniform(0.001, 0.01, 70).astype(np.float32)
        given += [Tensor(w), Tensor(scale), Tensor(np.zeros(70, np.float32))]
    net = Layers([(False, 0, "+")] * 3, 7)
    net.set_inputs(*given)
    report = rewrite.substitute(net, prove=[given])
    assert not report.left
    assert [n["op"] for n in net._grafted[0][0].graph.nodes] == ["QuantBatchMatmul"] * 3


@pytest.mark.parametrize("of,swapped", [(np.int8, True), (np.uint8, True), (np.int32, False), (np.int64, False)])
@pytest.mark.parametrize("offset", ["", "+", "-"])
def test_dequantising_is_swapped(of, swapped, offset):
    rng = np.random.default_rng(1)
    x, zero = rng.integers(0, 100, (4, 7, 33)).astype(of), rng.integers(-9, 9, (33,)).astype(np.float32)
    scale = rng.uniform(0.001, 0.01, (33,)).astype(np.float32)

    class Net(nn.Cell):
        def construct(self, x, scale, zero):
            x = ops.cast(x, opgraft.float32)
            return (x + zero if offset == "+" else x - zero if offset == "-" else x) * scale

    given = [Tensor(x), Tensor(scale), Tensor(zero)]
    net = Net()
    net.set_inputs(*given)
    report = rewrite.substitute(net, prove=[given])
    assert [s["op"].split("@")[0] for s in report.swapped] == PART * swapped and not report.left
    shift = {"": 0.0, "+": 1.0, "-": -1.0}[offset] * zero.astype(np.float64)
    want = (x + shift) * scale.astype(np.float64)  # the sum is exact: one rounding
    assert (abs(net(*given).asnumpy() - want) <= 2.0**-24 * abs(want)).all()
