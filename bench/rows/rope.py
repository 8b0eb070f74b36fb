"""Rotary position embedding of query and key: 32 heads of 128, one new token and 512 positions."""

import numpy as np

from . import Row

POSITIONS, HEADS, DIM = 2048, 32, 128
PLACE = 1000  # of the new token


def angles(first, count):
    """[count, DIM / 2], base 10000"""
    return np.outer(np.arange(first, first + count), 10000.0 ** (-np.arange(0, DIM, 2) / DIM))


def tables(first=0, count=POSITIONS):
    """cos and sin, an entry for each pair."""
    a = angles(first, count)
    return np.cos(a).astype(np.float32), np.sin(a).astype(np.float32)


def wide(table, interleaved):
    """An entry for each element."""
    return np.repeat(table, 2, -1) if interleaved else np.concatenate([table, table], -1)


def turned(x, cos, sin, interleaved):
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., : DIM // 2], x[..., DIM // 2 :])
    y = [a * cos - b * sin, b * cos + a * sin]
    return np.stack(y, -1).reshape(x.shape) if interleaved else np.concatenate(y, -1)


def formula(interleaved):
    def f(q, k, cos, sin, positions):
        cos, sin = cos[positions[0]], sin[positions[0]]
        return [turned(q, cos, sin, interleaved), turned(k, cos, sin, interleaved)]

    return f


def halves_torch(first, count):
    """As in Hugging Face's models; the tables' rows are chosen once a step, for all layers."""

    def build(torch):
        cos, sin = (torch.from_numpy(wide(t, False)) for t in tables(first, count))

        def half(x):
            return torch.cat((-x[..., DIM // 2 :], x[..., : DIM // 2]), -1)

        return lambda q, k, *_: [q * cos + half(q) * sin, k * cos + half(k) * sin]

    return build


def pairs_torch(first, count):
    """Complex products, as in Meta's LLaMA; of real numbers where torch.compile makes the loop."""

    def build(torch):
        cos, sin = map(torch.from_numpy, tables(first, count))
        turn = torch.complex(cos, sin)

        def complex_product(x):
            return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)

        def real_product(x):
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

        def f(q, k, *_):
            rotate = real_product if torch.compiler.is_compiling() else complex_product
            return [rotate(q), rotate(k)]

        return f

    return build


def onnx(interleaved):
    def build(g, q, k, cos, sin, positions):
        return [g.node("RotaryEmbedding", x, positions, cos, sin, domain="com.microsoft", interleaved=int(interleaved))
                for x in (q, k)]  # fmt: skip

    return build


def mindspore(interleaved, first, count):
    def build(ms):
        cos, sin = (ms.Tensor(t if interleaved else wide(t, False)) for t in tables(first, count))
        ops, half, shape = ms.ops, DIM // 2, (1, HEADS, count, DIM)

        def halves(x):
            return x * cos + ops.concat((-x[..., half:], x[..., :half]), -1) * sin

        def pairs(x):
            a, b = x[..., ::2], x[..., 1::2]
            return ops.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(shape)

        rotate = pairs if interleaved else halves

        def f(q, k, cos_table, sin_table, positions):
            return rotate(q), rotate(k)

        return f

    return build


def row(name, interleaved, first, count):
    shape = (1, HEADS, count, DIM)
    size = 2 * HEADS * count * DIM
    return Row(
        name, "ApplyRotaryPosEmb",
        lambda rng: [rng.standard_normal(shape, np.float32) for _ in range(2)], formula(interleaved),
        # Two products and a sum of numbers that are at most 5.5, rounded once each.
        rtol=2.0**-24, atol=3 * 5.5 * 2.0**-24,
        weights=lambda rng: [*tables(), np.arange(first, first + count)[None]],
        attrs={"mode": int(interleaved), "rotary_dim": DIM, "layout": "BHSD"},
        flops=3 * size, bytes=8 * size + 4 * count * DIM, target=0.8, mindspore_target=2.1, quick=not interleaved,
        numpy=formula(interleaved), torch=(pairs_torch if interleaved else halves_torch)(first, count),
        onnx=onnx(interleaved), mindspore=mindspore(interleaved, first, count),
    )  # fmt: skip


ROWS = [
    row(f"RoPE {kind} {what}", kind == "interleaved", first, count)
    for kind in ("half", "interleaved")
    for what, first, count in (("decode 32x128", PLACE, 1), ("512 positions", 0, 512))
]
