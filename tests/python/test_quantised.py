"""Eight-bit tensors by MindSpore's names: functions, primitives as classes, in eager mode and in a plan."""

import inspect

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import Net
from opgraft import Tensor, ops

RNG = np.random.default_rng(0)
X1, X2 = (RNG.integers(-128, 128, s).astype(np.int8) for s in ((5, 18), (18, 35)))
SUMS = X1.astype(np.int64) @ X2.astype(np.int64)
SCALE, OFFSET = RNG.uniform(1e-4, 4e-3, 35).astype(np.float32), RNG.uniform(-9, 9, 35).astype(np.float32)
BIAS, TOKEN = RNG.integers(-300, 300, 35).astype(np.int32), RNG.uniform(0.1, 1, 5).astype(np.float32)
X, HALF = RNG.standard_normal((5, 18)).astype(np.float32), {"float32": 2.0**-24, "float16": 2.0**-11}


def near(got, want, roundings, dtype="float32"):
    """`roundings` of float32, each half an ulp of what `want` adds up from, and one to dtype."""
    got = got.asnumpy()
    assert got.dtype.name == dtype
    want, size = want if isinstance(want, tuple) else (want, abs(want))
    error = roundings * 2.0**-24 * size
    assert (abs(got.astype(np.float64) - want) <= error + HALF[dtype] * (abs(want) + error) + 2.0**-25).all()


@pytest.fixture(params=[opgraft.PYNATIVE_MODE, opgraft.GRAPH_MODE], ids=["eager", "planned"], autouse=True)
def _mode(request, _eager):
    opgraft.set_context(mode=request.param)


def call(f, *inputs):
    return Net(f)(*map(Tensor, inputs))


def test_a_product_of_eight_bits():
    product = ops.quant_batch_matmul
    near(call(product, X1, X2, SCALE), SUMS * SCALE.astype(float), 2, "float16")
    wide = ops.QuantBatchMatmul(dtype=opgraft.float32)
    near(call(wide, X1, X2, SCALE), SUMS * SCALE.astype(float), 2)
    turned = ops.QuantBatchMatmul(True, True, opgraft.float32)
    x1, x2 = np.ascontiguousarray(X1.T), np.ascontiguousarray(X2.T)
    near(call(turned, x1, x2, SCALE), SUMS * SCALE.astype(float), 2)

    def full(x1, x2, scale, bias, token):
        return product(x1, x2, scale, None, bias, token, dtype=opgraft.float32)

    want = (SUMS + BIAS) * SCALE.astype(float) * TOKEN[:, None]
    near(call(full, X1, X2, SCALE, BIAS, TOKEN), want, 3)

    def narrow(x1, x2, scale, offset):
        return product(x1, x2, scale, offset, dtype=opgraft.int8)

    got = call(narrow, X1, X2, SCALE, OFFSET).asnumpy()
    exact = SUMS * SCALE.astype(float) + OFFSET
    close = abs(exact % 1 - 0.5) < 3 * 2.0**-24 * (abs(exact) + 2 * abs(OFFSET))  # of a half: either neighbour
    assert got.dtype == np.int8 and not close.any()
    np.testing.assert_array_equal(got, np.clip(np.rint(exact), -128, 127))
    none = np.zeros(0, np.float32)
    np.testing.assert_array_equal(call(ops.QuantBatchMatmul(dtype=opgraft.int32), X1, X2, none).asnumpy(), SUMS)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_weight_of_eight_bits(dtype):
    x, scale, offset = (a.astype(dtype) for a in (X, SCALE, OFFSET))
    bias = RNG.standard_normal(35).astype(dtype)
    x64, w, s, o = x.astype(float), X2.astype(float), scale.astype(float), offset.astype(float)
    # 18 products one after another, at most as many roundings of the sum of what they are, and the scale's.
    size = (abs(x64) @ abs(w)) * s
    f = ops.weight_quant_batch_matmul
    near(call(f, x, X2, scale), ((x64 @ w) * s, size), 19, np.dtype(dtype).name)
    want = (x64 @ (w + o)) * s, size + (abs(x64) @ np.ones_like(w)) * abs(o) * s
    near(call(f, x, X2, scale, offset), want, 21, np.dtype(dtype).name)

    def with_bias(x, w, scale, bias):
        return f(x, w, scale, None, None, None, bias)

    want = (x64 @ w) * s + bias.astype(float), size + abs(bias.astype(float))
    near(call(with_bias, x, X2, scale, bias), want, 20, np.dtype(dtype).name)
    turned = ops.WeightQuantBatchMatmul(False, True)
    near(call(turned, x, np.ascontiguousarray(X2.T), scale), ((x64 @ w) * s, size), 19, np.dtype(dtype).name)


