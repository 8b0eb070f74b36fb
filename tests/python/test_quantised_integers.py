"""Zero points that are subtracted in int32, as torch's dequantize and ONNX's MatMulInteger are written out: AntiQuant,
and the products of weights and of activations of eight bits; what looks like it is not."""

import numpy as np
import opgraft
import pytest
from compare import close, graft
from opgraft import Tensor, nn, ops, rewrite
from test_quantised_weights import Layer, scales, swapped

K, N = 33, 70
RNG = np.random.default_rng(2)
f32, i32 = opgraft.float32, opgraft.int32
X = RNG.standard_normal((5, K)).astype(np.float32)


def bytes_of(dtype, *shape):
    least = np.iinfo(dtype).min
    return RNG.integers(least, least + 256, shape).astype(dtype)


def less(x, zero):
    """x - zero, in integers."""
    zero = ops.cast(zero, i32) if isinstance(zero, Tensor) and zero.dtype != i32 else zero
    return ops.cast(ops.cast(x, i32) - zero, f32)


SHAPES = [(), (1,), (33,), (7, 1)]


@pytest.mark.parametrize("zero", ["int32", "bytes", "number"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("shape", SHAPES)
def test_dequantising_as_torch_writes_it_out(shape, dtype, zero):
    x, s = bytes_of(dtype, 4, 7, 33), RNG.uniform(0.01, 0.1, shape).astype(np.float32)
    z = bytes_of(dtype, *shape)
    z = z.astype(np.int32) if zero == "int32" else z

    def write(x, s, z):
        return less(x, 3 if zero == "number" else z) * s

    swapped_in, before, after = graft(write, Tensor(x), Tensor(s), Tensor(z))
    assert swapped_in == ["AntiQuant"]
    np.testing.assert_array_equal(after[0], before[0])
    want = (x.astype(np.int64) - (3 if zero == "number" else z.astype(np.int64))) * s.astype(np.float64)
    close(after[0], want, 1)


def test_an_offset_that_is_added_in_integers():
    x, s = bytes_of(np.int8, 4, 33), scales(33)
    z = RNG.integers(-1000, 1000, 33).astype(np.int32)
    swapped_in, before, after = graft(
        lambda x, s, z: ops.cast(ops.cast(x, i32) + z, f32) * s, Tensor(x), Tensor(s), Tensor(z)
    )
    assert swapped_in == ["AntiQuant"]
    np.testing.assert_array_equal(after[0], before[0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_dequantising_to(dtype):
    t = getattr(opgraft, np.dtype(dtype).name)
    x, s = bytes_of(np.uint8, 4, 33), scales(33).astype(dtype)

    def write(x, s):
        return ops.cast(ops.cast(x, i32) - 117, t) * s

    swapped_in, before, after = graft(write, Tensor(x), Tensor(s))
    assert swapped_in == ["AntiQuant"] and after[0].dtype == dtype
    np.testing.assert_array_equal(after[0], before[0])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lead", [(5,), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("scale,zero", [((N,), (N,)), ((N,), ()), ((), ()), ((N,), "number")])
def test_a_weight(scale, zero, turned, dtype, lead, bias, tmp_path):
    x, w, s, b = RNG.standard_normal((*lead, K)).astype(np.float32), bytes_of(dtype, N, K), scales(*scale), scales(N)
    z = np.int32(5) if zero == "number" else bytes_of(dtype, *zero).astype(np.int32)

    def along(a):
        return a.reshape(-1, 1) if turned and a.ndim else a

    def write(x, w, s, z, b):
        y = ops.matmul(x, less(w, 5 if zero == "number" else z) * s, transpose_b=turned)
        return y + b if bias else y

    names, got = swapped(write, x, w if turned else w.T.copy(), along(s), along(z), b, folder=tmp_path)
    assert names == ["WeightQuantBatchMatmul"]
    w64 = (w.T.astype(np.float64) - z) * s
    want = x.astype(np.float64) @ w64 + (b if bias else 0)
    size = np.abs(x) @ np.abs(w64) + np.abs(b) + np.abs(x).sum(-1, keepdims=True) * (np.abs(z - 128.0) + 128) * s
    close(got, want, 2 * K + 6, size)


@pytest.mark.parametrize("name", ["Dense", "Dense and a bias", "turned wide", "relu behind"])
def test_a_weight_in_a_layer(name, tmp_path):
    w, s, z, b = bytes_of(np.int8, N, K), scales(N, 1), RNG.integers(-9, 9, (N, 1)).astype(np.int32), scales(N)

    def write(x, w, s, z, b):
        w = less(w, z) * s
        if name == "turned wide":
            return ops.matmul(x, w.T)
        y = ops.primitive("Dense", x, w, *([] if name == "Dense" else [b]))
        return ops.relu(y) if name == "relu behind" else y

    names, got = swapped(write, X, w, s, z, b, folder=tmp_path)
    assert names == ["WeightQuantBatchMatmul"], names
    w64 = ((w - z.astype(np.float64)) * s).T
    want = X.astype(np.float64) @ w64 + (0 if name in ("Dense", "turned wide") else b)
    want = np.maximum(want, 0) if name == "relu behind" else want
    size = np.abs(X) @ np.abs(w64) + np.abs(b) + 9 * np.abs(X).sum(-1, keepdims=True) * s.T
    close(got, want, 2 * K + 6, size)


@pytest.mark.parametrize("of,other", [(np.int8, np.int8), (np.uint8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("which", ["both", "activation", "weight", "weight, no zero point beside it"])
@pytest.mark.parametrize("shape", [(N,), ()])
def test_a_product_of_integers(shape, which, turned, of, other, tmp_path):
    """MatMulInteger and what scales it."""
    x, w, s = bytes_of(of, 2, 5, K), bytes_of(other, N, K), scales(*shape)

    def widen(x, zero, in_integers):
        return less(x, zero) if in_integers else ops.cast(x, f32) - float(zero) if zero else ops.cast(x, f32)

    zx, zw = 0 if "beside" in which else 3, 0 if which == "activation" else 7

    def write(x, w, s):
        a, b = widen(x, zx, which in ("both", "activation")), widen(w, zw, which != "activation")
        return ops.matmul(a, b, transpose_b=turned) * s

    names, got = swapped(write, x, w if turned else w.T.copy(), s, folder=tmp_path)
    assert names == ["QuantBatchMatmul"]
    close(got, ((x.astype(np.int64) - zx) @ (w.astype(np.int64) - zw).T) * s.astype(np.float64), 2)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("which", ["both", "activation", "weight"])
@pytest.mark.parametrize("of", [np.int8, np.uint8])
def test_two_dequantised_tensors(of, which, turned, bias, rows, tmp_path):
    lead = (10,) if rows else (2, 5)  # AntiQuant's scales lie along one axis
    x, w, s, b = bytes_of(of, *lead, K), bytes_of(np.int8, N, K), scales(N), scales(N)
    r = scales(10, 1)

    def write(x, w, s, b, r):
        a = less(x, 3) if which != "weight" else ops.cast(x, f32) - 3.0
        v = less(w, 7) if which != "activation" else ops.cast(w, f32)
        y = ops.matmul(a * (r if rows else 0.02), v * s, transpose_b=turned)
        return y + b if bias else y

    held = [w if turned else w.T.copy(), s.reshape(-1, 1) if turned else s, b, r]
    names, got = swapped(write, x, *held, folder=tmp_path)
    assert names == ["QuantBatchMatmul"], names
    a64 = (x.astype(np.float64) - 3) * (r if rows else np.float64(np.float32(0.02)))
    w64 = (w.T.astype(np.float64) - (0 if which == "activation" else 7)) * s
    close(got, a64 @ w64 + (b if bias else 0), 4, np.abs(a64 @ w64) + np.abs(b))


SQUARE = bytes_of(np.int8, K, K)
NEAR = {
    "the zero point less x": lambda x, w, s, z: ops.matmul(x, ops.cast(z - ops.cast(w, i32), f32) * s),
    "of words": lambda x, w, s, z: ops.matmul(x, ops.cast(ops.cast(w, i32) * 3 - z, f32) * s),
    "along k": lambda x, w, s, z: ops.matmul(x, less(w, z.reshape(-1, 1)) * s.reshape(-1, 1)),
    "along k, turned": lambda x, w, s, z: ops.matmul(x, less(w, z) * s, transpose_b=True),
    "a zero point along k": lambda x, w, s, z: ops.matmul(x, less(w, z.reshape(-1, 1)) * s),
    "of every element": lambda x, w, s, z: ops.matmul(x, less(w, z.reshape(1, -1) + z.reshape(-1, 1)) * s),
}


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_a_weight_is_left_alone(name, tmp_path):
    x = RNG.standard_normal((K, K)).astype(np.float32)
    s, z = scales(K), RNG.integers(-9, 9, K).astype(np.int32)
    names, got = swapped_or_left(NEAR[name], x, SQUARE, s, z, folder=tmp_path)
    assert "WeightQuantBatchMatmul" not in names
    want = {
        "the zero point less x": lambda w: (z - w) * s,
        "of words": lambda w: (3 * w - z) * s,
        "along k": lambda w: (w - z[:, None]) * s[:, None],
        "along k, turned": lambda w: ((w - z) * s).T,
        "a zero point along k": lambda w: (w - z[:, None]) * s,
        "of every element": lambda w: (w - z - z[:, None]) * s,
    }[name](SQUARE.astype(np.float64))
    close(got, x.astype(np.float64) @ want, 2 * K, np.abs(x) @ np.abs(want))


def swapped_or_left(write, x, *held, folder):
    """Without a proof, which would refuse what is wrong."""
    graph = opgraft.load(opgraft.export(Layer(write, held), Tensor(x), file_name=str(folder / "net")))
    rewrite.substitute(graph)
    return [n["op"] for n in graph.nodes], nn.GraphCell(graph)(Tensor(x)).asnumpy()


@pytest.mark.parametrize("turned", [False, True])
def test_a_scale_of_rows_is_none_of_columns(turned, tmp_path):
    """As many rows as columns, so that it would fit."""
    x, w, s = bytes_of(np.int8, N, K), bytes_of(np.int8, N, K), scales(N, 1)

    def write(x, w, s):
        return ops.matmul(ops.cast(x, f32), ops.cast(w, f32), transpose_b=turned) * s

    names, got = swapped_or_left(write, x, w if turned else w.T.copy(), s, folder=tmp_path)
    assert "QuantBatchMatmul" not in names
    close(got, (x.astype(np.int64) @ w.astype(np.int64).T) * s.astype(np.float64), 3)
