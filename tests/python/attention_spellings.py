"""What the tests of attention's spellings share: sizes, how models write its parts, and what it should give."""

import ml_dtypes
import numpy as np
import opgraft
from compare import U
from opgraft import ops, rewrite

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
# Scores, and their scale.
SCALED = {
    "times": (lambda by, q, k: by(q, k) * ROOT**-1, ROOT**-1),
    "times, number first": (lambda by, q, k: ROOT**-1 * by(q, k), ROOT**-1),
    "over": (lambda by, q, k: by(q, k) / ROOT, ROOT**-1),
    "q times": (lambda by, q, k: by(q * ROOT**-1, k), ROOT**-1),
    "q over": (lambda by, q, k: by(q / ROOT, k), ROOT**-1),
    "ONNX, q and k times": (lambda by, q, k: by(q * ROOT**-0.5, k * ROOT**-0.5), ROOT**-1),
    "ONNX, q and turned k times": (
        lambda by, q, k: ops.bmm(q * ROOT**-0.5, turned(k) * ROOT**-0.5), ROOT**-1),
    "q and k over": (lambda by, q, k: by(q / ROOT**0.5, k / ROOT**0.5), ROOT**-1),
    "MindSpore, q and turned k over": (
        lambda by, q, k: ops.bmm(q / ROOT**0.5, turned(k) / ROOT**0.5), ROOT**-1),
    "k times": (lambda by, q, k: by(q, k * ROOT**-1), ROOT**-1),
    "turned k times": (lambda by, q, k: ops.bmm(q, turned(k) * ROOT**-1), ROOT**-1),
    "not at all": (lambda by, q, k: by(q, k), 1.0),
}  # fmt: skip
MASKED = {"full": lambda s, m: s, "mask": lambda s, m: s + m, "mask first": lambda s, m: m + s}


def reference(q, k, v, mask, scale):
    """For q [..., S, D], in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) * scale + mask
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def spread(q, k, v, mask, scale):
    """How far v lies from its mean: weights that round to bfloat16 move the result by 2^-8 of it at most, as
    aot_ops/attention/cases.py derives."""
    v = v.astype(np.float64)
    return 1.01 * np.sqrt(np.maximum(reference(q, k, v**2, mask, scale) - reference(q, k, v, mask, scale) ** 2, 0.0))


def is_one(make, x, others=()):
    """What the Cell gives for x once it is ScaledDotProductAttention behind `others`; the node's attributes."""
    net = make()
    rewrite.substitute(net, prove=x)
    assert left(net) == [*others, "ScaledDotProductAttention"]
    return net(*x).asnumpy(), net._grafted[0][0].graph.nodes[-1]["attrs"]


def left(net):
    return [n["op"] for n in net._grafted[0][0].graph.nodes]


# Scores of D products, times a scale (twice rounded where q and k are), plus a mask; they are up to 16, so that a
# rounding of one is 16 of its exponential. Sums of T weights that are at most 1, softmax's 8 roundings; both sides.
ROUNDINGS = 2 * (16 * (D + 4) + T + 8)


def split(x, order):
    return ops.transpose(x.reshape(B, T, H, D), order)


f32 = opgraft.float32
HALF = {"bfloat16": (ml_dtypes.bfloat16, opgraft.bfloat16, 2.0**-8), "float16": (np.float16, opgraft.float16, 2.0**-11)}
WIDE = 16  # the roots of scales by it are powers of two: exact in every type


def softmax32(s, t):
    """As Hugging Face's models have it: scores of a half type, weights computed in float32."""
    return ops.cast(ops.softmax(ops.cast(s, f32), -1), t)


# As ROUNDINGS. Scores that are not scaled are up to 32.
ROUNDINGS_OF_WIDE = 32 * (WIDE + 4) + T + 8


def near(got, want, u, largest, apart=0.0):
    """One rounding to the half type, those of weights to it (`apart`: spread), and what float32 computes as of float32
    inputs."""
    allowed = u * (np.abs(want) + apart) + ROUNDINGS_OF_WIDE * U * largest
    assert (np.abs(got.astype(np.float64) - want) <= allowed).all()
