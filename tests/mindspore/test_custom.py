"""opgraft.mindspore.custom as a MindSpore user uses a Custom: gradients, open dimensions, model files, attributes."""

import pathlib
import subprocess
import sys

import mindspore as ms
import numpy as np
import opgraft
import opgraft.mindspore
import pytest
from mindspore import Tensor, nn, ops
from mindspore.ops import CustomRegOp, DataType
from opgraft import _core

MODES = pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
BUILD = pathlib.Path(opgraft.__file__).parents[2]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Gated(nn.Cell):
    def __init__(self):
        super().__init__()
        self.swiglu = opgraft.mindspore.custom("SwiGLU")

    def construct(self, x, gate):
        return self.swiglu(x, gate)


def engine(name, *arrays, **attrs):
    return _core.run_op(_core.resolve(name), list(arrays), attrs)[0]


@MODES
def test_the_gradient_is_the_operator_that_backward_names(mode):
    opgraft.load_op(str(BUILD / "tests" / "bad_ops" / "cube.so"))
    ms.set_context(mode=mode)

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.cube = opgraft.mindspore.custom("Cube")

        def construct(self, x):
            return self.cube(x * 2.0)

    x = normal(3, 4)
    gradient = ops.grad(Net())(Tensor(x))
    np.testing.assert_array_equal(gradient.asnumpy(), np.float32(3) * (x * 2) * (x * 2) * np.float32(2))


def test_open_dimensions():
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Gated()
    net.set_inputs(*[Tensor(shape=[None, 6], dtype=ms.float32)] * 2)
    for rows in (4, 7, 1):
        x, gate = normal(rows, 6), normal(rows, 6, seed=1)
        np.testing.assert_array_equal(net(Tensor(x), Tensor(gate)).asnumpy(), engine("SwiGLU", x, gate))


def test_a_state_and_a_workspace_under_open_dimensions():
    """Init is called once, with unknown sizes: what depends on them is made at every launch."""
    ms.set_context(mode=ms.GRAPH_MODE)

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.matmul = opgraft.mindspore.custom("MatMul")

        def construct(self, x, y):
            return self.matmul(x, y)

    net = Net()
    net.set_inputs(*[Tensor(shape=[None, None], dtype=ms.float32)] * 2)
    for m, k, n in [(3, 5, 7), (64, 33, 20), (1, 2, 3)]:
        x, y = normal(m, k), normal(k, n, seed=1)
        np.testing.assert_array_equal(net(Tensor(x), Tensor(y)).asnumpy(), engine("MatMul", x, y))


@MODES
def test_attributes_by_trailing_arguments(mode):
    ms.set_context(mode=mode)
    info = CustomRegOp("SoftmaxTrailing").input(0, "x").output(0, "y").attr("axis", "required", "int")
    info = info.dtype_format(DataType.F32_Default, DataType.F32_Default).target("CPU").get_op_info()
    path = _core.resolve("Softmax").path

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.softmax = ops.Custom(f"{path}:Softmax", None, None, "aot", reg_info=info)

        def construct(self, x):
            return self.softmax(x, 0), self.softmax(x, 1)

    x = normal(3, 5)
    for got, axis in zip(Net()(Tensor(x)), (0, 1)):
        np.testing.assert_array_equal(got.asnumpy(), engine("Softmax", x, axis=axis))


@pytest.mark.parametrize("rows", [2, None])
def test_a_model_file_in_a_new_process(rows, tmp_path):
    ms.set_context(mode=ms.GRAPH_MODE)
    net, x, gate = Gated(), normal(2, 6), normal(2, 6, seed=1)
    shape = [Tensor(shape=[rows, 6], dtype=ms.float32)] * 2 if rows is None else [Tensor(x), Tensor(gate)]
    ms.export(net, *shape, file_name=str(tmp_path / "net"), file_format="MINDIR")
    np.savez(tmp_path / "in.npz", x=x, gate=gate)
    script = f"""
import mindspore as ms, numpy as np
ms.set_device("CPU")
given = np.load(r"{tmp_path}/in.npz")
net = ms.nn.GraphCell(ms.load(r"{tmp_path}/net.mindir"))
np.save(r"{tmp_path}/out.npy", net(ms.Tensor(given["x"]), ms.Tensor(given["gate"])).asnumpy())
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), engine("SwiGLU", x, gate))


@pytest.mark.parametrize("make,error,match", [
    (lambda: opgraft.mindspore.custom("SwiGLUU"), RuntimeError, "SwiGLUU"),
    (lambda: opgraft.mindspore.custom("Softmax", axes=1), ValueError, "Softmax: has no attribute 'axes', it has axis"),
    (lambda: opgraft.mindspore.custom("Softmax", axis={}), TypeError, "must be a number, a str, or a list of numbers"),
    (lambda: opgraft.mindspore.custom("Concat", axis=0), TypeError, "n_inputs must be given"),
    (lambda: opgraft.mindspore.custom("Dense", n_inputs=1), ValueError, "Dense: n_inputs must be 2 to 3, got 1"),
    (lambda: opgraft.mindspore.custom("Split", output_num=1), ValueError, "n_outputs must be given and at least 2"),
    (lambda: opgraft.mindspore.custom("ExpandDims"), TypeError, "ExpandDims: attribute axis must be given"),
])  # fmt: skip
def test_what_cannot_be_made_is_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()
