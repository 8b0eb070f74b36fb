"""Models exported by MindSpore: opgraft runs them, grafts them, and MindSpore runs the result."""

import json

import mindspore as ms
import numpy as np
import opgraft
import pytest
from helpers import close, optimize
from mindspore import Tensor
from models import MODELS, normal
from opgraft import _core, nn, rewrite


@pytest.fixture(autouse=True)
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(name, tmp_path):
    make, inputs, placeholders, sizes = MODELS[name]
    net = make()
    given = placeholders or [Tensor(a) for a in inputs(*sizes[0])]
    ms.export(net, *given, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    want = {size: net(*[Tensor(a) for a in inputs(*size)]).asnumpy() for size in sizes}
    plain = nn.GraphCell(graph)
    for size in sizes:
        close(plain(*[opgraft.Tensor(a) for a in inputs(*size)]).asnumpy(), want[size])
    names = [graph.value_name(v) for v in graph.inputs]
    np.savez(tmp_path / "inputs.npz", **dict(zip(names, inputs(*sizes[0]))))
    grafted = tmp_path / "grafted.mindir"
    optimize(
        tmp_path / "net.mindir", "-o", grafted, "--prove", tmp_path / "inputs.npz", "--report", tmp_path / "r.json"
    )
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["swapped"], report
    ours, back = nn.GraphCell(opgraft.load(grafted)), ms.nn.GraphCell(ms.load(str(grafted)))
    for size in sizes:
        close(ours(*[opgraft.Tensor(a) for a in inputs(*size)]).asnumpy(), want[size])
        close(back(*[Tensor(a) for a in inputs(*size)]).asnumpy(), want[size])


@pytest.mark.parametrize("name", ["mlp", "bert layer", "resnet bottleneck, open batch", "pools with padding"])
def test_written_as_it_was_read(name, tmp_path):
    """MindSpore's own primitives go through opgraft's file unchanged: the same bits."""
    make, inputs, placeholders, sizes = MODELS[name]
    net = make()
    ms.export(net, *(placeholders or [Tensor(a) for a in inputs(*sizes[0])]), file_name=str(tmp_path / "net"),
              file_format="MINDIR")  # fmt: skip
    _core.write_mindir(opgraft.load(tmp_path / "net.mindir"), str(tmp_path / "again.mindir"))
    back = ms.nn.GraphCell(ms.load(str(tmp_path / "again.mindir")))
    for size in sizes:
        given = [Tensor(a) for a in inputs(*size)]
        np.testing.assert_array_equal(back(*given).asnumpy(), net(*given).asnumpy())


def test_convolutions_written_by_opgraft(tmp_path):
    net = nn.SequentialCell(
        nn.Conv2d(3, 8, 3, 2, has_bias=True), nn.ReLU(), nn.MaxPool2d(3, 2, "pad", 1),
        nn.Conv2d(8, 8, (3, 2), pad_mode="pad", padding=(2, 1, 0, 1), dilation=(1, 2), group=8),
        nn.BatchNorm2d(8, 1e-3), nn.ReLU6(), nn.MaxPool2d(2, pad_mode="same"), nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, "pad", 1), nn.Flatten(),
    )  # fmt: skip
    x = normal(2, 3, 24, 30)
    file = opgraft.export(net, opgraft.Tensor(x), file_name=tmp_path / "net")
    back = ms.nn.GraphCell(ms.load(str(file)))
    close(back(Tensor(x)).asnumpy(), net(x).asnumpy())


