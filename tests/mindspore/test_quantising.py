"""Quantising as a MindSpore user writes it: to seven bits and a sign, while the model runs, with zero points in
integers, and staying in floats. Each becomes the operator that does all of it, with the same numbers."""

import mindspore as ms
import numpy as np
import opgraft
import pytest
from mindspore import Parameter, Tensor, nn, ops
from opgraft import _core

K, N, F32, I32, I8 = 18, 35, ms.float32, ms.int32, ms.int8
RNG = np.random.default_rng(0)
X = RNG.uniform(-3, 3, (2, 5, K)).astype(np.float32)
WEIGHT = RNG.integers(-127, 128, (N, K)).astype(np.int8)
SCALE, CHANNEL = RNG.uniform(0.001, 0.01, N).astype(np.float32), RNG.uniform(0.01, 0.02, K).astype(np.float32)
ZERO = RNG.integers(-9, 9, (N, 1)).astype(np.int32)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.s = Parameter(Tensor(WEIGHT), name="w"), Parameter(Tensor(SCALE), name="s")
        self.c, self.z = Parameter(Tensor(CHANNEL), name="c"), Parameter(Tensor(ZERO), name="z")


class Narrow(Net):
    def construct(self, x):
        return ops.cast(ops.clamp(ops.round(x / self.c), -127, 127), I8)


class NarrowByHand(Net):
    def construct(self, x):
        return ops.cast(ops.minimum(ops.maximum(ops.round(x / 0.02), -127.0), 127.0), I8)


class OnTheFly(Net):
    """Rows quantised while the model runs, and their product."""

    def construct(self, x):
        s = ops.ReduceMax(keep_dims=True)(ops.abs(x), -1) / 127.0
        q = ops.cast(ops.clamp(ops.round(x / s), -128, 127), I8)
        return ops.matmul(ops.cast(q, F32), ops.cast(self.w, F32).T) * s * self.s


class OnTheFlyLimited(Net):
    def construct(self, x):
        s = ops.amax(x.abs(), -1, True).clamp(1e-5) / 127.0
        q = ops.round(x / s).clamp(-127, 127).astype(I8)
        return ops.matmul(q.astype(F32), self.w.astype(F32).T) * s * self.s


class ZeroInIntegers(Net):
    def construct(self, x):
        w = (self.w.astype(I32) - self.z).astype(F32) * self.s.reshape(-1, 1)
        return ops.matmul(x, w.T)


class ZeroOfTheActivations(Net):
    """As quantised models have it: activations in eight bits, then dequantised."""

    def construct(self, x):
        q = ops.cast(ops.clamp(ops.round(x / 0.02) + 3.0, -128, 127), I8)
        a = (q.astype(I32) - 3).astype(F32) * 0.02
        return ops.matmul(a, self.w.astype(F32).T * self.s)


class StaysInFloats(Net):
    def construct(self, x):
        return (ops.clamp(ops.round(x * 50.0) + 3.0, 0, 255) - 3.0) * 0.02


class StaysInFloatsByChannel(Net):
    def construct(self, x):
        return ops.clamp(ops.round(x / self.c), -127, 127) * self.c


NETS = {
    Narrow: ["QuantV2"],
    NarrowByHand: ["QuantV2"],
    OnTheFly: ["DynamicQuantExt", "QuantBatchMatmul"],
    OnTheFlyLimited: ["DynamicQuantExt", "QuantBatchMatmul"],
    ZeroInIntegers: ["WeightQuantBatchMatmul"],
    ZeroOfTheActivations: ["QuantV2", "QuantBatchMatmul"],
    StaysInFloats: ["FakeQuantize"],
    StaysInFloatsByChannel: ["FakeQuantize"],
}


@pytest.mark.parametrize("net", NETS)
def test_an_exported_net_becomes(net, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.export(net(), Tensor(X), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    before = _core.Session(_core.Model(graph)).run([X])[0]
    report = opgraft.rewrite.substitute(graph, prove=[[X]])
    assert [n["op"] for n in graph.nodes if n["op"] != "Reshape"] == NETS[net], report
    _core.write_mindir(graph, str(tmp_path / "grafted.mindir"))
    got = _core.Session(_core.Model(graph)).run([X])[0]
    back = nn.GraphCell(ms.load(str(tmp_path / "grafted.mindir")))(Tensor(X)).asnumpy()
    want = net()(Tensor(X)).asnumpy()
    assert got.dtype == back.dtype == want.dtype
    if len(NETS[net]) == 1 and net is not ZeroInIntegers:
        np.testing.assert_array_equal(got, before)
        np.testing.assert_array_equal(back, got)
    # MindSpore's quotient or product may round otherwise, a code then lies on the other side of a half.
    wide = np.abs(X).max() * np.abs(WEIGHT).max(0).astype(np.float64).sum() * SCALE.max()
    allowed = 1 if want.dtype == np.int8 else 0.02 + 1e-6 if "StaysIn" in net.__name__ else (K + 6) * 2.0**-24 * wide
    for y in (got, back):
        off = np.abs(y.astype(np.float64) - want)
        assert (off <= allowed).all() and (off > 1e-5 * np.abs(want).max()).mean() < 0.01
