import ml_dtypes
import numpy as np
import pytest
from opgraft import Parameter, Tensor, bfloat16, from_dlpack, ops


def test_zero_copy():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.shares_memory(Tensor(a).asnumpy(), a)
    assert np.shares_memory(from_dlpack(Tensor(a)).asnumpy(), a)
    assert Tensor([1.0]).dtype == np.float32 and Tensor([1]).dtype == np.int64


def test_bfloat16():
    t = Tensor(np.ones(3, ml_dtypes.bfloat16)) + 1
    assert t.dtype == bfloat16 and (t.asnumpy() == 2).all()


@pytest.mark.parametrize(
    "index", [np.s_[0], np.s_[-1], np.s_[1:], np.s_[..., 1], np.s_[:, ::2], np.s_[None, :, 1], np.s_[:, -2:]]
)
def test_slicing(index):
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(Tensor(a)[index].asnumpy(), a[index])


def test_slicing_refuses():
    t = Tensor(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="step of dimension 0 must be positive, got -1"):
        t[::-1]
    with pytest.raises(IndexError, match="out of range"):
        t[2]


def test_operators():
    a = np.array([1.0, 2.0, 4.0], np.float32)
    t = Parameter(a)
    np.testing.assert_allclose((2 / t - 1).asnumpy(), 2 / a - 1)
    np.testing.assert_allclose((-t * 3 + t).asnumpy(), -a * 3 + a)
    assert ops.cast(t, "int32").dtype == np.int32
