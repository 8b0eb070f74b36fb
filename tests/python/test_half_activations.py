"""Activations of a half type between casts to float32 and back, as LLaMA-like code has them, are the operators of the
half type, which compute in float32."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import SILU, Net, U, cases, normal
from opgraft import Tensor, nn, ops, rewrite

f32 = opgraft.float32
HALF = {"float16": (np.float16, opgraft.float16, 2.0**-11), "bfloat16": (ml_dtypes.bfloat16, opgraft.bfloat16, 2.0**-8)}
DTYPES = pytest.mark.parametrize("dtype", HALF)


def wide(x):
    return ops.cast(x, f32)


def silu(x):
    return cases("swiglu").silu(x)


def gelu(approximate):
    return lambda x: cases("gelu").gelu(x, approximate)


def p(name, *inputs, **attrs):
    """A primitive as it stands, numbers as constants of float32."""
    return ops.primitive(name, *[np.float32(x) if isinstance(x, float) else x for x in inputs], **attrs)


K = 0.7978845608028654
# What becomes of it, f(x in float32), its formula.
ONE = {
    "SiLU": ("SiLU", ops.silu, silu),
    "SiLU by Sigmoid": ("SiLU", lambda x: x * ops.sigmoid(x), silu),
    "SiLU, ONNX": ("SiLU", lambda x: p("Mul", x, p("Sigmoid", x)), silu),
    "GELU": ("FusedGeLU", lambda x: p("GeLU", x), gelu("tanh")),
    "GELU by erf": ("FusedGeLU", lambda x: p("GeLU", x, approximate="none"), gelu("none")),
    "GELU, ONNX": (
        "FusedGeLU",
        lambda x: p("Mul", p("Mul", x, p("Add", p("Erf", p("Div", x, 1.4142135623730951)), 1.0)), 0.5),
        gelu("none"),
    ),
    "GELU by tanh": ("FusedGeLU", lambda x: 0.5 * x * (1.0 + ops.tanh(K * (x + 0.044715 * x * x * x))), gelu("tanh")),
    "GELU of mint": ("FusedGeLU", lambda x: p("GeluExt", x, approximate="tanh"), gelu("tanh")),
}


def grafted(write, given, folder):
    graph = opgraft.load(opgraft.export(Net(write), *map(Tensor, given), file_name=str(folder / "net")))
    report = rewrite.substitute(graph)
    got = nn.GraphCell(graph)(*map(Tensor, given))
    got = got if isinstance(got, tuple) else (got,)
    return [n["op"] for n in graph.nodes], [y.asnumpy() for y in got], report


def within(got, want, u, of=None):
    """One rounding to the half type of what float32 computes: SiLU and a product 8 roundings, GELU 2.1e-7 |x| more."""
    off = np.abs(got.astype(np.float64) - want)
    more = 0.0 if of is None else 2.1e-7 * np.abs(of)
    assert (off <= u * np.abs(want) + (SILU + 1) * U * np.abs(want) + more + 2.0**-25).all(), off.max()


@DTYPES
@pytest.mark.parametrize("name", ONE)
def test_between_casts(name, dtype, tmp_path):
    t, to, u = HALF[dtype]
    op, f, formula = ONE[name]
    x = (normal(3, 37) * 4).astype(t)
    found, (got,), _ = grafted(lambda x: ops.cast(f(wide(x)), to), [x], tmp_path)
    assert found == [op] and got.dtype == t
    within(got, formula(x.astype(np.float64)), u, x.astype(np.float64))


# SwiGLU of gate a and x b, both of a half type; to: the half type.
GATED = {
    "all in float32": lambda a, b, to: ops.cast(ops.silu(wide(a)) * wide(b), to),
    "x first": lambda a, b, to: ops.cast(wide(b) * ops.silu(wide(a)), to),
    "by Sigmoid": lambda a, b, to: ops.cast(wide(a) * ops.sigmoid(wide(a)) * wide(b), to),
    "SiLU alone in float32": lambda a, b, to: ops.cast(ops.silu(wide(a)), to) * b,
    "ONNX": lambda a, b, to: ops.cast(p("Mul", p("Mul", wide(a), p("Sigmoid", wide(a))), wide(b)), to),
}
PARTS = {
    "SwiGLU": lambda x: (x, x + x),
    "Swiglu": lambda x: ops.split(x, 19, -1),
    "SwiGLUInterleaved": lambda x: (x[..., 1::2], x[..., ::2]),
}


@DTYPES
@pytest.mark.parametrize("spelled", GATED)
@pytest.mark.parametrize("op", PARTS)
def test_gated_between_casts(op, spelled, dtype, tmp_path):
    t, to, u = HALF[dtype]
    x = (normal(5, 38) * 2).astype(t)
    if op == "SwiGLU":
        given = x, normal(5, 38, seed=1).astype(t)
        found, (got,), _ = grafted(lambda a, b: GATED[spelled](a, b, to), given, tmp_path)
        gate, up = given
    else:
        found, (got,), _ = grafted(lambda x: GATED[spelled](*PARTS[op](x), to), [x], tmp_path)
        gate, up = (x[:, :19], x[:, 19:]) if op == "Swiglu" else (x[:, 1::2], x[:, ::2])
    assert found == [op] and got.dtype == t
    within(got, silu(gate.astype(np.float64)) * up.astype(np.float64), u)


@DTYPES
@pytest.mark.parametrize("op", ["Swiglu", "SwiGLUInterleaved"])
def test_one_cast_before_it_is_parted(op, dtype, tmp_path):
    t, to, u = HALF[dtype]
    x = (normal(5, 38) * 2).astype(t)

    def write(x):
        gate, up = PARTS[op](wide(x))
        return ops.cast(ops.silu(gate) * up, to)

    found, (got,), _ = grafted(write, [x], tmp_path)
    assert found == [op] and got.dtype == t
    gate, up = (x[:, :19], x[:, 19:]) if op == "Swiglu" else (x[:, 1::2], x[:, ::2])
    within(got, silu(gate.astype(np.float64)) * up.astype(np.float64), u)


def other_half(dtype):
    return HALF["bfloat16" if dtype == "float16" else "float16"]


def seen(x, to):
    """What float32 made is read elsewhere."""
    y = ops.silu(wide(x))
    return ops.cast(y, to), y


def seen_before(x, to):
    w = wide(x)
    return ops.cast(ops.silu(w), to), w


# The casts that are left, and how many of the operators.
STAY = {
    "to another half type": (lambda x, to, other: ops.cast(ops.silu(wide(x)), other), ["Cast", "SiLU", "Cast"]),
    "to float32": (lambda x, to, other: ops.silu(wide(x)), ["Cast", "SiLU"]),
    "the result is read elsewhere": (lambda x, to, other: seen(x, to), ["Cast", "SiLU", "Cast"]),
    "the widened x is read elsewhere": (lambda x, to, other: seen_before(x, to), ["Cast", "SiLU", "Cast"]),
    "one of two is of float32": (
        lambda x, to, other: ops.cast(ops.silu(wide(x)) * Tensor(normal(3, 37, seed=1)), to),
        ["Cast", "SwiGLU", "Cast"],
    ),
    "narrowed": (lambda x, to, other: ops.cast(ops.silu(ops.cast(x, other)), to), ["Cast", "SiLU", "Cast"]),
}


@DTYPES
@pytest.mark.parametrize("name", STAY)
def test_casts_that_do_not_belong_to_it_stay(name, dtype, tmp_path):
    t, to, u = HALF[dtype]
    write, want = STAY[name]
    other = other_half(dtype)[1]
    x = normal(3, 37).astype(t)
    before = Net(lambda x: write(x, to, other))(Tensor(x))
    found, got, _ = grafted(lambda x: write(x, to, other), [x], tmp_path)
    assert found == want
    for y, b in zip(got, before if isinstance(before, tuple) else [before], strict=True):
        b = b.asnumpy()
        assert y.dtype == b.dtype
        # The same operators, but for SwiGLU, which may differ in float32 and then be rounded to the next number of t.
        step = 2 * u if want == ["Cast", "SwiGLU", "Cast"] else 0
        np.testing.assert_allclose(y.astype(np.float64), b.astype(np.float64), rtol=step)


@pytest.mark.parametrize("f", [ops.silu, lambda x: p("GeLU", x)], ids=["SiLU", "GELU"])
def test_of_whole_numbers_the_casts_stay(f, tmp_path):
    x = np.arange(-20, 20, dtype=np.int32)
    found, (got,), _ = grafted(lambda x: ops.cast(f(wide(x)), opgraft.int32), [x], tmp_path)
    assert found[0] == found[-1] == "Cast" and got.dtype == np.int32
