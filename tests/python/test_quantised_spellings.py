"""Weights of eight bits as layers spell them: divided by their scale, without a sign, turned, in Dense, between the
Reshapes of nn.Dense, of half types; and products of two dequantised tensors of which one is turned."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import cases, close
from opgraft import Parameter, Tensor, nn, ops, rewrite
from test_quantised_weights import Layer, scales, swapped, weight

K, N = 33, 70
RNG = np.random.default_rng(1)
f32 = opgraft.float32
X, ONE = RNG.standard_normal((5, K)).astype(np.float32), ["WeightQuantBatchMatmul"]


def wide(w):
    return ops.cast(w, f32)


def times(x, w, turned):
    return ops.matmul(x, w, transpose_b=turned)


def exact(x, w, b=0.0):
    """x w + b in float64, and what its roundings are relative to; w [K, N] whole numbers and a zero point, scaled."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    return x @ w + b, np.abs(x) @ np.abs(w) + np.abs(b)


def along_n(s, turned, behind=False):
    """A scale or zero point by column as it broadcasts to the weight, or behind the product to its columns."""
    return s if s.ndim == 0 or not turned or behind else s.reshape(-1, 1)


@pytest.mark.parametrize("shape", [(), (N,), (1, N)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("zero", [None, "-", "+"])
@pytest.mark.parametrize("behind", [False, True])
def test_divided_by_a_scale(behind, zero, turned, shape, tmp_path):
    """As w = round(127 w / max |w|) comes back."""
    if behind and zero:
        return
    w, s = weight(), RNG.uniform(50, 200, shape).astype(np.float32)
    z = RNG.integers(-9, 9, shape).astype(np.float32)

    def write(x, w, s, z):
        w = wide(w)
        w = w - z if zero == "-" else w + z if zero == "+" else w
        return times(x, w, turned) / s if behind else times(x, w / s, turned)

    held = [w if turned else w.T.copy(), along_n(s, turned, behind), along_n(z, turned, behind)]
    names, got = swapped(write, X, *held, folder=tmp_path)
    assert names == ONE
    shift = {None: 0.0, "-": -1.0, "+": 1.0}[zero] * z.astype(np.float64)
    want, size = exact(X, (w.T + shift) / s)
    close(got, want, 2 * K + 6, size + np.abs(X).sum(-1, keepdims=True) * np.abs(shift / s))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape,zero", [((), ()), ((N,), ()), ((N,), (N,)), ((1, N), (1, N))])
def test_without_a_sign(shape, zero, turned, bias, tmp_path):
    """w - 128, or a zero point for each column."""
    w, s, b = RNG.integers(0, 256, (N, K)).astype(np.uint8), scales(*shape), scales(N)
    z = np.float32(128) if zero == () else RNG.integers(100, 156, zero).astype(np.float32)

    def write(x, w, s, z, b):
        y = times(x, (wide(w) - (128.0 if zero == () else z)) * s, turned)
        return y + b if bias else y

    held = [w if turned else w.T.copy(), along_n(s, turned), along_n(z, turned), b]
    names, got = swapped(write, X, *held, folder=tmp_path)
    assert names == ONE
    want, size = exact(X, (w.T - z.astype(np.float64)) * s, b if bias else 0.0)
    # Within the operator w is 128 less, and the zero point, too.
    close(got, want, 2 * K + 6, size + np.abs(X).sum(-1, keepdims=True) * (np.abs(z - 128.0) * s))


def test_without_a_sign_and_scaled_behind(tmp_path):
    w, s = RNG.integers(0, 256, (N, K)).astype(np.uint8), scales(N)
    names, got = swapped(lambda x, w, s: times(x, wide(w) - 128.0, True) * s, X, w, s, folder=tmp_path)
    assert names == ONE
    close(got, *exact_pair(X, (w.T - 128.0) * s))


def exact_pair(x, w):
    want, size = exact(x, w)
    return want, 2 * K + 6, size


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(N,), (), (1, N)])
def test_a_scale_behind_of_one_row(shape, turned, tmp_path):
    w, s = weight(), scales(*shape)
    x = RNG.standard_normal((2, 5, K)).astype(np.float32)
    names, got = swapped(lambda x, w, s: times(x, wide(w), turned) * s, x, w if turned else w.T.copy(), s,
                         folder=tmp_path)  # fmt: skip
    assert names == ONE
    close(got, *exact_pair(x, w.T * s.astype(np.float64)))


