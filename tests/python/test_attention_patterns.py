"""Attention as frameworks spell it becomes one operator: Cells here, and what torch's exporters to ONNX write."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from attention_spellings import (
    HALF,
    MASKED,
    PRODUCTS,
    ROOT,
    ROUNDINGS,
    SCALED,
    WIDE,
    B,
    D,
    H,
    S,
    T,
    f32,
    is_one,
    left,
    near,
    normal,
    reference,
    softmax32,
    split,
    spread,
    turned,
)
from compare import U, close
from opgraft import nn, ops, rewrite
from opgraft.dtype import to_dtype


@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("scaled", SCALED)
@pytest.mark.parametrize("by", PRODUCTS)
def test_a_spelling_is_one_operator(by, scaled, mask):
    write, scale = SCALED[scaled]

    class Spelled(nn.Cell):
        def construct(self, q, k, v, m):
            return ops.bmm(ops.softmax(MASKED[mask](write(PRODUCTS[by], q, k), m), -1), v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2), normal(B, 1, S, T, seed=3)
    want = reference(*x[:3], 0.0 if mask == "full" else x[3], scale)
    close(is_one(Spelled, x)[0], want, ROUNDINGS, np.abs(x[2]).max())


HEADS = [name for name in SCALED if "turned k" not in name]


@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("scaled", HEADS)
def test_keys_that_are_split_and_turned_in_one_step(scaled, mask):
    """As exporters to ONNX join the two transposes of BERT's keys."""
    write, scale = SCALED[scaled]

    class Bert(nn.Cell):
        def construct(self, q, k, v, m):
            s = write(ops.matmul, split(q, (0, 2, 1, 3)), split(k, (0, 2, 3, 1)))
            y = ops.matmul(ops.softmax(MASKED[mask](s, m), -1), split(v, (0, 2, 1, 3)))
            return ops.transpose(y, (0, 2, 1, 3)).reshape(B, T, H * D)

    x = *(normal(B, T, H * D, seed=i) for i in range(3)), normal(B, 1, 1, T, seed=3)
    q, k, v = (y.reshape(B, T, H, D).swapaxes(1, 2) for y in x[:3])
    want = reference(q, k, v, 0.0 if mask == "full" else x[3], scale).swapaxes(1, 2).reshape(B, T, H * D)
    close(is_one(Bert, x)[0], want, ROUNDINGS, np.abs(x[2]).max())


