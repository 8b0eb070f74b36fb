import pathlib
import subprocess
import sys

import numpy as np
import opgraft
import pytest
from compare import SILU, close
from opgraft import Tensor, ops


def test_numpy_in_numpy_out_tensor_in_tensor_out():
    f = ops.Custom.from_op("SwiGLU")
    x = np.linspace(-2, 2, 5, dtype=np.float32)
    d = x.astype(np.float64)
    for _ in range(2):  # inferred, then remembered
        close(f(x, x), d * d / (1 + np.exp(-d)), SILU + 1)
    assert isinstance(f(Tensor(x), Tensor(x)), Tensor)


def test_a_path_loads_and_infers():
    path = next(o.path for o in opgraft._core.list_ops() if o.name == "SwiGLU")
    f = ops.Custom(f"{path}:SwiGLU", out_shape=lambda a, b: a, out_dtype=opgraft.float32)
    assert f(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)).shape == (2, 3)
    with pytest.raises(ValueError, match="has no op 'Nope'"):
        ops.Custom(f"{path}:Nope")
    with pytest.raises(ValueError, match="holds SwiGLU"):
        ops.Custom(path)


def test_errors_have_python_kinds():
    f = ops.Custom.from_op("SwiGLU")
    with pytest.raises(ValueError, match=r"gate.shape must equal x.shape \(4,\), got \(3,\)"):
        f(np.ones(4, np.float32), np.ones(3, np.float32))
    with pytest.raises(TypeError, match="dtype must be one of"):
        f(np.ones(4, np.int32), np.ones(4, np.int32))
    with pytest.raises(FileNotFoundError):
        ops.Custom("missing.so:Op")
    with pytest.raises(RuntimeError):
        ops.Custom.from_op("NoSuchOp")


def test_strided_inputs_are_served():
    f = ops.Custom.from_op("SwiGLU")
    x = np.arange(20, dtype=np.float32)[::2]
    np.testing.assert_array_equal(f(x, x), f(x.copy(), x.copy()))


def test_many_inputs_and_outputs():
    join, x = ops.Custom.from_op("Concat", axis=0), np.arange(2, dtype=np.float32).reshape(1, 2)
    for n in (32, 33, 70):
        np.testing.assert_array_equal(join(*[x] * n), np.repeat(x, n, 0))
        np.testing.assert_array_equal(join([x] * n), np.repeat(x, n, 0))
        got = join(*[x] * (n - 2), Tensor(x), x.T.copy().T)  # one is a Tensor, one has another layout
        assert isinstance(got, Tensor)
        np.testing.assert_array_equal(got.asnumpy(), np.repeat(x, n, 0))
    rows = np.arange(65 * 64, dtype=np.float32)
    parts = ops.Custom.from_op("Split", axis=0, output_num=64)(rows)
    np.testing.assert_array_equal(np.concatenate(parts), rows)
    for f in (lambda: ops.Custom.from_op("Split", axis=0, output_num=65)(rows), lambda: ops.Split(0, 65)(rows)):
        with pytest.raises(ValueError, match="Split: has more than 64 outputs"):
            f()


@pytest.mark.parametrize("wrap", [lambda x: x, Tensor])
def test_more_dimensions_than_an_operator_takes(wrap):
    x = wrap(np.ones((1,) * 9, np.float32))
    with pytest.raises(ValueError, match="SwiGLU: input 0 must have at most 8 dimensions, got 9"):
        ops.Custom.from_op("SwiGLU")(x, x)


def test_a_placeholder_has_no_value():
    f, spec, x = ops.Custom.from_op("SwiGLU"), Tensor(shape=[2], dtype="float32"), np.ones(2, np.float32)
    for call in (lambda v: f(spec, v), lambda v: f(v, spec), lambda v: ops.add(v, spec)):
        for run in (call, opgraft.jit(call)):
            with pytest.raises(ValueError, match="inputs must have values, got a Tensor that only describes"):
                run(x)


def test_library_is_a_file():
    assert all(pathlib.Path(o.path).is_file() for o in opgraft._core.list_ops())


HELD = """
import threading
import numpy as np
from opgraft import Parameter, Tensor, ops

n = 1 << 22  # large arrays lie in pages of their own: freed, they are gone
ones, p = np.ones(n, np.float32), Parameter(np.ones(n, np.float32), "w")


def out_shape(a, b):
    p.set_data(np.ones(n, np.float32))
    return a


path = ops.Custom.from_op("SwiGLU").op.path
print(float(ops.Custom(f"{path}:SwiGLU", out_shape)(p, Tensor(ones)).asnumpy()[-1]))
f, stop = ops.Custom.from_op("SwiGLU"), False


def replace():
    while not stop:
        p.set_data(np.ones(n, np.float32))


thread = threading.Thread(target=replace)
thread.start()
for _ in range(20):
    f(p, Tensor(ones))
stop = True
thread.join()
"""


def test_inputs_live_until_the_call_has_read_them():
    # A Parameter gets other data from out_shape, and from another thread while the kernel runs.
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    assert done.stdout == f"{np.float32(1 / (1 + np.exp(-1.0)))}\n"