def test_a_float16_product_is_not_rounded_before_its_scale(tmp_path):
    """A sum beyond 65504 is no infinity any more: what is scaled is the sum itself."""
    x, s = np.full((2, K), 30.0, np.float16), np.full(N, 2.0**-7, np.float16)
    w = np.full((N, K), 127, np.int8)
    held = (lambda x, w, s: times(x, ops.cast(w, opgraft.float16), True) * s, x, w, s)
    assert np.isinf(Layer(held[0], held[2:])(Tensor(x)).asnumpy()).all()
    names, got = swapped(*held, folder=tmp_path, prove=False)
    assert names == ONE and got.dtype == np.float16
    assert (np.abs(got - 30.0 * 127 * K / 128) <= 2.0**-11 * 30 * 127 * K / 128).all()
    graph = opgraft.load(tmp_path / "net.mindir")
    report = rewrite.substitute(graph, prove=[[Tensor(x)]])  # another result than before, which is what a proof is for
    assert not report.swapped and "differ" in report.left[0]["why"], report


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_of_half_types(behind, zero, dtype, tmp_path):
    t = opgraft.float16 if dtype == np.float16 else opgraft.bfloat16
    x, s, w = X.astype(dtype), scales(N).astype(dtype), RNG.integers(-9, 10, (K, N)).astype(np.int8)

    def write(x, w, s):
        w = ops.cast(w, t)
        w = w - 3.0 if zero else w
        return times(x, w, False) * s if behind else times(x, w * s, False)

    names, got = swapped(write, x, w, s, folder=tmp_path)
    assert names == ONE and got.dtype == dtype
    want, size = exact(x, (w - 3.0 * zero) * s.astype(np.float64))
    bound = (K + 6) * 2.0**-23 * (size + 3 * np.abs(x.astype(np.float64)).sum(-1, keepdims=True) * s.astype(np.float64))
    assert (np.abs(got.astype(np.float64) - want) <= 2.0 ** (-11 if dtype == np.float16 else -8) * np.abs(want) + bound
            + 2.0**-25).all()  # fmt: skip


TURNED = {  # of a weight [N, K]
    "before it is wide": lambda x, w, s, z, b: times(x, wide(w.T) * s, False),
    "before it is wide, a zero point": lambda x, w, s, z, b: times(x, (wide(w.T) - z) * s, False) + b,
    "before it is wide, behind": lambda x, w, s, z, b: times(x, wide(w.T), False) * s,
    "before it is wide, divided": lambda x, w, s, z, b: times(x, wide(w.T) / s, False) + b,
    "wide": lambda x, w, s, z, b: times(x, wide(w).T * s, False),
    "wide, a zero point": lambda x, w, s, z, b: times(x, (wide(w).T - z) * s, False) + b,
    "wide, one zero point": lambda x, w, s, z, b: times(x, (wide(w).T - 5.0) * s, False),
    "wide, behind": lambda x, w, s, z, b: times(x, wide(w).T, False) * s,
    "scaled": lambda x, w, s, z, b: times(x, (wide(w) * s.reshape(-1, 1)).T, False),
    "scaled, a zero point": lambda x, w, s, z, b: times(x, ((wide(w) - 5.0) * s.reshape(-1, 1)).T, False) + b,
}


@pytest.mark.parametrize("shape", [(N,), (1, N)])
@pytest.mark.parametrize("name", TURNED)
def test_a_weight_that_is_turned(name, shape, tmp_path):
    w, s, b = weight(), scales(*shape), scales(N)
    z = RNG.integers(-9, 9, shape).astype(np.float32)
    names, got = swapped(TURNED[name], X, w, s, z, b, folder=tmp_path)
    assert [n for n in names if n != "Reshape"] == ONE, names
    shift = 0.0 * z if "point" not in name else z if "a zero" in name and "scaled" not in name else 5.0 + 0.0 * z
    w64 = (w.T - shift.astype(np.float64)) * (1 / s.astype(np.float64) if "divided" in name else s)
    added = "zero point" in name and "one zero" not in name or "divided" in name
    want, size = exact(X, w64, b if added else 0.0)
    close(got, want, 2 * K + 8, size + np.abs(X).sum(-1, keepdims=True) * np.abs(shift * s))


