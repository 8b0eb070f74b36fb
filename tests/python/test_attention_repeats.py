"""Heads of keys and values that are repeated each in a way of its own are read where they lie."""

import numpy as np
import opgraft
import pytest
from attention_spellings import ROOT, ROUNDINGS, B, D, S, T, left, normal, reference, turned
from compare import Net, close
from opgraft import Tensor, ops, rewrite

KV, N = 2, 3  # heads of keys, and query heads of each
EACH = Tensor(np.repeat(np.arange(KV, dtype=np.int32), N))

# Each head N times, one after another, in the dimension `at` of x [B, KV, T, D] or [B, T, KV, D].
REPEATS = {
    "BroadcastTo": lambda x, at: joined(ops.broadcast_to(ops.expand_dims(x, at + 1), wide(x, at)), x, at),
    "a new axis": lambda x, at: joined(ops.broadcast_to(x[(slice(None),) * (at + 1) + (None,)], wide(x, at)), x, at),
    "Tile": lambda x, at: joined(ops.tile(ops.expand_dims(x, at + 1), copies(at)), x, at),
    "Tile of Reshape": lambda x, at: joined(
        ops.tile(x.reshape(*x.shape[: at + 1], 1, *x.shape[at + 1 :]), copies(at)), x, at),
    "Stack": lambda x, at: joined(ops.stack([x] * N, axis=at + 1), x, at),
    "Concat": lambda x, at: joined(ops.concat([ops.expand_dims(x, at + 1)] * N, axis=at + 1), x, at),
    "Gather": lambda x, at: ops.gather(x, EACH, at),
    "a Gather of each": lambda x, at: ops.concat(
        [ops.gather(x, Tensor(np.array([i], np.int32)), at) for i in range(KV) for _ in range(N)], at),
    "one by one": lambda x, at: ops.concat([p for p in ops.split(x, 1, at) for _ in range(N)], at),
}  # fmt: skip


def copies(at):
    return (1,) * (at + 1) + (N,) + (1,) * (3 - at)


def wide(x, at):
    return x.shape[: at + 1] + (N,) + x.shape[at + 1 :]


def joined(y, x, at):
    return y.reshape(*x.shape[:at], KV * N, *x.shape[at + 1 :])


def in_turn(x, at):
    return ops.concat([x] * N, at)


def given(turned_heads=False):
    x = [normal(B, KV * N, S, D), *(normal(B, KV, T, D, seed=i) for i in (1, 2)), normal(B, 1, S, T, seed=3)]
    return [np.ascontiguousarray(y.swapaxes(1, 2)) for y in x[:3]] + x[3:] if turned_heads else x


def attend(q, k, v, m):
    return ops.matmul(ops.softmax(ops.matmul(q, turned(k)) / ROOT + m, -1), v)


def check(write, x, want, others=(), layout="BHSD"):
    """One operator is left behind `others`, in a file as well, and gives what it should."""
    net = Net(write)
    report = rewrite.substitute(net, prove=x)
    assert left(net) == [*others, "ScaledDotProductAttention"], str(report)
    assert net._grafted[0][0].graph.nodes[-1]["attrs"].get("layout", "BHSD") == layout
    close(net(*x).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())


PAIRS = [(k, v) for i, k in enumerate(REPEATS) for j, v in enumerate(REPEATS) if (j - i) % len(REPEATS) in (0, 1, 4)]


@pytest.mark.parametrize("k_by,v_by", PAIRS)
def test_each_side_is_repeated_in_its_own_way(k_by, v_by):
    x = given()
    want = reference(x[0], *(np.repeat(y, N, 1) for y in x[1:3]), x[3], 1 / ROOT)
    check(lambda q, k, v, m: attend(q, REPEATS[k_by](k, 1), REPEATS[v_by](v, 1), m), x, want)


@pytest.mark.parametrize("k_by,v_by", PAIRS)
def test_also_where_heads_stand_behind_the_sequence(k_by, v_by):
    def write(q, k, v, m):
        q, k, v = (ops.transpose(y, (0, 2, 1, 3)) for y in (q, REPEATS[k_by](k, 2), REPEATS[v_by](v, 2)))
        return ops.transpose(attend(q, k, v, m), (0, 2, 1, 3))

    x = given()
    want = reference(x[0], *(np.repeat(y, N, 1) for y in x[1:3]), x[3], 1 / ROOT).swapaxes(1, 2)
    check(write, given(True), want, layout="BSHD")


FIVE = {
    "ExpandDims": lambda x: ops.expand_dims(x, 2),
    "Reshape": lambda x: x.reshape(B, KV, 1, T, D),
    "a new axis": lambda x: x[:, :, None],
    "BroadcastTo": lambda x: ops.broadcast_to(ops.expand_dims(x, 2), (B, KV, N, T, D)),
    "Tile": lambda x: ops.tile(x.reshape(B, KV, 1, T, D), (1, 1, N, 1, 1)),
    "repeated and parted": lambda x: REPEATS["BroadcastTo"](x, 1).reshape(B, KV, N, T, D),
}


