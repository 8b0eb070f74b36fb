"""Typical mistakes: the Python kind and a message that names operator, argument, what was expected and what came."""

import re

import numpy as np
import opgraft
import pytest
from opgraft import Parameter, Tensor, nn, ops

X = np.ones((2, 3), np.float32)
T = Tensor(X)


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


SHAPES = [
    (lambda: T + ones(2, 4), "Add: shapes (2, 3) and (2, 4) do not broadcast"),
    (lambda: ops.matmul(T, ones(4, 2)), "MatMul: a's K must equal b's K of 4, got 3 (a (2, 3), b (4, 2))"),
    (lambda: nn.Dense(4, 2)(X), "MatMul: a's K must equal b's K of 4, got 3"),
    (lambda: ops.softmax(T, axis=5), "Softmax: axis must be in [-2, 2), got 5"),
    (lambda: T.reshape(4, 2), "Reshape: shape (4, 2) must hold the 6 elements of x.shape (2, 3), it holds 8"),
    (lambda: T.transpose(0, 0), "Transpose: perm must be a permutation of x's 2 dimensions, got (0, 0)"),
    (lambda: ops.concat([T, ones(3, 3)], 1), "Concat: x1.shape must equal x0.shape (2, 3) but for axis 1, got (3, 3)"),
    (lambda: ops.Split(1, 2)(T), "Split: dimension 1 of size 3 does not divide into 2 parts"),
    (lambda: ops.gather(T, np.array([7])), "Gather: indices[0] is 7, outside [0, 2)"),
    (lambda: nn.Embedding(4, 2)(np.array([9])), "Gather: indices[0] is 9, outside [0, 4)"),
    (lambda: ops.squeeze(T, 0), "Squeeze: dimension 0 must be 1, got 2"),
    (lambda: ops.expand_dims(T, 9), "ExpandDims: axis must be in [-3, 3), got 9"),
    (lambda: ops.layer_norm(T, (3,), ones(4), ones(3)), "LayerNorm: gamma.shape must be (3,), got (4,)"),
    (lambda: ops.mean(T, 4), "ReduceMean: axis must be in [-2, 2), got 4"),
    (lambda: T.reshape(2**32, 2**32), "Reshape: shape (4294967296, 4294967296) has more elements than memory can hold"),
    (lambda: ops.broadcast_to(T, (2**50, 2, 3)), "BroadcastTo: shape (1125899906842624, 2, 3) has more elements than"),
    (lambda: T.reshape(2**70, 1), f"Reshape: sizes and positions must fit 64 bits, got ({2**70}, 1)"),
    (lambda: opgraft.jit(lambda x: x.reshape(2**70, 1))(T), "trace: sizes and positions must fit 64 bits, got ("),
    (lambda: ops.broadcast_to(T, (3, 3)), "BroadcastTo: x.shape (2, 3) does not broadcast to (3, 3)"),
    (lambda: ops.Custom.from_op("SwiGLU")(X, ones(2, 4)), "SwiGLU: gate.shape must equal x.shape (2, 3), got (2, 4)"),
    (lambda: Tensor(X, shape=(3, 2)), "Tensor: shape must be the data's (2, 3), got (3, 2)"),
    (lambda: Parameter(X, "w").set_data(ones(3)), "Parameter w: shape must be (2, 3), got (3,)"),
    (lambda: ones(1) + Tensor(ones(*[1] * 9)), "a tensor has at most 8 dimensions, got 9"),
]
VALUES = [
    (lambda: ops.matmul(ones(3), T, True), "matmul: transpose_a must be False for a vector, got True for shape (3,)"),
    (lambda: T @ Tensor(1.0), "matmul: y must have at least 1 dimension, got shape ()"),
    (
        lambda: ops.layer_norm(T, 2),
        "layer_norm: normalized_shape must be x's last dimensions, got (2,) for shape (2, 3)",
    ),
    (lambda: ops.softmax(T, 2**70), f"Softmax: attribute axis must fit 64 bits, got {2**70}"),
    (
        lambda: ops.Custom.from_op("Transpose", perm=[0, -(2**70)])(X),
        f"Transpose: attribute perm must fit 64 bits, got {-(2**70)}",
    ),
    (lambda: ops.primitive("MaxDim", T, dim=7), "MaxDim: dim must be in [-2, 2), got 7"),
    (lambda: ops.gelu(T, "exact"), "GeLU: approximate must be 'tanh' or 'none', got 'exact'"),
    (lambda: ops.primitive("Add", T), "Add: takes 2 inputs, got 1"),
    (lambda: ops.Custom.from_op("SwiGLU")(X), "SwiGLU: takes 2 inputs, got 1"),
    (lambda: ops.concat([]), "Concat: takes at least 1 inputs, got 0"),
    (lambda: float(T), "Tensor.__float__: a tensor of shape (2, 3) has no single value"),
    (lambda: bool(T), "Tensor.__bool__: a tensor of shape (2, 3) has no single value"),
    (lambda: Tensor(), "Tensor: data, or both shape and dtype, must be given"),
    (lambda: Tensor([[1], [1, 2]]), "Tensor: data must be numbers of one shape"),
    (lambda: Tensor(shape=[-2], dtype="float32"), "Tensor: a shape's sizes must be None, opgraft.dim(name) or an int"),
    (lambda: Tensor(shape=[2], dtype="float32") + 1, "Add: inputs must have values, got a Tensor that only describes"),
    (lambda: Tensor(shape=[2], dtype="float32").asnumpy(), "Tensor.asnumpy: the value is not known"),
    (lambda: nn.Dense("a", 2), "Dense: in_channels must be an int of at least 1, got 'a'"),
    (
        lambda: nn.Dense(3, 2, activation="swish"),
        "Dense: activation must be a Cell or one of relu, gelu, silu, got 'swis",
    ),
    (lambda: nn.ReLU().set_train(), "Cell.set_train: opgraft runs inference only"),
    (lambda: opgraft.set_context(mode=5), "set_context: mode must be GRAPH_MODE (0) or PYNATIVE_MODE (1), got 5"),
    (lambda: opgraft.set_context(device_target="GPU"), "set_context: device_target must be 'CPU', got 'GPU'"),
    (
        lambda: opgraft.set_context(runtime_num_threads=-3),
        "set_context: runtime_num_threads must be an int of at least 0",
    ),
    (lambda: opgraft.get_context("nope"), "get_context: attr_key must be one of mode, device_target, got 'nope'"),
    (
        lambda: opgraft.export(nn.ReLU(), T, file_name="x", file_format="ONNX"),
        "file_format must be 'MINDIR', got 'ONNX'",
    ),
]
TYPES = [
    (lambda: ops.add(T, "a"), "Add: expected a Tensor or a number, got str"),
    (lambda: ops.add(1, 2), "Add: x or y must be a Tensor, got int and int"),
    (lambda: T + None, "unsupported operand type(s) for +: 'Tensor' and 'NoneType'"),
    (lambda: ops.relu([1.0]), "ReLU: x must be a Tensor, got list"),
    (
        lambda: ops.matmul(ones(2, 3, dtype=np.int32), ones(3, dtype=np.int32)),
        "matmul: x.dtype must be one of float32, float16, bfloat16, got int32",
    ),
    (lambda: T @ 2, "matmul: y must be a Tensor, got int"),
    (lambda: ops.primitive("Swiglu", T, dim={}), "Swiglu: attribute dim must be bool, int, float, str, or a list of"),
    (
        lambda: ops.Custom.from_op("SwiGLU")(X, np.full((2, 3), "a")),
        "SwiGLU: gate has the dtype <U1, which opgraft does not know",
    ),
    (lambda: ops.softmax(T, None), "softmax: axis must be an int, got None"),
    (lambda: ops.softmax(T, (0, 1)), "softmax: axis must be an int, got (0, 1)"),
    (lambda: ops.layer_norm(T, None), "layer_norm: normalized_shape must be an int, a tuple or a list, got None"),
    (
        lambda: ops.concat([T, T, ones(2, 3, dtype=np.int32)]),
        "Concat: xs[2].dtype must equal xs[0].dtype float32, got int32",
    ),
    (lambda: ops.stack([T, T.astype("float16")]), "Stack: xs[1].dtype must equal xs[0].dtype float32, got float16"),
    (lambda: ops.matmul(T, ones(3, 2, dtype=np.float16)), "MatMul: b.dtype must equal a.dtype float32, got float16"),
    (
        lambda: ops.softmax(ones(3, dtype=np.int64)),
        "Softmax: x.dtype must be one of float32, float16, bfloat16, got int64",
    ),
    (lambda: ops.gather(T, ones(1)), "Gather: indices.dtype must be one of int32, int64, got float32"),
    (lambda: ops.select(T, T, T), "Select: cond.dtype must be bool, got float32"),
    (lambda: ops.cast(T, "floaty"), "cast: dtype must be one of bool, int8"),
    (lambda: T.reshape("a"), "Reshape: sizes and positions must be int, got ('a',)"),
    (lambda: T.reshape(1.5, 4), "Reshape: sizes and positions must be int, got (1.5, 4)"),
    (lambda: opgraft.jit(lambda x: x.reshape("a"))(T), "trace: sizes and positions must be int, got ('a',)"),
    (
        lambda: ops.primitive("Softmax", T, axes=1),
        "Softmax: takes no argument 'axes'; it has inputs ['x'] and attributes",
    ),
    (lambda: ops.Softmax(axes=1), "Softmax: takes no attribute 'axes'; it has ['axis']"),
    (lambda: Tensor("x"), "Tensor: dtype must be one of bool, int8"),
    (lambda: Tensor(X, dtype="nope"), "Tensor: dtype must be one of bool, int8"),
    (lambda: Tensor(shape=3, dtype="float32"), "Tensor: shape must be a tuple or a list, got int"),
    (lambda: Tensor.from_numpy([1]), "Tensor.from_numpy: array must be a NumPy array, got list"),
    (lambda: Parameter(X, "w").set_data("abc"), "Parameter w: data.dtype must be one of bool, int8"),
    (lambda: len(Tensor(1.0)), "len: a tensor of shape () has no length"),
    (lambda: nn.SequentialCell(3), "SequentialCell: cells must be Cells, got int"),
    (lambda: nn.GraphCell(3), "GraphCell: graph must be a graph of opgraft.load, got int"),
    (lambda: nn.ReLU()(X, X), "construct() takes 2 positional arguments but 3 were given"),
    (lambda: nn.Dense(3, 2).load_parameters(3), "load_parameters: source must be a dict or a file, got int"),
    (lambda: opgraft.load_param_into_net(nn.ReLU(), 3), "load_param_into_net: parameter_dict must be a dict, got int"),
    (lambda: opgraft.export(3, T, file_name="x"), "export: net must be a Cell, got int"),
]
MISSING = [
    (lambda: opgraft.load("none.mindir"), "none.mindir: no such file"),
    (lambda: opgraft.load_checkpoint("none.npz"), "load_checkpoint: none.npz: no such file"),
    (lambda: opgraft.load_checkpoint("none.safetensors"), "load_checkpoint: none.safetensors: no such file"),
    (lambda: opgraft.load_op("none.so"), "none.so: no such file"),
    (lambda: ops.Custom("none.so:Op"), "none.so"),
]
OTHER = [
    (lambda: ops.primitive("NoSuch", T), "NoSuch: no such operator is registered"),
    (lambda: ops.Custom.from_op("NoSuch"), "NoSuch: no such operator is registered"),
    (lambda: opgraft.load_op(__file__), "not a shared object: no ELF magic at its start"),
]
# 2^46 elements, and more bytes than addresses.
TOO_MUCH = [
    (
        lambda: ops.broadcast_to(ones(1, 1), (2**23, 2**23)),
        "BroadcastTo: no memory for float32(8388608, 8388608), 281474976710656 bytes",
    ),
    (
        lambda: opgraft.jit(lambda x: ops.broadcast_to(x, (2**23, 2**23)))(ones(1, 1)),
        "no memory for float32(8388608, 8388608), 281474976710656 bytes",
    ),
]
TABLE = [(kind, f, text) for kind, rows in [(ValueError, SHAPES + VALUES), (TypeError, TYPES),
         (FileNotFoundError, MISSING), (RuntimeError, OTHER), (MemoryError, TOO_MUCH)] for f, text in rows]  # fmt: skip


