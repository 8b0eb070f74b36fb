"""LayerNorm over rows and over channels, BatchNorm and what follows a convolution, by further spellings than the tests
of each have, in models that MindSpore exported: one operator is left, with MindSpore's own results."""

import numpy as np
import pytest
from cells import Held
from helpers import close, normal, swapped
from mindspore import Tensor, nn, ops

C = 24
mean = ops.ReduceMean(keep_dims=True)


class Layer(Held):
    def construct(self, x):
        g, b, how = self.g, self.b, self.how
        m = mean(x, -1)
        d = x - m
        v = mean(d * d, -1) + 1e-5
        if how == "gamma first":
            return d * g / ops.sqrt(v) + b
        if how == "gamma first, Rsqrt":
            return (d * g) * ops.rsqrt(v) + b
        if how == "gamma at Pow":
            return d * (ops.pow(v, -0.5) * g) + b
        if how == "gamma at 1 / Sqrt":
            return d * ((1.0 / ops.sqrt(v)) * g) + b
        if how == "Keras, 1 / Sqrt":
            i = (1.0 / ops.sqrt(v)) * g
            return x * i + (b - m * i)
        return d * (ops.rsqrt(mean(x * x, -1) - m * m + 1e-5) * g) + b  # the fast variance, not held above 0


class ByVar(Held):
    def construct(self, x):
        g, b, how = self.g, self.b, self.how
        d, v = x - x.mean(-1, True), ops.var(x, -1, 0, True) + 1e-5
        if how == "1 / Sqrt":
            return d * (1.0 / ops.sqrt(v)) * g + b
        if how == "Reciprocal":
            return d * ops.reciprocal(ops.sqrt(v)) * g + b
        if how == "Pow":
            return d * ops.pow(v, -0.5) * g + b
        if how == "gamma at Rsqrt":
            return d * (ops.rsqrt(v) * g) + b
        if how == "gamma at 1 / Sqrt":
            return d * ((1.0 / ops.sqrt(v)) * g) + b
        if how == "gamma over Sqrt":
            return d * (g / ops.sqrt(v)) + b
        if how == "gamma first, 1 / Sqrt":
            return d * g * (1.0 / ops.sqrt(v)) + b
        return d * g * ops.rsqrt(v) + b


ROWS = {
    Layer: ["gamma first", "gamma first, Rsqrt", "gamma at Pow", "gamma at 1 / Sqrt", "Keras, 1 / Sqrt", "fast"],
    ByVar: ["1 / Sqrt", "Reciprocal", "Pow", "gamma at Rsqrt", "gamma at 1 / Sqrt", "gamma over Sqrt",
            "gamma first, 1 / Sqrt", "gamma first, Rsqrt"],
}  # fmt: skip


@pytest.mark.parametrize("cell,how", [(cell, how) for cell in ROWS for how in ROWS[cell]])
def test_of_rows(cell, how, tmp_path):
    net = cell(how, g=normal(C, seed=1), b=normal(C, seed=2))
    (want,), (got,) = swapped(net, [normal(3, 5, C)], tmp_path, "FusedLayerNorm")
    close(got, want)


class Added(Held):
    """A norm by hand of a sum that is a result as well."""

    def construct(self, x, residual):
        s = x + residual
        d = s - mean(s, -1)
        n = d * ops.rsqrt(mean(ops.square(d), -1) + 1e-5)
        return (n, s) if self.how == "plain" else (n * self.g + self.b, s)


@pytest.mark.parametrize("how", ["plain", "gamma and beta"])
def test_of_a_sum(how, tmp_path):
    net = Added(how, g=normal(C, seed=1), b=normal(C, seed=2))
    want, got = swapped(net, [normal(3, 5, C), normal(3, 5, C, seed=3)], tmp_path, "AddLayerNorm")
    for y, y_of_mindspore in zip(got, want, strict=True):
        close(y, y_of_mindspore)


class Channels(Held):
    def construct(self, x):
        how = self.how
        d = x - x.mean(1, keep_dims=True)
        v = ops.square(d).mean(1, keep_dims=True) + 1e-6
        if how == "Rsqrt":
            return self.g * (d * ops.rsqrt(v)) + self.b
        if how == "Reciprocal":
            return self.g * (d * ops.reciprocal(ops.sqrt(v))) + self.b
        if how == "1 / Sqrt":
            return self.g * (d * (1.0 / ops.sqrt(v))) + self.b
        if how == "Pow":
            return self.g * (d * ops.pow(v, -0.5)) + self.b
        if how == "gamma alone":
            return self.g * (d / ops.sqrt(v))
        return self.g * (d / ops.sqrt(v)) + self.b


class TransposedRank3(Held):
    def __init__(self, how, **held):
        super().__init__(how, **held)
        self.norm = nn.LayerNorm((C,))

    def construct(self, x):
        return self.norm(x.transpose(0, 2, 1)).transpose(0, 2, 1)


