"""OpenVINO's CPU plugin, latency hint, inputs and outputs bound once; floats are computed in the row's own type."""

import ml_dtypes
import numpy as np
import openvino

from . import onnx_graph


def VERSION():
    return openvino.__version__.split("-")[0]


def array(tensor):
    # OpenVINO gives bfloat16 as NumPy's float16.
    data = np.array(tensor.data)
    return data.view(ml_dtypes.bfloat16) if tensor.element_type == openvino.Type.bf16 else data


def build(row, inputs, weights, threads):
    model, names, _ = onnx_graph.model(row, inputs, weights, "openvino")
    core = openvino.Core()
    net = core.read_model(model.SerializeToString())
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    # Else it computes float32 in bfloat16 where the machine has instructions for that.
    options["INFERENCE_PRECISION_HINT"] = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[row.dtype]
    options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0  # nor in int8 where weights are
    compiled = core.compile_model(net, "CPU", options)
    request = compiled.create_infer_request()
    for name, a in zip(names, inputs):
        shared = openvino.Tensor(a.view(np.uint16), a.shape, openvino.Type.bf16) if a.dtype.name == "bfloat16" else (
            openvino.Tensor(a, shared_memory=True))  # fmt: skip
        request.set_tensor(name, shared)
    kept = (inputs, core, compiled)  # the request borrows them

    def run():
        request.infer(share_outputs=True)  # else it copies each output into new memory

    def fetch():
        return [array(request.get_output_tensor(k)) for k in range(len(kept[2].outputs))]

    return run, fetch
