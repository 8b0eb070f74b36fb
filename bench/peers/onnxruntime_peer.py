"""ONNX Runtime's CPU provider, all optimisations, inputs and outputs bound once."""

import ctypes

import ml_dtypes
import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_inference_collection import OrtDevice

from . import onnx_graph


def VERSION():
    return onnxruntime.__version__


def value(a):
    if a.dtype.name == "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(a, onnx_graph.TYPES["bfloat16"])
    return onnxruntime.OrtValue.ortvalue_from_numpy(a)


def csr(a):
    """The matrix without its zeros."""
    rows, columns = np.ascontiguousarray(np.nonzero(a))
    starts = np.searchsorted(rows, np.arange(a.shape[0] + 1))
    made = onnxruntime.SparseTensor.sparse_csr_from_numpy(
        np.array(a.shape, np.int64), a[rows, columns], columns, starts, OrtDevice.make("cpu", 0)
    )
    return onnxruntime.OrtValue.ort_value_from_sparse_tensor(made)


def array(v):
    if v.element_type() != onnx_graph.TYPES["bfloat16"]:
        return v.numpy()
    # It has no array of a type that NumPy has not: a copy of the bytes.
    raw = ctypes.string_at(v.data_ptr(), v.tensor_size_in_bytes())
    return np.frombuffer(raw, ml_dtypes.bfloat16).reshape(v.shape())


def build(row, inputs, weights, threads):
    model, names, outputs = onnx_graph.model(row, inputs, weights, "onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # What is no standard operator's output type is inferred by ONNX Runtime itself.
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    given = [value(a) for a in inputs] + [csr(w) for w in (weights if row.sparse else [])]
    for name, v in zip(names, given):
        binding.bind_ortvalue_input(name, v)
    for name in outputs:
        binding.bind_output(name)
    kept = (inputs, given, binding)  # the binding may borrow the arrays

    return lambda: session.run_with_iobinding(kept[2]), lambda: [array(v) for v in binding.get_outputs()]