@pytest.mark.parametrize("name", ["resnet bottleneck", "mobilenet block"])
def test_convolutions_take_in_what_follows_them(name, tmp_path):
    make, inputs, _, (size,) = MODELS[name]
    x = inputs(*size)[0]
    ms.export(make(), Tensor(x), file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    assert all(f" {op}(" in str(graph) for op in ("Conv2D", "BatchNorm", "Add"))
    rewrite.substitute(graph, prove=(x,))
    left = [op for op in ("Conv2D", "BatchNorm", "BiasAdd", "Add", "ReLU", "ReLU6") if f" {op}(" in str(graph)]
    assert not left, str(graph)


@pytest.mark.parametrize("dtype,name", [
    (ms.float16, "mlp"), (ms.bfloat16, "mlp"), (ms.float16, "resnet bottleneck"), (ms.float16, "mobilenet block"),
])  # fmt: skip
def test_half_weights(dtype, name, tmp_path):
    """MindSpore 2.10 has no bfloat16 MatMul on CPU: there the float32 model is what the others are compared with, and
    MindSpore runs the grafted model only."""
    make, inputs, _, (size,) = MODELS[name]
    net, x = make(), inputs(*size)[0]
    given, tolerance = Tensor(x, dtype), 1e-2
    want = net(Tensor(x)).asnumpy()
    net.to_float(dtype)
    for p in net.get_parameters():
        p.set_dtype(dtype)
    if dtype == ms.float16:
        want = net(given).asnumpy().astype(np.float32)
    else:
        with pytest.raises(TypeError, match=r"Select CPU operator\[MatMul\] fail! Unsupported data type!"):
            net(given).asnumpy()
    ms.export(net, given, file_name=str(tmp_path / "net"), file_format="MINDIR")
    graph = opgraft.load(tmp_path / "net.mindir")
    ours = opgraft.Tensor(x.astype(opgraft.float16 if dtype == ms.float16 else opgraft.bfloat16))
    close(nn.GraphCell(graph)(ours).asnumpy().astype(np.float32), want, tolerance)
    np.savez(tmp_path / "inputs.npz", **{graph.value_name(graph.inputs[0]): ours.asnumpy()})
    file, report = tmp_path / "grafted.mindir", tmp_path / "r.json"
    optimize(tmp_path / "net.mindir", "-o", file, "--prove", tmp_path / "inputs.npz", "--report", report)
    assert json.loads(report.read_text())["swapped"]
    close(nn.GraphCell(opgraft.load(file))(ours).asnumpy().astype(np.float32), want, tolerance)
    back = ms.nn.GraphCell(ms.load(str(file)))(given)
    assert back.dtype == dtype
    close(back.float().asnumpy(), want, tolerance)


def test_an_encrypted_model_is_refused(tmp_path):
    make, inputs, _, (size,) = MODELS["mlp"]
    ms.export(make(), *[Tensor(a) for a in inputs(*size)], file_name=str(tmp_path / "net"), file_format="MINDIR",
              enc_key=b"0123456789ABCDEF", enc_mode="AES-GCM")  # fmt: skip
    (file,) = tmp_path.glob("*.mindir")
    with pytest.raises(ValueError, match=r"the file is encrypted \(AES-GCM\); opgraft reads plain MindIR only"):
        opgraft.load(file)


class Branches(ms.nn.Cell):
    def construct(self, x):
        if x.sum() > 0:
            return x * 2
        return x + 1


def test_control_flow_is_refused(tmp_path):
    ms.export(Branches(), Tensor(np.ones(3, np.float32)), file_name=str(tmp_path / "net"), file_format="MINDIR")
    with pytest.raises(ValueError, match=r"calls the file's function .*; opgraft reads one graph, without calls"):
        opgraft.load(tmp_path / "net.mindir")


IMAGE, WINDOW = (1, 6, 6, 4), {"kernel_size": [2, 2], "strides": [2, 2], "pad_mode": "VALID"}


@pytest.mark.parametrize("name,shapes,attrs", [
    ("Dense", [(4, 8), (6, 8), (6,)], {"activation": "relu"}),
    ("Dense", [(4, 8), (8, 6), (6,)], {"transpose_b": False}),
    ("GeLU", [(4, 8)], {"approximate": "none"}), ("GeLUGrad", [(4, 8), (4, 8)], {"approximate": "none"}),
    ("Swiglu", [(4, 8)], {"gate_first": False}), ("SwigluGrad", [(4, 8), (4, 4)], {"gate_first": False}),
    ("RotaryPositionEmbedding", [(1, 2, 3, 8), (3, 4), (3, 4)], {"rotary_dim": 4}),
    ("RotaryPositionEmbeddingGrad", [(1, 2, 3, 8), (3, 4), (3, 4), (1, 2, 3, 8)], {"rotary_dim": 4}),
    ("LayerNormGrad", [(4, 8), (4, 8), (4, 1), (4, 1), (8,)],
     {"epsilon": 0.125, "begin_norm_axis": 1, "begin_params_axis": 1}),
    ("MaxPool", [IMAGE], {**WINDOW, "format": "NHWC"}), ("AvgPool", [IMAGE], {**WINDOW, "data_format": "NHWC"}),
    ("Conv2D", [IMAGE, (3, 3, 3, 4)], {"out_channel": 3, "kernel_size": [3, 3], "format": "NHWC"}),
    ("BatchNorm", [IMAGE, (4,), (4,), (4,), (4,)], {"is_training": False, "data_format": "NHWC"}),
])  # fmt: skip
def test_a_value_that_the_primitive_or_its_cpu_kernel_has_not_is_kept(name, shapes, attrs, tmp_path):
    """Written as a Custom; as MindSpore's primitive it would be ignored or refused there."""

    class Net(nn.Cell):
        def construct(self, *x):
            return opgraft.ops.primitive(name, *x, **attrs)

    arrays, file = [abs(normal(*s)) for s in shapes], str(tmp_path / "net.mindir")
    opgraft.export(Net(), *map(opgraft.Tensor, arrays), file_name=file)
    want = _core.run_op(_core.resolve(name), arrays, attrs)[0]
    for out in (ms.nn.GraphCell(ms.load(file))(*map(Tensor, arrays)),
                nn.GraphCell(opgraft.load(file))(*map(opgraft.Tensor, arrays))):  # fmt: skip
        np.testing.assert_array_equal((out[0] if isinstance(out, (tuple, list)) else out).asnumpy(), want)
