"""Products whose number of rows is open: every call picks its own tiles, with the same packed weight."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, _core, nn, ops, rewrite

K, N = 2100, 70  # K is worked through in pieces where there are many rows


class Layer(nn.Cell):
    def __init__(self, weight):
        super().__init__()
        self.weight = Parameter(Tensor(weight))

    def construct(self, x):
        return ops.matmul(x, self.weight)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_a_dynamic_number_of_rows(dtype):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((K, N)).astype(dtype)
    net = Layer(w)
    net.set_inputs(Tensor(shape=[None, K], dtype=getattr(opgraft, np.dtype(dtype).name)))
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    for rows in (1, 2, 5, 12, 13, 16, 17, 96, 97, 250, 0, 3):
        x = rng.standard_normal((rows, K)).astype(dtype)
        a, b = x.astype(np.float64), w.astype(np.float64)
        want = a @ b
        # aot_ops/matmul/cases.py derives the sum's error; then the result rounds to its type, half an ulp.
        bound = 8 * 2.0**-24 * np.sqrt(K * (a**2 @ b**2) / 6)
        half_ulp = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[np.dtype(dtype).name]
        got = net(Tensor(x)).asnumpy().astype(np.float64)
        assert got.shape == want.shape
        assert (np.abs(got - want) <= bound + half_ulp * (np.abs(want) + bound)).all()


def test_packed_weights_keep_their_type(tmp_path):
    """A bfloat16 weight is packed as bfloat16: half the bytes to read."""
    sizes = {}
    for dtype in (np.float32, ml_dtypes.bfloat16):
        x = np.ones((1, K), dtype)
        file = opgraft.export(Layer(np.ones((K, N), dtype)), Tensor(x), file_name=tmp_path / np.dtype(dtype).name)
        model = _core.Model(_core.read_mindir(str(file)))
        _core.Session(model).run([x])
        sizes[np.dtype(dtype).name] = model.stats["packed_bytes"]
    assert sizes["bfloat16"] * 2 == sizes["float32"] > 0


class Quantised(nn.Cell):
    """A weight of eight bits as models spell it; an input here, as a trace computes with constants at once."""

    transpose = False

    def construct(self, x, weight, scale):
        return ops.matmul(x, ops.cast(weight, opgraft.float32) * scale, transpose_b=self.transpose)


class Turned(Quantised):
    transpose = True


class Offset(Quantised):
    def construct(self, x, weight, scale):
        return ops.matmul(x, (ops.cast(weight, opgraft.float32) + 3.0) * scale)


@pytest.mark.parametrize("prove", [False, True])
@pytest.mark.parametrize("model,k,n,scale_shape,swapped", [
    (Quantised, 2100, 70, (70,), True), (Quantised, 33, 70, (1, 70), True), (Quantised, 33, 70, (1,), True),
    (Turned, 33, 70, (70, 1), True), (Turned, 33, 33, (33, 1), True),
    (Quantised, 33, 70, (33, 1), False), (Quantised, 33, 33, (33, 1), False), (Quantised, 33, 70, (33, 70), False),
    (Turned, 33, 33, (33,), False), (Turned, 33, 33, (1, 33), False), (Offset, 33, 70, (70,), False),
])  # fmt: skip
def test_a_scaled_weight_is_swapped(model, k, n, scale_shape, swapped, prove):
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, (n, k) if model.transpose else (k, n)).astype(np.int8)
    scale = rng.uniform(0.001, 0.01, scale_shape).astype(np.float32)
    x = rng.standard_normal((3, k)).astype(np.float32)
    net, given = model(), [Tensor(x), Tensor(w), Tensor(scale)]
    net.set_inputs(*given)
    report = rewrite.substitute(net, prove=[given] if prove else None)
    assert [s["op"].split("@")[0] for s in report.swapped] == ["WeightQuantBatchMatmul"] * swapped
    a, b = x.astype(np.float64), (w.astype(np.float64) + (3.0 if model is Offset else 0.0)) * scale
    b = b.T if model.transpose else b
    # The sum's error as above; three roundings of a weight or of the scaled sum.
    bound = 8 * 2.0**-24 * np.sqrt(k * (a**2 @ b**2) / 6) + 3 * 2.0**-24 * (np.abs(a) @ np.abs(b))
    assert (np.abs(net(*given).asnumpy() - a @ b) <= bound).all()
