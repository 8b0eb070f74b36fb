"""Models in files: names of inputs and outputs, open dimensions, and the same results after export and load."""

import pathlib
import re

import numpy as np
import opgraft
import pytest
from compare import SILU, close
from opgraft import Tensor, nn, ops, rewrite

RNG = np.random.default_rng(3)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def loaded(net, *inputs, folder):
    return nn.GraphCell(opgraft.load(opgraft.export(net, *inputs, file_name=folder / "net")))


def names(cell):
    return [cell.graph.value_name(v) for v in cell.graph.inputs]


class Encoder(nn.Cell):
    """Attention without projections, over tokens: sizes in a reshape, a broadcast mask, a position table."""

    def __init__(self):
        super().__init__()
        self.table, self.position = nn.Embedding(50, 8), nn.Embedding(64, 8)

    def construct(self, ids, mask, positions):
        x = self.table(ids) + self.position(positions)
        batch, length, width = x.shape
        heads = x.reshape(batch, length, 2, width // 2).transpose(0, 2, 1, 3)
        scores = ops.bmm(heads, heads, transpose_b=True) + (1.0 - mask.expand_dims(1).expand_dims(1)) * -1e4
        mixed = ops.bmm(ops.softmax(scores), heads).transpose(0, 2, 1, 3).reshape(batch, length, width)
        weight = mask.expand_dims(-1)
        return ops.sum(mixed * weight, 1) / ops.sum(weight, 1)


def tokens(batch, length):
    mask = np.ones((batch, length), np.float32)
    mask[:, length // 2 + 1 :] = 0
    return RNG.integers(0, 50, (batch, length)).astype(np.int32), mask, np.arange(length, dtype=np.int32)


def placeholders(batch, length):
    return [
        Tensor(shape=[batch, length], dtype=opgraft.int32),
        Tensor(shape=[batch, length], dtype=opgraft.float32),
        Tensor(shape=[length], dtype=opgraft.int32),
    ]


@pytest.mark.parametrize("named", [True, False])
def test_open_dimensions_run_at_any_size(tmp_path, named):
    net = Encoder()
    sizes = (opgraft.dim("batch"), opgraft.dim("length")) if named else (None, None)
    cell = loaded(net, *placeholders(*sizes), folder=tmp_path)
    assert names(cell) == ["ids", "mask", "positions"]
    for batch, length in [(1, 32), (8, 64), (3, 1), (2, 17)]:
        given = tokens(batch, length)
        np.testing.assert_array_equal(cell(*given).asnumpy(), net(*given).asnumpy())
    if named:
        with pytest.raises(ValueError, match=r"input mask.shape must be \(batch, length\), got \(2, 5\)"):
            cell(*tokens(3, 5)[:1], *tokens(2, 5)[1:])


def test_given_sizes_stay(tmp_path):
    net = Encoder()
    cell = loaded(net, *map(Tensor, tokens(2, 5)), folder=tmp_path)
    cell(*tokens(2, 5))
    with pytest.raises(ValueError, match=r"input ids.shape must be \(2, 5\), got \(3, 5\)"):
        cell(*tokens(3, 5))


def test_a_table_is_cut_at_a_length_that_is_open(tmp_path):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table = opgraft.Parameter(floats(64, 4))

        def construct(self, x):
            length = x.shape[0]
            shifted = x + self.table[:length]
            shapes.append(repr(shifted.shape))
            return shifted[1:] * self.table[1:length]

    shapes, net = [], Net()
    cell = loaded(net, Tensor(shape=[opgraft.dim("length"), 4], dtype=opgraft.float32), folder=tmp_path)
    assert shapes == ["(length, 4)"]
    for length in (1, 2, 64):
        x = floats(length, 4)
        np.testing.assert_array_equal(cell(x).asnumpy(), net(x).asnumpy())
    with pytest.raises(ValueError, match=r"node .*: Add: .*\[inputs: float32\(65, 4\), float32\(64, 4\)\]"):
        cell(floats(65, 4))


class Gate(nn.Cell):
    def construct(self, x, gate):
        return x * ops.silu(gate)


def test_a_substituted_cell_keeps_its_open_dimensions(tmp_path):
    net = Gate()
    sets = [(floats(2, 6), floats(2, 6)), (floats(5, 6), floats(5, 6))]
    assert rewrite.substitute(net, prove=sets).swapped
    row = [Tensor(shape=[opgraft.dim("rows"), 6], dtype=opgraft.float32)] * 2
    unnamed = loaded(net, *[Tensor(shape=[None, 6], dtype=opgraft.float32)] * 2, folder=tmp_path)
    cell = loaded(net, *row, folder=tmp_path)
    assert "x: float32(rows, 6)" in cell.graph.dump()
    assert names(cell) == ["x", "gate"]
    assert [n["grafted"] for n in cell.graph.nodes] == [True]
    for rows in (1, 9):
        given = floats(rows, 6), floats(rows, 6)
        close(cell(*given).asnumpy(), Gate()(*given).asnumpy(), 2 * (SILU + 1))
        np.testing.assert_array_equal(unnamed(*given).asnumpy(), cell(*given).asnumpy())
    with pytest.raises(ValueError, match=r"export: inputs must fit the substituted graph's shapes \[\('\?', 6\)"):
        opgraft.export(net, *[Tensor(shape=[None, None], dtype=opgraft.float32)] * 2, file_name=tmp_path / "wider")


def test_names_of_arguments_and_results(tmp_path):
    class Net(nn.Cell):
        def construct(self, pair, *rest, scale=2.0):
            left, right = pair
            return {"sum": left + right, "parts": (rest[0] * scale, rest[1])}

    cell = loaded(Net(), (floats(3), floats(3)), floats(2), floats(2), folder=tmp_path)
    assert names(cell) == ["pair_0", "pair_1", "rest_0", "rest_1"]
    assert cell.graph.output_names == ["sum", "parts_0", "parts_1"]

    class Two(nn.Cell):
        def construct(self, x):
            return x, x + 1

    assert loaded(Two(), floats(2), folder=tmp_path).graph.output_names == ["output0", "output1"]
    assert loaded(nn.ReLU(), floats(2), folder=tmp_path).graph.output_names == ["output"]


ROUND_TRIPS = {
    "concat": lambda x, y: ops.concat([x, y, x], axis=1),
    "split": lambda x, y: ops.Split(1, 3)(x),
    "tile": lambda x, y: ops.tile(x, (1, 2)),
    "tile to its size": lambda x, y: ops.tile(y, (x.shape[0], 1)),
    "squeeze": lambda x, y: (ops.squeeze(x.reshape(1, -1, 1, 6)), ops.squeeze(x.reshape(1, -1, 1, 6), 2)),
    "broadcast": lambda x, y: ops.broadcast_to(x.expand_dims(0), (4, -1, -1)),
    "slice": lambda x, y: (x[1:, ::2], x[..., -1], x[0]),
    "gather": lambda x, y: ops.gather(x, np.array([2, 0], np.int32), axis=1),
    "cast": lambda x, y: ops.cast(x, opgraft.float16),
    "reduce": lambda x, y: (ops.mean(x, (0, 1)), ops.sum(x, -1, keepdim=True)),
    "custom": lambda x, y: ops.Custom.from_op("SwiGLU")(x, y),
    "shape arithmetic": lambda x, y: x.reshape(x.shape[0] * 2, x.shape[1] // 2),
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_the_file_computes_the_same_bits(tmp_path, name):
    class Net(nn.Cell):
        def construct(self, x, y):
            return ROUND_TRIPS[name](x, y)

    row = Tensor(shape=[opgraft.dim("rows"), 6], dtype=opgraft.float32)
    cell = loaded(Net(), row, row, folder=tmp_path)
    for rows in (3, 5):
        x, y = floats(rows, 6), floats(rows, 6)
        want, got = Net()(x, y), cell(x, y)
        pairs = zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]
        for a, b in pairs:
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


class Around(nn.Cell):
    """A loaded model inside another."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def construct(self, *inputs):
        return self.inner(*[x * 1.0 for x in inputs])


@pytest.mark.parametrize("how", ["jit", "graph mode"])
def test_a_loaded_model_inside_another_takes_its_own_sizes_only(tmp_path, how):
    fixed = Around(loaded(Gate(), floats(2, 4), floats(2, 4), folder=tmp_path))
    rows = opgraft.dim("rows")
    row = [Tensor(shape=[rows, n], dtype=opgraft.float32) for n in (None, 1)]
    tied = Around(loaded(Gate(), *row, folder=tmp_path))
    if how == "graph mode":
        opgraft.set_context(mode=opgraft.GRAPH_MODE)
    run = {cell: opgraft.jit(lambda *a, cell=cell: cell(*a)) if how == "jit" else cell for cell in (fixed, tied)}
    for cell, shapes, text in [
        (fixed, [(3, 4), (3, 4)], "model: input x.shape must be (2, 4), got (3, 4)"),
        (fixed, [(2, 4), (2, 4)], None),
        (fixed, [(3, 4), (3, 4)], "model: input x.shape must be (2, 4), got (3, 4)"),
        (fixed, [(2, 4), (1, 2, 4)], "model: input gate.shape must be (2, 4), got (1, 2, 4)"),
        (tied, [(3, 4), (1, 1)], "model: input gate.shape must be (rows, 1), got (1, 1)"),
        (tied, [(3, 4), (3, 1)], None),
        (tied, [(5, 6), (5, 1)], None),
        (tied, [(7, 6), (1, 1)], "model: input gate.shape must be (rows, 1), got (1, 1)"),
    ]:
        given = [floats(*s) for s in shapes]
        if text is None:
            close(run[cell](*given).asnumpy(), Gate()(*given).asnumpy(), 2 * (SILU + 1))
            continue
        for call in (cell.inner, run[cell]):
            with pytest.raises(ValueError, match=re.escape(text)):
                call(*given)


def test_open_dimensions_around_a_loaded_model(tmp_path):
    fixed, open_ = (
        Around(loaded(nn.ReLU(), Tensor(shape=[n, 4], dtype=opgraft.float32), folder=tmp_path)) for n in (2, None)
    )
    rows = Tensor(shape=[opgraft.dim("rows"), 4], dtype=opgraft.float32)
    cell = loaded(open_, rows, folder=tmp_path)
    assert cell(floats(3, 4)).shape == (3, 4)
    with pytest.raises(ValueError, match=re.escape("input x.shape must be (2, 4), got (rows, 4)")):
        opgraft.export(fixed, rows, file_name=tmp_path / "never")


class Mixed(nn.Cell):
    def construct(self, pair, scale, rest=None):
        left, right = pair
        return left * right * scale + (0.0 if rest is None else rest["bias"])


@pytest.mark.parametrize("rest", [(), ({"bias": Tensor(shape=[3], dtype="float32")},)])
def test_declared_inputs_keep_constants_and_structure(tmp_path, rest):
    row = Tensor(shape=[opgraft.dim("rows"), 3], dtype=opgraft.float32)
    net, declared = Mixed(), ((row, row), 3.0, *rest)
    net.set_inputs(*declared)
    assert net.get_inputs() == declared
    cell = loaded(net, folder=tmp_path)
    assert names(cell) == ["pair_0", "pair_1", *(["rest_bias"] if rest else [])]
    x, bias = floats(4, 3), [floats(3)] if rest else []
    want = Mixed()((x, x), 3.0, *({"bias": b} for b in bias))
    np.testing.assert_array_equal(cell(x, x, *bias).asnumpy(), want.asnumpy())
    assert names(loaded(net, (x, x), 2.0, folder=tmp_path)) == ["pair_0", "pair_1"]  # what is given comes first


def test_weights_of_eight_bits_stay_so_in_the_file_and_in_the_graph(tmp_path):
    """A Cell that widens them while it is traced would hold, and write, four times the memory, and no operator for
    such weights could take its place."""

    class Widening(nn.Cell):
        def __init__(self, turned):
            super().__init__()
            w = RNG.integers(-127, 128, (64, 96)).astype(np.int8)
            self.weight = opgraft.Parameter(Tensor(w.T.copy() if turned else w), name="weight")
            self.scale = opgraft.Parameter(Tensor(0.01 + abs(floats(96))), name="scale")
            self.turned = turned

        def construct(self, x):
            w = self.weight.transpose(1, 0) if self.turned else self.weight
            return ops.matmul(x, ops.cast(w, opgraft.float32) * self.scale)

    x = floats(3, 64)
    for turned, names in [(False, ["Cast", "Mul", "MatMul"]), (True, ["Transpose", "Cast", "Mul", "MatMul"])]:
        net = Widening(turned)
        w = net.weight.asnumpy().astype(np.float64)
        want = x.astype(np.float64) @ ((w.T if turned else w) * net.scale.asnumpy())
        file = pathlib.Path(opgraft.export(net, Tensor(x), file_name=tmp_path / "net"))
        assert file.stat().st_size < 2 * w.size, "the file holds something wider than eight bits"
        graph = opgraft.load(file)
        assert [n["op"] for n in graph.nodes] == names
        bound = np.abs(x) @ np.abs((w.T if turned else w) * net.scale.asnumpy())
        close(net(Tensor(x)).asnumpy(), want, 64 + 2, scale=bound)
        if not turned:
            rewrite.substitute(net, prove=(x,))
            assert [n["op"] for n in net._grafted[0][0].graph.nodes] == ["WeightQuantBatchMatmul"]
            close(net(Tensor(x)).asnumpy(), want, 64 + 2, scale=bound)
