"""Attention as frameworks spell it becomes one operator: Cells here, and what torch's exporters to ONNX write."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import U, close
from opgraft import nn, ops, rewrite
from opgraft.dtype import to_dtype

B, H, S, T, D = 2, 3, 5, 7, 8
ROOT = D**0.5


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def turned(k):
    return ops.transpose(k, (0, 1, 3, 2))


PRODUCTS = {
    "transpose_b": lambda q, k: ops.bmm(q, k, transpose_b=True),
    "Transpose": lambda q, k: ops.bmm(q, turned(k)),
    "matmul": lambda q, k: ops.matmul(q, turned(k)),
}
# Scores, their scale, and what of the spelling stays in the graph beside the operator.
SCALED = {
    "times": (lambda by, q, k: by(q, k) * ROOT**-1, ROOT**-1, []),
    "times, number first": (lambda by, q, k: ROOT**-1 * by(q, k), ROOT**-1, []),
    "over": (lambda by, q, k: by(q, k) / ROOT, ROOT**-1, []),
    "q times": (lambda by, q, k: by(q * ROOT**-1, k), ROOT**-1, []),
    "q over": (lambda by, q, k: by(q / ROOT, k), ROOT**-1, []),
    "ONNX, q and k times": (lambda by, q, k: by(q * ROOT**-0.5, k * ROOT**-0.5), ROOT**-1, ["Mul"]),
    "ONNX, q and turned k times": (
        lambda by, q, k: ops.bmm(q * ROOT**-0.5, turned(k) * ROOT**-0.5), ROOT**-1, ["Mul"]),
    "not at all": (lambda by, q, k: by(q, k), 1.0, []),
}  # fmt: skip
MASKED = {"full": lambda s, m: s, "mask": lambda s, m: s + m, "mask first": lambda s, m: m + s}


def reference(q, k, v, mask, scale):
    """For q [..., S, D], in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) * scale + mask
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def left(net):
    return [n["op"] for n in net._grafted[0][0].graph.nodes]


# Scores of D products, times a scale (twice rounded where q and k are), plus a mask; they are up to 16, so that a
# rounding of one is 16 of its exponential. Sums of T weights that are at most 1, softmax's 8 roundings; both sides.
ROUNDINGS = 2 * (16 * (D + 4) + T + 8)


@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("scaled", SCALED)
@pytest.mark.parametrize("by", PRODUCTS)
def test_a_spelling_is_one_operator(by, scaled, mask):
    write, scale, rest = SCALED[scaled]

    class Spelled(nn.Cell):
        def construct(self, q, k, v, m):
            return ops.bmm(ops.softmax(MASKED[mask](write(PRODUCTS[by], q, k), m), -1), v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), normal(B, 1, S, T, seed=3)
    net = Spelled()
    rewrite.substitute(net, prove=x)
    assert left(net) == [*rest, "ScaledDotProductAttention"]
    want = reference(*x[:3], 0.0 if mask == "full" else x[3], scale)
    close(net(*x).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())


def split(x, order):
    return ops.transpose(x.reshape(B, T, H, D), order)


HEADS = [name for name, (_, _, rest) in SCALED.items() if not rest]


@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("scaled", HEADS)
def test_keys_that_are_split_and_turned_in_one_step(scaled, mask):
    """As exporters to ONNX join the two transposes of BERT's keys."""
    write, scale, _ = SCALED[scaled]

    class Bert(nn.Cell):
        def construct(self, q, k, v, m):
            s = write(ops.matmul, split(q, (0, 2, 1, 3)), split(k, (0, 2, 3, 1)))
            y = ops.matmul(ops.softmax(MASKED[mask](s, m), -1), split(v, (0, 2, 1, 3)))
            return ops.transpose(y, (0, 2, 1, 3)).reshape(B, T, H * D)

    x = *(normal(B, T, H * D, seed=i) for i in range(3)), normal(B, 1, 1, T, seed=3)
    net = Bert()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    q, k, v = (y.reshape(B, T, H, D).swapaxes(1, 2) for y in x[:3])
    want = reference(q, k, v, 0.0 if mask == "full" else x[3], scale).swapaxes(1, 2).reshape(B, T, H * D)
    close(net(*x).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("axis,seen", [(-2, False), (-1, True)], ids=["softmax over queries", "weights are a result"])
def test_what_only_looks_like_it_is_left_alone(axis, seen):
    class Other(nn.Cell):
        def construct(self, q, k, v):
            w = ops.softmax(ops.bmm(q, k, transpose_b=True) / ROOT, axis)
            y = ops.bmm(w, v)
            return (y, w) if seen else y

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2)
    report = rewrite.substitute(Other(), prove=x)
    assert "ScaledDotProductAttention" not in str(report.swapped)


