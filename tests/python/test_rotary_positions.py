"""Query and key, turned by rows of the tables that positions choose, become one operator."""

import numpy as np
import opgraft
import pytest
from compare import close
from opgraft import Tensor, nn, ops, rewrite

B, H, KV, S, P, D = 2, 4, 2, 5, 11, 8
ANGLES = np.outer(np.arange(P), 100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)  # an entry for each pair


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def halves(x, cos, sin):
    """Hugging Face's LLaMA: tables as wide as a row."""
    return x * cos + ops.concat((-x[..., D // 2 :], x[..., : D // 2]), -1) * sin


def pairs(x, cos, sin):
    """GPT-J: an entry for each pair."""
    a, b = x[..., ::2], x[..., 1::2]
    return ops.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape)


MODES = {"halves": (0, halves), "pairs": (1, pairs)}
# Positions and the dimension that is put into the rows that they choose, by where the heads are.
PLACES = {
    "heads first": ((B, S), 1, "BHSD"),
    "heads first, positions of all": ((1, S), 1, "BHSD"),
    "heads first, positions of one": ((S,), None, "BHSD"),
    "tokens first": ((B, S), 2, "BSHD"),
    "tokens first, positions of one": ((S,), 1, "BSHD"),
}


def rotary(x, ids, mode, tokens_first):
    """In float64."""
    shape = (*ids.shape, 1, D // 2) if tokens_first else (*ids.shape[:-1], 1, ids.shape[-1], D // 2)
    c, s = (t.astype(np.float64)[ids].reshape(shape) for t in (COS, SIN))
    x = x.astype(np.float64)
    a, b = (x[..., : D // 2], x[..., D // 2 :]) if mode == 0 else (x[..., ::2], x[..., 1::2])
    a, b = a * c - b * s, b * c + a * s
    return np.concatenate([a, b], -1) if mode == 0 else np.stack([a, b], -1).reshape(x.shape)


class Both(nn.Cell):
    def __init__(self, mode, axis, tables=None):
        super().__init__()
        self.mode, self.f = MODES[mode]
        self.axis, self.tables = axis, tables or (COS, SIN)

    def rows(self, table, ids):
        table = Tensor(np.concatenate([table, table], -1) if self.mode == 0 else table)
        rows = ops.gather(table, ids, 0)
        return rows if self.axis is None else ops.expand_dims(rows, self.axis)

    def construct(self, q, k, ids):
        cos, sin = (self.rows(t, ids) for t in self.tables)
        return self.f(q, cos, sin), self.f(k, cos, sin)


def given(ids_shape, layout):
    x = normal(B, H, S, D), normal(B, KV, S, D, seed=1)
    if layout == "BSHD":
        x = [y.swapaxes(1, 2).copy() for y in x]
    return *x, np.random.default_rng(2).integers(0, P, ids_shape).astype(np.int32)


def left(graph):
    return [n["op"] for n in graph.nodes]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", MODES)
def test_query_and_key_become_one_operator(mode, place):
    shape, axis, layout = PLACES[place]
    q, k, ids = given(shape, layout)
    net = Both(mode, axis)
    net.set_inputs(Tensor(q), Tensor(k), Tensor(ids))
    rewrite.substitute(net, prove=[[q, k, ids]])
    (node,) = net._grafted[0][0].graph.nodes
    assert node["op"] == "ApplyRotaryPosEmb" and node["attrs"]["layout"] == layout
    for got, x in zip(net(Tensor(q), Tensor(k), Tensor(ids)), (q, k), strict=True):
        # Two products and a sum of them, |a cos| + |b sin| <= 2 max |x|.
        close(got.asnumpy(), rotary(x, ids, MODES[mode][0], layout == "BSHD"), 3, 2 * np.abs(x).max())


@pytest.mark.parametrize("mode", MODES)
def test_the_first_elements_alone(mode):
    """As GPT-NeoX and Phi have it."""

    class Partial(Both):
        def construct(self, q, k, ids):
            cos, sin = (self.rows(t, ids) for t in self.tables)
            return tuple(ops.concat((self.f(x[..., :D], cos, sin), x[..., D:]), -1) for x in (q, k))

    q, k, ids = normal(B, H, S, D + 4), normal(B, KV, S, D + 4, seed=1), np.arange(S, dtype=np.int32)[None] + 3
    net = Partial(mode, 1)
    net.set_inputs(Tensor(q), Tensor(k), Tensor(ids))
    rewrite.substitute(net, prove=[[q, k, ids]])
    assert left(net._grafted[0][0].graph) == ["ApplyRotaryPosEmb"]
    for got, x in zip(net(Tensor(q), Tensor(k), Tensor(ids)), (q, k), strict=True):
        close(got.asnumpy()[..., :D], rotary(x[..., :D], ids, MODES[mode][0], False), 3, 2 * np.abs(x).max())
        np.testing.assert_array_equal(got.asnumpy()[..., D:], x[..., D:])


class Apart(Both):
    """Key by other positions."""

    def construct(self, q, k, ids):
        rows = [[self.rows(t, i) for t in self.tables] for i in (ids, ops.cast(ids * 2, opgraft.int32))]
        return self.f(q, *rows[0]), self.f(k, *rows[1])


class Alone(Both):
    def construct(self, q, k, ids):
        return self.f(q, *(self.rows(t, ids) for t in self.tables)), k * 2.0


class Seen(Both):
    """What is added up is no row of the tables."""

    def construct(self, q, k, ids):
        cos, sin = (self.rows(t, ids) for t in self.tables)
        return self.f(q, cos, sin), self.f(k, cos, sin), cos


@pytest.mark.parametrize("make", [Apart, Alone, Seen])
def test_what_is_not_both_at_once_is_turned_apart(make):
    q, k, ids = given((B, S), "BHSD")
    ids = ids // 3
    net = make("halves", 1)
    net.set_inputs(Tensor(q), Tensor(k), Tensor(ids))
    rewrite.substitute(net, prove=[[q, k, ids]])
    # What is added up is no row of the tables: they are read first.
    assert ("ApplyRotaryPosEmb" in left(net._grafted[0][0].graph)) == (make is Seen)
    assert left(net._grafted[0][0].graph).count("Gather") == {Apart: 4, Alone: 2, Seen: 2}[make]
    got = net(Tensor(q), Tensor(k), Tensor(ids))
    close(got[0].asnumpy(), rotary(q, ids, 0, False), 3, 2 * np.abs(q).max())


def test_angles_computed_in_the_model():
    """As Hugging Face's LLaMA has it: cos and sin of positions times frequencies, joined with themselves."""
    frequencies = (100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)

    class Llama(nn.Cell):
        def construct(self, q, k, ids):
            angles = ops.expand_dims(ops.cast(ids, opgraft.float32), 2) * Tensor(frequencies)
            both = ops.concat((angles, angles), -1)
            cos, sin = ops.expand_dims(ops.cos(both), 1), ops.expand_dims(ops.sin(both), 1)
            return halves(q, cos, sin), halves(k, cos, sin)

    q, k, ids = given((B, S), "BHSD")
    net = Llama()
    net.set_inputs(Tensor(q), Tensor(k), Tensor(ids))
    rewrite.substitute(net, prove=[[q, k, ids]])
    found = left(net._grafted[0][0].graph)
    assert found.count("ApplyRotaryPosEmb") == 1 and not {"Neg", "StridedSlice", "Add"} & set(found)
    for got, x in zip(net(Tensor(q), Tensor(k), Tensor(ids)), (q, k), strict=True):
        # An angle is up to P and rounds to P 2^-24, a cosine to 3 ulp.
        close(got.asnumpy(), rotary(x, ids, 0, False), 3 + P + 6, 2 * np.abs(x).max())


# Tables as they come: of the tokens, of one head of them, of each sequence, of tokens before heads.
TABLES = {"[S, D]": (S, D), "[1, 1, S, D]": (1, 1, S, D), "[B, 1, S, D]": (B, 1, S, D), "[S, 1, D]": (S, 1, D)}


@pytest.mark.parametrize("shape", TABLES)
@pytest.mark.parametrize("mode", MODES)
def test_query_and_key_by_tables_without_positions(mode, shape, tmp_path):
    layout = "BSHD" if shape == "[S, 1, D]" else "BHSD"
    q, k, _ = given((), layout)
    angles = np.random.default_rng(3).standard_normal((*TABLES[shape][:-1], D // 2)).astype(np.float32)
    # An entry for each element, or one for each pair.
    given_angles = np.concatenate([angles, angles], -1) if mode == "halves" else angles
    cos, sin = np.cos(given_angles), np.sin(given_angles)

    class Turned(nn.Cell):
        def __init__(self):
            super().__init__()
            self.f = MODES[mode][1]

        def construct(self, q, k, cos, sin):
            return self.f(q, cos, sin), self.f(k, cos, sin)

    net, x = Turned(), [q, k, cos, sin]
    rewrite.substitute(net, prove=[x])
    assert left(net._grafted[0][0].graph) == ["ApplyRotaryPosEmb"]
    graph = opgraft.load(opgraft.export(Turned(), *map(Tensor, x), file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert left(graph) == ["ApplyRotaryPosEmb"]
    for got, y in zip(net(*map(Tensor, x)), (q, k), strict=True):
        a = y.astype(np.float64)
        if mode == "halves":
            want = a * cos + np.concatenate([-a[..., D // 2 :], a[..., : D // 2]], -1) * sin
        else:
            x1, x2 = a[..., ::2], a[..., 1::2]
            want = np.stack([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1).reshape(a.shape)
        close(got.asnumpy(), want, 3, 2 * np.abs(y).max())