@pytest.mark.parametrize("shape", [(2, C, 5, 7), (2, C, 19)], ids=["rank 4", "rank 3"])
@pytest.mark.parametrize("how", ["Rsqrt", "Reciprocal", "1 / Sqrt", "Pow", "gamma alone", "Div by Sqrt"])
def test_of_channels(how, shape, tmp_path):
    each = (C,) + (1,) * (len(shape) - 2)
    net = Channels(how, g=normal(*each, seed=1), b=normal(*each, seed=2))
    (want,), (got,) = swapped(net, [normal(*shape)], tmp_path, "LayerNorm2d")
    close(got, want)


def test_of_channels_made_the_last_of_three_dimensions(tmp_path):
    (want,), (got,) = swapped(TransposedRank3(""), [normal(2, C, 19)], tmp_path, "LayerNorm2d")
    close(got, want)


class Batch(Held):
    def construct(self, x):
        d, v, g, b, how = x - self.m, self.v + 1e-3, self.g, self.b, self.how
        if how == "gamma over Sqrt":
            return d * (g / ops.sqrt(v)) + b
        if how == "gamma first, Rsqrt":
            return d * g * ops.rsqrt(v) + b
        if how == "gamma first, over Sqrt":
            return d * g / ops.sqrt(v) + b
        if how == "gamma first, 1 / Sqrt":
            return d * g * (1.0 / ops.sqrt(v)) + b
        if how == "gamma first, Reciprocal":
            return d * g * ops.reciprocal(ops.sqrt(v)) + b
        if how == "gamma first, Pow":
            return d * g * ops.pow(v, -0.5) + b
        if how == "over Pow":
            return d / ops.pow(v, 0.5) * g + b
        if how == "gamma at 1 / Sqrt":
            return d * (g * (1.0 / ops.sqrt(v))) + b
        if how == "without beta":
            return d * (g * ops.rsqrt(v))
        s = g * (1.0 / ops.sqrt(v)) if how == "frozen, 1 / Sqrt" else g * ops.pow(v, -0.5)
        return x * s + (b - self.m * s)


@pytest.mark.parametrize("how", [
    "gamma over Sqrt", "gamma first, Rsqrt", "gamma first, over Sqrt", "gamma first, 1 / Sqrt",
    "gamma first, Reciprocal", "gamma first, Pow", "over Pow", "gamma at 1 / Sqrt", "without beta", "frozen, 1 / Sqrt",
    "frozen, Pow",
])  # fmt: skip
def test_of_a_batch(how, tmp_path):
    each = (1, 6, 1, 1)
    net = Batch(how, m=normal(*each, seed=1), v=np.abs(normal(*each, seed=2)) + 0.5, g=normal(*each, seed=3),
                b=normal(*each, seed=4))  # fmt: skip
    (want,), (got,) = swapped(net, [normal(2, 6, 7, 9)], tmp_path, "FusedBatchNormInference")
    close(got, want)


class Convolution(Held):
    def __init__(self, how, **held):
        super().__init__(how, **held)
        self.conv = nn.Conv2d(4, 4, 3, weight_init=Tensor(normal(4, 4, 3, 3)))
        self.biased = nn.Conv2d(4, 4, 3, has_bias=True, weight_init=Tensor(normal(4, 4, 3, 3)),
                                bias_init=Tensor(normal(4)))  # fmt: skip
        self.norm = nn.BatchNorm2d(4).set_train(False)

    def construct(self, x):
        how, s, t = self.how, self.s, self.t
        if how == "bias and residual":
            return ops.relu(self.biased(x) + x)
        if how == "bias, norm and residual":
            return ops.relu(self.norm(self.biased(x)) + x)
        y = self.conv(x)
        if how == "Add as a bias":
            return ops.relu(y + t)
        if how == "Add as a bias, norm":
            return ops.relu(self.norm(y + t))
        if how == "norm, Maximum and Minimum":
            return ops.minimum(ops.maximum(self.norm(y), 0.0), 6.0)
        if how == "Mul":
            return y * s
        y = y * s + t
        if how == "Mul, Add, ReLU6":
            return ops.relu6(y)
        if how == "Mul, Add, residual":
            return ops.relu(y + x)
        return ops.minimum(ops.maximum(y, 0.0), 6.0)


@pytest.mark.parametrize("how,op", [
    ("Add as a bias", "FusedConv2D"), ("bias and residual", "FusedConv2D"), ("Mul", "FusedConv2DScale"),
    ("Mul, Add, ReLU6", "FusedConv2DScale"), ("Mul, Add, residual", "FusedConv2DScale"),
    ("Mul, Add, Maximum and Minimum", "FusedConv2DScale"), ("bias, norm and residual", "FusedConv2DBiasBatchNorm"),
    ("Add as a bias, norm", "FusedConv2DBiasBatchNorm"), ("norm, Maximum and Minimum", "FusedConv2DBatchNorm"),
])  # fmt: skip
def test_behind_a_convolution(how, op, tmp_path):
    net = Convolution(how, s=normal(1, 4, 1, 1, seed=1), t=normal(1, 4, 1, 1, seed=2)).set_train(False)
    (want,), (got,) = swapped(net, [normal(2, 4, 7, 9)], tmp_path, op)
    close(got, want)