@pytest.mark.parametrize("v_by", FIVE)
@pytest.mark.parametrize("k_by", FIVE)
def test_groups_of_five_dimensions_come_in_any_way(k_by, v_by):
    def write(q, k, v, m):
        s = ops.bmm(q.reshape(B, KV, N, S, D), FIVE[k_by](k), transpose_b=True) / ROOT + ops.expand_dims(m, 1)
        return ops.matmul(ops.softmax(s, -1), FIVE[v_by](v)).reshape(B, KV * N, S, D)

    x = given()
    want = reference(x[0], *(np.repeat(y, N, 1) for y in x[1:3]), x[3], 1 / ROOT)
    check(write, x, want)


def test_one_head_of_keys_for_all():
    def write(q, k, v, m):
        return attend(q, ops.broadcast_to(k, (B, 6, T, D)), ops.tile(v[:, :, None], (1, 1, 6, 1, 1))[:, 0], m)

    x = given()
    x[1:3] = (np.ascontiguousarray(y[:, :1]) for y in x[1:3])
    check(write, x, reference(*x, 1 / ROOT))


# What is repeated otherwise, or is used elsewhere, stays as it is; how often these operators are left.
OTHER = {
    "keys in turn": (lambda q, k, v, m: attend(q, in_turn(k, 1), REPEATS["Gather"](v, 1), m), "Concat"),
    "values in turn": (lambda q, k, v, m: attend(q, REPEATS["Gather"](k, 1), in_turn(v, 1), m), "Concat"),
    "changed on the way": (
        lambda q, k, v, m: attend(q, ops.neg(REPEATS["Gather"](k, 1)), REPEATS["Gather"](v, 1), m), "Neg"),
    "used elsewhere": (
        lambda q, k, v, m: (lambda r: attend(q, r, REPEATS["Tile"](v, 1), m) + ops.reduce_sum(r) * 0.0)(
            REPEATS["Gather"](k, 1)), "Gather"),
    "three of one, one of the other": (
        lambda q, k, v, m: attend(q, ops.gather(k, Tensor(np.array([0, 0, 0, 0, 1, 1], np.int32)), 1),
                                  REPEATS["Gather"](v, 1), m), "Gather"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_other_repetitions_stay(name):
    write, stays = OTHER[name]
    x = given()
    before = Net(write)(*x).asnumpy()
    net = Net(write)
    rewrite.substitute(net, prove=x)
    assert stays in left(net) and "ScaledDotProductAttention" in left(net)
    close(net(*x).asnumpy(), before, 2 * ROUNDINGS, np.abs(x[2]).max())


def test_heads_of_keys_in_the_dimension_of_their_groups_are_left_alone():
    """As many heads as each has queries: the shapes agree, but query head i, j reads head j."""

    def write(q, k, v):
        s = ops.bmm(q.reshape(B, KV, KV, S, D), ops.expand_dims(k, 1), transpose_b=True) / ROOT
        return ops.matmul(ops.softmax(s, -1), ops.expand_dims(v, 1)).reshape(B, KV * KV, S, D)

    x = [normal(B, KV * KV, S, D), *(normal(B, KV, T, D, seed=i) for i in (1, 2))]
    net = Net(write)
    report = rewrite.substitute(net, prove=x)
    assert "ScaledDotProductAttention" not in str(report.swapped)
    want = reference(x[0], *(np.tile(y, (1, KV, 1, 1)) for y in x[1:]), 0.0, 1 / ROOT)
    close(net(*x).asnumpy(), want, ROUNDINGS, np.abs(x[2]).max())


def test_sizes_that_are_open(tmp_path):
    def write(q, k, v):
        b, h, t, d = v.shape
        v = ops.broadcast_to(v[:, :, None], (b, h, N, t, d)).reshape(b, h * N, t, d)
        k = ops.gather(k, EACH, 1)
        return ops.matmul(ops.softmax(ops.matmul(q, turned(k)) / ROOT, -1), v)

    x = given()[:3]
    opened = [Tensor(shape=[None, a.shape[1], None, D], dtype=opgraft.float32) for a in x]
    graph = opgraft.load(opgraft.export(Net(write), *opened, file_name=str(tmp_path / "net")))
    report = rewrite.substitute(graph, prove=[x])
    assert [n["op"] for n in graph.nodes] == ["ScaledDotProductAttention"], str(report)


@pytest.mark.parametrize("by", ["BroadcastTo", "Tile", "Stack", "Gather", "one by one"])
def test_of_many_elements_a_few_are_asked(by, tmp_path):
    """Keys of fixed sizes that are too many to be numbered one by one, in several layers."""
    long, d = 1 << 20, 128

    def write(q, *kv):
        for i in range(0, len(kv), 2):
            k, v = (REPEATS[by](x, 1) for x in kv[i : i + 2])
            q = ops.matmul(ops.softmax(ops.matmul(q, turned(k)) * 0.125, -1), v)
        return q

    given = [Tensor(shape=(1, h, n, d), dtype=opgraft.float32) for h, n in [(KV * N, S)] + [(KV, long)] * 4]
    graph = opgraft.load(opgraft.export(Net(write), *given, file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["ScaledDotProductAttention"] * 2