SCALED_HALVES = {
    "times": (lambda by, q, k: by(q, k) * 0.25, 0.25),
    "over": (lambda by, q, k: by(q, k) / 4.0, 0.25),
    "q times": (lambda by, q, k: by(q * 0.25, k), 0.25),
    "q over": (lambda by, q, k: by(q / 4.0, k), 0.25),
    "k times": (lambda by, q, k: by(q, k * 0.25), 0.25),
    "ONNX, q and k times": (lambda by, q, k: by(q * 0.5, k * 0.5), 0.25),
    "ONNX, q and turned k times": (lambda by, q, k: ops.bmm(q * 0.5, turned(k) * 0.5), 0.25),
    "not at all": (lambda by, q, k: by(q, k), 1.0),
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("scaled", SCALED_HALVES)
@pytest.mark.parametrize("by", PRODUCTS)
def test_half_types_whose_softmax_is_of_float32(by, scaled, mask, dtype):
    write, scale = SCALED_HALVES[scaled]
    t, named, u = HALF[dtype]

    class Eager(nn.Cell):
        def construct(self, q, k, v, m):
            return ops.bmm(softmax32(MASKED[mask](write(PRODUCTS[by], q, k), m), named), v)

    shapes = (B, H, S, WIDE), (B, H, T, WIDE), (B, H, T, WIDE), (B, 1, S, T)
    x = [normal(*s, seed=i).astype(t) for i, s in enumerate(shapes)]
    net = Eager()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    want = reference(*x[:3], 0.0 if mask == "full" else x[3].astype(np.float64), scale)
    got = net(*x).asnumpy()
    assert got.dtype == t
    near(got, want, u, np.abs(x[2].astype(np.float64)).max())


@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("scaled", [n for n in SCALED_HALVES if "and" not in n])
def test_half_types_of_keys_that_are_split_and_turned_in_one_step(scaled, mask):
    write, scale = SCALED_HALVES[scaled]
    t, named, u = HALF["bfloat16"]

    class Bert(nn.Cell):
        def split(self, x, order):
            return ops.transpose(x.reshape(B, T, H, WIDE), order)

        def construct(self, q, k, v, m):
            s = write(ops.matmul, self.split(q, (0, 2, 1, 3)), self.split(k, (0, 2, 3, 1)))
            y = ops.matmul(softmax32(MASKED[mask](s, m), named), self.split(v, (0, 2, 1, 3)))
            return ops.transpose(y, (0, 2, 1, 3)).reshape(B, T, H * WIDE)

    x = [normal(*s, seed=i).astype(t) for i, s in enumerate([(B, T, H * WIDE)] * 3 + [(B, 1, 1, T)])]
    net = Bert()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    q, k, v = (y.reshape(B, T, H, WIDE).swapaxes(1, 2) for y in x[:3])
    want = reference(q, k, v, 0.0 if mask == "full" else x[3].astype(np.float64), scale)
    want = want.swapaxes(1, 2).reshape(B, T, H * WIDE)
    near(net(*x).asnumpy(), want, u, np.abs(x[2].astype(np.float64)).max())


def test_shared_heads_of_a_half_type():
    """LLaMA's and Qwen's attention as Hugging Face writes it, in bfloat16."""
    t, named, u = HALF["bfloat16"]

    class Shared(nn.Cell):
        def repeat(self, x):
            return ops.broadcast_to(ops.expand_dims(x, 2), (B, 2, H, T, WIDE)).reshape(B, 2 * H, T, WIDE)

        def construct(self, q, k, v, m):
            k, v = self.repeat(k), self.repeat(v)
            return ops.transpose(ops.matmul(softmax32(ops.matmul(q, turned(k)) * 0.25 + m, named), v), (0, 2, 1, 3))

    shapes = (B, 2 * H, S, WIDE), (B, 2, T, WIDE), (B, 2, T, WIDE), (B, 1, S, T)
    x = [normal(*s, seed=i).astype(t) for i, s in enumerate(shapes)]
    net = Shared()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention", "Transpose"]
    k, v = (np.repeat(y, H, 1) for y in x[1:3])
    want, apart = (f(x[0], k, v, x[3].astype(np.float64), 0.25).swapaxes(1, 2) for f in (reference, spread))
    near(net(*x).asnumpy(), want, u, np.abs(x[2].astype(np.float64)).max(), apart)


bf16, f16 = opgraft.bfloat16, opgraft.float16
OTHER_HALVES = {
    "softmax of another half type": lambda s, v: ops.bmm(ops.cast(ops.softmax(ops.cast(s, f16), -1), bf16), v),
    "values of another half type": lambda s, v: ops.bmm(softmax32(s, f16), ops.cast(v, f16)),
    "values of float32": lambda s, v: ops.bmm(ops.softmax(ops.cast(s, f32), -1), ops.cast(v, f32)),
    "over queries": lambda s, v: ops.bmm(ops.cast(ops.softmax(ops.cast(s, f32), -2), bf16), v),
    "weights are a result": lambda s, v: (lambda w: (ops.bmm(w, v), w))(softmax32(s, bf16)),
    "weights of float32 are a result": lambda s, v: (lambda w: (ops.bmm(ops.cast(w, bf16), v), w))(
        ops.softmax(ops.cast(s, f32), -1)),
    "scores are a result": lambda s, v: (ops.bmm(softmax32(s, bf16), v), s),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_HALVES)
def test_other_ways_between_half_types_are_left_alone(name):
    class Other(nn.Cell):
        def construct(self, q, k, v):
            return OTHER_HALVES[name](ops.bmm(q, k, transpose_b=True) * 0.25, v)

    x = [normal(B, H, n, WIDE, seed=n).astype(ml_dtypes.bfloat16) for n in (S, T, T)]
    report = rewrite.substitute(Other(), prove=x)
    assert "ScaledDotProductAttention" not in str(report.swapped)


def test_float32_scores_whose_weights_are_of_a_half_type_are_left_alone():
    class Other(nn.Cell):
        def construct(self, q, k, v):
            w = ops.softmax(ops.cast(ops.bmm(q, k, transpose_b=True) * 0.25, f16), -1)
            return ops.bmm(ops.cast(w, f32), v)

    x = normal(B, H, S, D), normal(B, H, T, D, seed=1), normal(B, H, T, D, seed=2)
    report = rewrite.substitute(Other(), prove=x)
    assert "ScaledDotProductAttention" not in str(report.swapped)


BATCHES = {
    "transpose_b": lambda q, k: ops.bmm(q, k, transpose_b=True),
    "Transpose": lambda q, k: ops.bmm(q, ops.transpose(k, (0, 2, 1))),
}
SCALED_BATCHES = ["times", "over", "q times", "not at all"]


@pytest.mark.parametrize("shape", [(S, T), (1, S, T), (1, 1, T), (T,), (B * H, S, T), (B * H, 1, T)], ids=str)
@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("scaled", SCALED_BATCHES)
@pytest.mark.parametrize("by", BATCHES)
def test_batches_of_one_head(by, scaled, mask, shape):
    """[B H, S, D], as torch's MultiheadAttention and diffusers have it."""
    write, scale = SCALED[scaled]

    class Spelled(nn.Cell):
        def construct(self, q, k, v, m):
            return ops.bmm(ops.softmax(MASKED[mask](write(BATCHES[by], q, k), m), -1), v)

    x = normal(B * H, S, D), normal(B * H, T, D, seed=1), normal(B * H, T, D, seed=2), normal(*shape, seed=3)
    net = Spelled()
    report = rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"] and not report.left, str(report)
    want = reference(*x[:3], 0.0 if mask == "full" else x[3], scale)
    close(net(*x).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("scaled", SCALED_BATCHES)
@pytest.mark.parametrize("by", BATCHES)
def test_batches_of_one_head_of_a_half_type(by, scaled, mask):
    write, scale = SCALED_HALVES[scaled]
    t, named, u = HALF["float16"]

    class Spelled(nn.Cell):
        def construct(self, q, k, v, m):
            return ops.bmm(softmax32(MASKED[mask](write(BATCHES[by], q, k), m), named), v)

    shapes = (B * H, S, WIDE), (B * H, T, WIDE), (B * H, T, WIDE), (1, S, T)
    x = [normal(*s, seed=i).astype(t) for i, s in enumerate(shapes)]
    net = Spelled()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    want = reference(*x[:3], 0.0 if mask == "full" else x[3].astype(np.float64), scale)
    near(net(*x).asnumpy(), want, u, np.abs(x[2].astype(np.float64)).max())


@pytest.mark.parametrize("by", BATCHES)
def test_batches_of_one_head_whose_values_are_wider(by):
    class Spelled(nn.Cell):
        def construct(self, q, k, v, m):
            return ops.bmm(ops.softmax(BATCHES[by](q, k) * 0.25 + m, -1), v)

    x = [normal(*s, seed=i) for i, s in enumerate([(B * H, S, D), (B * H, T, D), (B * H, T, 2 * D), (S, T)])]
    net = Spelled()
    rewrite.substitute(net, prove=x)
    assert left(net) == ["ScaledDotProductAttention"]
    close(net(*x).asnumpy(), reference(*x, 0.25), ROUNDINGS, np.abs(x[2]).max())


OTHER_BATCHES = {
    "keys for all": ((B * H, S, D), (1, T, D), (1, T, D), (S, T)),
    "values for all": ((B * H, S, D), (B * H, T, D), (1, T, D), (S, T)),
}


@pytest.mark.parametrize("by", BATCHES)
@pytest.mark.parametrize("name", OTHER_BATCHES)
def test_other_batches_are_left_alone(name, by):
    class Other(nn.Cell):
        def construct(self, q, k, v, m):
            return ops.bmm(ops.softmax(BATCHES[by](q, k) * 0.25 + m, -1), v)

    x = [normal(*s, seed=i) for i, s in enumerate(OTHER_BATCHES[name])]
    net = Other()
    report = rewrite.substitute(net, prove=x)
    assert "ScaledDotProductAttention" not in str(report.swapped)
    close(net(*x).asnumpy(), reference(*x, 0.25), 2 * ROUNDINGS, np.abs(x[2]).max())


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
BY_EXP = {"times": [], "over": [], "q times": [], "q over": ["Div"], "not at all": []}


@pytest.mark.parametrize("mask", MASKED)
@pytest.mark.parametrize("scaled", BY_EXP)
def test_a_softmax_by_exp_is_taken_too(scaled, mask):
    write, scale = SCALED[scaled]

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
def test_half_types_whose_heads_are_repeated(dtype, mask, groups):
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
    want, apart = (f(*wide[:3], 0.0 if mask == "full" else wide[3], scale) for f in (reference, spread))
    got = net(*x).asnumpy()
    assert got.dtype == made
    # Computed in float32 and rounded once; of bfloat16 weights may round as well.
    apart = apart if dtype == "bfloat16" else 0.0
    allowed = ulp * (np.abs(want) + apart) + ROUNDINGS * U * np.abs(wide[2]).max()
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
