"""Scores that two masks change, shifted windows among them, and values of another width become one operator."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from attention_spellings import PRODUCTS, ROOT, ROUNDINGS, B, D, H, S, T, left, normal, split, turned
from compare import cases, close
from opgraft import nn, ops, rewrite

LOW = float(np.finfo(np.float32).min)
ATTENTION = cases("attention")


def hide(s, gone):
    return ops.where(gone, opgraft.Tensor(np.float32(LOW)), s)


def keep(s, kept):
    return ops.where(kept, s, opgraft.Tensor(np.float32(LOW)))


# What is done to scores, and the masks' meaning: numbers that are added, or bools that are true where scores stay.
TWO = {
    "added both": (lambda s, a, b: s + a + b, "+", "+"),
    "added both, in the other order": (lambda s, a, b: b + (a + s), "+", "+"),
    "GPT-2's triangle, then a mask": (lambda s, a, b: keep(s, a) + b, "kept", "+"),
    "hidden, then a mask": (lambda s, a, b: b + hide(s, a), "hidden", "+"),
    "ALiBi, then kept": (lambda s, a, b: keep(s + a, b), "+", "kept"),
    "ALiBi, then hidden": (lambda s, a, b: hide(a + s, b), "+", "hidden"),
}


def mask_of(kind, *shape, seed):
    """As the model takes it, and what it adds to the scores in float64, or the bools that stay."""
    x = normal(*shape, seed=seed)
    if kind == "+":
        return x, x.astype(np.float64)
    kept = x > -0.3
    kept[..., 0] = True
    return kept if kind == "kept" else ~kept, kept


def reference(q, k, v, scale, *masks):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) * scale
    for m in masks:
        s = np.where(m, s, LOW) if m.dtype == bool else s + m
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


MORE = ROUNDINGS + 2 * 16  # scores are up to 16, and round once more


@pytest.mark.parametrize("scaled", ["times", "over", "q times"])
@pytest.mark.parametrize("by", PRODUCTS)
@pytest.mark.parametrize("name", TWO)
def test_two_masks(name, by, scaled):
    f, first, second = TWO[name]

    class Spelled(nn.Cell):
        def construct(self, q, k, v, a, b):
            product = PRODUCTS[by]
            s = {"times": lambda: product(q, k) * ROOT**-1, "over": lambda: product(q, k) / ROOT,
                 "q times": lambda: product(q * ROOT**-1, k)}[scaled]()  # fmt: skip
            return ops.bmm(ops.softmax(f(s, a, b), -1), v)

    (a, a64), (b, b64) = mask_of(first, H, S, T, seed=3), mask_of(second, B, 1, 1, T, seed=4)
    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), a, b
    net = Spelled()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    close(net(*x).asnumpy(), reference(*x[:3], ROOT**-1, a64, b64), MORE, np.abs(x[2]).max())


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("joined", ["turned apart", "split and turned in one step"])
def test_two_masks_of_heads_read_in_place(joined, name):
    f, first, second = TWO[name]

    class Bert(nn.Cell):
        def construct(self, q, k, v, a, b):
            k = turned(split(k, (0, 2, 1, 3))) if joined == "turned apart" else split(k, (0, 2, 3, 1))
            s = f(ops.matmul(split(q, (0, 2, 1, 3)), k) / ROOT, a, b)
            y = ops.matmul(ops.softmax(s, -1), split(v, (0, 2, 1, 3)))
            return ops.transpose(y, (0, 2, 1, 3)).reshape(B, T, H * D)

    (a, a64), (b, b64) = mask_of(first, H, T, T, seed=3), mask_of(second, B, 1, 1, T, seed=4)
    x = *(normal(B, T, H * D, seed=i) for i in range(3)), a, b
    net = Bert()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    assert net._grafted[0][0].graph.nodes[0]["attrs"]["layout"] == "BSE"
    q, k, v = (y.reshape(B, T, H, D).swapaxes(1, 2) for y in x[:3])
    want = reference(q, k, v, ROOT**-1, a64, b64).swapaxes(1, 2).reshape(B, T, H * D)
    close(net(*x).asnumpy(), want, MORE, np.abs(x[2]).max())


def test_two_masks_of_shared_heads():
    class Shared(nn.Cell):
        def repeat(self, x):
            return ops.broadcast_to(ops.expand_dims(x, 2), (B, 2, H, T, D)).reshape(B, 2 * H, T, D)

        def construct(self, q, k, v, a, b):
            s = keep(ops.matmul(q, turned(self.repeat(k))) / ROOT, a) + b
            return ops.matmul(ops.softmax(s, -1), self.repeat(v))

    (a, a64), (b, b64) = mask_of("kept", S, T, seed=3), mask_of("+", B, 1, 1, T, seed=4)
    x = normal(B, 2 * H, S, D), normal(B, 2, T, D, seed=1), normal(B, 2, T, D, seed=2), a, b
    net = Shared()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    k, v = (np.repeat(y, H, 1) for y in x[1:3])
    close(net(*x).asnumpy(), reference(x[0], k, v, ROOT**-1, a64, b64), MORE, np.abs(x[2]).max())


IMAGES, WINDOWS = 2, 4


class Swin(nn.Cell):
    """Of shifted windows: a bias for each pair of places, and a mask for each window of an image."""

    def __init__(self, images=IMAGES):
        super().__init__()
        self.images = images

    def construct(self, q, k, v, bias, mask):
        s = ops.matmul(q, turned(k)) * ROOT**-1 + ops.expand_dims(bias, 0)
        s = s.reshape(self.images, WINDOWS, H, S, S) + ops.expand_dims(ops.expand_dims(mask, 1), 0)
        return ops.matmul(ops.softmax(s.reshape(self.images * WINDOWS, H, S, S), -1), v)


def windows():
    x = [normal(IMAGES * WINDOWS, H, S, D, seed=i) for i in range(3)]
    mask = np.where(normal(WINDOWS, S, S, seed=4) > 1, np.float32(-100), np.float32(0))
    want = reference(*x, ROOT**-1, normal(H, S, S, seed=3).astype(float), np.tile(mask[:, None], (IMAGES, 1, 1, 1)))
    return [*x, normal(H, S, S, seed=3), mask], want


def test_shifted_windows():
    x, want = windows()
    net = Swin()
    rewrite.substitute(net, prove=x)
    assert [op for op in left(net) if op not in ("ExpandDims", "Reshape")] == ["ScaledDotProductAttention"]
    # A score that is hidden is about -100, and rounds as one.
    close(net(*x).asnumpy(), want, MORE + 2 * 100, np.abs(x[2]).max())


def test_windows_that_turn_the_other_way_are_left_alone():
    """The images of a window beside each other, not the windows of an image."""

    class Other(nn.Cell):
        def construct(self, q, k, v, bias, mask):
            s = ops.matmul(q, turned(k)) * ROOT**-1 + ops.expand_dims(bias, 0)
            s = s.reshape(WINDOWS, IMAGES, H, S, S) + mask.reshape(WINDOWS, 1, 1, S, S)
            return ops.matmul(ops.softmax(s.reshape(IMAGES * WINDOWS, H, S, S), -1), v)

    x, _ = windows()
    net = Other()
    before = net(*x).asnumpy()
    report = rewrite.substitute(net, prove=x)
    assert "ScaledDotProductAttention" not in left(net)
    assert "mask2.shape must broadcast" in str(report.left)
    np.testing.assert_allclose(net(*x).asnumpy(), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [1, D - 3, 2 * D])
@pytest.mark.parametrize("mask", ["full", "mask", "hidden"])
@pytest.mark.parametrize("heads", ["apart", "joined", "joined, turned in one step"])
def test_values_of_another_width(heads, mask, width):
    """As of DeepSeek's latent attention, whose keys have the rotary part beside them."""

    class Net(nn.Cell):
        def construct(self, q, k, v, m):
            if heads != "apart":
                q, v = split(q, (0, 2, 1, 3)), ops.transpose(v.reshape(B, T, H, width), (0, 2, 1, 3))
                k = turned(split(k, (0, 2, 1, 3))) if heads == "joined" else split(k, (0, 2, 3, 1))
            else:
                k = turned(k)
            s = ops.matmul(q, k) / ROOT
            s = s if mask == "full" else s + m if mask == "mask" else hide(s, m)
            y = ops.matmul(ops.softmax(s, -1), v)
            return y if heads == "apart" else ops.transpose(y, (0, 2, 1, 3)).reshape(B, T, H * width)

    m, m64 = mask_of("hidden" if mask == "hidden" else "+", B, 1, 1, T, seed=3)
    x = normal(B, T, H, D), normal(B, T, H, D, seed=1), normal(B, T, H, width, seed=2)
    given = *(y.reshape(B, T, -1) if heads != "apart" else y.swapaxes(1, 2).copy() for y in x), m
    net = Net()
    rewrite.substitute(net, prove=given)
    assert left(net) == ["ScaledDotProductAttention"]
    want = reference(*(y.swapaxes(1, 2) for y in x), ROOT**-1, *([] if mask == "full" else [m64]))
    want = want if heads == "apart" else want.swapaxes(1, 2).reshape(B, T, H * width)
    close(net(*given).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("order,swapped", [([0, 0, 0, 1, 1, 1], True), ([0, 1, 0, 1, 0, 1], False)])
def test_heads_that_gather_repeats(order, swapped):
    """Each head several times, one after another; all of them several times is another thing."""

    class Shared(nn.Cell):
        def construct(self, q, k, v):
            k, v = (ops.gather(x, opgraft.Tensor(np.array(order, np.int32)), 1) for x in (k, v))
            return ops.matmul(ops.softmax(ops.matmul(q, turned(k)) / ROOT, -1), v)

    x = normal(B, 6, S, D), normal(B, 2, T, D, seed=1), normal(B, 2, T, D, seed=2)
    net = Shared()
    rewrite.substitute(net, prove=x)
    assert ("Gather" not in left(net)) == swapped and "ScaledDotProductAttention" in left(net)
    k, v = (y[:, order] for y in x[1:])
    close(net(*x).asnumpy(), reference(x[0], k, v, ROOT**-1), ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("second", ["float32", "the half type", "bools"])
@pytest.mark.parametrize("dtype", [opgraft.float16, opgraft.bfloat16])
def test_a_second_mask_behind_one_of_float32(dtype, second):
    q, k, v = (normal(1, 2, 5, 8, seed=i).astype(dtype) for i in range(3))
    first = normal(5, 5, seed=3)
    more = np.tri(5, dtype=bool) if second == "bools" else normal(5, 5, seed=4)
    more = more.astype(dtype) if second == "the half type" else more
    got = ops.primitive("ScaledDotProductAttention", *map(opgraft.Tensor, (q, k, v, first, more))).asnumpy()
    wide = [x if x.dtype == bool else x.astype(np.float64) for x in (q, k, v, first, more)]
    want, half = ATTENTION.attention(*wide), float(ml_dtypes.finfo(dtype).eps) / 2
    # computed in float32, within the cases' bound, and rounded once
    off = np.abs(got.astype(np.float64) - want) - (1 + half) * ATTENTION.error(*wide) - half * np.abs(want)
    assert (off <= 0).all()
    assert (np.abs(want - ATTENTION.attention(*wide[:4])) > 0.01).any()  # which the second mask makes another
