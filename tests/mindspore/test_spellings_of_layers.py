"""Products, sparse and of eight bits, and quantising, by further spellings than the tests of each have, in models that
MindSpore exported: one operator is left, with MindSpore's own results."""

import mindspore as ms
import numpy as np
import pytest
from cells import Held
from helpers import close, normal, swapped
from mindspore import mint, nn, ops

F32, F16, I32, I8 = ms.float32, ms.float16, ms.int32, ms.int8
linear = mint.nn.functional.linear
K, N = 18, 35
RNG = np.random.default_rng(0)
WEIGHT = RNG.integers(-128, 128, (N, K)).astype(np.int8)
SCALE = RNG.uniform(0.001, 0.01, N).astype(np.float32)
X, X8 = normal(2, 5, K), RNG.integers(-128, 128, (5, K)).astype(np.int8)


class Weights(Held):
    """A product with weights of eight bits: w is [N, K], t [K, N]."""

    def construct(self, x):
        how, w, t, s, z, b = self.how, ops.cast(self.w, F32), ops.cast(self.t, F32), self.s, self.z, self.b
        if how == "as they lie":
            return ops.matmul(x, t * s)
        if how == "as they lie, Add":
            return ops.matmul(x, (t + z) * s)
        if how == "as they lie, Sub":
            return ops.matmul(x, (t - z) * s)
        if how == "transposed, Add":
            return ops.MatMul(transpose_b=True)(x, (w + 3.0) * self.column)
        if how == "transposed, Sub":
            return ops.matmul(x, (w.swapaxes(0, 1) - z) * s)
        if how == "behind, with a zero point":
            return ops.matmul(x, t - 3.0) * s
        if how == "behind, Div":
            return ops.matmul(x, t) / s
        if how == "behind rows joined":
            return ops.MatMul()(x.reshape(-1, K), t).reshape(2, 5, N) * s
        if how == "GELU":
            return ops.gelu(ops.matmul(x, t * s) + b)
        if how == "SiLU":
            return ops.silu(ops.matmul(x, t * s) + b)
        if how == "Maximum":
            return ops.maximum(ops.matmul(x, t * s) + b, 0.0)
        if how == "BiasAdd":
            return ops.bias_add(ops.matmul(x, t * s), b)
        return ops.matmul(x, ops.cast(self.t, F16) * s)


@pytest.mark.parametrize("how,given", [
    ("as they lie", X), ("as they lie, Add", X), ("as they lie, Sub", X), ("transposed, Add", X[0]),
    ("transposed, Sub", X), ("behind, with a zero point", X), ("behind, Div", X), ("behind rows joined", X),
    ("GELU", X), ("SiLU", X), ("Maximum", X), ("BiasAdd", X[0]),
])  # fmt: skip
def test_weights_of_eight_bits(how, given, tmp_path):
    net = Weights(how, w=WEIGHT, t=WEIGHT.T.copy(), s=SCALE, z=np.round(5 * normal(N)), column=SCALE.reshape(-1, 1),
                  b=normal(N, seed=2))  # fmt: skip
    (want,), (got,) = swapped(net, [given], tmp_path, "WeightQuantBatchMatmul")
    close(got, want)


class Codes(Held):
    """A product of eight bits by eight."""

    def construct(self, x, r=None):
        how, a, t, s = self.how, ops.cast(x, F32), ops.cast(self.t, F32), self.s
        if how == "a zero point of x":
            return ops.matmul(a - 3.0, t) * s
        if how == "zero points of both":
            return ops.matmul(a - 3.0, t - 5.0) * s
        if how == "zero points in integers":
            return ops.matmul((ops.cast(x, I32) - 3).astype(F32), (ops.cast(self.t, I32) - 5).astype(F32)) * s
        if how == "rows":
            return ops.matmul(a, t) * r * s
        if how == "rows and columns multiplied":
            return ops.matmul(a, t) * (r * s)
        if how == "rows dequantised":
            return ops.matmul(a * r, t * s)
        return ops.matmul(a, ops.cast(self.w.T, F32)) * s


@pytest.mark.parametrize("how", [
    "a zero point of x", "zero points of both", "zero points in integers", "rows", "rows and columns multiplied",
    "rows dequantised", "transposed",
])  # fmt: skip
def test_codes_by_codes(how, tmp_path):
    rows = [np.abs(normal(5, 1)) + 0.1] if "rows" in how else []
    net = Codes(how, w=WEIGHT, t=WEIGHT.T.copy(), s=SCALE)
    (want,), (got,) = swapped(net, [X8, *rows], tmp_path, "QuantBatchMatmul")
    close(got, want)


