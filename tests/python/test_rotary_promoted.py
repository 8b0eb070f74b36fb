"""Rotary embedding of half types by tables of float32: what is turned is cast piece by piece."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import Net
from opgraft import Tensor, ops, rewrite

B, H, S, D = 2, 3, 5, 8
f32 = opgraft.float32
HALF = {"bfloat16": (ml_dtypes.bfloat16, opgraft.bfloat16, 2.0**-8), "float16": (np.float16, opgraft.float16, 2.0**-11)}
ANGLES = np.outer(np.arange(S), 100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)  # an entry for each pair


def wide(x):
    return ops.cast(x, f32)


def halves(x):
    return x[..., : D // 2], x[..., D // 2 :]


def pairs(a, b):
    return ops.stack([a, b], -1).reshape(B, H, S, D)


def last(a, b):
    return ops.concat([ops.expand_dims(a, -1), ops.expand_dims(b, -1)], -1).reshape(B, H, S, D)


def split(x):
    return ops.split(x, D // 2, -1)


def by_parts(a, b, c, s):
    a, b = wide(a), wide(b)
    return ops.concat([a * c - b * s, b * c + a * s], -1)


# name: (mode, whether a table has an entry for each element, f(x, cos, sin))
SPELLED = {
    "Hugging Face": (0, True, lambda x, c, s: (
        lambda a, b: wide(x) * c + wide(ops.concat([-b, a], -1)) * s)(*halves(x))),
    "halves by split": (0, True, lambda x, c, s: (
        lambda a, b: wide(x) * c + s * wide(ops.concat([-b, a], -1)))(*split(x))),
    "times -1": (0, True, lambda x, c, s: (
        lambda a, b: wide(x) * c + wide(ops.concat([b * -1.0, a], -1)) * s)(*halves(x))),
    "halves, stack": (0, True, lambda x, c, s: (
        lambda a, b: wide(x) * c + wide(ops.stack([-b, a], -2).reshape(B, H, S, D)) * s)(*halves(x))),
    "each half": (0, False, lambda x, c, s: by_parts(*halves(x), c, s)),
    "each half by split": (0, False, lambda x, c, s: by_parts(*split(x), c, s)),
    "GPT-J": (1, True, lambda x, c, s: wide(x) * c + wide(pairs(-x[..., 1::2], x[..., ::2])) * s),
    "GPT-J, concat": (1, True, lambda x, c, s: wide(x) * c + wide(last(-x[..., 1::2], x[..., ::2])) * s),
}  # fmt: skip
# What is no rotation by these tables, or of other pairs.
NEAR = {
    "turned back": (0, True, lambda x, c, s: (
        lambda a, b: wide(x) * c + wide(ops.concat([b, -a], -1)) * s)(*halves(x))),
    "halves exchanged": (0, True, lambda x, c, s: (
        lambda a, b: wide(x) * c + wide(ops.concat([-a, b], -1)) * s)(*halves(x))),
    "one half twice": (0, False, lambda x, c, s: by_parts(x[..., : D // 2], x[..., : D // 2], c, s)),
    "parts of pairs": (0, False, lambda x, c, s: by_parts(x[..., ::2], x[..., 1::2], c, s)),
    "pairs by the even first": (1, True, lambda x, c, s: wide(x) * c + wide(pairs(-x[..., ::2], x[..., 1::2])) * s),
}  # fmt: skip


def grafted(f, mode, full, dtype, to):
    c, s = COS, SIN
    if full:
        c, s = (np.concatenate([t, t], -1) if mode == 0 else np.repeat(t, 2, -1) for t in (c, s))
    c, s = Tensor(c), Tensor(s)
    x = np.random.default_rng(0).standard_normal((B, H, S, D)).astype(dtype)
    net = Net(lambda x: ops.cast(f(x, c, s), to))
    before = net(x).asnumpy()
    net = Net(lambda x: ops.cast(f(x, c, s), to))
    report = rewrite.substitute(net, prove=[x])
    return x, before, net(x).asnumpy(), [n["op"] for n in net._grafted[0][0].graph.nodes], str(report)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", SPELLED)
def test_casts_of_the_pieces_are_taken_in(name, dtype):
    mode, full, f = SPELLED[name]
    made, to, u = HALF[dtype]
    x, before, got, left, report = grafted(f, mode, full, made, to)
    assert left == ["RotaryPositionEmbedding"], report
    assert got.dtype == before.dtype == made
    a, b = halves(x.astype(np.float64)) if mode == 0 else (x[..., ::2].astype(np.float64), x[..., 1::2].astype(float))
    parts = a * COS - b * SIN, b * COS + a * SIN
    want = np.concatenate(parts, -1) if mode == 0 else np.stack(parts, -1).reshape(x.shape)
    # One rounding to the half type; in float32 two products and their sum, |a cos| + |b sin| <= 2 max |x|.
    allowed = u * np.abs(want) + 3 * 2.0**-24 * 2 * np.abs(x.astype(np.float64)).max()
    assert (np.abs(got.astype(np.float64) - want) <= allowed).all()


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_is_left_alone(name):
    mode, full, f = NEAR[name]
    _, before, got, left, _ = grafted(f, mode, full, np.float16, opgraft.float16)
    assert "RotaryPositionEmbedding" not in left
    np.testing.assert_array_equal(got, before)


def test_a_result_of_another_type_stays():
    mode, full, f = SPELLED["Hugging Face"]
    _, before, got, left, _ = grafted(f, mode, full, np.float16, opgraft.bfloat16)
    assert "RotaryPositionEmbedding" not in left
    np.testing.assert_array_equal(got, before)
