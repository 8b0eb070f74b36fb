"""Rotary embedding: the ways it is spelled are swapped, what looks alike is not."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import close
from opgraft import Tensor, nn, ops, rewrite

B, H, S, D = 2, 3, 5, 8


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ANGLES = np.outer(np.arange(S), 100.0 ** (-np.arange(0, D, 2) / D)).astype(np.float32)
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)  # an entry for each pair


def wide(table, mode):
    return np.concatenate([table, table], -1) if mode == 0 else np.repeat(table, 2, -1)


def rotary(x, mode):
    a, b = (x[..., : D // 2], x[..., D // 2 :]) if mode == 0 else (x[..., ::2], x[..., 1::2])
    a, b = a * COS - b * SIN, b * COS + a * SIN
    return np.concatenate([a, b], -1) if mode == 0 else np.stack([a, b], -1).reshape(x.shape)


def cut(x, begin, end, step=1):
    """As a Slice of ONNX cuts the last dimension; its end may lie beyond."""
    return ops.strided_slice(x, (0, 0, 0, begin), (0, 0, 0, end), (1, 1, 1, step), begin_mask=7, end_mask=7)


def turned(x, begin, end):
    """The last head first."""
    return ops.strided_slice(x, (0, H - 1, 0, begin), (2**31 - 1, -H - 1, 2**31 - 1, end), (1, -1, 1, 1))


def paired(a, b, cos, sin):
    return a * cos - b * sin, b * cos + a * sin


def split_rows(x):
    """The halves, by a dimension of two before the last."""
    r = x.reshape(-1, H, S, 2, D // 2)
    return r[..., 0, :], r[..., 1, :]


def stacked(parts, axis=-2):
    return ops.stack(parts, axis).reshape(-1, H, S, D)


def last(*parts):
    return ops.concat([ops.expand_dims(p, -1) for p in parts], -1).reshape(-1, H, S, D)


# name: (mode, what a table is, f(x, cos, sin))
SPELLED = {
    "Hugging Face": (0, wide, lambda x, c, s: x * c + ops.concat((-x[..., D // 2 :], x[..., : D // 2]), -1) * s),
    "Hugging Face, halves by split": (
        0, wide, lambda x, c, s: (lambda a, b: x * c + ops.concat((-b, a), -1) * s)(*ops.split(x, D // 2, -1))),
    "ONNX, ends beyond": (
        0, wide, lambda x, c, s: x * c + ops.concat((ops.neg(cut(x, D // 2, 2**31 - 1)), cut(x, 0, D // 2)), -1) * s),
    "ONNX, times -1": (
        0, wide, lambda x, c, s: x * c + ops.concat((cut(x, D // 2, D) * -1.0, cut(x, 0, D // 2)), -1) * s),
    "halves": (0, None, lambda x, c, s: ops.concat(paired(x[..., : D // 2], x[..., D // 2 :], c, s), -1)),
    "halves by split": (0, None, lambda x, c, s: ops.concat(paired(*ops.split(x, D // 2, -1), c, s), -1)),
    "pairs, concat": (1, None, lambda x, c, s: last(*paired(x[..., ::2], x[..., 1::2], c, s))),
    "pairs, ONNX": (1, None, lambda x, c, s: last(*paired(cut(x, 0, 2**31 - 1, 2), cut(x, 1, 2**31 - 1, 2), c, s))),
    "pairs, stack": (
        1, None, lambda x, c, s: ops.stack(paired(x[..., ::2], x[..., 1::2], c, s), -1).reshape(-1, H, S, D)),
    "pairs, reshaped": (
        1, None, lambda x, c, s: (lambda r: last(*paired(r[..., 0], r[..., 1], c, s)))(x.reshape(-1, H, S, D // 2, 2))),
    "pairs, gathered": (
        1, None, lambda x, c, s: (lambda r: last(*paired(*(
            ops.gather(r, Tensor(np.array(i)), -1) for i in (0, 1)), c, s)))(x.reshape(-1, H, S, D // 2, 2))),
    "pairs, split": (
        1, None, lambda x, c, s: (lambda r: last(*paired(*(
            ops.squeeze(p, -1) for p in ops.split(r, 1, -1)), c, s)))(x.reshape(-1, H, S, D // 2, 2))),
    "GPT-J": (1, wide, lambda x, c, s: x * c + last(-x[..., 1::2], x[..., ::2]) * s),
    "GPT-J, stack": (
        1, wide, lambda x, c, s: x * c + ops.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(-1, H, S, D) * s),
    "minus": (0, wide, lambda x, c, s: x * c - ops.concat((x[..., D // 2 :], -x[..., : D // 2]), -1) * s),
    "minus, halves by split": (
        0, wide, lambda x, c, s: (lambda a, b: x * c - ops.concat((b, -a), -1) * s)(*ops.split(x, D // 2, -1))),
    "minus, pairs": (1, wide, lambda x, c, s: x * c - last(x[..., 1::2], -x[..., ::2]) * s),
    "minus, pairs, stack": (1, wide, lambda x, c, s: x * c - stacked((x[..., 1::2], -x[..., ::2]), -1) * s),
    "halves, reshaped": (0, None, lambda x, c, s: ops.concat(paired(*split_rows(x), c, s), -1)),
    "halves, reshaped, stack": (0, None, lambda x, c, s: stacked(paired(*split_rows(x), c, s))),
    "halves, stack": (0, None, lambda x, c, s: stacked(paired(x[..., : D // 2], x[..., D // 2 :], c, s))),
    "Hugging Face, halves reshaped": (
        0, wide, lambda x, c, s: (lambda a, b: x * c + ops.concat((-b, a), -1) * s)(*split_rows(x))),
    "Hugging Face, halves reshaped, stack": (
        0, wide, lambda x, c, s: (lambda a, b: x * c + stacked((-b, a)) * s)(*split_rows(x))),
}  # fmt: skip

# What is no rotation by these tables, or of other pairs.
NEAR = {
    "halves exchanged": (0, wide, lambda x, c, s: x * c + ops.concat((-x[..., : D // 2], x[..., D // 2 :]), -1) * s),
    "turned back": (0, wide, lambda x, c, s: x * c + ops.concat((x[..., D // 2 :], -x[..., : D // 2]), -1) * s),
    "another cut": (0, wide, lambda x, c, s: x * c + ops.concat((-x[..., 3:], x[..., :3]), -1) * s),
    "backwards": (
        0, wide, lambda x, c, s: x * c + ops.concat((-cut(x, D - 1, D // 2 - 1, -1), cut(x, 0, D // 2)), -1) * s),
    "rows exchanged": (
        0, wide, lambda x, c, s: x * c + ops.concat((-turned(x, D // 2, D), turned(x, 0, D // 2)), -1) * s),
    "one half twice": (0, None, lambda x, c, s: ops.concat(paired(x[..., : D // 2], x[..., : D // 2], c, s), -1)),
    "pairs by the odd first": (1, None, lambda x, c, s: last(*paired(x[..., 1::2], x[..., ::2], c, s))),
    "halves joined as pairs": (1, None, lambda x, c, s: last(*paired(x[..., : D // 2], x[..., D // 2 :], c, s))),
    "pairs of other rows": (
        1, None, lambda x, c, s: (lambda r: last(*paired(r[..., 0, :], r[..., 1, :], c, s)))(
            x.reshape(-1, H, S, 2, D // 2))),
    "minus, turned back": (
        0, wide, lambda x, c, s: x * c - ops.concat((-x[..., D // 2 :], x[..., : D // 2]), -1) * s),
    "minus, halves exchanged": (
        0, wide, lambda x, c, s: x * c - ops.concat((x[..., : D // 2], -x[..., D // 2 :]), -1) * s),
    "minus, the other way round": (
        0, wide, lambda x, c, s: ops.concat((x[..., D // 2 :], -x[..., : D // 2]), -1) * s - x * c),
    "minus, pairs by the even first": (1, wide, lambda x, c, s: x * c - stacked((x[..., ::2], -x[..., 1::2]), -1) * s),
    "pairs joined as halves": (1, None, lambda x, c, s: stacked(paired(x[..., ::2], x[..., 1::2], c, s))),
    "halves stacked as pairs": (0, None, lambda x, c, s: stacked(paired(*split_rows(x), c, s), -1)),
    "halves stacked before the rows": (0, None, lambda x, c, s: stacked(paired(*split_rows(x), c, s), 2)),
    "reshaped halves exchanged": (
        0, None, lambda x, c, s: (lambda a, b: ops.concat(paired(b, a, c, s), -1))(*split_rows(x))),
    "pairs out of a reshape, as halves": (
        0, None, lambda x, c, s: (lambda r: ops.concat(paired(r[..., 0], r[..., 1], c, s), -1))(
            x.reshape(-1, H, S, D // 2, 2))),
}  # fmt: skip


class Rotary(nn.Cell):
    def __init__(self, mode, table, f):
        super().__init__()
        self.f = f
        self.cos, self.sin = (Tensor(t if table is None else table(t, mode)) for t in (COS, SIN))

    def construct(self, x):
        return self.f(x, self.cos, self.sin)


def swapped(report):
    return [s["op"].split("@")[0] for s in report.swapped]


def unproven(net, x, folder, batch=B):
    """The graph of the net, with the swaps that the patterns alone allow, and their report."""
    net.set_inputs(Tensor(shape=[batch, *x.shape[1:]], dtype=opgraft.float32))
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=folder / "net"))
    return graph, rewrite.substitute(graph)


@pytest.mark.parametrize("batch", [B, None], ids=["given", "open"])
@pytest.mark.parametrize("name", SPELLED)
def test_a_spelling_is_swapped(name, batch, tmp_path):
    mode, table, f = SPELLED[name]
    net, x = Rotary(mode, table, f), normal(B, H, S, D)
    graph, report = unproven(net, x, tmp_path, batch)
    assert swapped(report) == ["RotaryPositionEmbedding"], str(report)
    (node,) = [n for n in graph.nodes if n["op"] == "RotaryPositionEmbedding"]
    assert node["attrs"]["mode"] == mode
    net = Rotary(mode, table, f)
    net.set_inputs(Tensor(shape=[batch, H, S, D], dtype=opgraft.float32))
    assert swapped(rewrite.substitute(net, prove=(x,))) == ["RotaryPositionEmbedding"]
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    # Two products and a sum of them, |a cos| + |b sin| <= 2 max |x|.
    close(net(x).asnumpy(), rotary(x.astype(np.float64), mode), 3, 2 * np.abs(x).max())


@pytest.mark.parametrize("batch", [B, None], ids=["given", "open"])
@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_it_is_left_alone(name, batch, tmp_path):
    mode, table, f = NEAR[name]
    net, x = Rotary(mode, table, f), normal(B, H, S, D)
    want = net(x).asnumpy()
    graph, report = unproven(net, x, tmp_path, batch)
    assert "RotaryPositionEmbedding" not in swapped(report)
    np.testing.assert_array_equal(nn.GraphCell(graph)(Tensor(x)).asnumpy(), want)


f32 = opgraft.float32
# A half type, and one rounding to it: the operator computes in float32, too, and rounds at the end.
HALF = {"bfloat16": (ml_dtypes.bfloat16, opgraft.bfloat16, 2.0**-8), "float16": (np.float16, opgraft.float16, 2.0**-11)}


class HalfRotary(Rotary):
    """In float32 between casts; half: the tables, too, are of the half type."""

    def __init__(self, name, to, half=None):
        super().__init__(*SPELLED[name])
        self.to, self.half = to, half is not None
        if self.half:
            self.cos, self.sin = (opgraft.Parameter(Tensor(t.asnumpy().astype(half)), name=n)
                                  for n, t in (("cos", self.cos), ("sin", self.sin)))  # fmt: skip

    def construct(self, x):
        cos, sin = (ops.cast(t, f32) if self.half else t for t in (self.cos, self.sin))
        return ops.cast(self.f(ops.cast(x, f32), cos, sin), self.to)


def graph_and_report(net, x, folder):
    graph = opgraft.load(opgraft.export(net, Tensor(x), file_name=folder / "net"))
    return graph, rewrite.substitute(graph)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("tables", ["float32", "half"])
@pytest.mark.parametrize("name", ["Hugging Face", "halves", "pairs, stack", "minus"])
def test_casts_of_a_half_type_are_taken_in(name, tables, dtype, tmp_path):
    t, to, u = HALF[dtype]
    x, half = normal(B, H, S, D).astype(t), t if tables == "half" else None
    net = HalfRotary(name, to, half)
    before = net(Tensor(x)).asnumpy()
    graph, report = graph_and_report(net, x, tmp_path)
    assert [n["op"] for n in graph.nodes] == ["RotaryPositionEmbedding"], str(report)
    got = nn.GraphCell(graph)(Tensor(x)).asnumpy()
    assert got.dtype == t == before.dtype
    mode, table, _ = SPELLED[name]
    c, s = (wide(y, mode) for y in (COS, SIN))
    c, s = (y.astype(half or np.float32).astype(np.float64) for y in (c, s))
    wide_x = x.astype(np.float64)
    a, b = (wide_x[..., : D // 2], wide_x[..., D // 2 :]) if mode == 0 else (wide_x[..., ::2], wide_x[..., 1::2])
    other = np.concatenate([-b, a], -1) if mode == 0 else np.stack([-b, a], -1).reshape(x.shape)
    want = wide_x * c + other * s
    assert (np.abs(got.astype(np.float64) - want) <= u * np.abs(want) + 3 * 2.0**-24 * 2 * np.abs(wide_x).max()).all()


def test_casts_that_do_not_belong_to_it_stay(tmp_path):
    x = normal(B, H, S, D).astype(ml_dtypes.bfloat16)
    graph, _ = graph_and_report(HalfRotary("Hugging Face", opgraft.float16), x, tmp_path)  # to another half type
    assert [n["op"] for n in graph.nodes] == ["Cast", "RotaryPositionEmbedding", "Cast"]

    class Seen(Rotary):
        """What is turned in float32, or its result, is read elsewhere."""

        def __init__(self, result):
            super().__init__(*SPELLED["Hugging Face"])
            self.result = result

        def construct(self, x):
            wide_x = ops.cast(x, f32)
            y = self.f(wide_x, self.cos, self.sin)
            return ops.cast(y, opgraft.bfloat16), y if self.result else wide_x

    for result in (False, True):
        graph, _ = graph_and_report(Seen(result), x, tmp_path)
        assert [n["op"] for n in graph.nodes] == ["Cast", "RotaryPositionEmbedding", "Cast"]


REST = 4  # elements of longer rows that are not turned


class Partial(Rotary):
    """The spelling `name` for a part of the rows; parts(x): that part, and what follows it."""

    def __init__(self, name, parts, last=True):
        super().__init__(*SPELLED[name])
        self.parts, self.last = parts, last

    def construct(self, x):
        h, rest = self.parts(x)
        y = self.f(h, self.cos, self.sin)
        return ops.concat((y, rest) if self.last else (rest, y), -1)


CUT = {
    "sliced": lambda x: (x[..., :D], x[..., D:]),
    "ONNX": lambda x: (cut(x, 0, D), cut(x, D, 2**31 - 1)),
    "split": lambda x: ops.split(x, [D, REST], -1),
}
OTHER = {
    "the last part": (lambda x: (x[..., REST:], x[..., :REST]), False),
    "exchanged": (lambda x: (x[..., REST:], x[..., :REST]), True),
    "the rest first": (CUT["sliced"], False),
    "another rest": (lambda x: (x[..., :D], x[..., D - 1 : D - 1 + REST]), True),
    "a part of the rest": (lambda x: (x[..., :D], x[..., D + 1 :]), True),
    "the rest backwards": (lambda x: (x[..., :D], cut(x, D + REST - 1, D - 1, -1)), True),
    "a changed rest": (lambda x: (x[..., :D], x[..., D:] + 1.0), True),
}


@pytest.mark.parametrize("batch", [B, None], ids=["given", "open"])
@pytest.mark.parametrize("name,by", [*((name, "sliced") for name in SPELLED), ("halves", "ONNX"), ("GPT-J", "split")])
def test_a_part_of_a_row_is_turned_in_one(name, by, batch, tmp_path):
    net, x = Partial(name, CUT[by]), normal(B, H, S, D + REST)
    graph, report = unproven(net, x, tmp_path, batch)
    assert [n["op"] for n in graph.nodes] == ["RotaryPositionEmbedding"], str(report)
    net = Partial(name, CUT[by])
    net.set_inputs(Tensor(shape=[batch, H, S, D + REST], dtype=opgraft.float32))
    rewrite.substitute(net, prove=(x,))
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    got = net(x).asnumpy()
    assert [n["op"] for n in net._grafted[0][0].graph.nodes] == ["RotaryPositionEmbedding"]
    close(got[..., :D], rotary(x[..., :D].astype(np.float64), SPELLED[name][0]), 3, 2 * np.abs(x).max())
    np.testing.assert_array_equal(got[..., D:], x[..., D:])


@pytest.mark.parametrize("name", ["Hugging Face", "pairs, stack"])
@pytest.mark.parametrize("other", OTHER)
def test_another_part_is_turned_by_itself(name, other, tmp_path):
    net, x = Partial(name, *OTHER[other]), normal(B, H, S, D + REST)
    want = net(x).asnumpy()
    graph, report = unproven(net, x, tmp_path)
    assert swapped(report) == ["RotaryPositionEmbedding"] and "Concat" in [n["op"] for n in graph.nodes], str(report)
    close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), want, 6, 2 * np.abs(x).max() + 1)


def test_a_part_of_a_part():
    """Of rows of D + 2 REST, D + REST are cut out, of which D are turned."""

    class Net(Rotary):
        def construct(self, x):
            h, rest = x[..., : D + REST], x[..., D + REST :]
            y = ops.concat((self.f(h[..., :D], self.cos, self.sin), h[..., D:]), -1)
            return ops.concat((y, rest), -1)

    net, x = Net(*SPELLED["halves"]), normal(B, H, S, D + 2 * REST)
    rewrite.substitute(net, prove=(x,))
    got = net(x).asnumpy()
    assert [n["op"] for n in net._grafted[0][0].graph.nodes] == ["RotaryPositionEmbedding"]
    close(got[..., :D], rotary(x[..., :D].astype(np.float64), 0), 3, 2 * np.abs(x).max())
    np.testing.assert_array_equal(got[..., D:], x[..., D:])


def test_a_table_that_makes_the_result_larger_is_left_alone():
    class Net(nn.Cell):
        def construct(self, x, cos, sin):
            return x * cos + ops.concat((-x[..., D // 2 :], x[..., : D // 2]), -1) * sin

    net = Net()
    assert swapped(rewrite.substitute(net, prove=(normal(1, D), normal(S, D), normal(S, D, seed=1)))) == []


def test_functions():
    x, cos, sin = normal(B, H, S, D), wide(COS, 1), wide(SIN, 1)
    close(
        ops.rotary_position_embedding(x, cos, sin, 1).asnumpy(), rotary(x.astype(np.float64), 1), 3, 2 * np.abs(x).max()
    )
    longer, scale = normal(B, H, S, D + REST), 2 * np.abs(x).max()
    got = ops.rotary_position_embedding(longer, COS, SIN, 1, rotary_dim=D).asnumpy()
    close(got[..., :D], rotary(longer[..., :D].astype(np.float64), 1), 3, 2 * np.abs(longer).max())
    # Query and key, of which the last two tokens begin at position 3 of 5.
    key = x[:, :1]
    both = ops.apply_rotary_pos_emb(x[:, :, 3:], key[:, :, 3:], COS, SIN, np.array(3), rotary_dim=D, layout="BHSD")
    for got, of in zip(both, (x, key)):
        close(got.asnumpy(), rotary(of.astype(np.float64), 0)[:, :, 3:], 3, scale)
    with pytest.raises(TypeError, match="apply_rotary_pos_emb: position_ids"):
        ops.apply_rotary_pos_emb(x, key, COS, SIN, "first")
    np.testing.assert_array_equal(ops.Stack(-1)((x, x)).asnumpy(), np.stack([x, x], -1))