class Dequantised(Held):
    def construct(self, x):
        if self.how == "a scale":
            return ops.cast(x, F32) * self.s
        if self.how == "Add":
            return (ops.cast(x, F32) + self.z) * self.s
        if self.how == "Add in integers":
            return (ops.cast(x, I32) + 3).astype(F32) * self.s
        return (ops.cast(x, I32) - 3).astype(F32) * self.s


@pytest.mark.parametrize("how", ["a scale", "Add", "Add in integers", "Sub in integers"])
def test_dequantising(how, tmp_path):
    net = Dequantised(how, s=np.abs(normal(K)) + 0.1, z=np.round(5 * normal(K)))
    (want,), (got,) = swapped(net, [X8], tmp_path, "AntiQuant")
    close(got, want)


class InFloats(Held):
    """Codes that stay floats. The constant is written twice."""

    def construct(self, x):
        how = self.how
        if how == "clamp":
            return ops.clamp(ops.round(x / 0.02), -128, 127) * 0.02
        if how == "no bounds":
            return ops.round(x / 0.02) * 0.02
        if how == "Maximum, then Minimum":
            return ops.minimum(ops.maximum(ops.round(x / 0.02), -128.0), 127.0) * 0.02
        if how == "rounded with its zero point":
            return (ops.clamp(ops.round(x / 0.02 + 3.0), -128, 127) - 3.0) * 0.02
        return (ops.maximum(ops.minimum(ops.round(x / 0.02) + 3.0, 127.0), -128.0) - 3.0) * 0.02


@pytest.mark.parametrize("how", [
    "clamp", "no bounds", "Maximum, then Minimum", "rounded with its zero point", "Minimum, then Maximum",
])  # fmt: skip
def test_codes_that_stay_floats(how, tmp_path):
    """x lies away from the halves, so that no rounding of a quotient leads to another code."""
    x = ((RNG.integers(-160, 160, (5, 40)) + RNG.uniform(-0.4, 0.4, (5, 40))) * 0.02).astype(np.float32)
    (want,), (got,) = swapped(InFloats(how), [x], tmp_path, "FakeQuantize")
    close(got, want)
    assert len(np.unique(np.round(got / 0.02))) > 50


class OnTheFly(Held):
    def construct(self, x):
        largest, how = ops.ReduceMax(keep_dims=True)(ops.abs(x), -1), self.how
        if how == "times 1 / 127":
            s = largest * (1 / 127)
        elif how == "held above 0 behind":
            s = ops.maximum(largest / 127.0, 1e-5)
        elif how == "held above 0 before":
            s = ops.maximum(largest, 1e-5) / 127.0
        else:
            s = largest / 127.0
        r = ops.round(x / s)
        return ops.cast(ops.minimum(ops.maximum(r, -127.0), 127.0) if how == "within bounds" else r, I8), s


@pytest.mark.parametrize("how", ["times 1 / 127", "held above 0 behind", "held above 0 before", "within bounds"])
def test_quantising_on_the_fly(how, tmp_path):
    """A quotient may be rounded otherwise: codes beside each other, of few numbers."""
    want, got = swapped(OnTheFly(how), [X], tmp_path, "DynamicQuantExt")
    off = np.abs(got[0].astype(int) - want[0])
    assert got[0].dtype == np.int8 and off.max() <= 1 and (off > 0).mean() < 0.02
    close(got[1], want[1])


class Layers(Held):
    def construct(self, x):
        how, a, b, c = self.how, self.a, self.b, self.c
        if how == "three by linear":
            return linear(x, a), linear(x, b), linear(x, c)
        if how == "three by matmul":
            return ops.matmul(x, a.T), ops.matmul(x, b.T), ops.matmul(x, c.T)
        if how == "gate by linear":
            return ops.silu(linear(x, a)) * linear(x, b)
        if how == "gate by matmul":
            return ops.silu(ops.matmul(x, a.T)) * ops.matmul(x, b.T)
        return ops.maximum(linear(x, a, self.bias), 0.0)


@pytest.mark.parametrize("how,op", [
    ("three by linear", "DenseQKV"), ("three by matmul", "DenseQKV"), ("gate by linear", "DenseSwiGLU"),
    ("gate by matmul", "DenseSwiGLU"), ("Maximum", "Dense"),
])  # fmt: skip
def test_layers(how, op, tmp_path):
    net = Layers(how, **{name: normal(30, 40, seed=i) / 8 for i, name in enumerate("abc")}, bias=normal(30))
    want, got = swapped(net, [normal(2, 5, 40)], tmp_path, op)
    for y, y_of_mindspore in zip(got, want, strict=True):
        close(y, y_of_mindspore)


