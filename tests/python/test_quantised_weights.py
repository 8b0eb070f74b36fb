"""Weights of eight bits whose scale stands behind the product become WeightQuantBatchMatmul, and a bias with them;
what is no scale of columns does not."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import close
from opgraft import Parameter, Tensor, nn, ops, rewrite

K, N = 33, 70
RNG = np.random.default_rng(0)
f32, bf16 = opgraft.float32, opgraft.bfloat16


class Layer(nn.Cell):
    """write(x, *held), of Parameters, which a trace does not compute with."""

    def __init__(self, write, held):
        super().__init__()
        self.write, self.names = write, [f"p{i}" for i in range(len(held))]
        for name, array in zip(self.names, held, strict=True):
            setattr(self, name, Parameter(Tensor(array), name=name))

    def construct(self, x):
        return self.write(x, *(getattr(self, name) for name in self.names))


def swapped(write, x, *held, folder, prove=True):
    """(the operators that are left, what they give)"""
    file = opgraft.export(Layer(write, held), Tensor(x), file_name=str(folder / "net"))
    graph = opgraft.load(file)
    report = rewrite.substitute(graph, prove=[[Tensor(x)]] if prove else None)
    assert not report.left, report
    return [n["op"] for n in graph.nodes], nn.GraphCell(graph)(Tensor(x)).asnumpy()


def weight(n=N, k=K):
    return RNG.integers(-128, 128, (n, k)).astype(np.int8)


def scales(*shape):
    return RNG.uniform(0.001, 0.01, shape).astype(np.float32)


def wide(x, w, s, b=0.0):
    """x w^T s + b in float64, and the sum of magnitudes that its roundings are relative to."""
    x, w, s, b = (np.asarray(a, np.float64) for a in (x, w, s, b))
    return x @ w.T * s + b, np.abs(x) @ np.abs(w).T * s + np.abs(b)


@pytest.mark.parametrize("bias", [None, "+", "BiasAdd"])
@pytest.mark.parametrize("shape", [(N,), (), (1,)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("lead", [(5,), (1,), (2, 3)])
def test_a_scale_behind_the_product_is_taken_in(lead, turned, shape, bias, tmp_path):
    """As torch's layers of weights in eight bits have it: linear(x, w.to(x.dtype)) * scales."""
    if bias == "BiasAdd" and len(lead) > 1:
        return  # its bias lies along the second dimension
    x, w, s, b = RNG.standard_normal((*lead, K)).astype(np.float32), weight(), scales(*shape), scales(N)

    def write(x, w, s, b=None):
        y = s * ops.matmul(x, ops.cast(w, f32), transpose_b=turned)
        return y if b is None else b + y if bias == "+" else ops.bias_add(y, b)

    held = [w if turned else w.T.copy(), s] + [b] * (bias is not None)
    names, got = swapped(write, x, *held, folder=tmp_path)
    assert names == ["WeightQuantBatchMatmul"]
    want, size = wide(x, w, s, 0.0 if bias is None else b)
    close(got, want, K + 3, size)


def test_of_bfloat16(tmp_path):
    x, w, s = RNG.standard_normal((3, K)).astype(ml_dtypes.bfloat16), weight(), scales(N).astype(ml_dtypes.bfloat16)
    names, got = swapped(
        lambda x, w, s: ops.matmul(x, ops.cast(w, bf16), transpose_b=True) * s, x, w, s, folder=tmp_path
    )
    assert names == ["WeightQuantBatchMatmul"] and got.dtype == ml_dtypes.bfloat16
    want, size = wide(x, w, s)
    assert (np.abs(got.astype(np.float64) - want) <= 2.0**-8 * np.abs(want) + (K + 3) * 2.0**-23 * size).all()


@pytest.mark.parametrize("zero", [None, -7, 7])
@pytest.mark.parametrize("turned", [False, True])
def test_a_bias_behind_a_scaled_weight_is_taken_in(turned, zero, tmp_path):
    x, w, s, b = RNG.standard_normal((2, 5, K)).astype(np.float32), weight(), scales(N, 1), scales(N)

    def write(x, w, s, b):
        v = ops.cast(w, f32)
        v = v if zero is None else v - np.full((N, 1) if turned else (1, N), zero, np.float32)
        return ops.matmul(x, v * s, transpose_b=turned) + b

    held = (w, s, b) if turned else (w.T.copy(), s.T.copy(), b)
    names, got = swapped(write, x, *held, folder=tmp_path)
    assert names == ["WeightQuantBatchMatmul"]
    want, size = wide(x, w.astype(np.float64) - (zero or 0), s[:, 0], b)
    close(got, want, 2 * K + 5, size + 7 * np.abs(x).sum(-1, keepdims=True) * s[:, 0])


SQUARE, ROWS = weight(K, K), RNG.standard_normal((K, K)).astype(np.float32)


def product(x, w):
    return ops.matmul(x, ops.cast(w, f32), transpose_b=True)


NEAR = {
    "along k": (lambda x, w, s: ops.matmul(x * s, ops.cast(w, f32), transpose_b=True), (SQUARE, scales(K))),
    "along k of the weight": (
        lambda x, w, s: ops.matmul(x, ops.cast(w, f32) * s, transpose_b=True), (SQUARE, scales(K))),
    "by rows": (lambda x, w, s: product(x, w) * s, (SQUARE, scales(K, 1))),
    "of every element": (lambda x, w, s: product(x, w) * s, (SQUARE, scales(K, K))),
    "makes it larger": (lambda x, w, s: product(x, w) * s, (SQUARE, scales(2, 1, K))),
    "of unsigned bytes": (lambda x, w, s: product(x, w) * s, (SQUARE.view(np.uint8), scales(K))),
    "of words": (lambda x, w, s: product(x, w) * s, (SQUARE.astype(np.int32), scales(K))),
    "added": (lambda x, w, s: product(x, w) + s, (SQUARE, scales(K))),
    "of x": (lambda x, w, s: ops.matmul(ops.cast(w, f32), x) * s, (SQUARE, scales(K))),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_what_is_no_scale_of_columns_is_left_alone(name, tmp_path):
    write, held = NEAR[name]
    names, got = swapped(write, ROWS, *held, folder=tmp_path, prove=False)
    assert "WeightQuantBatchMatmul" not in names
    np.testing.assert_array_equal(got, Layer(write, held)(Tensor(ROWS)).asnumpy())


@pytest.mark.parametrize("shape", [(K, K), (K, 1), (1, K)])
def test_what_is_no_bias_is_added_behind_it(shape, tmp_path):
    write, held = lambda x, w, s, r: product(x, w) * s + r, (SQUARE, scales(K), scales(*shape))
    names, got = swapped(write, ROWS, *held, folder=tmp_path)
    assert names[0] == "WeightQuantBatchMatmul" and len(names) == 2
    want, size = wide(ROWS, *held[:2])
    close(got, want + held[2], K + 4, size + held[2])


def test_a_product_that_is_a_result_itself_stays(tmp_path):
    class Two(Layer):
        def construct(self, x):
            y = product(x, self.p0)
            return y * self.p1, y

    graph = opgraft.load(opgraft.export(Two(None, (SQUARE, scales(K))), Tensor(ROWS), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["Cast", "MatMul", "Mul"]
