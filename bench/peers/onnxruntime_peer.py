"""ONNX Runtime's CPU provider, all optimisations, inputs and outputs bound once."""

import onnxruntime

from . import onnx_graph


def VERSION():
    return onnxruntime.__version__


def build(row, inputs, weights, threads):
    model, names, outputs = onnx_graph.model(row, inputs, weights, None)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # What is no standard operator's output type is inferred by ONNX Runtime itself.
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, a in zip(names, inputs):
        if a.dtype.name == "bfloat16":
            value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(a, onnx_graph.TYPES["bfloat16"])
        else:
            value = onnxruntime.OrtValue.ortvalue_from_numpy(a)
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        binding.bind_output(name)
    kept = (inputs, binding)  # the binding may borrow the arrays

    return lambda: session.run_with_iobinding(kept[1]), lambda: [v.numpy() for v in binding.get_outputs()]
