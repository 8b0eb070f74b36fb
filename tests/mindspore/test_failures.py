"""What goes wrong in an operator of opgraft's inside MindSpore stands in the text of the Python exception."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from helpers import HERE
from mindspore import Tensor, nn

MODES = pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
INFERENCE = pytest.mark.parametrize("inference", ["cpp", "python"])
BUILD = pathlib.Path(opgraft.__file__).parents[2]


class Net(nn.Cell):
    def __init__(self, primitive):
        super().__init__()
        self.primitive = primitive

    def construct(self, *args):
        return self.primitive(*args)


def ones(*shape, dtype=np.float32):
    return Tensor(np.ones(shape, dtype))


def custom(spec, inference, **attrs):
    python = {"out_shape": lambda *shapes: shapes[0], "out_dtype": lambda *dtypes: dtypes[0]}
    return opgraft.mindspore.custom(spec, **attrs, **(python if inference == "python" else {}))


def text(primitive, *args):
    """What the exception of a call in a Cell says. PyNative tells what a kernel throws when its result is asked for."""
    with pytest.raises((RuntimeError, ValueError, TypeError)) as caught:
        Net(primitive)(*args).asnumpy()
    return str(caught.value)


@MODES
@INFERENCE
def test_a_shape_that_does_not_fit(inference, mode):
    ms.set_context(mode=mode)
    said = text(custom("SwiGLU", inference), ones(4, 6), ones(4, 7))
    assert "SwiGLU: gate.shape must equal x.shape (4, 6), got (4, 7)" in said


def test_a_shape_that_does_not_fit_within_open_dimensions():
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Net(custom("SwiGLU", "cpp"))
    net.set_inputs(*[Tensor(shape=[None, 6], dtype=ms.float32)] * 2)
    with pytest.raises(RuntimeError, match=r"SwiGLU: gate.shape must equal x.shape \(4, 6\), got \(5, 6\)"):
        net(ones(4, 6), ones(5, 6)).asnumpy()


@MODES
@INFERENCE
def test_a_dtype_that_does_not_fit(inference, mode):
    ms.set_context(mode=mode)
    said = text(custom("SwiGLU", inference), ones(4, 6), ones(4, 6, dtype=np.int32))
    # The engine's own inference, asked where Python infers, compares with op.yaml first.
    expected = "equal x.dtype float32" if inference == "cpp" else "be one of float32, float16, bfloat16"
    assert f"SwiGLU: gate.dtype must {expected}, got int32" in said


@MODES
@INFERENCE
def test_an_attribute_that_does_not_fit(inference, mode):
    ms.set_context(mode=mode)
    assert "ExpandDims: axis must be in [-3, 3), got 5" in text(custom("ExpandDims", inference, axis=5), ones(4, 6))


@MODES
@INFERENCE
def test_the_number_of_inputs(inference, mode):
    ms.set_context(mode=mode)
    said = text(custom("SwiGLU", inference), ones(4, 6))
    if mode == ms.PYNATIVE_MODE:
        assert "SwiGLU: takes 2 inputs (x, gate), got 1" in said
    else:  # MindSpore's own, which knows the primitive as Custom
        assert "Custom', the size of input should be 2, but got 1" in said
    assert ("takes 2 inputs (x, gate), got 3" in (said := text(custom("SwiGLU", inference), *[ones(4, 6)] * 3))
            or "Custom's input length is not equal to Signature length" in said)  # fmt: skip


@MODES
@INFERENCE
@pytest.mark.parametrize("where,what,message", [("init", "error", "Thrower: x must be right, got wrong"),
                                                ("workspace", "runtime_error", "Thrower: a runtime error"),
                                                ("kernel", "bad_alloc", "Thrower: out of memory"),
                                                ("body", "int", "Thrower: unknown exception")])  # fmt: skip
def test_what_init_workspace_and_kernel_throw(where, what, message, inference, mode):
    opgraft.load_op(str(BUILD / "tests" / "bad_ops" / "thrower.so"))
    ms.set_context(mode=mode)
    assert message in text(custom("Thrower", inference, where=where, what=what), ones(2))


LATER = """
import itertools, json, pathlib, sys
import mindspore as ms, numpy as np, opgraft, opgraft.mindspore
from test_failures import Net, custom
ms.set_device("CPU")
file = pathlib.Path(sys.argv[1])
opgraft.load_op(str(file))
cases = list(itertools.product((ms.PYNATIVE_MODE, ms.GRAPH_MODE), ("cpp", "python")))
primitives = [custom("Cube", inference) for _, inference in cases]
file.unlink()
if sys.argv[2] == "damaged":
    file.write_bytes(b"no ELF file")
for (mode, inference), primitive in zip(cases, primitives):
    ms.set_context(mode=mode)
    try:
        said = str(Net(primitive)(ms.Tensor(np.full(2, 2, np.float32))).asnumpy())
    except Exception as e:
        said = str(e)
    print(json.dumps([mode, inference, said]), flush=True)
try:
    opgraft.mindspore.custom("Cube")
except Exception as e:
    print(json.dumps([None, None, str(e)]))
"""


@pytest.mark.parametrize("after,why", [("gone", ["such file", "find"]), ("damaged", ["too short", "ELF"])])
def test_a_file_that_is_gone_or_damaged_when_it_is_called(after, why, tmp_path):
    """In a process of its own, as both opgraft and MindSpore keep what they have opened."""
    file = tmp_path / "cube.so"
    shutil.copy(BUILD / "tests" / "bad_ops" / "cube.so", file)
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(HERE)])
    done = subprocess.run([sys.executable, "-c", LATER, str(file), after], capture_output=True, text=True,
                          cwd=tmp_path, env=os.environ | {"PYTHONPATH": path})  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(rows) == 5, done.stdout + done.stderr[-2000:]
    for mode, inference, said in rows:
        if after == "damaged" and inference == "cpp":
            assert said == "[8. 8.]"  # the system takes the file of this name that opgraft has opened
            continue
        assert str(file) in said and any(w in said for w in why), (mode, inference, said)


def test_a_folder_that_mindspore_may_not_load_from(monkeypatch, tmp_path):
    monkeypatch.setenv("MS_CUSTOM_AOT_WHITE_LIST", str(tmp_path))
    with pytest.raises(RuntimeError, match=rf"SwiGLU: .*swiglu.so lies outside MS_CUSTOM_AOT_WHITE_LIST, '{tmp_path}'"):
        opgraft.mindspore.custom("SwiGLU")