class Turned(nn.Cell):
    def construct(self, x, w):
        return ops.matmul(x.T, w)


class Plain(nn.Cell):
    def construct(self, x, w):
        return ops.matmul(x, w)


@pytest.mark.parametrize("net,shapes,op", [
    (Turned, [(40, 5), (40, 30)], "MatMul"), (Plain, [(2, 5, 40), (2, 40, 30)], "BatchMatMul"),
])  # fmt: skip
def test_products(net, shapes, op, tmp_path):
    (want,), (got,) = swapped(net(), [normal(*s, seed=i) for i, s in enumerate(shapes)], tmp_path, op)
    close(got, want)


def pruned(*shape):
    w = normal(*shape, seed=9)
    w[np.random.default_rng(1).random(shape) >= 0.03] = 0
    return w


class Sparse(Held):
    def construct(self, x):
        return ops.matmul(self.w, x) if self.how == "left" else ops.matmul(x, self.w)


@pytest.mark.parametrize("how,weight,given", [
    ("matmul", pruned(300, 270), normal(9, 300)), ("left", pruned(300, 270), normal(270, 9)),
])  # fmt: skip
def test_sparse_products(how, weight, given, tmp_path):
    (want,), (got,) = swapped(Sparse(how, w=weight), [given], tmp_path, "SparseMatMul")
    close(got, want)


class PrunedLayer(Held):
    """w is [N, K], t [K, N]; layer an nn.Dense of w and b."""

    def construct(self, x):
        how = self.how
        if how == "linear":
            return linear(x, self.w, self.b)
        if how == "linear without a bias":
            return linear(x, self.w)
        if how == "rows joined":
            return ops.matmul(x.reshape(-1, 300), self.t).reshape(2, 9, 270) + self.b
        if how == "Dense":
            return ops.relu(self.layer(x))
        y = ops.matmul(x, self.t)
        if how == "GeLU":
            return ops.gelu(y + self.b, approximate="none")
        if how == "GeLU without a bias":
            return ops.gelu(y, approximate="tanh")
        return ops.silu(y + self.b) if how == "SiLU" else ops.BiasAdd()(y, self.b) if how == "BiasAdd" else y + self.b


@pytest.mark.parametrize("how,rows", [
    *((how, rows) for rows in ((9,), (2, 9))
      for how in ("linear", "linear without a bias", "Dense", "GeLU", "GeLU without a bias", "SiLU", "Add")),
    ("BiasAdd", (9,)), ("rows joined", (2, 9)),
])  # fmt: skip
def test_pruned_layers(how, rows, tmp_path):
    w, b = pruned(270, 300), normal(270, seed=2)
    layer = nn.Dense(300, 270, weight_init=ms.Tensor(w), bias_init=ms.Tensor(b))
    net = PrunedLayer(how, w=w, t=np.ascontiguousarray(w.T), b=b)
    net.layer = layer
    (want,), (got,) = swapped(net, [normal(*rows, 300)], tmp_path, "SparseDense")
    close(got, want)


def test_a_sparse_product_of_float16(tmp_path):
    """Both sum in float32, n terms of a column, and round once; zeros, which MindSpore's sum has too, add nothing."""
    w, x = pruned(300, 270).astype(np.float16), normal(9, 300).astype(np.float16)
    (want,), (got,) = swapped(Sparse("matmul", w=w), [x], tmp_path, "SparseMatMul")
    assert got.dtype == want.dtype == np.float16
    n, magnitude = np.count_nonzero(w, 0), np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
    allowed = 2.0**-10 * np.abs(want.astype(np.float64)) + 2 * (n + 4) * 2.0**-24 * magnitude + 2.0**-24
    assert (np.abs(got.astype(np.float64) - want) <= allowed).all()


def test_weights_of_eight_bits_of_float16(tmp_path):
    """Each product of a weight and its scale is rounded to float16 there, 2^-11 of it: of all summands together."""
    half = SCALE.astype(np.float16)
    net = Weights("", w=WEIGHT, t=WEIGHT.T.copy(), s=half, z=normal(N), column=half.reshape(-1, 1), b=normal(N))
    (want,), (got,) = swapped(net, [X.astype(np.float16)], tmp_path, "WeightQuantBatchMatmul")
    assert got.dtype == want.dtype == np.float16
    magnitude = np.abs(X.astype(np.float64)) @ np.abs(WEIGHT.T * SCALE.astype(np.float64))
    assert (np.abs(got.astype(np.float64) - want) <= 2.0**-10 * (np.abs(want) + magnitude)).all()