@pytest.mark.parametrize("write", [
    lambda x, w, s: times(x, wide(w.T) * s, False), lambda x, w, s: times(x, wide(w).T * s, False),
    lambda x, w, s: times(x, (wide(w).T - 3.0) * s, False),
    lambda x, w, s: ops.primitive("Dense", x, wide(w) * s.reshape(-1)),
])  # fmt: skip
def test_a_scale_along_k_of_a_weight_that_is_turned_stays(write, tmp_path):
    """Square, so that it would fit."""
    x, w, s = X, weight(K, K), scales(K, 1)
    file = opgraft.export(Layer(write, (w, s)), Tensor(x), file_name=str(tmp_path / "net"))
    graph = opgraft.load(file)
    rewrite.substitute(graph, prove=[[Tensor(x)]])
    assert "WeightQuantBatchMatmul" not in [n["op"] for n in graph.nodes]
    got = nn.GraphCell(graph)(Tensor(x)).asnumpy()
    close(got, Layer(write, (w, s))(Tensor(x)).asnumpy(), 2 * K + 6, exact(x, np.abs(w.T.astype(float) * s) + 3)[1])


def joined(x):
    return x.reshape(-1, K)


JOINED = {  # MindSpore's nn.Dense joins the rows of three dimensions and parts them again
    "scaled weight": lambda x, w, s, b: times(joined(x), wide(w) * s.reshape(-1, 1), True).reshape(2, 5, N),
    "and BiasAdd": lambda x, w, s, b: ops.bias_add(
        times(joined(x), wide(w) * s.reshape(-1, 1), True), b).reshape(2, 5, N),
    "and a sum behind": lambda x, w, s, b: times(
        joined(x), wide(w) * s.reshape(-1, 1), True).reshape(2, 5, N) + b,
    "scale behind": lambda x, w, s, b: (times(joined(x), wide(w), True) * s).reshape(2, 5, N) + b,
    "scale behind the rows' parting": lambda x, w, s, b: times(joined(x), wide(w), True).reshape(2, 5, N) * s + b,
    "divided": lambda x, w, s, b: times(joined(x), wide(w) / s.reshape(-1, 1), True).reshape(2, 5, N),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_rows_that_are_joined_for_the_product(name, tmp_path):
    x, w, s, b = RNG.standard_normal((2, 5, K)).astype(np.float32), weight(), scales(N), scales(N)
    names, got = swapped(JOINED[name], x, w, s, b, folder=tmp_path)
    assert [n for n in names if n != "Reshape"] == ONE and names.count("Reshape") <= 1, names  # of the scale
    bias = 0.0 if name in ("scaled weight", "divided") else b
    want, size = exact(x, w.T * (1 / s.astype(np.float64) if name == "divided" else s), bias)
    close(got, want, 2 * K + 6, size)


@pytest.mark.parametrize("write", [
    lambda x, w, s: (times(x.reshape(-1, K), wide(w), True) * s).reshape(5, 2, N),  # other rows
    lambda x, w, s: (times(x.reshape(-1, K), wide(w), True) * s).reshape(2, 5, 2, N // 2),  # heads
])  # fmt: skip
def test_rows_that_are_parted_otherwise_keep_their_reshape(write, tmp_path):
    x, w, s = RNG.standard_normal((2, 5, K)).astype(np.float32), weight(), scales(N)
    graph = opgraft.load(opgraft.export(Layer(write, (w, s)), Tensor(x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph, prove=[[Tensor(x)]])
    assert sorted(n["op"] for n in graph.nodes) == ["Reshape", "Reshape", *ONE]


DENSE = {  # the primitive that MindSpore's mint.nn.Linear and ops.dense are exported as
    "scaled weight": lambda x, w, s, z, b: linear(x, wide(w) * s.reshape(-1, 1)),
    "and a bias": lambda x, w, s, z, b: linear(x, wide(w) * s.reshape(-1, 1), b),
    "a zero point": lambda x, w, s, z, b: linear(x, (wide(w) - z.reshape(-1, 1)) * s.reshape(-1, 1), b),
    "one zero point": lambda x, w, s, z, b: linear(x, (wide(w) - 5.0) * s.reshape(-1, 1)),
    "scale behind": lambda x, w, s, z, b: linear(x, wide(w)) * s + b,
    "relu": lambda x, w, s, z, b: ops.relu(linear(x, wide(w) * s.reshape(-1, 1), b)),
    "gelu": lambda x, w, s, z, b: ops.gelu(linear(x, wide(w) * s.reshape(-1, 1), b), approximate="tanh"),
    "relu behind all": lambda x, w, s, z, b: ops.relu(linear(x, wide(w)) * s + b),
    "silu of a product": lambda x, w, s, z, b: ops.silu(times(x, wide(w) * s.reshape(-1, 1), True) + b),
}


def linear(x, w, *bias):
    return ops.primitive("Dense", x, w, *bias)


@pytest.mark.parametrize("name", DENSE)
def test_in_a_layer(name, tmp_path):
    x, w, s, b = RNG.standard_normal((2, 5, K)).astype(np.float32), weight(), scales(N), scales(N)
    z = RNG.integers(-9, 9, N).astype(np.float32)
    names, got = swapped(DENSE[name], x, w, s, z, b, folder=tmp_path)
    assert [n for n in names if n != "Reshape"] == ONE, names
    shift = z if name == "a zero point" else 5.0 * (name == "one zero point")
    bias = 0.0 if name in ("scaled weight", "one zero point") else b
    want, size = exact(x, (w.T - np.float64(shift)) * s, bias)
    size = size + np.abs(x).sum(-1, keepdims=True) * np.abs(shift * s)
    act = {"relu": "relu", "gelu": "gelu_tanh", "silu": "silu"}.get(name.split(" ")[0], "none")
    close(got, cases("quant").ACTIVATIONS[act](want), 1.13 * (2 * K + 8) + 12, size)


class Turned(nn.Cell):
    """x and a weight [N, K] that are both dequantised, the weight turned before or behind that."""

    def __init__(self, w, s, z, where):
        super().__init__()
        self.w, self.s, self.z = (Parameter(Tensor(a), name=n) for a, n in ((w, "w"), (s, "s"), (z, "z")))
        self.where = where

    def construct(self, x):
        a = (wide(x) - 3.0) * 0.25
        if self.where == "scaled":
            return ops.matmul(a, (wide(self.w) * self.s.reshape(-1, 1)).T)
        if self.where == "a zero point, scaled":
            return ops.matmul(a, ((wide(self.w) - 7.0) * self.s.reshape(-1, 1)).T)
        if self.where == "in Dense":
            return linear(a, wide(self.w) * self.s.reshape(-1, 1), self.z)
        if self.where == "a zero point, in Dense":
            return linear(a, (wide(self.w) - 7.0) * self.s.reshape(-1, 1))
        if self.where == "behind":
            return ops.matmul(wide(x), wide(self.w.T)) * self.s
        return ops.matmul(a, wide(self.w.T) * self.s) + self.z


@pytest.mark.parametrize("of", [np.int8, np.uint8])
@pytest.mark.parametrize("where", ["scaled", "a zero point, scaled", "behind", "bytes", "in Dense",
                                   "a zero point, in Dense"])  # fmt: skip
def test_two_dequantised_tensors_of_which_one_is_turned(where, of, tmp_path):
    least = np.iinfo(of).min
    x, w = (RNG.integers(least, least + 256, s).astype(of) for s in ((5, K), (N, K)))
    s, z = scales(N), scales(N)
    file = opgraft.export(Turned(w, s, z, where), Tensor(x), file_name=str(tmp_path / "net"))
    graph = opgraft.load(file)
    rewrite.substitute(graph, prove=[[Tensor(x)]])
    assert [n["op"] for n in graph.nodes if n["op"] != "Reshape"] == ["QuantBatchMatmul"]
    a, zero = x.astype(np.float64), 7.0 * where.startswith("a zero point")
    a = a if where == "behind" else (a - 3.0) * 0.25
    want, size = exact(a, (w.T - zero) * s.astype(np.float64), z if where in ("bytes", "in Dense") else 0.0)
    close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), want, 4, size)  # the sum is exact