def by_exp(s):
    e = ops.exp(s - ops.primitive("ReduceMax", s, axis=[-1], keep_dims=True))
    return e / ops.reduce_sum(e, -1, True)


# q comes scaled to the operator, as there is no telling whether the softmax scales, too.
BY_EXP = {"times": [], "over": [], "q times": ["Mul"], "q over": ["Div"], "not at all": []}


@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("scaled", BY_EXP)
def test_a_softmax_by_exp_is_taken_too(scaled, mask):
    write, scale, _ = SCALED[scaled]

    class Spelled(nn.Cell):
        def construct(self, q, k, v, m):
            return ops.bmm(by_exp(MASKED[mask](write(PRODUCTS["matmul"], q, k), m)), v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), normal(B, 1, S, T, seed=3)
    net = Spelled()
    rewrite.substitute(net, prove=x)
    assert left(net) == [*BY_EXP[scaled], "ScaledDotProductAttention"]
    want = reference(*x[:3], 0.0 if mask == "full" else x[3], scale)
    close(net(*x).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())


HALVES = {"bfloat16": (ml_dtypes.bfloat16, 2.0**-8), "float16": (np.float16, 2.0**-11)}


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_types_whose_softmax_is_of_float32(dtype, mask, groups):
    """As transformers' models write it: scores and weights are of the half type, the softmax between them is not."""
    made, ulp = HALVES[dtype]
    half = to_dtype(dtype)

    class Eager(nn.Cell):
        def construct(self, q, k, v, m):
            if groups > 1:
                k, v = (
                    ops.broadcast_to(x[:, :, None], (B, H // groups, groups, T, D)).reshape(B, H, T, D) for x in (k, v)
                )
            s = MASKED[mask](ops.matmul(q, turned(k)) * ROOT**-1, m)
            return ops.matmul(ops.cast(ops.softmax(ops.cast(s, opgraft.float32), -1), half), v)

    kv = H // groups
    x = normal(B, H, S, D), normal(B, kv, T, D, seed=1), normal(B, kv, T, D, seed=2), normal(B, 1, S, T, seed=3)
    x = [a.astype(made) for a in x]
    net = Eager()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    wide = [np.repeat(a.astype(np.float64), groups if 0 < i < 3 else 1, 1) for i, a in enumerate(x)]
    scale = float(made(ROOT**-1))  # which is of the half type, as all of the model's numbers are
    want = reference(*wide[:3], 0.0 if mask == "full" else wide[3], scale)
    got = net(*x).asnumpy()
    assert got.dtype == made
    # Computed in float32 and rounded once.
    allowed = ulp * np.abs(want) + ROUNDINGS * U * np.abs(wide[2]).max()
    assert (np.abs(got.astype(np.float64) - want) <= allowed).all()


def test_half_types_that_come_out_wider_are_left_alone():
    class Wider(nn.Cell):
        def construct(self, q, k, v):
            s = ops.matmul(q, turned(k)) * ROOT**-1
            return ops.matmul(ops.cast(ops.softmax(ops.cast(s, opgraft.float32), -1), opgraft.float32), v)

    q, k = (normal(B, H, n, D, seed=n).astype(np.float16) for n in (S, T))
    net, x = Wider(), (q, k, normal(B, H, T, D, seed=2))
    before = net(*x).asnumpy()
    report = rewrite.substitute(net, prove=x)
    assert not {s["op"].split("@")[0] for s in report.swapped} & {"ScaledDotProductAttention", "ScaledMaskedSoftmax"}
    np.testing.assert_array_equal(net(*x).asnumpy(), before)


@pytest.mark.parametrize("mask", MASKED)
def test_a_scale_of_keys_that_are_read_transposed(mask):
    class Spelled(nn.Cell):
        def construct(self, q, k, v, m):
            s = ops.bmm(q, k * ROOT**-1, transpose_b=True)
            return ops.bmm(ops.softmax(MASKED[mask](s, m), -1), v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), normal(B, 1, S, T, seed=3)
    net = Spelled()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    want = reference(*x[:3], 0.0 if mask == "full" else x[3], ROOT**-1)
    close(net(*x).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())
