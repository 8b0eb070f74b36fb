"""SwiGLU whose gate and x are parts of one tensor that Reshape makes, or halves of its channels."""

import numpy as np
import opgraft
import pytest
from compare import SILU, cases, close, graft, left, normal
from opgraft import Tensor, nn, ops, rewrite

D = 19


def p(name, *inputs, **attrs):
    return ops.primitive(name, *inputs, **attrs)


def two(x, last):
    """x [..., 2 D] as [..., D, 2] or [..., 2, D]."""
    return x.reshape(*x.shape[:-1], *((D, 2) if last else (2, D)))


# f(x reshaped, the axis of its two parts): (the first part, the second).
PARTED = {
    "index": lambda r, axis: (r[..., 0], r[..., 1]) if axis == -1 else (r[..., 0, :], r[..., 1, :]),
    "gather": lambda r, axis: [ops.gather(r, Tensor(np.array(i)), axis) for i in (0, 1)],
    "split and squeeze": lambda r, axis: [ops.squeeze(s, axis) for s in ops.split(r, 1, axis)],
    "split and reshape": lambda r, axis: [s.reshape(-1, *[5] * (len(r.shape) - 3), D) for s in ops.split(r, 1, axis)],
    "ONNX split and squeeze": lambda r, axis: [
        p("Squeeze", s, axis=[axis % len(r.shape)]) for s in p("Split", r, axis=axis % len(r.shape), output_num=2)
    ],
    "unbind": lambda r, axis: ops.unbind(r, axis),
}
GATES = {
    "silu": lambda a, b: ops.silu(a) * b,
    "sigmoid": lambda a, b: b * (a * ops.sigmoid(a)),
    "ONNX": lambda a, b: p("Mul", p("Mul", a, p("Sigmoid", a)), b),
}


def halves(x, dim, gate_first):
    return cases("swiglu").swiglu_halves(x.astype(np.float64), dim, gate_first)


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("by", PARTED)
@pytest.mark.parametrize("last", [False, True], ids=["[2, d]", "[d, 2]"])
def test_parts_of_a_reshape(last, by, gate, gate_first, tmp_path):
    x = normal(3, 5, 2 * D)

    def write(x):
        first, second = PARTED[by](two(x, last), -1 if last else -2)
        return GATES[gate](first, second) if gate_first else GATES[gate](second, first)

    name = "SwiGLUInterleaved" if last else "Swiglu"
    assert left(write, [x], tmp_path) == [name]
    names, _, (got,) = graft(write, x)
    assert names == [name]
    want = cases("swiglu").interleaved(x.astype(np.float64), gate_first) if last else halves(x, -1, gate_first)
    close(got, want, SILU + 1)


# Channels, the dimension before those of an image, by slices and by Split.
CHANNELS = {
    "slices": lambda x: (x[:, :3], x[:, 3:]),
    "ONNX": lambda x: [
        p("StridedSlice", x, np.array([0, i, 0, 0]), np.array([2**31 - 1, e, 2**31 - 1, 2**31 - 1]), np.ones(4, int),
          begin_mask=13, end_mask=13, ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0)
        for i, e in ((0, 3), (3, 2**31 - 1))
    ],
    "split": lambda x: ops.split(x, 3, 1),
}  # fmt: skip


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("by", CHANNELS)
def test_halves_of_the_channels(by, gate_first, tmp_path):
    x = normal(2, 6, 5, 7)

    def write(x):
        first, second = CHANNELS[by](x)
        return ops.silu(first) * second if gate_first else ops.silu(second) * first

    assert left(write, [x], tmp_path) == ["Swiglu"]
    names, _, (got,) = graft(write, x)
    assert names == ["Swiglu"]
    close(got, halves(x, 1, gate_first), SILU + 1)


