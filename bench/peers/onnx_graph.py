"""The ONNX model of a row, for the peers that read ONNX."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import Missing, as_list

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
         "int64": TensorProto.INT64, "int32": TensorProto.INT32, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8,
         "bool": TensorProto.BOOL}  # fmt: skip
OPSET = 21


class Graph:
    def __init__(self, dtype):
        self.dtype, self.nodes, self.constants = dtype, [], []

    def node(self, op, *inputs, outputs=1, domain="", **attrs):
        """Adds a node; -> the name of its output, or a list of names."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, domain=domain, **attrs))
        return names[0] if outputs == 1 else names

    def const(self, value):
        """A constant; Python floats and float32 arrays are of the row's type."""
        value = np.asarray(value)
        if value.dtype == np.float64:
            value = value.astype(np.float32)
        name = f"c{len(self.constants)}"
        self.constants.append(initializer(value if value.dtype != np.float32 else cast(value, self.dtype), name))
        return name


def cast(a, dtype):
    import ml_dtypes

    return a if dtype == "float32" else a.astype({"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[dtype])


def initializer(a, name):
    if a.dtype.name == "bfloat16":
        return helper.make_tensor(name, TensorProto.BFLOAT16, a.shape, a.tobytes(), raw=True)
    return numpy_helper.from_array(a, name)


def model(row, inputs, weights, peer):
    """(the model, the inputs' names, the outputs'); where row.sparse, its weights are inputs behind the others."""
    if row.onnx is None or peer in row.missing:
        raise Missing(row.missing.get(peer) or row.missing.get("onnx", "no ONNX form"))
    g = Graph(row.dtype)
    names = [f"x{k}" for k in range(len(inputs))]
    held = [f"w{k}" for k in range(len(weights))]
    outputs = as_list(row.onnx(g, *names, *held))
    sparse = weights if row.sparse else []
    graph = helper.make_graph(
        g.nodes,
        "row",
        [helper.make_tensor_value_info(n, TYPES[a.dtype.name], a.shape) for n, a in zip(names, inputs)]
        + [helper.make_sparse_tensor_value_info(n, TYPES[w.dtype.name], w.shape) for n, w in zip(held, sparse)],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [initializer(w, n) for n, w in zip(held, [] if row.sparse else weights)] + g.constants,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET),
                                                   helper.make_opsetid("com.microsoft", 1)])  # fmt: skip
    made.ir_version = 10
    made = onnx.shape_inference.infer_shapes(made)
    return made, names + held[: len(sparse)], outputs
