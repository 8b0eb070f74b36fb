"""Tensor: what it shares, its operators against NumPy, and what it refuses."""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opgraft import Parameter, Tensor, bfloat16, float32, ops
from opgraft.dtype import promote

FLOATS = [np.dtype(d) for d in (np.float32, np.float16, ml_dtypes.bfloat16)]


def address(x):
    return (x if isinstance(x, np.ndarray) else x.asnumpy()).ctypes.data


def same(got, want):
    """Equal, NaN included, which np.testing does not see in bfloat16."""
    np.testing.assert_array_equal(np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64))


def test_memory_is_shared():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    for t in (Tensor(a), Parameter(a), Tensor(Tensor(a)), Tensor.from_numpy(a), Tensor(a, dtype=float32)):
        assert address(t) == a.ctypes.data and t.shape == (2, 3)
    t = Tensor(a)
    a[0, 0] = 7
    assert t.asnumpy()[0, 0] == 7 and np.asarray(t).ctypes.data == a.ctypes.data
    strided = Tensor(a.T)
    assert address(strided) == a.ctypes.data and strided.asnumpy().strides == a.T.strides
    np.testing.assert_array_equal((strided + 0).asnumpy(), a.T)
    assert address(Tensor(a, dtype=np.float16)) != a.ctypes.data
    # A view comes back as the memory it was given, not as a copy.
    out = Tensor(a).reshape(3, 2)
    assert out.shape == (3, 2)
    np.testing.assert_array_equal(out.asnumpy(), a.reshape(3, 2))


def test_data_from_python():
    assert Tensor([1.0]).dtype == np.float32 and Tensor([1]).dtype == np.int64 and Tensor([True]).dtype == np.bool_
    assert Tensor(3.0).shape == () and Tensor([]).dtype == np.float32
    assert Tensor([[1, 2]], dtype="float16").dtype == np.float16
    np.testing.assert_array_equal((Tensor(np.ones(2, ">f4")) + 1).asnumpy(), [2, 2])
    assert float(Tensor([2.5])) == 2.5 and int(Tensor(3)) == 3 and bool(Tensor([True])) and Tensor([[4]]).item() == 4
    assert Tensor(np.zeros((2, 3))).ndim == 2 and Tensor(np.zeros((2, 3))).size == 6 and len(Tensor([1, 2])) == 2
    assert repr(Tensor([1.0, 2.0])) == "Tensor([1., 2.], dtype=float32)"
    assert repr(Tensor(shape=[2, 3], dtype=float32)) == "Tensor(shape=[2, 3], dtype=float32)"


def test_bfloat16():
    a = np.array([1.0, 1.00390625, -3.0, np.inf, np.nan], ml_dtypes.bfloat16)
    t = Tensor(a)
    assert t.dtype == bfloat16 == np.dtype(ml_dtypes.bfloat16) and address(t) == a.ctypes.data
    assert Tensor([1.5], dtype="bfloat16").asnumpy().dtype == ml_dtypes.bfloat16
    same(t + 1, a + ml_dtypes.bfloat16(1))
    np.testing.assert_array_equal(t.astype("float32").asnumpy(), a.astype(np.float32))
    assert (t + Tensor([1.0])).dtype == np.float32 and (t * 2).dtype == bfloat16
    # Rounded to nearest even, like ml_dtypes.
    f = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    np.testing.assert_array_equal(Tensor(f).astype(bfloat16).asnumpy(), f.astype(ml_dtypes.bfloat16))


def test_copies():
    t = Parameter(np.ones(2, np.float32), name="w", requires_grad=False)
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert isinstance(other, Parameter) and other.name == "w" and not other.requires_grad
        assert address(other) != address(t) and (other.asnumpy() == 1).all()


OPERATORS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip
NUMBERS = [0.0, -0.0, 1.0, -2.5, 3.0, np.inf, -np.inf, np.nan]


@st.composite
def operands(draw):
    """Two arrays whose shapes broadcast."""
    shape = draw(st.lists(st.integers(0, 4), min_size=0, max_size=4))
    shapes = []
    for _ in range(2):
        cut = draw(st.integers(0, len(shape)))
        shapes.append([draw(st.sampled_from([n, 1])) for n in shape[cut:]])
    dtype = draw(st.sampled_from([*FLOATS, np.dtype(np.int32), np.dtype(np.int64)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    pick = (lambda s: rng.integers(-5, 5, s)) if dtype.kind == "i" else (lambda s: rng.choice(NUMBERS, s))
    return [np.asarray(pick(s)).astype(dtype) for s in shapes]


@settings(max_examples=300, deadline=None)
@given(operands(), st.sampled_from(sorted(OPERATORS)))
def test_operators_are_numpys(arrays, name):
    f, (a, b) = OPERATORS[name], arrays
    got = f(Tensor(a), Tensor(b)).asnumpy()
    with np.errstate(all="ignore"):
        if name == "/" and a.dtype.kind == "i":
            want = a.astype(np.float32) / b.astype(np.float32)
        elif a.dtype.itemsize == 2:  # computed in float32, rounded once
            want = np.asarray(f(a.astype(np.float32), b.astype(np.float32)))
            want = want.astype(a.dtype) if want.dtype != np.bool_ else want
        else:
            want = np.asarray(f(a, b))
    assert got.shape == want.shape and got.dtype == want.dtype
    same(got, want)
    for mixed in (f(Tensor(a), b), f(a, Tensor(b))):  # an array on either side
        same(mixed, got)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers_take_the_tensors_dtype(dtype):
    a = np.array([1.0, 2.0, 4.0]).astype(dtype)
    t, f = Parameter(a), a.astype(np.float32)
    for got, want in [(2 / t - 1, 2 / f - 1), (-t * 3 + t, -f * 3 + f), (t**2, f**2), (2**t, 2**f), (1 - t, 1 - f),
                      (np.float32(2) * t, 2 * f)]:  # fmt: skip
        assert got.dtype == dtype
        # Powers of two and small whole numbers, exact in every float type.
        np.testing.assert_array_equal(got.asnumpy().astype(np.float32), want)
    assert (Tensor([1, 2]) + 0.5).dtype == np.float32 and (Tensor([1, 2]) + 1).dtype == np.int64
    assert ops.cast(t, "int32").dtype == np.int32


def test_matmul_on_either_side():
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(3, 4)
    for got in (Tensor(a) @ Tensor(b), Tensor(a) @ b, a @ Tensor(b)):
        np.testing.assert_array_equal(got.asnumpy(), a @ b)  # small whole numbers: exact


def test_promotion():
    f32, f16, bf16 = FLOATS
    assert promote(f16, bf16) == f32 and promote(f16, f32) == f32 and promote(bf16, np.dtype("int64")) == bf16
    assert promote(np.dtype("int32"), np.dtype("int64")) == np.int64 and promote(np.dtype(bool), f16) == f16
    for a in FLOATS:
        for b in FLOATS:
            assert (Tensor(np.ones(1, a)) + Tensor(np.ones(1, b))).dtype == promote(a, b) == promote(b, a)