def test_there_and_back():
    x = RNG.uniform(-1, 1, (4, 35)).astype(np.float32)
    scale, offset = RNG.uniform(50, 90, 35).astype(np.float32), np.rint(OFFSET)
    q = call(ops.QuantV2(), x, scale, offset)
    exact = x.astype(float) * scale + offset
    assert q.dtype == np.int8 and (abs(exact % 1 - 0.5) > 2.0**-15).all()
    np.testing.assert_array_equal(q.asnumpy(), np.clip(np.rint(exact), -128, 127))
    back = ops.AntiQuant(False, opgraft.float32)
    near(call(back, q.asnumpy(), 1 / scale, -offset), (q.asnumpy() - offset) * (1 / scale).astype(float), 2)
    sums = RNG.integers(-(2**24), 2**24, (4, 35)).astype(np.int32)
    want = sums * SCALE.astype(float)
    near(call(ops.Dequant(False, True, opgraft.float32), sums, SCALE), np.maximum(want, 0), 2)
    squared = sums * SCALE.astype(float) ** 2
    near(call(ops.Dequant(True, dtype=opgraft.float32), sums, SCALE), squared, 3)


def test_activations_quantised_on_the_fly():
    x = RNG.standard_normal((5, 18)).astype(np.float32)

    def product(x, w, scale):
        y, token = ops.DynamicQuantExt()(x)
        return ops.quant_batch_matmul(y, w, scale, None, None, token, dtype=opgraft.float32), y, token

    got, y, token = call(product, x, X2, SCALE)
    token, y = token.asnumpy(), y.asnumpy()
    assert y.dtype == np.int8 and token.shape == (5,)
    near(call(lambda t: t, token), abs(x).max(-1).astype(float) / 127, 1)
    exact = x.astype(float) / token[:, None]
    assert (abs(y - exact) <= 0.5 + 2.0**-15).all() and (abs(y).max(-1) == 127).all()
    near(got, (y.astype(np.int64) @ X2.astype(np.int64)) * SCALE.astype(float) * token.astype(float)[:, None], 3)


def test_names_and_order_are_mindspores():
    taken = {
        "quant_batch_matmul": "x1 x2 scale offset bias pertokenScaleOptional transpose_x1 transpose_x2 dtype",
        "weight_quant_batch_matmul": "x weight antiquant_scale antiquant_offset quant_scale quant_offset bias "
        "transpose_x transpose_weight antiquant_group_size",
    }
    for name, order in taken.items():
        assert list(inspect.signature(getattr(ops, name)).parameters) == order.split()
    assert ops.DynamicQuantExt()(Tensor(X), Tensor(X[0]))[0].shape == X.shape  # x, smooth_scales


def test_refusals():
    x, w, s = map(Tensor, (X, X2, SCALE))
    with pytest.raises(TypeError, match="weight_quant_batch_matmul: weight must be a Tensor, got list"):
        ops.weight_quant_batch_matmul(x, [1], s)
    with pytest.raises(ValueError, match="WeightQuantBatchMatmul: antiquant_group_size must be 0, got 32"):
        ops.weight_quant_batch_matmul(x, w, s, antiquant_group_size=32)
    with pytest.raises(ValueError, match=r"WeightQuantBatchMatmul: quant_scale must have no elements, got shape \(35,"):
        ops.weight_quant_batch_matmul(x, w, s, None, s)
    with pytest.raises(TypeError, match="QuantBatchMatmul: x1.dtype must be one of int8, uint8, got float32"):
        ops.quant_batch_matmul(x, w, s)
    with pytest.raises(TypeError, match="QuantBatchMatmul: dtype must be one of float16, .*, got 'float64'"):
        ops.quant_batch_matmul(Tensor(X1), w, s, dtype=opgraft.float64)
    with pytest.raises(ValueError, match="QuantV2: rounding_mode must be ROUND, got 'FLOOR'"):
        ops.QuantV2()(x, Tensor(SCALE[:1]), Tensor(SCALE[:1]), False, "FLOOR")
    with pytest.raises(TypeError, match="AntiQuant: x.dtype must be one of int8, uint8, got float32"):
        ops.AntiQuant()(x, Tensor(SCALE[:1]), Tensor(SCALE[:1]))
    with pytest.raises(TypeError, match="weight_quant_batch_matmul: antiquant_scale must be a Tensor, got float"):
        ops.weight_quant_batch_matmul(x, w, 0.5)
    y = ops.weight_quant_batch_matmul(Tensor(X.astype(ml_dtypes.bfloat16)), w, s)
    assert y.dtype == opgraft.bfloat16