@pytest.mark.parametrize("last", [False, True], ids=["[2, d]", "[d, 2]"])
@pytest.mark.parametrize("by", PARTED)
def test_with_open_rows(by, last, tmp_path):
    class Net(nn.Cell):
        def construct(self, x):
            r = x.reshape(-1, *((D, 2) if last else (2, D)))
            first, second = PARTED[by](r, -1 if last else -2)
            return ops.silu(first) * second

    rows = Tensor(shape=[None, 2 * D], dtype=opgraft.float32)
    graph = opgraft.load(opgraft.export(Net(), rows, file_name=str(tmp_path / "net")))
    rewrite.substitute(graph)
    assert [n["op"] for n in graph.nodes] == ["SwiGLUInterleaved" if last else "Swiglu"]
    for rows in (1, 7, 0):
        x = normal(rows, 2 * D)
        want = cases("swiglu").interleaved(x.astype(np.float64), True) if last else halves(x, -1, True)
        close(nn.GraphCell(graph)(Tensor(x)).asnumpy(), want, SILU + 1)


@pytest.mark.parametrize("shape,last", [((3, 5, 2, D), False), ((3, 5, D, 2), True)])
def test_a_tensor_that_comes_in_parts_is_taken_as_two(shape, last, tmp_path):
    """The operators of one tensor keep the dimension that the parts lie along: of [..., 2, d] they make [..., 1, d]."""
    x = normal(*shape)

    def write(x):
        first, second = PARTED["index"](x, -1 if last else -2)
        return ops.silu(first) * second

    found = left(write, [x], tmp_path)
    assert found == ["StridedSlice", "StridedSlice", "SwiGLU"]
    _, _, (got,) = graft(write, x)
    gate, up = (np.moveaxis(x.astype(np.float64), -1 if last else -2, 0))[:2]
    close(got, cases("swiglu").silu(gate) * up, SILU + 1)


@pytest.mark.parametrize("write", [
    lambda x: (lambda r: ops.silu(r[..., 0, :]) * r[..., 0, :])(two(x, False)),  # one part twice
    lambda x: (lambda r: ops.silu(r[..., 0]) * r[..., 0])(two(x, True)),
    lambda x: (lambda r: ops.silu(r[:, 0]) * r[:, 1])(x.reshape(3, 2, 5, D)),  # of other rows
    lambda x: (lambda r: ops.silu(r[0]) * r[1])(x.reshape(2, 3, 5, D)),
    lambda x: (lambda r: ops.silu(r[..., 0, :]) * r[..., 2, :])(x[..., :36].reshape(3, 5, 3, 12)),
    lambda x: (lambda r: ops.silu(r[..., 0, 1:]) * r[..., 1, 1:])(two(x, False)),  # not all of a part
    lambda x: ops.silu(x[:, :2]) * x[:, 3:],  # not all of them
    lambda x: ops.silu(x[:, 1:3]) * x[:, 2:4],
    lambda x: (lambda r: ops.silu(r[..., 0, :]) * r[..., 1, :] + r[..., 1, :])(two(x, False)),  # a part is used again
    lambda x: (lambda a, b: ops.silu(a) * b + a)(*ops.unbind(two(x, False), -2)),
    lambda x: (lambda a, b: ops.silu(a) * a + b)(*ops.unbind(two(x, True), -1)),
    lambda x: (lambda a, b, _: ops.silu(a) * b)(*ops.unbind(x[..., :36].reshape(3, 5, 3, 12), -2)),
    lambda x: (lambda a, b: ops.silu(a) * b)(*ops.unbind(x.reshape(3, 2, 5, D), 1)),  # of other rows
])  # fmt: skip
def test_what_are_not_the_two_halves(write):
    x = normal(3, 5, 2 * D)
    names, before, after = graft(write, x, prove=False)
    assert not {"Swiglu", "SwiGLUInterleaved"} & set(names)
    # SwiGLU of two tensors may take it: both sides' roundings.
    close(after[0], before[0], 2 * (SILU + 1) + 1, np.abs(x).max())
