"""Attention: one new token over a cache of keys and values, and whole sequences."""

import numpy as np

from . import Row


def formula(causal=False):
    def f(q, k, v, *_):
        group = q.shape[1] // k.shape[1]
        k, v = (np.repeat(x, group, 1) for x in (k, v))
        s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        if causal:
            s = np.where(np.tri(s.shape[-2], s.shape[-1], s.shape[-1] - s.shape[-2], dtype=bool), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        return (p @ v) / p.sum(-1, keepdims=True)

    return f


def torch_form(causal, grouped):
    def build(torch):
        attention, options = torch.nn.functional.scaled_dot_product_attention, {"enable_gqa": True} if grouped else {}
        return lambda q, k, v, *_: attention(q, k, v, is_causal=causal, **options)

    return build


def plain_onnx(q_shape, k_shape):
    """Products and Softmax; the query heads of a group as rows of one product."""
    b, h, s, d = q_shape
    group = h // k_shape[1]

    def build(g, q, k, v, *_):
        shape = lambda *n: g.const(np.array(n, np.int64))  # noqa: E731
        rows = q if group == 1 else g.node("Reshape", q, shape(b, h // group, group * s, d))
        scores = g.node("MatMul", g.node("Mul", rows, g.const(d**-0.5)), g.node("Transpose", k, perm=[0, 1, 3, 2]))
        y = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
        return y if group == 1 else g.node("Reshape", y, shape(*q_shape))

    return build


def fused_onnx(q_shape, causal):
    """ONNX Runtime's own operator; keys and values lie as in a cache."""
    b, h, s, d = q_shape

    def build(g, q, k, v, *_):
        rows = g.node("Reshape", g.node("Transpose", q, perm=[0, 2, 1, 3]), g.const(np.array([b, s, h * d], np.int64)))
        y = g.node("MultiHeadAttention", rows, k, v, domain="com.microsoft", num_heads=h, unidirectional=int(causal))
        heads = g.node("Reshape", y, g.const(np.array([b, s, h, d], np.int64)))
        return g.node("Transpose", heads, perm=[0, 2, 1, 3])

    return build


def mindspore_form(q_shape, k_shape, causal):
    group, scale = q_shape[1] // k_shape[1], q_shape[3] ** -0.5
    s, t = q_shape[2], k_shape[2]
    above = np.triu(np.full((s, t), -np.inf, np.float32), t - s + 1)

    def build(ms):
        ops, mask, transposed = ms.ops, ms.Tensor(above), ms.ops.BatchMatMul(transpose_b=True)

        def plain(q, k, v):
            return ops.bmm(ops.softmax(transposed(q, k) * scale, -1), v)

        def masked(q, k, v):
            return ops.bmm(ops.softmax(transposed(q, k) * scale + mask, -1), v)

        def grouped(q, k, v):
            return plain(q, ops.repeat_interleave(k, group, 1), ops.repeat_interleave(v, group, 1))

        return grouped if group > 1 else masked if causal else plain

    return build


# A score is a sum of d products of size 1 in float32, of which some 30 round on the way of one, and a result is a mean
# of values of size 1 whose weights are off by as much as their scores: 2^-24 (2 * 30 + sum of t terms in lanes, some
# 2 log2 t, + exp's 2^-18 / 2^-24) below 2^-16. In bfloat16 a peer may round scores of up to 4 and then weights, by
# 2^-9 of each: a mean is off by 2^-9 (4 + 1) of what the values are apart; the result rounds once more.
ERRORS = {"float32": (2.0**-16, 2.0**-16), "bfloat16": (2.0**-8, 2.0**-6)}


def row(name, q_shape, k_shape, causal=False, onnx=None, dtype="float32", **more):
    s, t = q_shape[2], k_shape[2]
    pairs = q_shape[0] * q_shape[1] * s * (t - (s - 1) / 2 if causal else t)
    return Row(
        name, "ScaledDotProductAttention",
        lambda rng: [rng.standard_normal(x, np.float32) for x in (q_shape, k_shape, k_shape)], formula(causal),
        rtol=ERRORS[dtype][0], atol=ERRORS[dtype][1], dtype=dtype,
        flops=4 * pairs * q_shape[3], mindspore_target=1.0 if dtype == "float32" else None,
        attrs={"is_causal": True} if causal else {},
        numpy=formula(causal) if dtype == "float32" else None,
        torch=torch_form(causal, q_shape[1] != k_shape[1]), onnx=onnx,
        mindspore=mindspore_form(q_shape, k_shape, causal), **more,
    )  # fmt: skip


ROWS = [
    *(
        row(
            f"Attention decode 32{'' if heads == 32 else f'/{heads}'} heads, {keys} cached",
            (1, 32, 1, 128), (1, heads, keys, 128), target=0.85 if (heads, keys) == (32, 1024) else None,
            quick=keys == 1024, onnx=plain_onnx((1, 32, 1, 128), (1, heads, keys, 128)),
        )
        for heads in (32, 8)
        for keys in (1024, 4096)
    ),
    *(
        row(
            f"Attention prefill 12x512x64, {'causal' if causal else 'full'}{suffix}", (1, 12, 512, 64),
            (1, 12, 512, 64), causal, onnx=fused_onnx((1, 12, 512, 64), causal), dtype=dtype,
        )
        for dtype, suffix in (("float32", ""), ("bfloat16", " bf16"))
        for causal in (False, True)
    ),
]  # fmt: skip
