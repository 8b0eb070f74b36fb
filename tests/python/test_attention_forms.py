"""Attention in further forms of well-known models: heads joined with the batches for the products, half types whose
scores are float32, and scores that a tanh keeps within a bound."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from attention_spellings import (
    HALF,
    ROOT,
    ROUNDINGS,
    ROUNDINGS_OF_WIDE,
    WIDE,
    B,
    D,
    H,
    S,
    T,
    f32,
    left,
    near,
    normal,
    reference,
    turned,
)
from compare import Net, U, close
from opgraft import Tensor, ops, rewrite


def shapes(width=D):
    return (B, H, S, width), (B, H, T, width), (B, H, T, width), (B, 1, S, T)


def given(dtype=np.float32, width=D):
    return [normal(*s, seed=i).astype(dtype) for i, s in enumerate(shapes(width))]


def grafted(write, x):
    net = Net(write)
    report = rewrite.substitute(net, prove=x)
    return net, left(net), report


LOW = Tensor(np.float32(-1e4))
HIDDEN = {"hidden": lambda s, m: ops.where(m > 0.0, LOW, s), "kept": lambda s, m: ops.where(m > 0.0, s, LOW)}


def apart(s):
    return s.reshape(B, H, S, T)


def joined(s):
    return s.reshape(B * H, S, T)


# From scores [B H, S, T] and a mask [B, 1, S, T] to weights [B H, S, T]; what is added.
JOINED = {
    "full": (lambda s, m: ops.softmax(s, -1), "full"),
    "full, softmax apart": (lambda s, m: joined(ops.softmax(apart(s), -1)), "full"),
    "BART": (lambda s, m: ops.softmax(joined(apart(s) + m), -1), "added"),
    "BART, the mask first": (lambda s, m: ops.softmax(joined(m + apart(s)), -1), "added"),
    "softmax apart": (lambda s, m: joined(ops.softmax(apart(s) + m, -1)), "added"),
    "kept": (lambda s, m: ops.softmax(joined(HIDDEN["kept"](apart(s), m)), -1), "kept"),
    "hidden, softmax apart": (lambda s, m: joined(ops.softmax(HIDDEN["hidden"](apart(s), m), -1)), "hidden"),
}
KEYS = {
    "transpose_b": lambda q, k: ops.bmm(q, k, transpose_b=True),
    "Transpose": lambda q, k: ops.bmm(q, ops.transpose(k, (0, 2, 1))),
}


def added(how, m):
    return {"full": 0.0, "added": m, "kept": np.where(m > 0, 0, -1e30), "hidden": np.where(m > 0, -1e30, 0)}[how]


@pytest.mark.parametrize("scaled", [False, True], ids=["q comes scaled", "times"])
@pytest.mark.parametrize("by", KEYS)
@pytest.mark.parametrize("name", JOINED)
def test_heads_joined_with_the_batches_for_the_products(name, by, scaled):
    weights, how = JOINED[name]

    def write(q, k, v, m):
        q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
        s = KEYS[by](q, k)
        return ops.bmm(weights(s * ROOT**-1 if scaled else s, m), v).reshape(B, H, S, D)

    x = given()
    net, ops_left, report = grafted(write, x)
    assert ops_left == ["Greater"] * (how in HIDDEN) + ["ScaledDotProductAttention"], str(report)
    want = reference(*x[:3], added(how, x[3]), 1 / ROOT if scaled else 1.0)
    close(net(*x).asnumpy(), want, 4 * ROUNDINGS, np.abs(x[2]).max())


def test_heads_that_are_split_before_and_joined_behind():
    """All of BART's reshapes and transposes are taken in."""

    def heads(x, n):
        return ops.transpose(x.reshape(B, n, H, D), (0, 2, 1, 3)).reshape(B * H, n, D)

    def write(q, k, v, m):
        w = ops.softmax(joined(apart(KEYS["Transpose"](heads(q, S), heads(k, T))) + m), -1)
        y = ops.bmm(w, heads(v, T)).reshape(B, H, S, D)
        return ops.transpose(y, (0, 2, 1, 3)).reshape(B, S, H * D)

    q, k, v, m = given()
    x = [np.ascontiguousarray(y.swapaxes(1, 2)).reshape(B, -1, H * D) for y in (q, k, v)]
    net, ops_left, report = grafted(write, [*x, m])
    assert ops_left == ["ScaledDotProductAttention"], str(report)
    want = reference(q, k, v, m, 1.0).swapaxes(1, 2).reshape(B, S, H * D)
    close(net(*x, m).asnumpy(), want, 4 * ROUNDINGS, np.abs(v).max())


