"""Model files: attributes with MindIR's own names, and small files that would need much memory."""

import pathlib
import resource

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