@pytest.mark.parametrize("kind,f,text", TABLE, ids=[f"{k.__name__}-{t[:40]}" for k, _, t in TABLE])
def test_mistakes(kind, f, text):
    with pytest.raises(kind, match=re.escape(text)) as info:
        f()
    assert type(info.value) is kind


def test_a_loaded_model_names_the_input(tmp_path):
    spec = Tensor(shape=[opgraft.dim("rows"), 3], dtype="float32")
    cell = nn.GraphCell(opgraft.load(opgraft.export(nn.Dense(3, 2), spec, file_name=tmp_path / "dense")))
    for given, kind, text in [
        ((X, X), ValueError, "takes 1 inputs, got 2"),
        ((X.astype(np.float64),), TypeError, "x.dtype must be float32, got float64"),
        ((ones(2, 4),), ValueError, "x.shape must be (rows, 3), got (2, 4)"),
        ((ones(3),), ValueError, "x.shape must be (rows, 3), got (3,)"),
    ]:
        with pytest.raises(kind, match=re.escape(text)):
            cell(*given)


def test_a_traced_model_names_the_node():
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.head = nn.Dense(4, 2)

        def construct(self, x):
            return self.head(ops.tanh(x))

    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    with pytest.raises(ValueError, match=r"node head/MatMul: MatMul: a's K must equal b's K of 4, got 3"):
        Net()(X)
