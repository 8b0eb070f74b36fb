"""Layers with weights of eight bits as a MindSpore user writes them: all of a layer becomes one product of bytes."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from opgraft import _core

K, N, F32 = 18, 35, ms.float32
RNG = np.random.default_rng(0)
WEIGHT = RNG.integers(-128, 128, (N, K)).astype(np.int8)
SCALE = RNG.uniform(0.001, 0.01, (N, 1)).astype(np.float32)
BIAS = RNG.standard_normal(N).astype(np.float32)


class Layer(nn.Cell):
    """The weight [N, K], its scale (N, 1) or (1, N), a bias; `of` is uint8 where 128 is subtracted."""

    def __init__(self, of="int8"):
        super().__init__()
        w = WEIGHT if of == "int8" else (WEIGHT.astype(np.int16) + 128).astype(np.uint8)
        self.w, self.s = Parameter(Tensor(w), name="w"), Parameter(Tensor(SCALE), name="s")
        self.row, self.b = Parameter(Tensor(SCALE.T.copy()), name="row"), Parameter(Tensor(BIAS), name="b")
        self.inverse = Parameter(Tensor(1 / SCALE), name="inverse")


class Linear(Layer):
    def construct(self, x):
        return ops.dense(x, ops.cast(self.w, F32) * self.s, self.b)


class LinearWithRelu(Layer):
    def construct(self, x):
        return ops.relu(mint.nn.functional.linear(x, ops.cast(self.w, F32) * self.s, self.b))


class LinearScaledBehind(Layer):
    def construct(self, x):
        return mint.nn.functional.linear(x, ops.cast(self.w, F32)) * self.row + self.b


class ScaledBehind(Layer):
    def construct(self, x):
        return ops.matmul(x, ops.cast(self.w, F32).T) * self.row + self.b


class TurnedBytes(Layer):
    def construct(self, x):
        return ops.matmul(x, ops.cast(self.w.T, F32) * self.row) + self.b


class TurnedWide(Layer):
    def construct(self, x):
        return ops.matmul(x, ops.cast(self.w, F32).swapaxes(0, 1) * self.row) + self.b


class Divided(Layer):
    def construct(self, x):
        return ops.matmul(x, (ops.cast(self.w, F32) / self.inverse).T) + self.b


class WithoutASign(Layer):
    def __init__(self):
        super().__init__("uint8")

    def construct(self, x):
        return ops.matmul(x, ((ops.cast(self.w, F32) - 128.0) * self.s).T) + self.b


class Joined(Layer):
    """As nn.Dense has it, which joins the rows for the product."""

    def __init__(self):
        super().__init__()
        self.product, self.add = ops.MatMul(transpose_b=True), ops.BiasAdd()

    def construct(self, x):
        y = self.product(x.reshape(-1, K), ops.cast(self.w, F32) * self.s)
        return self.add(y, self.b).reshape(x.shape[:-1] + (N,))


LAYERS = [Linear, LinearWithRelu, LinearScaledBehind, ScaledBehind, TurnedBytes, TurnedWide, Divided, WithoutASign,
          Joined]  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_an_exported_layer_is_one_product_of_bytes(layer, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    x = np.random.default_rng(1).standard_normal((2, 5, K)).astype(np.float32)
    ms.export(layer(), Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    report = opgraft.rewrite.substitute(graph, prove=[[x]])
    assert [n["op"] for n in graph.nodes] == ["WeightQuantBatchMatmul"], report
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    got = _core.Session(_core.Model(graph)).run([x])[0]
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))(Tensor(x)).asnumpy()
    x64, w64 = x.astype(np.float64), (WEIGHT * SCALE.astype(np.float64)).T
    want, size = x64 @ w64 + BIAS, abs(x64) @ abs(w64) + abs(BIAS)
    want = np.maximum(want, 0) if layer is LinearWithRelu else want
    # K products one after another, in any order, and six roundings of a weight, an inverse, a scale and a bias.
    for y in (got, back, layer()(Tensor(x)).asnumpy()):
        assert (abs(y - want) <= (K + 6) * 2.0**-24 * size).all()
