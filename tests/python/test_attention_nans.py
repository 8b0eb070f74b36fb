"""Attention whose weights would be NaN where a mask leaves no key, and are made 0, as torch's exporters to ONNX write
it; a mask that is taken away."""

import numpy as np
import pytest
from attention_spellings import (
    HALF,
    PRODUCTS,
    ROOT,
    ROUNDINGS,
    WIDE,
    B,
    D,
    H,
    S,
    T,
    is_one,
    left,
    near,
    normal,
    reference,
    softmax32,
    split,
    turned,
)
from compare import U, close
from opgraft import Tensor, nn, ops, rewrite

INF = np.float32(np.inf)


def no_nan(w, t=np.float32):
    return ops.where(ops.primitive("IsNan", w), Tensor(np.asarray(0.0, t)), w)


def kept(*shape):
    keep = normal(*shape, seed=3) > -0.5
    keep[..., 0] = True
    keep.reshape(-1, *shape[-2:])[0, 2] = False  # a row that sees nothing
    return keep


def seen(q, k, v, keep, scale=ROOT**-1):
    """In float64; 0 where nothing is kept."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.where(keep, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True, initial=-1e300))
    return p / np.maximum(p.sum(-1, keepdims=True), 1e-300) @ v


# torch adds Where(mask, 0, -inf); or scores are chosen at once.
MASKS = {
    "added": (lambda s, m: s + ops.where(m, Tensor(np.float32(0.0)), Tensor(-INF)), ["Select"]),
    "kept": (lambda s, m: ops.where(m, s, Tensor(-INF)), []),
    "hidden": (lambda s, m: ops.where(ops.equal(m, False), Tensor(-INF), s), ["Equal"]),
}
SCALED = {
    "times": lambda by, q, k: by(q, k) * ROOT**-1,
    "over": lambda by, q, k: by(q, k) / ROOT,
    "q times": lambda by, q, k: by(q * ROOT**-1, k),
    "ONNX, q and k times": lambda by, q, k: by(q * ROOT**-0.5, k * ROOT**-0.5),
    "ONNX, q and turned k times": lambda by, q, k: ops.bmm(q * ROOT**-0.5, turned(k) * ROOT**-0.5),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scaled", SCALED)
@pytest.mark.parametrize("by", PRODUCTS)
def test_rows_that_see_nothing_are_zero(by, scaled, mask):
    write, others = MASKS[mask]

    class Safe(nn.Cell):
        def construct(self, q, k, v, m):
            return ops.matmul(no_nan(ops.softmax(write(SCALED[scaled](PRODUCTS[by], q, k), m), -1)), v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), kept(B, 1, S, T)
    before = Safe()(*x).asnumpy()
    got, attrs = is_one(Safe, x, others)
    assert attrs["nan_to_zero"]
    assert (got[0, :, 2] == 0).all() and (before[0, :, 2] == 0).all()
    close(got, seen(*x), ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("mask", MASKS)
def test_heads_that_torch_splits_and_turns(mask):
    """TorchScript's exporter: keys are split and turned in one step, and q and k have the scale's root each."""
    write, others = MASKS[mask]

    class Torch(nn.Cell):
        def construct(self, q, k, v, m):
            q, k, v = split(q, (0, 2, 1, 3)), split(k, (0, 2, 3, 1)), split(v, (0, 2, 1, 3))
            w = no_nan(ops.softmax(write(ops.matmul(q * ROOT**-0.5, k * ROOT**-0.5), m), -1))
            return ops.transpose(ops.matmul(w, v), (0, 2, 1, 3)).reshape(B, T, H * D)

    x = *(normal(B, T, H * D, seed=i) for i in range(3)), kept(B, 1, T, T)
    got, attrs = is_one(Torch, x, others)
    assert attrs["layout"] == "BSE" and attrs["nan_to_zero"] and not attrs["k_transposed"]
    q, k, v = (y.reshape(B, T, H, D).swapaxes(1, 2) for y in x[:3])
    want = seen(q, k, v, x[3]).swapaxes(1, 2).reshape(B, T, H * D)
    close(got, want, ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("shape", [(B * H, S, T), (S, T)], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_batches_of_one_head(mask, shape):
    write, others = MASKS[mask]

    class Batches(nn.Cell):
        def construct(self, q, k, v, m):
            k = ops.transpose(k, (0, 2, 1))
            return ops.bmm(no_nan(ops.softmax(write(ops.bmm(q, k) * ROOT**-1, m), -1)), v)

    x = normal(B * H, S, D), normal(B * H, T, D, seed=1), normal(B * H, T, D, seed=2), kept(*shape)
    close(is_one(Batches, x, others)[0], seen(*x), ROUNDINGS, np.abs(x[2]).max())


def test_shared_heads():
    class Shared(nn.Cell):
        def repeat(self, x):
            return ops.broadcast_to(ops.expand_dims(x, 2), (B, 2, H, T, D)).reshape(B, 2 * H, T, D)

        def construct(self, q, k, v, m):
            s = ops.where(m, ops.matmul(q, turned(self.repeat(k))) / ROOT, Tensor(-INF))
            return ops.matmul(no_nan(ops.softmax(s, -1)), self.repeat(v))

    x = normal(B, 2 * H, S, D), normal(B, 2, T, D, seed=1), normal(B, 2, T, D, seed=2), kept(B, 1, S, T)
    k, v = (np.repeat(y, H, 1) for y in x[1:3])
    close(is_one(Shared, x)[0], seen(x[0], k, v, x[3]), ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("wide", [False, True])
def test_half_types(wide, dtype):
    t, named, u = HALF[dtype]

    class Eager(nn.Cell):
        def construct(self, q, k, v, m):
            s = ops.where(m, ops.matmul(q, turned(k)) * 0.25, Tensor(np.asarray(-INF, t)))
            return ops.bmm(no_nan(softmax32(s, named) if wide else ops.softmax(s, -1), t), v)

    x = [normal(B, H, n, WIDE, seed=n + i).astype(t) for i, n in enumerate((S, T, T))] + [kept(B, 1, S, T)]
    near(is_one(Eager, x)[0], seen(*x, scale=0.25), u, np.abs(x[2].astype(np.float64)).max())


OTHERS = {
    "weights are a result": lambda s, v: (lambda w: (ops.bmm(w, v), w))(no_nan(ops.softmax(s, -1))),
    "NaN become 1": lambda s, v: ops.bmm(
        (lambda w: ops.where(ops.primitive("IsNan", w), Tensor(np.float32(1.0)), w))(ops.softmax(s, -1)), v),
    "NaN of the scores": lambda s, v: ops.bmm(
        ops.where(ops.primitive("IsNan", s), Tensor(np.float32(0.0)), ops.softmax(s, -1)), v),
    "over queries": lambda s, v: ops.bmm(no_nan(ops.softmax(s, -2)), v),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_it_is_left_alone(name):
    class Other(nn.Cell):
        def construct(self, q, k, v, m):
            return OTHERS[name](ops.where(m, ops.bmm(q, k, transpose_b=True) / ROOT, Tensor(-INF)), v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), kept(B, 1, S, T)
    before, net = Other()(*x), Other()
    report = rewrite.substitute(net)
    assert "ScaledDotProductAttention" not in str(report.swapped)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (net(*x), before))):
        # NaN where NaN is. The scores are the same; softmax's roundings, and those of a sum of T products, of both.
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=0, atol=2 * (2 * T + 8) * U * np.abs(x[2]).max())


HEADS = ["apart", "joined", "of three dimensions"]


@pytest.mark.parametrize("scaled,heads", [
    (s, h) for s in [*SCALED, "not at all"] for h in HEADS if "turned" not in s or "three" not in h
])  # fmt: skip
def test_a_mask_that_is_taken_away(scaled, heads):
    def write(by, q, k):
        return by(q, k) if scaled == "not at all" else SCALED[scaled](by, q, k)

    class Net(nn.Cell):
        def construct(self, q, k, v, m):
            if heads == "of three dimensions":
                return ops.bmm(ops.softmax(write(PRODUCTS["transpose_b"], q, k) - m, -1), v)
            if heads == "joined":
                q, k, v = (split(x, (0, 2, 1, 3)) for x in (q, k, v))
            y = ops.matmul(ops.softmax(write(PRODUCTS["Transpose"], q, k) - m, -1), v)
            return ops.transpose(y, (0, 2, 1, 3)).reshape(B, T, H * D) if heads == "joined" else y

    scale = 1.0 if scaled == "not at all" else ROOT**-1
    x = [normal(B, H, T, D, seed=i) for i in range(3)]
    m = normal(1, T, T, seed=3)
    shape = {"apart": (B, H, T, D), "joined": (B, T, H * D), "of three dimensions": (B * H, T, D)}[heads]
    given = *((y.swapaxes(1, 2) if heads == "joined" else y).reshape(shape) for y in x), m
    net = Net()
    rewrite.substitute(net, prove=given)
    assert left(net) == ["ScaledDotProductAttention"]
    want = reference(*x, -m.astype(np.float64), scale)
    want = (want.swapaxes(1, 2) if heads == "joined" else want).reshape(shape)
    close(net(*given).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())