OTHER = {
    "parted another way": lambda s, m, v: ops.bmm(joined(ops.softmax(s.reshape(H, B, S, T) + m[:1], -1)), v),
    "joined another way": lambda s, m, v: ops.bmm(
        ops.transpose(ops.softmax(apart(s) + m, -1), (1, 0, 2, 3)).reshape(B * H, S, T), v),
    "scores in other rows": lambda s, m, v: ops.bmm(
        joined(ops.softmax(s.reshape(B, H, 1, S * T), -1)), v),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_what_is_joined_otherwise_is_left_alone(name):
    def write(q, k, v, m):
        q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
        return OTHER[name](KEYS["transpose_b"](q, k), m, v).reshape(B, H, S, D)

    x = given()
    before = Net(write)(*x).asnumpy()
    net, ops_left, _ = grafted(write, x)
    assert "ScaledDotProductAttention" not in ops_left
    close(net(*x).asnumpy(), before, 2 * ROUNDINGS, np.abs(x[2]).max())


def wide(x):
    return ops.cast(x, f32)


# Scores in float32 of q and k of a half type.
UPCAST = {
    "GPT-J": lambda q, k: ops.matmul(wide(q), turned(wide(k))) / 4.0,
    "cast behind the Transpose": lambda q, k: ops.matmul(wide(q), wide(turned(k))) * 0.25,
    "transpose_b": lambda q, k: ops.bmm(wide(q), wide(k), transpose_b=True) * 0.25,
}
MASKS = {
    "full": lambda s, m: s,
    "added": lambda s, m: s + wide(m),
    "chosen": lambda s, m: ops.where(m > 0.0, s, LOW),
}


def becomes_attention(write, x, mask, want, u):
    """One node, beside what makes bools of the mask, and within the roundings of the half type."""
    net, ops_left, report = grafted(write, x)
    assert ops_left == ["Greater"] * (mask == "chosen") + ["ScaledDotProductAttention"], str(report)
    near(net(*x).asnumpy(), want, u, np.abs(x[2].astype(np.float64)).max())


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("by", UPCAST)
@pytest.mark.parametrize("dtype", HALF)
def test_scores_of_half_types_in_float32(dtype, by, mask):
    made, half, u = HALF[dtype]

    def write(q, k, v, m):
        return ops.matmul(ops.cast(ops.softmax(MASKS[mask](UPCAST[by](q, k), m), -1), half), v)

    x = given(made, WIDE)
    want = reference(*x[:3], added({"chosen": "kept"}.get(mask, mask), x[3].astype(np.float64)), 0.25)
    becomes_attention(write, x, mask, want, u)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("split", [False, True], ids=["heads apart", "heads split in float32"])
@pytest.mark.parametrize("dtype", HALF)
def test_all_of_it_in_float32_between_casts(dtype, split, mask):
    made, half, u = HALF[dtype]

    def heads(x, n):
        return ops.transpose(wide(x).reshape(B, n, H, WIDE), (0, 2, 1, 3)) if split else wide(x)

    def write(q, k, v, m):
        s = MASKS[mask](ops.matmul(heads(q, S), turned(heads(k, T))) * 0.25, m)
        y = ops.matmul(ops.softmax(s, -1), heads(v, T))
        return ops.cast(ops.transpose(y, (0, 2, 1, 3)).reshape(B, S, H * WIDE) if split else y, half)

    q, k, v, m = given(made, WIDE)
    want = reference(q, k, v, added({"chosen": "kept"}.get(mask, mask), m.astype(np.float64)), 0.25)
    x = [q, k, v, m]
    if split:
        x = [*(np.ascontiguousarray(y.swapaxes(1, 2)).reshape(B, -1, H * WIDE) for y in (q, k, v)), m]
        want = want.swapaxes(1, 2).reshape(B, S, H * WIDE)
    becomes_attention(write, x, mask, want, u)


# Where scores of a half type, of the products or scaled, become float32; MindFormers' divides both by a root.
LATER = {
    "before the mask": lambda q, k: wide(ops.matmul(q, turned(k)) * 0.25),
    "before the mask, over": lambda q, k: wide(ops.bmm(q, k, transpose_b=True) / 4.0),
    "before the scale": lambda q, k: wide(ops.matmul(q, turned(k))) * 0.25,
    "before the scale, over": lambda q, k: wide(ops.matmul(q, turned(k))) / 4.0,
    "MindFormers": lambda q, k: wide(ops.bmm(q / 2.0, turned(k) / 2.0)),
    "MindFormers, turned behind": lambda q, k: wide(ops.bmm(q / 2.0, turned(k / 2.0))),
}
LATER_MASKS = MASKS | {"added in float32": lambda s, m: m + s}


@pytest.mark.parametrize("mask", LATER_MASKS)
@pytest.mark.parametrize("by", LATER)
@pytest.mark.parametrize("dtype", HALF)
def test_scores_that_become_float32_later(dtype, by, mask):
    """The mask may be of float32: it is added as it is."""
    made, half, u = HALF[dtype]

    def write(q, k, v, m):
        return ops.matmul(ops.cast(ops.softmax(LATER_MASKS[mask](LATER[by](q, k), m), -1), half), v)

    x = given(made, WIDE)
    if mask == "added in float32":
        x[3] = given()[3]
    want = reference(*x[:3], added({"chosen": "kept", "full": "full"}.get(mask, "added"), x[3].astype(float)), 0.25)
    becomes_attention(write, x, mask, want, u)


def test_scores_and_values_of_different_half_types_stay():
    def write(q, k, v):
        s = UPCAST["GPT-J"](q, k)
        return ops.matmul(ops.cast(ops.softmax(s, -1), opgraft.float16), v)

    x = [*given(ml_dtypes.bfloat16, WIDE)[:2], given(np.float16, WIDE)[2]]
    before = Net(write)(*x).asnumpy()
    net, ops_left, _ = grafted(write, x)
    assert "ScaledDotProductAttention" not in ops_left
    np.testing.assert_array_equal(net(*x).asnumpy(), before)


CAP = 2.0
# Gemma 2's, and the scale in other places.
CAPPED = {
    "times": lambda q, k: ops.tanh(ops.matmul(q, turned(k)) * ROOT**-1 / CAP) * CAP,
    "over": lambda q, k: CAP * ops.tanh(ops.matmul(q, turned(k)) / ROOT / CAP),
    "q times": lambda q, k: ops.tanh(ops.bmm(q * ROOT**-1, k, transpose_b=True) / CAP) * CAP,
}
CAP_MASKS = {"full": lambda s, m: s, "added": lambda s, m: s + m, "kept": HIDDEN["kept"]}


def capped(q, k, v, mask, cap=CAP):
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) / ROOT
    s = cap * np.tanh(s / cap) + mask
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v.astype(np.float64)


