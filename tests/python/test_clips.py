"""ReLU and ReLU6 as Maximum and Minimum spell them, outside a layer."""

import ml_dtypes
import numpy as np
import opgraft
import pytest
from compare import graft, left, normal
from opgraft import Tensor, nn, ops, rewrite


def p(name, *inputs, **attrs):
    """A primitive as it stands, numbers as constants of float32."""
    return ops.primitive(name, *[np.float32(x) if isinstance(x, float) else x for x in inputs], **attrs)


RELU = {
    "maximum": lambda x: ops.maximum(x, 0.0),
    "maximum, zero first": lambda x: ops.maximum(Tensor(np.zeros((), np.float32)), x),
    "ONNX": lambda x: p("Maximum", x, 0.0),
    "ONNX, clip": lambda x: p("ClampScalar", x, min=0.0, max=float("inf")),
}
RELU6 = {
    "minimum of maximum": lambda x: ops.minimum(ops.maximum(x, 0.0), 6.0),
    "maximum of minimum": lambda x: ops.maximum(ops.minimum(x, 6.0), 0.0),
    "minimum of relu": lambda x: ops.minimum(ops.relu(x), 6.0),
    "numbers first": lambda x: p("Minimum", np.float32(6), p("Maximum", np.float32(0), x)),
    "ONNX": lambda x: p("Minimum", p("Maximum", x, 0.0), 6.0),
    "ONNX, clip": lambda x: p("ClampScalar", x, min=0.0, max=6.0),
    "ONNX, relu": lambda x: p("Minimum", p("ReLU", x), 6.0),
}
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 6.0, 6.000001, 5.999999, 1e-40, -1e-40, 3e38, -3e38], np.float32
)


def spelled():
    return [(name, "ReLU", f) for name, f in RELU.items()] + [(name, "ReLU6", f) for name, f in RELU6.items()]


@pytest.mark.parametrize("name,op,write", spelled(), ids=[f"{op}, {name}" for name, op, _ in spelled()])
def test_a_spelling_is_swapped(name, op, write, tmp_path):
    x = np.concatenate([normal(50) * 6, SPECIAL])
    want = np.where(x < 0, 0, x) if op == "ReLU" else np.where(x < 0, 0, np.where(x > 6, 6, x))
    assert left(write, [x], tmp_path) == [op]
    names, before, (got,) = graft(write, x)
    assert names == [op]
    np.testing.assert_array_equal(got, want.astype(np.float32))
    np.testing.assert_array_equal(got, before[0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["ReLU", "ReLU6"])
def test_of_half_types(op, dtype, tmp_path):
    x = np.concatenate([normal(50) * 6, SPECIAL]).astype(dtype)
    zero, six = (Tensor(np.array(v).astype(dtype)) for v in (0, 6))

    def write(x):
        y = ops.maximum(x, zero)
        return ops.minimum(y, six) if op == "ReLU6" else y

    assert left(write, [x], tmp_path) == [op]
    _, before, after = graft(write, x)
    np.testing.assert_array_equal(after[0].astype(np.float32), before[0].astype(np.float32))


class Beside(nn.Cell):
    """What is between Maximum and Minimum is read elsewhere."""

    def construct(self, x):
        y = ops.maximum(x, 0.0)
        return ops.minimum(y, 6.0), y


def test_what_is_read_elsewhere_stays():
    net, x = Beside(), normal(40) * 6
    rewrite.substitute(net, prove=(x,))
    assert [n["op"] for n in net._grafted[0][0].graph.nodes] == ["ReLU", "Minimum"]
    got = [y.asnumpy() for y in net(x)]
    np.testing.assert_array_equal(got[0], np.clip(x, 0, 6))
    np.testing.assert_array_equal(got[1], np.maximum(x, 0))


@pytest.mark.parametrize("write", [
    lambda x: ops.maximum(x, 0.5),
    lambda x: ops.minimum(x, 0.0),
    lambda x: ops.minimum(ops.maximum(x, 0.0), 5.0),
    lambda x: ops.minimum(ops.maximum(x, -1.0), 6.0),
    lambda x: ops.maximum(ops.minimum(x, 0.0), 6.0),
    lambda x: ops.minimum(ops.maximum(x, 6.0), 0.0),
    lambda x: p("ClampScalar", x, min=-6.0, max=6.0),
    lambda x: ops.maximum(x, Tensor(np.zeros(40, np.float32))),  # no single number
])  # fmt: skip
def test_other_limits_stay(write):
    x = normal(40) * 6
    names, before, after = graft(write, x, prove=False)
    assert "ReLU6" not in names
    if names:  # 0 and another limit
        assert names == ["ReLU"]
    np.testing.assert_array_equal(after[0], before[0])


def test_a_number_that_adds_dimensions_stays(tmp_path):
    x = normal(40)
    graph = opgraft.load(opgraft.export(
        nn.SequentialCell(Widening()), Tensor(x), file_name=str(tmp_path / "net")))  # fmt: skip
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["Maximum"]
    np.testing.assert_array_equal(nn.GraphCell(graph)(Tensor(x)).asnumpy(), np.maximum(x, 0)[None])


class Widening(nn.Cell):
    def construct(self, x):
        return ops.maximum(x, Tensor(np.zeros((1, 1), np.float32)))


def test_larger_patterns_take_maximum_first():
    """A Maximum with 0 is left for operators that are made of one: a norm's variance, a picture's colours."""
    x = normal(2, 3, 6, 5)

    def picture(x):
        m = Tensor(np.array([[0.393, 0.769, 0.189], [0.349, 0.686, 0.168], [0.272, 0.534, 0.131]], np.float32))
        y = p("Transpose", p("MatMul", p("Transpose", x, perm=[0, 2, 3, 1]), m, transpose_b=True), perm=[0, 3, 1, 2])
        return ops.minimum(ops.maximum(y, 0.0), 1.0)

    names, _, (got,) = graft(picture, x)
    assert names == ["Sepia"] and got.min() >= 0 and got.max() <= 1

    def norm(x):
        m = ops.mean(x, -1, keep_dims=True)
        v = ops.mean(x * x, -1, keep_dims=True) - m * m
        return (x - m) / ops.sqrt(ops.maximum(v, 0.0) + 1e-5)

    names, _, _ = graft(norm, x)
    assert names == ["FusedLayerNorm"]
