"""Model files: attributes with MindIR's own names, and small files that would need much memory."""

import pathlib
import resource
import struct
import sys

import numpy as np
import opgraft
import pytest
from opgraft import Tensor, nn, ops

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "custom_ops"


def test_an_attribute_named_shape_survives_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("OPGRAFT_CACHE", str(tmp_path / "cache"))

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first = ops.Custom(f"{SOURCES / 'first.cc'}:First", lambda a: a, lambda a: a, shape=[7, 3])

        def construct(self, x):
            return self.first(x)

    x = Tensor(np.zeros(3, np.float32))
    assert Net()(x).asnumpy().tolist() == [7, 7, 7]
    loaded = nn.GraphCell(opgraft.load(opgraft.export(Net(), x, file_name=tmp_path / "first")))
    assert loaded(x).asnumpy().tolist() == [7, 7, 7]


def varint(n):
    return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])


def field(tag, value):
    """A protobuf field: a number, or text, bytes or a message."""
    if isinstance(value, float):
        return varint(tag << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(tag << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(tag << 3 | 2) + varint(len(value)) + value


@pytest.mark.parametrize("numbers,references", [(2000, 4000), (20000, 15000)])
def test_a_tuple_that_names_a_long_tuple_many_times_is_refused(tmp_path, numbers, references):
    tensor = field(1, 4) + field(2, 1)

    def node(op, name, inputs, attribute=b""):
        named = b"".join(field(1, i) for i in inputs)
        return field(1, named + field(2, name) + field(3, name) + field(4, op) + attribute)

    constant = field(5, field(1, "value") + field(16, 20) + field(10, b"\1" * numbers))
    graph = (field(2, "g") + field(5, field(1, "x") + field(2, tensor)) + node("Constant", "c", [], constant)
             + node("MakeTuple", "t", ["c"] * references) + node("Reshape", "y", ["x", "t"])
             + field(6, field(1, "y") + field(2, tensor)))  # fmt: skip
    file = tmp_path / "small.mindir"
    file.write_bytes(field(1, "1.1") + field(5, "2.0") + field(7, graph) + field(10, 1))
    assert file.stat().st_size < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="a tuple of too many elements"):
        opgraft.load(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def model(*parts):
    return field(1, "1.1") + field(5, "2.0") + field(7, field(2, "g") + b"".join(parts)) + field(10, 1)


def node(op, name, inputs, *attributes):
    named = b"".join(field(1, i) for i in inputs) + field(2, name) + field(3, name) + field(4, op)
    return field(1, named + b"".join(field(5, a) for a in attributes))


def constant(name, value):
    return node("Constant", name, [], field(1, "value") + value)


def floats(dims, dtype=1):
    return b"".join(field(1, d) for d in dims) + field(2, dtype)


def test_tuples_of_numbers_as_mindspore_writes_them(tmp_path):
    one = field(17, field(10, varint(1)) + field(16, 7))  # TUPLE { values { ints: 1 type: INT64 } }
    both = field(17, field(10, varint(0)) + field(16, 7)) + field(17, field(10, varint(1)) + field(16, 7))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for values, axis in [(one, (1,)), (both, (0, 1))]:
        file = tmp_path / "m.mindir"
        file.write_bytes(model(
            field(5, field(1, "x") + field(2, floats([2, 3]))), constant("axis", values + field(16, 20)),
            constant("keep", field(3, 1) + field(16, 9)), node("ReduceSum", "y", ["x", "axis", "keep"]),
            field(6, field(1, "y") + field(2, floats([])))))  # fmt: skip
        got = nn.GraphCell(opgraft.load(file))(Tensor(x)).asnumpy()
        np.testing.assert_array_equal(got, x.sum(axis, keepdims=True))


@pytest.mark.parametrize("number,code", [(1, np.float32), (10, np.float16)])
def test_a_number_beside_a_tensor_has_its_dtype(tmp_path, number, code):
    file = tmp_path / "m.mindir"
    half = constant("half", field(2, 0.5) + field(16, 1))
    file.write_bytes(model(
        field(5, field(1, "x") + field(2, floats([3], number))), half, node("Muls", "y", ["x", "half"]),
        field(6, field(1, "y") + field(2, floats([3], number)))))  # fmt: skip
    got = nn.GraphCell(opgraft.load(file))(Tensor(np.array([1, 2, -4], code)))
    assert got.dtype == code and got.asnumpy().tolist() == [0.5, 1, -2]


def one_node(*parts, inputs=("x",), shape=(2, 3)):
    given = [field(5, field(1, name) + field(2, floats(shape))) for name in inputs]
    return model(*given, *parts, field(6, field(1, "y") + field(2, floats(shape))))


def loaded(tmp_path, data):
    (tmp_path / "m.mindir").write_bytes(data)
    return opgraft.load(tmp_path / "m.mindir")


NONE, TRUE, ALPHA = field(16, 25), field(3, 1) + field(16, 9), lambda n: field(3, n) + field(16, 7)


def test_primitives_with_operands_of_their_own(tmp_path):
    """op.yaml's `names` with `mindir`: another order, operands that must be None or a number."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    add = one_node(constant("a", ALPHA(1)), node("AddExt", "y", ["x", "x", "a"]))
    graph = loaded(tmp_path, add)
    assert [n["op"] for n in graph.nodes] == ["Add"]
    np.testing.assert_array_equal(nn.GraphCell(graph)(Tensor(x)).asnumpy(), x + x)
    mean = [constant("k", TRUE), constant("n", NONE), node("MeanExt", "y", ["x", "n", "k", "n"])]
    np.testing.assert_array_equal(
        nn.GraphCell(loaded(tmp_path, one_node(*mean)))(Tensor(x)).asnumpy(), x.mean(keepdims=True))  # fmt: skip
    fill = [node("Greater", "m", ["x", "z"]), constant("v", field(2, -1.5) + field(16, 1)),
            node("MaskedFillScalar", "y", ["x", "m", "v"])]  # fmt: skip
    graph = loaded(tmp_path, one_node(*fill, inputs=("x", "z")))
    got = nn.GraphCell(graph)(Tensor(x), Tensor(np.full_like(x, 2))).asnumpy()
    np.testing.assert_array_equal(got, np.where(x > 2, np.float32(-1.5), x))


@pytest.mark.parametrize("parts,why", [
    ([constant("a", ALPHA(2)), node("AddExt", "y", ["x", "x", "a"])], "operand 2 must be 1"),
    ([node("AddExt", "y", ["x", "x", "x"])], "operand 2 must be 1"),
    ([constant("k", TRUE), constant("n", NONE), constant("d", ALPHA(42)), node("MeanExt", "y", ["x", "n", "k", "d"])],
     "operand 3 must be None"),
    ([node("MaskedFillScalar", "y", ["x"])], "input cond is missing before others"),
    ([node("AddExt", "y", ["x", "x", "x", "x"])], "operand 2 must be 1"),
])  # fmt: skip
def test_operands_that_do_not_fit(tmp_path, parts, why):
    with pytest.raises(ValueError, match=why):
        loaded(tmp_path, one_node(*parts))


def test_without_its_operator_a_grafted_node_runs_what_it_replaced(tmp_path, capfd):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Dense(3, 4), nn.Dense(4, 2)

        def construct(self, x):
            h = ops.gelu(self.up(x), approximate="none")
            return self.down(h), h

    x = Tensor(np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3))
    graph = opgraft.load(opgraft.export(Net(), x, file_name=tmp_path / "net"))
    plain = nn.GraphCell(graph)(x)
    names = sorted(n["op"] for n in graph.nodes)
    opgraft._core.substitute(graph, opgraft._core.rules(), None, False, None)
    grafted = tmp_path / "grafted.mindir"
    opgraft._core.write_mindir(graph, str(grafted))
    data = grafted.read_bytes()
    assert data.count(b"Dense@1.0.0") >= 2
    # No operator of that name is anywhere.
    gone = data.replace(b"Dense@1.0.0", b"Danse@1.0.0").replace(b":Dense", b":Danse")
    (tmp_path / "gone.mindir").write_bytes(gone)
    (tmp_path / "gone_variables").symlink_to(tmp_path / "grafted_variables")
    back = opgraft.load(tmp_path / "gone.mindir")
    assert capfd.readouterr().err.count("its original subgraph runs instead: ") == 2
    assert sorted(n["op"] for n in back.nodes) == names
    for got, want in zip(nn.GraphCell(back)(x), plain, strict=True):
        np.testing.assert_array_equal(got.asnumpy(), want.asnumpy())
    with pytest.raises(ValueError, match="Danse"):
        (tmp_path / "gone.mindir").write_bytes(gone.replace(b"opgraft_fallback", b"opgraft_fallbock"))
        opgraft.load(tmp_path / "gone.mindir")


def test_a_layout_under_either_of_its_names(tmp_path):
    """MindSpore's pools may say data_format where opgraft's op.yaml has format: NHWC is not taken for NCHW."""
    sys.path.insert(0, str(SOURCES.parent / "fuzz" / "seeds"))
    import mindir as wire

    def text(name, value):
        return wire.attribute(name, wire.A_STRING, (5, value))

    given = np.random.default_rng(0).standard_normal((1, 8, 8, 2)).astype(np.float32)
    largest = {"NCHW": given.reshape(1, 8, 4, 2, 1, 2).max((3, 5)), "NHWC": given.reshape(1, 4, 2, 4, 2, 2).max((2, 4))}
    for layout in (*largest, "NCDHW"):
        attributes = [
            wire.many(wire.A_TUPLE, *(wire.integer(n) for n in (1, 1, 2, 2)), name="kernel_size"),
            wire.many(wire.A_TUPLE, *(wire.integer(n) for n in (1, 1, 2, 2)), name="strides"),
            text("pad_mode", "VALID"),
            text("data_format", layout),
        ]
        pool = wire.message((1, "MaxPool:1"), (2, "MaxPool"), *((3, a) for a in attributes))
        file = tmp_path / f"{layout}.mindir"
        call, x = wire.node("REF::MaxPool:1", ["x"], "y"), wire.value("x", (1, 8, 8, 2))
        file.write_bytes(wire.model([call], ["y"], [x], primitives=[pool]))
        if layout in largest:
            np.testing.assert_array_equal(nn.GraphCell(opgraft.load(file))(given).asnumpy(), largest[layout])
        else:
            with pytest.raises(ValueError, match="format must be NCHW or NHWC, got 'NCDHW'"):
                opgraft.load(file)