@pytest.mark.parametrize("groups", [1, H])
@pytest.mark.parametrize("mask", CAP_MASKS)
@pytest.mark.parametrize("by", CAPPED)
def test_scores_that_a_tanh_bounds(by, mask, groups):
    def repeated(x):
        return x if groups == 1 else ops.broadcast_to(x[:, :, None], (B, 1, H, T, D)).reshape(B, H, T, D)

    def write(q, k, v, m):
        return ops.matmul(ops.softmax(CAP_MASKS[mask](CAPPED[by](q, repeated(k)), m), -1), repeated(v))

    q, k, v, m = given()
    k, v = (y[:, : H // groups].copy() for y in (k, v))
    net, ops_left, report = grafted(write, [q, k, v, m])
    others = ["Mul"] * (by == "q times") + ["Greater"] * (mask == "kept")
    assert sorted(ops_left) == sorted([*others, "ScaledDotProductAttention"]), str(report)
    assert net._grafted[0][0].graph.nodes[-1]["attrs"]["softcap"] == CAP
    want = capped(q, *(np.repeat(y, groups, 1) for y in (k, v)), added(mask, m))
    # A tanh's 8 roundings of a number that is at most CAP.
    close(net(q, k, v, m).asnumpy(), want, ROUNDINGS + 16 * CAP, np.abs(v).max())


@pytest.mark.parametrize("joined_heads", [False, True])
@pytest.mark.parametrize("dtype", HALF)
def test_bounded_scores_of_half_types(dtype, joined_heads):
    """As transformers' code has it: softmax in float32, and a mask that hides what lies ahead."""
    made, half, u = HALF[dtype]
    mask = np.triu(np.full((S, T), -3e4), T - S + 1).astype(made)

    def heads(x, n):
        return ops.transpose(x.reshape(B, n, H, WIDE), (0, 2, 1, 3)) if joined_heads else x

    def write(q, k, v):
        s = ops.tanh(ops.matmul(heads(q, S), turned(heads(k, T))) * 0.25 / 8.0) * 8.0 + Tensor(mask)
        y = ops.matmul(ops.cast(ops.softmax(wide(s), -1), half), heads(v, T))
        return ops.transpose(y, (0, 2, 1, 3)).reshape(B, S, H * WIDE) if joined_heads else y

    q, k, v, _ = given(made, WIDE)
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) * 0.25
    s = 8.0 * np.tanh(s / 8.0) + np.where(mask < 0, -1e30, 0)
    p = np.exp(s - s.max(-1, keepdims=True))
    want = p / p.sum(-1, keepdims=True) @ v.astype(np.float64)
    x = [q, k, v]
    if joined_heads:
        x = [np.ascontiguousarray(y.swapaxes(1, 2)).reshape(B, -1, H * WIDE) for y in x]
        want = want.swapaxes(1, 2).reshape(B, S, H * WIDE)
    net, ops_left, report = grafted(write, x)
    assert ops_left == ["ScaledDotProductAttention"], str(report)
    attrs = net._grafted[0][0].graph.nodes[-1]["attrs"]
    assert attrs["is_causal"] and attrs["softcap"] == 8.0 and attrs["layout"] == ("BSE" if joined_heads else "BHSD")
    assert ROUNDINGS_OF_WIDE * U > 16 * 8.0 * U  # near's share has room for the tanh
    near(net(*x).asnumpy(), want, u, np.abs(v.astype(np.float64)).max())


def test_a_bound_of_0():
    """It is one, not none: all weights of a row are equal."""

    def write(q, k, v):
        return ops.matmul(ops.softmax(ops.tanh(ops.matmul(q, turned(k)) / 0.0) * 0.0, -1), v)

    x = given()[:3]
    net, ops_left, report = grafted(write, x)
    assert ops_left == ["ScaledDotProductAttention"], str(report)
    want = np.broadcast_to(x[2].astype(np.float64).mean(-2, keepdims=True), (B, H, S, D))
    close(net(*x).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())


@pytest.mark.parametrize("name", ["another factor", "no factor", "a tanh of the mask, too"])
def test_another_bound_is_left_alone(name):
    def write(q, k, v, m):
        s = ops.matmul(q, turned(k)) * ROOT**-1
        if name == "another factor":
            s = ops.tanh(s / CAP) * (2 * CAP)
        elif name == "no factor":
            s = ops.tanh(s / CAP)
        else:
            s = ops.tanh((s + m) / CAP) * CAP
        return ops.matmul(ops.softmax(s, -1), v)

    x = given()
    before = Net(write)(*x).asnumpy()
    net, ops_left, _ = grafted(write, x)
    assert "ScaledDotProductAttention" not in ops_left
    close(net(*x).asnumpy(), before, 2 * ROUNDINGS, np.abs(x[2]).max())
