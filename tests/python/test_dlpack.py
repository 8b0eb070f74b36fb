"""DLPack in both directions: the same memory, by its address."""

import gc

import ml_dtypes
import numpy as np
import pytest
from opgraft import Tensor, bfloat16, from_dlpack

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "float16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy(dtype):
    a = np.arange(6).reshape(2, 3).astype(dtype)
    there = np.from_dlpack(Tensor(a))
    back = from_dlpack(a)
    assert there.ctypes.data == a.ctypes.data == back.asnumpy().ctypes.data
    assert there.dtype == a.dtype == back.dtype and back.shape == (2, 3)
    strided = from_dlpack(a.T[::2])
    assert strided.asnumpy().ctypes.data == a.ctypes.data
    np.testing.assert_array_equal(strided.asnumpy(), a.T[::2])


def test_results_and_other_tensors():
    t = Tensor(np.ones(4, np.float32)) + 1
    assert np.from_dlpack(t).ctypes.data == t.asnumpy().ctypes.data == from_dlpack(t).asnumpy().ctypes.data
    assert t.__dlpack_device__() == (1, 0)


def test_bfloat16_between_tensors():
    a = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    t = from_dlpack(Tensor(a))
    assert t.dtype == bfloat16 and t.asnumpy().ctypes.data == a.ctypes.data


def test_refusals():
    with pytest.raises(TypeError, match="from_dlpack: dlpack must have __dlpack__, got list"):
        from_dlpack([1.0])
    with pytest.raises(ValueError, match="the value is not known while a graph is traced"):
        np.from_dlpack(Tensor(shape=[2], dtype="float32"))


def test_torch():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool):
        t = torch.arange(6).reshape(2, 3).to(dtype)
        here = from_dlpack(t)
        assert here.asnumpy().ctypes.data == t.data_ptr() and here.shape == (2, 3)
        assert here.asnumpy().tolist() == t.tolist()
        there = torch.from_dlpack(here)
        assert there.dtype == dtype and there.data_ptr() == t.data_ptr()
        t[0, 0] = 1
        assert there[0, 0] == 1 and here.asnumpy()[0, 0] == 1
        transposed = from_dlpack(t.T)
        assert transposed.asnumpy().ctypes.data == t.data_ptr() and transposed.asnumpy().tolist() == t.T.tolist()
    x = from_dlpack(torch.full((1000,), 2.0))
    gc.collect()
    np.testing.assert_array_equal((x + 1).asnumpy(), np.full(1000, 3.0, np.float32))
